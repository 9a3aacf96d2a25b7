"""`lamina train`: from a data folder to checkpoints."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from lamina import console
from lamina.config.train_options import TrainConfig
from lamina.fields import flatten

if TYPE_CHECKING:
    from lamina.training.run import Run


def run(config: TrainConfig) -> None:
    if config.print_config:
        import yaml

        values = {name: value for name, value in flatten(config).items() if name not in ("print-config", "config", "user-dir")}
        yaml.safe_dump(values, sys.stdout, sort_keys=False, allow_unicode=True)
        return
    # Here, not above: --help and --print-config answer without loading torch.
    from lamina.distributed.signals import saves_wait

    with console.lasting_output(), saves_wait():
        _run(config)


def _run(config: TrainConfig) -> None:
    import torch

    from lamina.distributed.launch import joined, num_to_start, start_ranks

    is_on_gpu = torch.cuda.is_available() and not config.precision.cpu
    number = num_to_start(config.ranks, os.environ, torch.cuda.device_count() if is_on_gpu else 0)
    if number > 1:
        console.notice(f"starting {number} processes, one for each {'GPU' if is_on_gpu else 'part of the data'}")
        start_ranks(number, run, config)
        return
    from lamina.distributed.agreement import check_agreement
    from lamina.training.folder_lock import only_run_in
    from lamina.training.loop import train
    from lamina.training.memory_limit import advise_when_short
    from lamina.training.run import Run

    with joined(config.ranks, is_on_gpu=is_on_gpu) as ranks, advise_when_short(config):
        check_agreement(config, ranks)
        with only_run_in(Path(config.saving.save_dir)) if ranks.is_first and config.saving.is_on else nullcontext():
            training = Run(config, ranks)
            try:
                introduce(training)
                train(training)
            finally:
                training.reporter.close()


def introduce(run: Run) -> None:
    """The opening lines: what is trained, on what, in which batches."""
    config, note = run.config, run.reporter.note
    for vocabulary, language in zip(run.task.vocabularies, run.task.languages, strict=True):
        note(f"[{language}] dictionary: {len(vocabulary)} types")
    feed = run.train_feed(run.progress.epoch)
    epoch = run.progress.epoch
    num_left_out = len(feed.too_long.indices)
    more = f"; {num_left_out} more are left out, too long" if num_left_out else ""
    note(f"{feed.corpus.name}: {len(feed.corpus) - num_left_out} {feed.corpus.unit} in {len(feed.plan(epoch))} batches, "
         f"{100 * feed.padding_share(epoch):.1f} % padding{more}")
    note(f"model {config.arch}, criterion {config.optimization.criterion.name}, device {run.device}, "
         f"{str(run.dtype).removeprefix('torch.')}")
    num_params = sum(parameter.numel() for parameter in run.model.parameters())
    note(f"num. model params: {num_params} (num. trained: {num_params})")
    note(effective_batch(run))
    num_batches = run.update_freq(run.progress.epoch) * run.ranks.size
    if run.layer_drop.is_on and not run.layer_drop.is_by_batch and num_batches > 1 and not config.ranks.is_sharded:
        note(f"LayerDrop draws once for the {num_batches} batches of an update; --layerdrop-draws batch draws for each, and "
             "mostly learns faster (docs/layerdrop.md)")


def effective_batch(run: Run) -> str:
    batches, freq = run.config.batches, run.update_freq(run.progress.epoch)
    limit, unit, name = (batches.max_tokens, "tokens", "max-tokens") if batches.max_tokens is not None else (
        batches.max_sentences, "sentences", "batch-size")
    assert limit is not None, "the configuration asks for one of the two"
    size = run.ranks.size
    return (f"effective batch: up to {limit * freq * size} {unit} ({name} {limit} x update-freq {freq} x {size} "
            f"{'rank' if size == 1 else 'ranks'})")

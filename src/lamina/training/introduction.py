"""The opening lines of a run: what is trained, on what, in which batches."""

from __future__ import annotations

from lamina.config.train_options import TrainConfig
from lamina.cuda_graphs.train_pass import COST_OF_EAGER
from lamina.training.run import Run


def introduce(run: Run) -> None:
    config, note = run.config, run.reporter.note
    for vocabulary, language in zip(run.task.vocabularies, run.task.languages, strict=True):
        note(f"[{language}] dictionary: {len(vocabulary)} types")
    epoch = run.progress.epoch
    feed = run.feeds.train(epoch)
    num_left_out = len(feed.too_long.indices)
    more = f"; {num_left_out} more are left out, too long" if num_left_out else ""
    note(f"{feed.corpus.name}: {len(feed.corpus) - num_left_out} {feed.corpus.unit} in {len(feed.plan(epoch))} batches, "
         f"{100 * feed.padding_share(epoch):.1f} % padding{more}")
    note(f"model {config.arch}, criterion {run.validator.criterion.name}, device {run.ranks.device}, "
         f"{str(run.dtype).removeprefix('torch.')}")
    num_params = sum(parameter.numel() for parameter in run.model.parameters())
    num_trained = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
    note(f"num. model params: {num_params} (num. trained: {num_trained})")
    freq = run.feeds.update_freq(epoch)
    note(effective_batch(config, freq, run.ranks.size))
    num_batches = freq * run.ranks.size
    if run.layer_drop is not None:
        once = num_batches > 1 and not run.layer_drop.is_by_batch
        for_what = f"once for the {num_batches} batches of an update" if once else "once for each batch"
        note(f"LayerDrop draws layers {for_what}; --layerdrop-draws sentence learns better and is faster (docs/layerdrop.md)")
        if run.ranks.device.type == "cuda" and config.precision.cuda_graphs:
            note("updates that leave out whole layers are eager, since each has other kernels than what is captured. "
                 f"{COST_OF_EAGER}")


def effective_batch(config: TrainConfig, freq: int, size: int) -> str:
    batches = config.batches
    limit, unit, name = (batches.max_tokens, "tokens", "max-tokens") if batches.max_tokens is not None else (
        batches.max_sentences, "sentences", "batch-size")
    assert limit is not None, "the configuration asks for one of the two"
    return (f"effective batch: up to {limit * freq * size} {unit} ({name} {limit} x update-freq {freq} x {size} "
            f"{'rank' if size == 1 else 'ranks'})")

"""`lamina train`: from a data folder to checkpoints."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

from lamina import console
from lamina.config.train_options import TrainConfig
from lamina.fields import flatten


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
    from lamina.training.introduction import introduce
    from lamina.training.loop import train
    from lamina.training.memory_limit import advise_when_short
    from lamina.training.run import open_run

    with joined(config.ranks, is_on_gpu=is_on_gpu) as ranks, advise_when_short(config):
        check_agreement(config, ranks)
        with only_run_in(Path(config.saving.save_dir)) if ranks.is_first and config.saving.is_on else nullcontext():
            training = open_run(config, ranks)
            try:
                introduce(training)
                train(training)
            finally:
                training.reporter.close()

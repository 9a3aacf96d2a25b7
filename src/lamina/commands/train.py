"""`lamina train`: from a data folder to checkpoints."""

from __future__ import annotations

import os
import sys

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

    from lamina.distributed.launch import num_to_start, start_ranks
    from lamina.training.whole_run import is_for_gpu, run_training

    is_on_gpu = is_for_gpu(config)
    number = num_to_start(config.ranks, os.environ, torch.cuda.device_count() if is_on_gpu else 0)
    if number > 1:
        console.notice(f"starting {number} processes, one for each {'GPU' if is_on_gpu else 'part of the data'}")
        start_ranks(number, run, config)
        return
    run_training(config, after=lambda run: None)

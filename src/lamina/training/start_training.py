"""A training run as a command starts it: in this process, or in as many as there are GPUs."""

from __future__ import annotations

import os

from lamina import console
from lamina.config.train_options import TrainConfig
from lamina.distributed.signals import saves_wait
from lamina.garbage import no_garbage_collection


def start_training(config: TrainConfig) -> None:
    """Returns when the run is over, in all of its processes."""
    with console.lasting_output(), saves_wait():
        _start(config)


def _start(config: TrainConfig) -> None:
    # Here, not above: a signal that comes while torch is loaded waits until there is something to save.
    with no_garbage_collection():
        import torch

        from lamina.distributed.launch import num_to_start, start_ranks
        from lamina.training.whole_run import is_for_gpu, run_training

    is_on_gpu = is_for_gpu(config)
    number = num_to_start(config.ranks, os.environ, torch.cuda.device_count() if is_on_gpu else 0)
    if number > 1:
        console.notice(f"starting {number} processes, one for each {'GPU' if is_on_gpu else 'part of the data'}")
        start_ranks(number, start_training, config)
        return
    run_training(config, after=lambda run: None)

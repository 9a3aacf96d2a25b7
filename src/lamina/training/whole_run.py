"""A run from the first meeting of its ranks to the last line, as `lamina train` and `lamina.train` start it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

import torch

from lamina.config.train_options import TrainConfig
from lamina.distributed.agreement import check_agreement
from lamina.distributed.launch import joined
from lamina.nn.compiling import prepare_compiler
from lamina.nn.linear import keep_few_kernels
from lamina.training.compute_type import products_of_float32
from lamina.training.events import Callback
from lamina.training.folder_lock import only_run_in
from lamina.training.function_loss import FunctionLoss
from lamina.training.introduction import introduce
from lamina.training.loop import train
from lamina.training.memory_limit import advise_when_short
from lamina.training.run import Run, open_run

T = TypeVar("T")


def is_for_gpu(config: TrainConfig) -> bool:
    return torch.cuda.is_available() and not config.precision.cpu


def run_training(config: TrainConfig, callbacks: Sequence[Callback] = (), criterion: FunctionLoss | None = None, *,
                 after: Callable[[Run], T]) -> T:
    """This process's part of it; `after` looks at the run while all ranks are still together."""
    if not is_for_gpu(config):
        keep_few_kernels()
    elif config.precision.compiles:
        prepare_compiler()
    with joined(config.ranks, is_on_gpu=is_for_gpu(config)) as ranks, advise_when_short(config), \
            products_of_float32(config.precision):
        check_agreement(config, ranks)
        with only_run_in(Path(config.saving.save_dir)) if ranks.is_first and config.saving.is_on else nullcontext():
            run = open_run(config, ranks, callbacks, criterion)
            try:
                introduce(run)
                train(run)
                return after(run)
            finally:
                run.profiler.close()
                run.reporter.close()

"""Whether --fsdp gives a layer's gathered weights back when it has run, or keeps them: chosen by memory, unless the run says.

Weights that stay let passes be captured, and are gathered once in an update. A layer that gives them back is gathered twice in
each pass, by code on the host that small models wait for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from lamina.config.train_options import BY_BATCH, TrainConfig
from lamina.distributed.ranks import Ranks
from lamina.init.deferred import deferred
from lamina.tasks.base import Task
from lamina.training.freezing import freeze_
from lamina.training.memory_plan import GIB, bytes_of_state

# The rest is for activations, the larger part where batches fill the memory; and at the start, when weights are whole in
# float32, it is half as much again.
LARGEST_SHARE = 0.25


class Resharding(NamedTuple):
    is_on: bool
    why: str = ""  # a line for the log, where the run did not say it


def resharding(config: TrainConfig, model: nn.Module, dtype: torch.dtype, num_ranks: int, memory: int | None) -> Resharding:
    """`memory` is that of the smallest GPU, in bytes; None: without GPUs. The model may be on the meta device."""
    options = config.ranks
    if options.reshards is not None:
        return Resharding(options.reshards)
    if config.model.mixing.reads_layers:
        return Resharding(False, f"--fsdp keeps gathered weights: {config.model.mixing.spelled} reads a layer's before it runs")
    if config.optimization.layer_drop_draws == BY_BATCH:
        return Resharding(False, "--fsdp keeps gathered weights: with --layerdrop-draws batch, ranks run different layers")
    if options.fsdp_size is not None:
        return Resharding(True, "--fsdp gathers weights layer by layer: --fsdp-size shares them among some ranks")
    if memory is None:
        return Resharding(True, "--fsdp gathers weights layer by layer: without a GPU, passes are not captured")
    held = sum(bytes_of_state(config, model, dtype, num_ranks, num_ranks, reshards=False).values())
    sizes = f"{held / GIB:.2f} GiB of a GPU's {memory / GIB:.1f} for weights, gradients and optimizer"
    if held <= LARGEST_SHARE * memory:
        return Resharding(False, f"--fsdp keeps gathered weights, which takes {sizes} (--reshard-after-forward saves memory)")
    return Resharding(True, f"--fsdp gathers weights layer by layer: keeping them would take {sizes}, more than a quarter "
                            "(--no-reshard-after-forward is faster where it fits)")


def resharding_of_run(config: TrainConfig, task: Task, dtype: torch.dtype, ranks: Ranks) -> Resharding:
    """The same on all ranks, also where their GPUs differ."""
    model, _ = deferred(task.build_model)
    freeze_(model, config.optimization.freeze, lambda _: None)
    memory = memory_of(ranks.device)
    return resharding(config, model, dtype, ranks.size, None if memory is None else min(ranks.gather([memory])))


def memory_of(device: torch.device) -> int | None:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None

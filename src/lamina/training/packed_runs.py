"""Whether a run's batches are packed into rows of one shape, which is what its captured updates replay."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lamina.config.train_options import TrainConfig
from lamina.cuda_graphs.train_pass import COST_OF_EAGER
from lamina.nn.packed_attention import why_no_float32
from lamina.traits import PAIRS


def is_packed(config: TrainConfig, dtype: torch.dtype, device: torch.device, note: Callable[[str], object]) -> bool:
    """Where attention has kernels for it."""
    if not config.precision.packs or device.type != "cuda":
        return False
    if dtype != torch.float32:
        return True
    model, has_dropout = config.model, config.model.dropout.attention_p > 0.0
    for stack in (getattr(model, name) for name in config.kind.stacks):
        if reason := why_no_float32(device, stack.model_dim // stack.num_heads, has_dropout=has_dropout):
            note("batches are not packed, since attention over packed rows has no kernels for float32 here: "
                 f"{reason}. Where shapes of batches do not come again, updates are eager. {COST_OF_EAGER}")
            return False
    return True


def was_packed(config: TrainConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether such a run was packed when checkpoints did not say yet how their batches were ordered."""
    return (config.precision.packs and device.type == "cuda" and dtype != torch.float32 and config.kind.has(PAIRS)
            and config.batches.max_tokens is not None)

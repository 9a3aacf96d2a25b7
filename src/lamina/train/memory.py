"""What to do when a batch does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lamina.config.train import TrainConfig
from lamina.errors import MemoryShortageError


@contextmanager
def advise_when_short(config: TrainConfig) -> Iterator[None]:
    """One line with a way out, instead of the allocator's report."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise MemoryShortageError(f"the GPU's memory ran out. Try: {'; '.join(_remedies(config))}. Checkpoints written so far "
                                  "are whole: the same command goes on from them.") from None


def _remedies(config: TrainConfig) -> list[str]:
    batches, precision = config.batches, config.precision
    name, limit = ("--max-tokens", batches.max_tokens) if batches.max_tokens else ("--batch-size", batches.max_sentences)
    assert limit is not None, "the configuration asks for one of the two"
    remedies = [f"{name} {max(limit // 2, 1)} with --update-freq {2 * config.optimization.update_freq[0]}, which keeps the "
                "effective batch"]
    if not precision.checkpoint_activations:
        remedies.insert(0, "--checkpoint-activations, which computes what it does not keep again")
    if not (precision.fp16 or precision.bf16):
        remedies.append("--bf16")
    return remedies

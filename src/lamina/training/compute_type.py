"""The type that a run computes in: what was asked for, as far as the device has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lamina.config.train_options import PrecisionConfig


@contextmanager
def products_of_float32(precision: PrecisionConfig) -> Iterator[None]:
    """Inside, they are what --tf32 says; without it, what they were before."""
    before = torch.get_float32_matmul_precision()
    if precision.tf32:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def compute_type(precision: PrecisionConfig, device: torch.device, note: Callable[[str], object], *,
                 has_bf16: bool | None = None) -> torch.dtype:
    """`has_bf16`: of a GPU that is not here to be asked."""
    if precision.tf32 and device.type == "cpu":
        note("--tf32 has no effect without a GPU: computing in float32")
    if precision.fp16 and device.type == "cpu":
        note("--fp16 has no effect without a GPU: computing in float32")
        return torch.float32
    if precision.fp16:
        return torch.float16
    if device.type == "cpu":
        return torch.bfloat16 if precision.bf16 else torch.float32
    # Not emulated: that would be slower than float32.
    if has_bf16 is None:
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    if precision.bf16 and not has_bf16:
        note("--bf16 is not supported by this GPU: computing in float32; --fp16 would be faster")
        return torch.float32
    return torch.bfloat16 if has_bf16 and not (precision.fp32 or precision.tf32) else torch.float32

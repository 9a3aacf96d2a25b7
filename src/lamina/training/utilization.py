"""Model FLOPs utilization: the share of a device's arithmetic that training makes use of (Chowdhery et al. 2022, §4.1).

What counts is what the model needs: two operations for each weight of a matrix and each token, and twice as many for the
gradient. What `--checkpoint-activations` computes again does not count, nor do the scores of attention, which are few at the
lengths of sentences: the figure is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lamina.nn.parameter_kinds import MATRICES, parameters_of

OPERATIONS_PER_WEIGHT = 6.0  # forward 2, backward 4
# Dense TFLOP/s in half precision, from the makers' data sheets, by what torch calls the device. The first that fits counts.
TFLOPS = (("B200", 2250.0), ("H200", 989.0), ("H100 PCIe", 756.0), ("H100 NVL", 835.0), ("H100", 989.0), ("A100", 312.0),
          ("A30", 165.0), ("A10", 125.0), ("A40", 149.7), ("L40S", 362.0), ("L4", 121.0), ("V100", 125.0), ("T4", 65.0))


def flops_per_target(model: Any, sources_per_target: float, rates: Sequence[Sequence[float]]) -> float | None:
    """Of forward and backward, per token that the loss counts; None where targets do not tell how much was computed.

    That is so without a decoder, whose every place is a target, and with an adaptive softmax, which reads a part of its
    matrices for each. `rates` are LayerDrop's, of each encoder layer and of each decoder layer.
    """
    if not hasattr(model, "decoder") or model.head.host_sizes(None) is None:
        return None
    total = float(model.head.output_weight.numel())
    by_side = dict(zip(("encoder", "decoder"), rates, strict=True))
    for own in parameters_of(model):
        if own.kind not in (MATRICES, "projections"):
            continue
        side, _, inside = own.name.partition(".layers.")
        share = 1.0 - by_side[side][int(inside.partition(".")[0])] if inside and side in by_side else 1.0
        total += torch.Size(own.shape).numel() * share * (sources_per_target if side == "encoder" else 1.0)
    return OPERATIONS_PER_WEIGHT * total


def peak_flops(device: torch.device, dtype: torch.dtype, told: float | None) -> float | None:
    """Operations per second of one device; None where it is not known."""
    if told is not None:
        return told * 1e12
    if device.type != "cuda" or dtype == torch.float32:
        return None
    name = torch.cuda.get_device_name(device)
    return next((tflops * 1e12 for known, tflops in TFLOPS if known in name), None)


def utilization_per_speed(model: Any, sizes: Sequence[Any], rates: Sequence[Sequence[float]], peak: float | None,
                          num_devices: int) -> float | None:
    """MFU for each target per second; `sizes` are the lengths of a corpus's examples, of each of its sides."""
    if peak is None:
        return None
    flops = flops_per_target(model, float(sizes[0].sum()) / max(float(sizes[-1].sum()), 1.0), rates)
    return None if flops is None else flops / (peak * num_devices)

"""What each layer is worth, in one pass over the data: guesses that cost a search's first step, or less."""

# N tokens that are no padding, D model_dim

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lamina.analysis.probes import LayerStates, watch_layer_states
from lamina.config.keep import SIDES
from lamina.nn.attention import kernels_for_any_length
from lamina.nn.stack import stacks_of
from lamina.pruning.layer_meter import LayerMeter
from lamina.pruning.subsets import Subset
from lamina.training.loss import batch_loss


class Ranked(NamedTuple):
    """The layers that stay, and by which numbers: each layer's worth, or of blocks that of the block that begins there."""

    subset: Subset
    worth: Mapping[str, Sequence[float]]  # by stack


def rank_layers(kind: str, meter: LayerMeter, depths: tuple[int, int],
                advance: Callable[[int], object] = lambda _: None) -> Ranked:
    """So many layers of each stack stay; `advance` is told of each batch."""
    worth = _KINDS[kind](meter, depths, advance)
    kept = []
    for side, layers, depth in zip(SIDES, meter.whole, depths, strict=True):
        own = worth.get(side, ())
        gone = range(0) if len(layers) == depth else _CHOICES[kind](own, len(layers) - depth)
        kept.append(tuple(layer for layer in layers if layer not in gone))
    return Ranked(Subset(*kept), worth)


@torch.no_grad()
def influences(meter: LayerMeter, depths: tuple[int, int], advance: Callable[[int], object]) -> dict[str, list[float]]:
    """1 - the mean cosine between a layer's input and its output, over all tokens (Men et al. 2024, eq. 1)."""
    return _means(_states(meter, advance), lambda states, side: [
        1.0 - _cosines(before, after) for before, after in zip(states.inputs, states.outputs, strict=True)])


@torch.no_grad()
def angular_distances(meter: LayerMeter, depths: tuple[int, int], advance: Callable[[int], object]) -> dict[str, list[float]]:
    """The angle, in units of pi, between what enters a block of as many layers as are to go, and what leaves it.

    Gromov et al. 2024, eq. 3. Deviates: the mean is over all tokens instead of each text's last one.
    """
    sizes = {side: len(layers) - depth for side, layers, depth in zip(SIDES, meter.whole, depths, strict=True)}

    def distances(states: LayerStates, side: str) -> list[Tensor]:
        size = sizes[side]
        return [_cosines(states.inputs[first], states.outputs[first + size - 1]).clamp(-1.0, 1.0).acos() / math.pi
                for first in range(len(states.inputs) - size + 1)] if size else []

    return _means(_states(meter, advance), distances)


@torch.no_grad()
def loss_differences(meter: LayerMeter, depths: tuple[int, int], advance: Callable[[int], object]) -> dict[str, list[float]]:
    """How much the loss of a token rises, in bits, where one layer is left out."""
    sums: dict[tuple[str, int] | None, float] = dict.fromkeys([None, *(
        (side, layer) for side, layers in zip(SIDES, meter.whole, strict=True) for layer in layers)], 0.0)
    num_tokens = 0
    meter.model.eval()
    for batch in meter.batches:
        for left_out in sums:
            subset = meter.whole if left_out is None else meter.whole.without(*left_out)
            with kernels_for_any_length():
                sums[left_out] += batch_loss(meter.model, batch, meter.criterion, subset.active(meter.whole)).nll.item()
        num_tokens += batch.num_target_tokens
        advance(1)
    whole = sums[None]
    return {side: [(sums[side, layer] - whole) / num_tokens / math.log(2) for layer in layers]
            for side, layers in zip(SIDES, meter.whole, strict=True) if layers}


def _least(worth: Sequence[float], number: int) -> Sequence[int]:
    return sorted(range(len(worth)), key=lambda layer: (worth[layer], layer))[:number]


def _nearest_block(worth: Sequence[float], number: int) -> Sequence[int]:
    first = min(range(len(worth)), key=lambda start: (worth[start], start))
    return range(first, first + number)


_KINDS = {"influence": influences, "angular": angular_distances, "loss": loss_differences}
_CHOICES = {"influence": _least, "angular": _nearest_block, "loss": _least}


def _states(meter: LayerMeter, advance: Callable[[int], object]) -> Iterator[dict[str, LayerStates]]:
    """What enters and leaves each layer, batch by batch."""
    model: nn.Module = meter.model.eval()
    for batch in meter.batches:
        with watch_layer_states(model) as found, kernels_for_any_length():
            model(*batch.inputs)  # type: ignore[union-attr]
        yield {side: found[side] for side in stacks_of(model)}
        advance(1)


def _means(found: Iterator[dict[str, LayerStates]],
           measure: Callable[[LayerStates, str], list[Tensor]]) -> dict[str, list[float]]:
    """Over the tokens of all batches, of each number that `measure` tells of each token."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    for batch in found:
        for side, states in batch.items():
            if own := measure(states, side):
                total = torch.stack([numbers.double().sum() for numbers in own]).cpu()
                sums[side] = total + sums.get(side, 0.0)
                counts[side] = counts.get(side, 0) + own[0].numel()
    return {side: (total / counts[side]).tolist() for side, total in sums.items()}


def _cosines(one: Tensor, other: Tensor) -> Tensor:
    return torch.cosine_similarity(one.float(), other.float(), dim=-1)

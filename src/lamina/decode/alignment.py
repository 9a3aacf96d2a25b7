"""Which source positions each token of a hypothesis looked at, read off one pass over the finished hypothesis."""

# B rows, S source, T target

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from lamina.decode.backtrace import Hypothesis
from lamina.decode.scoring import pad_targets
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.attention import MemoryAttention
from lamina.nn.stack import ALL_LAYERS, ActiveLayers


def attention_of(models: Sequence[EncoderDecoder], source: Tensor, hypotheses: list[list[Hypothesis]],
                 active: ActiveLayers = ALL_LAYERS) -> None:
    """Fill in each hypothesis's `attention`: that of the last active decoder layer, the mean of its heads and of all models."""
    rows = [row for row, found in enumerate(hypotheses) for _ in found]
    flat = [hypothesis for found in hypotheses for hypothesis in found]
    target_in, _ = pad_targets([hypothesis.ids for hypothesis in flat], source.device)
    repeated = source[torch.tensor(rows, device=source.device)]
    weights = torch.stack([cross_attention(model, repeated, target_in, active) for model in models]).mean(dim=0).cpu()
    for hypothesis, own in zip(flat, weights, strict=True):
        hypothesis.attention = own[: len(hypothesis.ids)]


def cross_attention(model: EncoderDecoder, source: Tensor, target_in: Tensor, active: ActiveLayers = ALL_LAYERS) -> Tensor:
    """The last active decoder layer's. (B, T, S); 0 on padding"""
    layers, runs = model.decoder.layers, active.decoder
    last: Any = layers[-1] if runs is None else [layer for layer, is_on in zip(layers, runs, strict=True) if is_on][-1]
    return attention_weights(model, last.cross_attention, source, target_in, active)


@torch.no_grad()
def attention_weights(model: EncoderDecoder, attention: MemoryAttention, source: Tensor, target_in: Tensor,
                      active: ActiveLayers = ALL_LAYERS) -> Tensor:
    """How much the queries of a part of the model look at each source position. (B, T, S); 0 on padding"""
    seen: list[Tensor] = []
    own_thread = get_ident()

    def watch(attention: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(attention, MemoryAttention)
        if get_ident() == own_thread:  # passes of other threads go by unseen
            seen.append(attention.weights(*inputs[:3]))  # how the queries lie is not asked

    hook = attention.register_forward_pre_hook(watch)
    try:
        model(source, target_in, active)
    finally:
        hook.remove()
    return seen[0][:, :, : source.size(1)]  # the memory may have padding behind it (layout.whole_vectors)


def alignment_of(attention: Tensor, source_ids: Sequence[int], skipped: Sequence[int]) -> list[tuple[int, int]]:
    """(source position, target position) of each token but the last, </s>: where it looked most, `skipped` ids left out."""
    may_align = torch.tensor([token not in skipped for token in source_ids])
    if not may_align.any():
        return []
    best = attention[:-1].masked_fill(~may_align, -torch.inf).argmax(dim=1).tolist()
    return [(position, place) for place, position in enumerate(best)]

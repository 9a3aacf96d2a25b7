"""What the decoder's layers and the softmax read of the encoder, read off a trained model."""

# B batch, S source, T target

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lamina.data.batching import Batch
from lamina.decode.alignment import attention_weights, cross_attention
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.cross_entropy import Term
from lamina.nn.fusion import FINAL, LayerAttention, LayerWise
from lamina.nn.heads import AttendedSurface, HardMix, SurfaceHead
from lamina.text.vocabulary import EOS, PAD, SPECIAL_SYMBOLS, UNK

EMBEDDING, INPUT = "embedding", "input"


def layer_name(number: int) -> str:
    """Of a layer, counted from 1 as people do."""
    return f"layer {number}"


class FusionWeights(NamedTuple):
    """How much of each encoder column every decoder layer reads."""

    columns: tuple[str, ...]
    shares: np.ndarray  # (decoder layers, columns); a row sums to 1
    spread: np.ndarray  # likewise: standard deviation over channels, 0 where all channels share a weight


def column_names(memory: LayerAttention, num_layers: int) -> tuple[str, ...]:
    """In the order of the mix."""
    with_embedding = (EMBEDDING,) if memory.reads_embedding else ()
    with_input = (INPUT,) if memory.first_state == 0 else ()
    return (*with_embedding, *with_input, *(layer_name(number + 1) for number in range(num_layers)))


@torch.no_grad()
def fusion_weights(model: EncoderDecoder) -> FusionWeights | None:
    """None where every decoder layer reads the encoder's output and nothing else."""
    num_layers, memory = len(model.encoder.layers), model.memory
    if isinstance(memory, LayerWise):
        columns = tuple(INPUT if state == 0 else layer_name(state) for state in range(num_layers + 1))
        reads = np.array([num_layers if state == FINAL else state for state in memory.reads])
        shares = np.eye(num_layers + 1)[reads]
        first = 0 if 0 in reads else 1
        return FusionWeights(columns[first:], shares[:, first:], np.zeros_like(shares[:, first:]))
    if not isinstance(memory, LayerAttention):
        return None
    by_channel = torch.stack([memory.shares(reader).double() for reader in range(len(memory.weight))]).cpu()
    if by_channel.dim() == 2:
        by_channel = by_channel[:, :, None]
    spread = by_channel.std(dim=2, correction=0)
    return FusionWeights(column_names(memory, num_layers), by_channel.mean(dim=2).numpy(), spread.numpy())


class Gates(NamedTuple):
    """The gate of hard surface fusion at each target position of some data, and the token that stood there."""

    tokens: np.ndarray  # (N,)
    values: np.ndarray  # (N,): the weight of the decoder's own scores


def mixes_hard(model: EncoderDecoder) -> bool:
    return isinstance(model.head, SurfaceHead) and isinstance(model.head.mix, HardMix)


@torch.no_grad()
def gates(model: EncoderDecoder, batches: Iterable[Batch], advance: Callable[[int], object] = lambda number: None) -> Gates:
    """A fixed gate has the same value everywhere."""
    assert isinstance(model.head, SurfaceHead), "a head without a source side has no gate"
    tokens, values = [], []
    seen: list[float | Tensor] = []

    def watch(mix: nn.Module, inputs: Any, terms: list[Term]) -> None:
        seen.append(terms[0].weight)

    hook = model.head.mix.register_forward_hook(watch)
    try:
        for batch in batches:
            model(*batch.inputs)
            gate, is_token = seen.pop(), batch.target_out.ne(PAD)
            gate = gate[:, :, 0] if isinstance(gate, Tensor) else torch.full(is_token.shape, gate, dtype=torch.float64)
            tokens.append(batch.target_out[is_token].cpu().numpy())
            values.append(gate.double().cpu()[is_token.cpu()].numpy())
            advance(batch.num_sentences)
    finally:
        hook.remove()
    return Gates(np.concatenate(tokens), np.concatenate(values))


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class FrequencyBin(NamedTuple):
    """Tokens that are about as frequent, and how some value is distributed over their occurrences."""

    name: str
    num_tokens: int
    mean: float
    quantiles: tuple[float, ...]


def by_frequency(tokens: np.ndarray, values: np.ndarray, counts: Sequence[int]) -> list[FrequencyBin]:
    """Tokens by the number of digits of their count: 0, 1-9, 10-99, ...; <unk> and </s>, which nobody counts, stand alone."""
    digits = np.array([len(str(count)) if count > 0 else 0 for count in counts])
    bins = [("not counted" if number == 0 else f"{10 ** (number - 1)}–{10**number - 1}", (digits == number)[tokens])
            for number in range(int(digits.max(initial=0)) + 1)]
    specials = [(SPECIAL_SYMBOLS[symbol], tokens == symbol) for symbol in (UNK, EOS)]
    is_special = (tokens == UNK) | (tokens == EOS)
    chosen = [(name, values[own & ~is_special]) for name, own in bins] + [(name, values[own]) for name, own in specials]
    return [FrequencyBin(name, len(own), float(own.mean()), tuple(np.quantile(own, QUANTILES).tolist()))
            for name, own in chosen if len(own)]


class SourceAttention(NamedTuple):
    """Where each target token looks in its source."""

    weights: np.ndarray  # (T, S), the mean of the heads
    is_of_head: bool  # of the surface head; otherwise of the last decoder layer


def source_attention(model: EncoderDecoder, source: Tensor, target_in: Tensor) -> SourceAttention:
    """Of one sentence. source: (1, S); target_in: (1, T)"""
    surface = getattr(model.head, "surface", None)
    if isinstance(surface, AttendedSurface):
        return SourceAttention(attention_weights(model, surface.attention, source, target_in)[0].cpu().numpy(), True)
    return SourceAttention(cross_attention(model, source, target_in)[0].cpu().numpy(), False)

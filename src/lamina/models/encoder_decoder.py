"""The encoder-decoder Transformer."""

# B batch, S source, T target, K beams, V vocabulary, D model_dim

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lamina.models.contract import Model
from lamina.nn.cache import KeyValues, LayerCache, StepState, put_rows_, select_rows, widened
from lamina.nn.cache import Rows as StateRows
from lamina.nn.cross_entropy import Term, joined_term
from lamina.nn.embedding import InputEmbedding
from lamina.nn.fusion import Memory
from lamina.nn.heads import VocabularyHead
from lamina.nn.joined_states import JoinedState
from lamina.nn.layout import AnyLayout, FlatLayout, Layout, lay_out, whole_vectors
from lamina.nn.prepacked import Prepacked
from lamina.nn.stack import ALL_LAYERS, ActiveLayers, DecoderLayer, LayerStack, StackOutput, split_output
from lamina.packed import Rows


class Encoded(NamedTuple):
    """A batch of sources, as its readers see it."""

    output: StackOutput
    layout: AnyLayout
    ids: Tensor  # (B, S)


def spread_output(output: StackOutput, flat: FlatLayout) -> StackOutput:
    """As padded rows."""
    states = tuple(None if state is None else flat.spread(state) for state in output.states)
    return StackOutput(flat.spread(output.final), states, flat.spread(output.embedding))


@dataclass(kw_only=True)
class DecoderState(StepState):
    """Besides its own past, what the decoder reads of the sources."""

    layout: Layout
    surface: Any  # what the head reads

    def keep_(self, rows: StateRows) -> None:
        super().keep_(rows)
        self.layout, self.surface = select_rows((self.layout, self.surface), rows)

    def put_(self, rows: Tensor, other: StepState) -> None:
        assert isinstance(other, DecoderState)
        super().put_(rows, other)
        put_rows_((self.layout, self.surface), rows, (other.layout, other.surface))

    def widen_(self, other: StepState) -> None:
        assert isinstance(other, DecoderState)
        super().widen_(other)
        self.layout, self.surface = widened((self.layout, self.surface), (other.layout, other.surface))


class EncoderDecoder(Model):
    """Blocks only: what they are and how they are shared was decided in models/build.py."""

    def __init__(self, *, source_embedding: InputEmbedding, encoder: LayerStack, target_embedding: InputEmbedding,
                 decoder: LayerStack, memory: Memory, head: VocabularyHead, pad_id: int, max_source_positions: int,
                 max_target_positions: int) -> None:
        super().__init__()
        self.source_embedding = source_embedding
        self.encoder = encoder
        self.target_embedding = target_embedding
        self.decoder = decoder
        self.memory = memory  # what cross-attention reads
        self.head = head  # what the softmax reads
        self.pad_id = pad_id
        self.max_source_positions = max_source_positions
        self.max_target_positions = max_target_positions

    def encode(self, source: Rows, active: ActiveLayers = ALL_LAYERS) -> Encoded:
        ids, layout = lay_out(source, self.pad_id)
        return Encoded(self._encode(ids, layout, active), layout, ids)

    def _encode(self, ids: Tensor, layout: AnyLayout | FlatLayout, active: ActiveLayers) -> StackOutput:
        return self.encoder(self.source_embedding(ids, layout),
                            lambda layer, index, x, *kept: layer(x, layout, *kept), active.encoder)

    def forward(self, source: Rows, target_in: Rows, active: ActiveLayers = ALL_LAYERS) -> list[Term]:  # type: ignore[override]
        """What the head says of each target position; training/loss.py or `log_probs` turns it into numbers."""
        encoded = self.encode(source, active)
        ids, layout = lay_out(target_in, self.pad_id)
        memory, memory_layout = self.memory.prepare(encoded.output), encoded.layout
        output = self.decoder(
            self.target_embedding(ids, layout),
            lambda layer, index, x, *kept: layer(x, layout, self.memory(memory, index), memory_layout, *kept),
            active.decoder)
        return self.head.terms(output, self.head.start(*encoded), layout)

    @property
    def output_weight(self) -> Tensor | Prepacked:
        return self.head.output_weight

    def log_probs(self, source: Rows, target_in: Rows, *, active: ActiveLayers = ALL_LAYERS) -> Tensor:
        """Log-probabilities of each next token. source: (B, S), padded left or right; target_in: (B, T) -> (B, T, V)"""
        return self.head.log_probs(self(source, target_in, active))

    @torch.no_grad()
    def start(self, source: Tensor, max_length: int | None = None, num_beams: int = 1,
              active: ActiveLayers = ALL_LAYERS) -> DecoderState:
        """Encode a batch and prepare for at most `max_length` target tokens of `num_beams` hypotheses each."""
        padded = Layout.of_ids(source, self.pad_id)
        flat = FlatLayout.of(source, padded)
        output = self._encode(source if flat is None else flat.ids, padded if flat is None else flat, active)
        memory = self.memory.prepare(output)
        layers: list[LayerCache | None] = []
        own_layout = layout = (padded if flat is None else flat.wide).as_bias(output.final.dtype)
        for index, layer in enumerate(self.decoder.layers):
            if active.decoder is not None and not active.decoder[index]:
                layers.append(None)
                continue
            assert isinstance(layer, DecoderLayer)
            attention = layer.cross_attention
            projected = attention.project(self.memory(memory, index))
            projected, layout = whole_vectors(projected if flat is None else flat.spread(projected), own_layout)
            keys, values = (part.contiguous() for part in attention.halves(projected))
            like = keys.new_empty(0, layer.attention.out_proj.in_features)
            layers.append(LayerCache(KeyValues(len(source), num_beams, layer.attention.num_heads, like), (keys, values)))
        if flat is not None:
            output = spread_output(output, flat)
            source = F.pad(source, (0, own_layout.is_pad.size(1) - source.size(1)), value=self.pad_id)
        return DecoderState(layers=layers, steps=source.new_zeros(len(source)), num_beams=num_beams,
                            max_length=max_length or self.max_target_positions, active=active, layout=layout,
                            surface=self.head.start(output, own_layout, source))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: DecoderState | JoinedState[DecoderState], temperature: float = 1.0) -> Tensor:
        """Feed each beam its next token; log-probabilities of the one after. tokens: (B, K) -> (B, K, V), or (B,) -> (B, V)"""
        ids = tokens.view(len(tokens), -1)
        places = state.begin()
        embedded = self.target_embedding.step(ids, places)
        turn, layout = state.turn(places, embedded.input.dtype), state.layout
        output = self.decoder(embedded, lambda layer, index, x: layer.step(x, state.layers[index], turn, layout),
                              state.active.decoder)
        state.end()
        scores = self.head.log_probs(self._terms(output, state), temperature)
        return scores if tokens.dim() == 2 else scores[:, 0]

    def _terms(self, output: StackOutput, state: DecoderState | JoinedState[DecoderState]) -> list[Term]:
        if isinstance(state, DecoderState):
            return self.head.terms(output, state.surface)
        sizes, surfaces = state.part("surface")
        if all(surface is None for surface in surfaces):
            return self.head.terms(output)
        # What a head reads of the source is as wide as the group's sources.
        parts = [self.head.terms(own, surface) for own, surface in zip(split_output(output, sizes), surfaces, strict=True)]
        return [joined_term(own, sizes) for own in zip(*parts, strict=True)]

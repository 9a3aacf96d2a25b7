"""The encoder-decoder Transformer."""

# B batch, S source, T target, V vocabulary, D model_dim

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lamina.nn.cache import KeyValues, LayerCache
from lamina.nn.embedding import InputEmbedding
from lamina.nn.heads import LinearHead, Term, log_probs
from lamina.nn.layout import Layout
from lamina.nn.stack import DecoderLayer, LayerStack, StackOutput


class Encoded(NamedTuple):
    """A batch of sources, as whoever reads them sees it."""

    output: StackOutput
    layout: Layout


@dataclass
class DecoderState:
    """What stepwise decoding carries from one token to the next."""

    encoded: Encoded
    layers: list[LayerCache]
    length: int = 0


class EncoderDecoder(nn.Module):
    """Blocks only: what they are and how they are shared was decided in models/build.py."""

    def __init__(self, *, source_embedding: InputEmbedding, encoder: LayerStack, target_embedding: InputEmbedding,
                 decoder: LayerStack, head: LinearHead, pad_id: int, max_source_positions: int,
                 max_target_positions: int) -> None:
        super().__init__()
        self.source_embedding = source_embedding
        self.encoder = encoder
        self.target_embedding = target_embedding
        self.decoder = decoder
        self.head = head
        self.pad_id = pad_id
        self.max_source_positions = max_source_positions
        self.max_target_positions = max_target_positions

    def encode(self, source: Tensor) -> Encoded:
        layout = Layout.of_ids(source, self.pad_id)
        embedded = self.source_embedding(source, layout)
        return Encoded(self.encoder(embedded, lambda layer, index, x: layer(x, layout)), layout)

    def forward(self, source: Tensor, target_in: Tensor) -> list[Term]:
        """What the head says of each target position; train/loss.py or `log_probs` turns it into numbers."""
        encoded = self.encode(source)
        embedded = self.target_embedding(target_in, Layout.of_ids(target_in, self.pad_id))
        memory = encoded.output.final
        output = self.decoder(embedded, lambda layer, index, x: layer(x, memory, encoded.layout))
        return self.head.terms(output, encoded.output, encoded.layout)

    @property
    def output_weight(self) -> Tensor:
        return self.head.table.weight

    def log_probs(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Log-probabilities of each next token. source: (B, S), padded left or right; target_in: (B, T) -> (B, T, V)"""
        return log_probs(self(source, target_in), self.output_weight)

    @torch.no_grad()
    def start(self, source: Tensor, max_length: int | None = None) -> DecoderState:
        """Encode a batch and set memory aside for `max_length` target tokens."""
        encoded = self.encode(source)
        max_length = max_length or self.max_target_positions
        layers = []
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            keys, values = layer.cross_attention.project(encoded.output.final)
            past = KeyValues.empty(keys, len(source), keys.size(1), max_length, keys.size(3))
            layers.append(LayerCache(past, (keys, values)))
        return DecoderState(encoded, layers)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed each row its next token; log-probabilities of the one after. tokens: (B,) -> (B, V)"""
        embedded = self.target_embedding.step(tokens[:, None], state.length)
        output = self.decoder(embedded, lambda layer, index, x: layer.step(x, state.layers[index], state.encoded.layout))
        state.length += 1
        return log_probs(self.head.terms(output, state.encoded.output, state.encoded.layout), self.output_weight)[:, -1]

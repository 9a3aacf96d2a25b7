"""The decoder-only Transformer: a language model, which predicts each token from those before it."""

# B batch, T tokens, K beams, V vocabulary, D model_dim

from __future__ import annotations

import torch
from torch import Tensor

from lamina.models.contract import Model
from lamina.nn.cache import KeyValues, StepState
from lamina.nn.cross_entropy import Term
from lamina.nn.embedding import InputEmbedding
from lamina.nn.heads import VocabularyHead
from lamina.nn.layout import Layout, lay_out
from lamina.nn.prepacked import Prepacked
from lamina.nn.stack import ALL_LAYERS, ActiveLayers, CausalLayer, LayerStack
from lamina.packed import Rows

READ_AT_ONCE = 64  # tokens of a prompt that look at the vocabulary together


class DecoderOnly(Model):
    """Blocks only: what they are and how they are shared was decided in models/build.py."""

    def __init__(self, *, target_embedding: InputEmbedding, decoder: LayerStack, head: VocabularyHead,
                 pad_id: int, max_target_positions: int) -> None:
        super().__init__()
        self.target_embedding = target_embedding
        self.decoder = decoder
        self.head = head
        self.pad_id = pad_id
        self.max_target_positions = max_target_positions

    def forward(self, tokens: Rows, active: ActiveLayers = ALL_LAYERS) -> list[Term]:  # type: ignore[override]
        """What the head says of the token after each place. tokens: (B, T), padded on the right, or texts in a flat row"""
        ids, layout = lay_out(tokens, self.pad_id)
        output = self.decoder(self.target_embedding(ids, layout),
                              lambda layer, index, x, *kept: layer(x, layout, *kept), active.decoder)
        return self.head.terms(output)

    @property
    def output_weight(self) -> Tensor | Prepacked:
        """Of the whole vocabulary, which an adaptive head does not have in one piece."""
        return self.head.output_weight

    def log_probs(self, tokens: Tensor, *, active: ActiveLayers = ALL_LAYERS) -> Tensor:
        """Log-probabilities of the token after each place. (B, T) -> (B, T, V)"""
        return self.head.log_probs(self(tokens, active))

    @torch.no_grad()
    def start(self, tokens: Tensor, max_length: int | None = None, num_beams: int = 1,
              active: ActiveLayers = ALL_LAYERS) -> StepState:
        """Prepare for at most `max_length` tokens of `num_beams` texts each; of `tokens` (B, ...) only the number counts."""
        layers = []
        for layer in self.decoder.layers:
            assert isinstance(layer, CausalLayer)
            like = next(self.parameters()).new_empty(0, layer.attention.out_proj.in_features)
            layers.append(KeyValues(len(tokens), num_beams, layer.attention.num_heads, like))
        return StepState(layers=layers, steps=torch.zeros(len(tokens), dtype=torch.long, device=tokens.device),
                         num_beams=num_beams, max_length=max_length or self.max_target_positions, active=active)

    @torch.no_grad()
    def read(self, tokens: Tensor, target: Tensor, state: StepState, temperature: float = 1.0) -> Tensor:
        """Feed each text its first tokens at once; the log-probability of `target`, the token after each. (B, T) -> (B, T)"""
        assert state.length == 0, "the first tokens come first"
        embedded = self.target_embedding(tokens, Layout.of_ids(tokens, self.pad_id))
        state.reserve_(tokens.size(1))
        output = self.decoder(embedded, lambda layer, index, x: layer.read(x, state.layers[index]), state.active.decoder)
        state.read_(tokens.size(1))
        (term,) = self.head.terms(output)
        # A few places at a time, so that the whole (B, T, V) is never there.
        parts = [self.head.log_probs([term._replace(features=features)], temperature).gather(2, own[:, :, None])[:, :, 0]
                 for features, own in zip(term.features.split(READ_AT_ONCE, dim=1), target.split(READ_AT_ONCE, dim=1),
                                          strict=True)]
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: StepState, temperature: float = 1.0) -> Tensor:
        """Feed each beam its next token; log-probabilities of the one after. tokens: (B, K) -> (B, K, V), or (B,) -> (B, V)"""
        ids = tokens.view(len(tokens), -1)
        places = state.begin()
        embedded = self.target_embedding.step(ids, places)
        turn = state.turn(places, embedded.input.dtype)
        output = self.decoder(embedded, lambda layer, index, x: layer.step(x, state.layers[index], turn),
                              state.active.decoder)
        state.end()
        scores = self.head.log_probs(self.head.terms(output), temperature)
        return scores if tokens.dim() == 2 else scores[:, 0]

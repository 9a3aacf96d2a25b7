"""The encoder-only Transformer: it reads both sides of a gap (BERT, RoBERTa)."""

# B batch, T tokens, N masked tokens, V vocabulary, D model_dim, C classes

from __future__ import annotations

from torch import Tensor, nn

from lamina.models.contract import Model
from lamina.nn.cross_entropy import Term
from lamina.nn.embedding import InputEmbedding
from lamina.nn.encoder_heads import MaskedHead, SentenceHead
from lamina.nn.layout import lay_out
from lamina.nn.stack import ALL_LAYERS, ActiveLayers, LayerStack, StackOutput
from lamina.packed import Packed, Rows


class MaskedModel(Model):
    """Blocks only, as in EncoderDecoder. `classifiers` are sentence heads by name; a pretrained model has none."""

    head: MaskedHead

    def __init__(self, *, embedding: InputEmbedding, encoder: LayerStack, head: MaskedHead,
                 classifiers: dict[str, SentenceHead], pad_id: int, max_positions: int,
                 frame: tuple[int, int] = (-1, -1)) -> None:
        super().__init__()
        self.source_embedding = embedding
        self.encoder = encoder
        self.head = head
        self.classifiers = nn.ModuleDict(classifiers)
        self.pad_id = pad_id
        self.max_positions = max_positions
        self.frame = frame  # ids in front of an input and between two, -1 for none: how the sentence head's inputs look

    def encode(self, tokens: Rows, active: ActiveLayers = ALL_LAYERS) -> StackOutput:
        ids, layout = lay_out(tokens, self.pad_id)
        embedded = self.source_embedding(ids, layout)
        return self.encoder(embedded, lambda layer, index, x, *kept: layer(x, layout, *kept), active.encoder)

    def forward(self, tokens: Rows, places: Tensor | None = None, active: ActiveLayers = ALL_LAYERS) -> list[Term]:  # type: ignore[override]
        """What the head says of the masked tokens alone, so that the others cost it nothing; without places, of all tokens.

        `places` counts through the flattened rows; the host made it, so that no step asks the device how many there are.
        tokens: (B, T), or texts in a flat row, places: (N,) -> one term of (1, N, D)
        """
        states = self.encode(tokens, active).final
        if places is not None:
            states = states.flatten(0, 1).index_select(0, places)[None]
        return [Term(self.head(states), 1.0)]

    @property
    def output_weight(self) -> Tensor:
        return self.head.table.weight

    def logits(self, tokens: Tensor) -> Tensor:
        """Scores of every token of the vocabulary at every place. (B, T) -> (B, T, V)"""
        return self.head.logits(self.encode(tokens).final)

    def classify(self, tokens: Rows, name: str | None = None, active: ActiveLayers = ALL_LAYERS) -> Tensor:
        """Scores of the classes of the sentence head `name`, or of the only one. (B, T) -> (B, C)"""
        name = next(iter(self.classifiers)) if name is None else name
        states = self.encode(tokens, active).final
        if isinstance(tokens, Packed):
            # Of each sentence the first; where there is room for one more, some token, whose scores count for nothing.
            states = states[0].index_select(0, tokens.bounds[:-1].clamp(max=states.size(1) - 1))[:, None]
        return self.classifiers[name](states)

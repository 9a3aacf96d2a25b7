"""What a model loses when the decoder may not read one encoder layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from lamina.data.batching import Batch
from lamina.decode.search import Search
from lamina.metrics.bleu import Bleu, BleuScore
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.cross_entropy import Term
from lamina.nn.fusion import LayerAttention, layer_name
from lamina.nn.heads import SurfaceHead
from lamina.parts.contracts import MetricInputs
from lamina.parts.criteria import CrossEntropy
from lamina.parts.figures import metric_of
from lamina.tasks.translation import GREEDY
from lamina.training.validate import validation_loss

SURFACE = "surface"  # the source embeddings, as the softmax reads them


class Mask(NamedTuple):
    """Something of the encoder that can be hidden from its readers for a while: `with mask.applied(): ...`."""

    name: str
    applied: Callable[[], AbstractContextManager[None]]


def masks_of(model: EncoderDecoder) -> list[Mask]:
    """A mask for each layer.

    Where cross-attention reads a mix, the layer's column gets no share and the others share it out; the layers above still
    read the layer. Where it does not, the layer is skipped, the identity. A surface head is masked by the decoder's own
    scores alone.
    """
    num_layers, memory = len(model.encoder.layers), model.memory
    if isinstance(memory, LayerAttention):
        names = memory.column_names(num_layers)
        # A mix of one column has nothing to share out.
        masks = [Mask(name, partial(_without_column, memory, column)) for column, name in enumerate(names) if len(names) > 1]
    else:
        masks = [Mask(layer_name(number + 1), partial(_replaced_output, layer, lambda layer, inputs, output: inputs[0]))
                 for number, layer in enumerate(model.encoder.layers)]
    if isinstance(model.head, SurfaceHead):
        only_target: Callable[..., Any] = lambda mix, inputs, terms: [Term(inputs[0], 1.0)]  # noqa: E731
        masks.append(Mask(SURFACE, partial(_replaced_output, model.head.mix, only_target)))
    return masks


@contextmanager
def _without_column(memory: LayerAttention, column: int) -> Iterator[None]:
    logits = memory.weight.detach().clone()
    try:
        with torch.no_grad():
            memory.weight[:, column] = -torch.inf
        yield
    finally:
        with torch.no_grad():
            memory.weight.copy_(logits)


@contextmanager
def _replaced_output(part: torch.nn.Module, replacement: Callable[..., Any]) -> Iterator[None]:
    hook = part.register_forward_hook(replacement)
    try:
        yield
    finally:
        hook.remove()


class Quality(NamedTuple):
    """How good a model is on some data."""

    loss: float  # bits per token
    bleu: BleuScore | None = None  # with the length of the translations
    value: float | None = None  # of the figure that was asked for
    signature: str = ""  # of that one
    by_batch: tuple[tuple[float, int], ...] = ()  # losses in bits per token, and the tokens that they are of


def loss_change(without: Quality, whole: Quality) -> tuple[float, float]:
    """How much more is lost, in bits per token, and the standard error of that over batches; NaN of fewer than three."""
    change = without.loss - whole.loss
    pairs = zip(without.by_batch, whole.by_batch, strict=True)
    rows = [((own - other) * tokens, tokens) for (own, tokens), (other, _) in pairs]
    if len(rows) < 3:
        return change, math.nan
    # Of a ratio of sums: batches with more tokens count for more.
    squares = sum((difference - change * tokens) ** 2 for difference, tokens in rows)
    return change, math.sqrt(squares * len(rows) / (len(rows) - 1)) / sum(tokens for _, tokens in rows)


class Judge:
    """Measures the same model on the same pairs again and again; `beam` 0 translates nothing."""

    def __init__(self, model: EncoderDecoder, batches: Sequence[Batch], *, beam: int, bleu: Bleu,
                 text_of: Callable[..., str], advance: Callable[[int], object] = lambda number: None,
                 figure: str = "bleu") -> None:
        """`text_of(ids, is_reference=...)` gives what BLEU and the metric of the `figure` compare."""
        self.model = model
        self.batches = batches
        self.search = Search([model], replace(GREEDY, beam=beam)) if beam else None
        self.bleu = bleu
        self.text_of = text_of
        self.advance = advance
        self.figure = figure

    def quality(self) -> Quality:
        with_progress = self._counted()
        by_batch = tuple((validation_loss(self.model, [batch], CrossEntropy())["nll_loss"], batch.num_target_tokens)
                         for batch in (self.batches if self.search is not None else with_progress))
        loss = sum(own * tokens for own, tokens in by_batch) / sum(tokens for _, tokens in by_batch)
        if self.search is None:
            return Quality(loss, by_batch=by_batch)
        hypotheses: list[str] = []
        references: list[str] = []
        for batch in with_progress:
            hypotheses += [self.text_of(found[0].ids) for found in self.search.run(batch.source)]
            references += [self.text_of(row, is_reference=True) for row in batch.target_out.tolist()]
        inputs = MetricInputs(is_tokenized=self.bleu.is_tokenized)
        score = metric_of(self.figure).corpus(hypotheses, [references], inputs)
        return Quality(loss, self.bleu.corpus(hypotheses, [references]), score.values[self.figure], score.signature,
                       by_batch)

    def _counted(self) -> Iterator[Batch]:
        for batch in self.batches:
            yield batch
            self.advance(batch.num_sentences)


class Masked(NamedTuple):
    """A model as it is, and with each thing masked."""

    whole: Quality
    without: dict[str, Quality]


def measure_masks(masks: Iterable[Mask], quality: Callable[[], Quality]) -> Masked:
    whole, without = quality(), {}
    for mask in masks:
        with mask.applied():
            without[mask.name] = quality()
    return Masked(whole, without)

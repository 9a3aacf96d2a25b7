"""What a model is worth with some of its layers, and how fast it decodes. Nothing is rebuilt: layers are skipped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

from lamina.config.prune_options import LayerMetricConfig
from lamina.config.search_options import SearchConfig
from lamina.data.batching import AnyBatch, Batch
from lamina.decode.search import Search
from lamina.parts import Criterion, MetricInputs
from lamina.parts.figures import metric_of
from lamina.pruning.subsets import Subset
from lamina.tasks.base import Task
from lamina.tasks.translation import GREEDY, Translation
from lamina.training.validate import validation_loss

# Decoding speed is measured on this many sentences, each translated into exactly this many tokens: how fast a depth is must not
# depend on how soon its translations end.
SPEED_SENTENCES = 64
SPEED_TOKENS = 24
SPEED_ROUNDS = 4


class LayerMeter:
    def __init__(self, model: Any, whole: Subset, task: Task, batches: Sequence[AnyBatch], criterion: Criterion,
                 config: LayerMetricConfig) -> None:
        self.model = model.eval()
        self.whole = whole
        self.task = task
        self.batches = batches
        self.criterion = criterion
        self.config = config

    @property
    def is_maximized(self) -> bool:
        return self.config.figure.larger_is_better

    @cached_property
    def counts_tokens(self) -> bool:
        """Whether BLEU is of tokens as they stand, since that is how the text came."""
        return isinstance(self.task, Translation) and self.task.looks_tokenized(self.config.subset, self.config.remove_bpe)

    def quality(self, subset: Subset) -> float:
        """Bits a token, or a metric of translations."""
        if not self.config.is_of_texts:
            return validation_loss(self.model, self.batches, self.criterion, subset.active(self.whole))["nll_loss"]
        assert isinstance(self.task, Translation)
        search = Search([self.model], replace(GREEDY, beam=self.config.beam), subset.active(self.whole))
        results = self.task.translated(search, self.batches, self.config.remove_bpe)
        hypotheses, references = (list(chain.from_iterable(side)) for side in zip(*results, strict=True))
        inputs = MetricInputs(is_tokenized=self.counts_tokens)
        return metric_of(self.config.metric).corpus(hypotheses, [references], inputs).values[self.config.metric]

    def tokens_per_second(self, subsets: Sequence[Subset]) -> list[float]:
        """Target tokens that a search finds, or that a model without a source scores.

        The best of a few rounds over all of them, so that what else the machine does for a while hits none alone.
        """
        rate = self._decoding_rate if isinstance(self.task, Translation) else self._scoring_rate
        rate(self.whole)  # warms up
        return [max(rates) for rates in zip(*([rate(subset) for subset in subsets] for _ in range(SPEED_ROUNDS)), strict=True)]

    def _decoding_rate(self, subset: Subset) -> float:
        exact = SearchConfig(beam=self.config.beam, min_length=SPEED_TOKENS, max_length_offset=SPEED_TOKENS)
        search = Search([self.model], exact, subset.active(self.whole))
        source = next(batch for batch in self.batches if isinstance(batch, Batch)).source[:SPEED_SENTENCES]
        started = time.perf_counter()
        found = search.run(source)
        return sum(len(hypotheses[0].ids) for hypotheses in found) / (time.perf_counter() - started)

    def _scoring_rate(self, subset: Subset) -> float:
        batch = self.batches[0]
        started = time.perf_counter()
        validation_loss(self.model, [batch], self.criterion, subset.active(self.whole))
        return batch.num_target_tokens / (time.perf_counter() - started)

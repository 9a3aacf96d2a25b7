"""The threshold of a cascade: which translations of some layers are sure enough to be kept, for an allowed loss of BLEU.

Sentences are put in the order of the shallow model's confidence. Of the surest k its translations are kept, and of the others
those of the whole model: for each k that is a BLEU and a time. The k that is chosen is the largest that loses no more than is
allowed, itself and in the mean of its neighbourhood: curves are noisy, and a lucky point should not decide.
"""

# N sentences

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lamina.metrics.bleu import Bleu

# Room for sums in another order where no loss is allowed at all.
TOLERANCE = 1e-9
# Share of all points on either side of one that its mean is taken over.
NEIGHBOURHOOD = 0.025


@dataclass(frozen=True)
class Pass:
    """All sentences of a split, translated at one depth."""

    texts: Sequence[str]
    confidences: Sequence[float]
    num_tokens: Sequence[int]
    seconds: float

    @property
    def speed(self) -> float:
        """Sentences a second."""
        return len(self.texts) / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Point:
    """The split, with its `num_kept` surest shallow translations."""

    num_kept: int
    threshold: float  # the confidence of the least sure of them
    bleu: float
    seconds: float


@dataclass(frozen=True)
class Curve:
    points: list[Point]  # by what is kept, from none to all; only where a threshold can tell sentences apart

    @property
    def whole(self) -> float:
        """BLEU of the whole model."""
        return self.points[0].bleu

    def chosen(self, loss: float) -> Point:
        """The one that keeps most for this loss; the first, which keeps none, if there is no other."""
        lowest = self.whole - loss - TOLERANCE
        scores = np.array([point.bleu for point in self.points])
        reach = int(NEIGHBOURHOOD * len(scores))
        good = [place for place, score in enumerate(scores)
                if score >= lowest and scores[max(0, place - reach) : place + reach + 1].mean() >= lowest]
        return self.points[max(good, default=0)]

    def shown(self, number: int) -> list[Point]:
        """About so many of them, evenly spaced, both ends among them."""
        places = np.linspace(0, len(self.points) - 1, number).round().astype(int)
        return [self.points[place] for place in dict.fromkeys(places.tolist())]


def curve_of(shallow: Pass, whole: Pass, references: Sequence[str], bleu: Bleu) -> Curve:
    """Of the translation of a split by some layers, and by all.

    A sentence that is translated twice costs the whole model the share of its time that the tokens are of all tokens.
    """
    confidences = np.array(shallow.confidences)
    order = np.argsort(-confidences, kind="stable")
    ours, theirs = (np.array([bleu.counts(*pair) for pair in zip(own.texts, references, strict=True)])[order]
                    for own in (shallow, whole))  # (N, counts)
    tokens = np.array(whole.num_tokens, dtype=float)[order]
    # Row k: the k surest are kept.
    none = np.zeros((1, ours.shape[1]), dtype=ours.dtype)
    counts = theirs.sum(axis=0) + np.concatenate([none, np.cumsum(ours - theirs, axis=0)])  # (N + 1, counts)
    repeated = 1.0 - np.concatenate([[0.0], np.cumsum(tokens)]) / max(tokens.sum(), 1.0)
    sorted_ones = confidences[order]
    points = []
    for number in range(len(order) + 1):
        is_tied = 0 < number < len(order) and sorted_ones[number - 1] == sorted_ones[number]
        if not is_tied and (number == 0 or np.isfinite(sorted_ones[number - 1])):
            points.append(Point(number, float(sorted_ones[number - 1]) if number else np.inf,
                                bleu.of_counts(counts[number]), shallow.seconds + float(repeated[number]) * whole.seconds))
    return Curve(points)

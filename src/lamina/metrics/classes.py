"""How well classes or numbers were predicted: accuracy, F1 and correlation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def accuracy(predicted: Sequence[int], correct: Sequence[int]) -> float:
    """The share of right answers, 0 to 1."""
    return float(np.mean(np.asarray(predicted) == np.asarray(correct))) if len(correct) else 0.0


def f1(predicted: Sequence[int], correct: Sequence[int], label: int | None = None) -> float:
    """F1 of one class, or its mean over all classes that occur (macro), 0 to 1.

    A class's F1 is 2 * hits / (answers that name it + answers that should), which is 0 where it is never hit.
    """
    guesses, answers = np.asarray(predicted), np.asarray(correct)
    classes = np.union1d(guesses, answers) if label is None else np.array([label])
    hits = np.array([((guesses == own) & (answers == own)).sum() for own in classes])
    named = np.array([(guesses == own).sum() + (answers == own).sum() for own in classes])
    return float(np.mean(2 * hits / np.maximum(named, 1))) if len(classes) else 0.0


def pearson(predicted: Sequence[float], correct: Sequence[float]) -> float:
    """The correlation of two series, -1 to 1; 0 where one of them never changes."""
    one, other = (np.asarray(series, dtype=np.float64) - np.mean(series) for series in (predicted, correct))
    spread = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum() / spread) if spread else 0.0

"""GLEU: BLEU for corrections, where words of the source that should have been changed count against the hypothesis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ORDER = 4
NUM_DRAWS = 500  # of one reference for each sentence, where there are several; the score is their mean
SEED = 0

Ngrams = Counter[tuple[str, ...]]


@dataclass(frozen=True)
class GleuScore:
    """GLEU in per cent, and the spread over the draws of references."""

    score: float
    deviation: float
    signature: str

    @property
    def text(self) -> str:
        return f"GLEU = {self.score:.2f}" + (f" (std={self.deviation:.2f})" if self.deviation else "")


class Gleu:
    """GLEU without tuning (Napoles et al. 2015, as they revised it in 2016), on tokens as they stand.

    An n-gram counts where it stands in the reference, and against where it stands in the source and not in the reference.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self.sources = sources

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> GleuScore:
        """`references` holds one list for each reference file, as long as `hypotheses`."""
        # (references, sentences, 2 + 2 * ORDER)
        counts = np.array([[sentence_counts(*texts) for texts in zip(self.sources, hypotheses, answers, strict=True)]
                           for answers in references], dtype=np.int64)
        num_references = len(references)
        signature = f"nrefs:{num_references}|order:{ORDER}|tok:none"
        if num_references == 1:
            return GleuScore(100 * gleu(counts[0].sum(axis=0)), 0.0, signature)
        draws = np.random.default_rng(SEED).integers(num_references, size=(NUM_DRAWS, len(hypotheses)))
        every = np.arange(len(hypotheses))
        scores = [100 * gleu(counts[draw, every].sum(axis=0)) for draw in draws]
        return GleuScore(float(np.mean(scores)), float(np.std(scores)), f"{signature}|draws:{NUM_DRAWS}|seed:{SEED}")


def sentence_counts(source: str, hypothesis: str, reference: str) -> list[int]:
    """Lengths of hypothesis and reference, then for each order the n-grams that count and all of them."""
    source_words, words, answer = source.split(), hypothesis.split(), reference.split()
    counts = [len(words), len(answer)]
    for order in range(1, ORDER + 1):
        in_source, own, right = (ngrams(text, order) for text in (source_words, words, answer))
        wrong: Ngrams = Counter({ngram: count for ngram, count in in_source.items() if ngram not in right})
        counts += [max((own & right).total() - (own & wrong).total(), 0), max(len(words) + 1 - order, 0)]
    return counts


def ngrams(words: Sequence[str], order: int) -> Ngrams:
    return Counter(tuple(words[start : start + order]) for start in range(len(words) + 1 - order))


def gleu(counts: np.ndarray) -> float:
    """From sums over a corpus: the geometric mean of the precisions, times the brevity penalty; 0 if a count is 0."""
    if not counts.all():
        return 0.0
    length, reference_length = counts[:2]
    return float(np.exp(min(0.0, 1 - reference_length / length) + np.log(counts[2::2] / counts[3::2]).mean()))

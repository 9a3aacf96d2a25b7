"""BLEU through sacreBLEU, printed as fairseq prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TOKENIZED_TWICE = ("the reference translations look tokenized, and --sacrebleu tokenizes them once more: the figure is not "
                   "that of detokenized text. Detokenize both sides, or leave out --sacrebleu")


@dataclass(frozen=True)
class BleuScore:
    """BLEU and what it is made of; all but the lengths and the penalty in per cent."""

    score: float
    precisions: tuple[float, ...]  # of 1-grams, 2-grams, ...
    brevity_penalty: float
    sys_len: int  # in tokens
    ref_len: int
    signature: str  # sacreBLEU's: what to quote beside the figure

    @property
    def ratio(self) -> float:
        return self.sys_len / self.ref_len if self.ref_len else 0.0

    @property
    def text(self) -> str:
        return format_bleu(self)


def format_bleu(score: BleuScore) -> str:
    """A line that scripts read: BLEU4 = 41.59, 75.0/51.7/36.1/25.8 (BP=0.954, ratio=0.955, syslen=21, reflen=22)."""
    precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
    return (f"BLEU{len(score.precisions)} = {score.score:.2f}, {precisions} (BP={score.brevity_penalty:.3f}, "
            f"ratio={score.ratio:.3f}, syslen={score.sys_len}, reflen={score.ref_len})")


class Bleu:
    """BLEU on tokens as they stand, unsmoothed as fairseq prints it, or on detokenized text, as sacreBLEU does (13a)."""

    def __init__(self, *, is_tokenized: bool, order: int = 4, ignore_case: bool = False) -> None:
        from sacrebleu.metrics import BLEU

        self.is_tokenized = is_tokenized
        # force: sacreBLEU otherwise warns of tokenized input, which is what is asked for.
        options: dict[str, Any] = {"tokenize": "none" if is_tokenized else "13a", "max_ngram_order": order,
                                   "lowercase": ignore_case, "force": True}
        self.of_sacrebleu = BLEU(**options, smooth_method="none" if is_tokenized else "exp")
        # One is added to the counts of all but 1-grams (Lin and Och 2004), as fairseq does for sentences.
        self._sentence = BLEU(**options, smooth_method="add-k", smooth_value=1)

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> BleuScore:
        """`references` holds one list for each reference file, as long as `hypotheses`."""
        return _measure(self.of_sacrebleu, hypotheses, references)

    def counts(self, hypothesis: str, reference: str) -> np.ndarray:
        """What a sentence adds to the corpus: lengths of hypothesis and reference, matched n-grams, all n-grams."""
        found = self.of_sacrebleu.corpus_score([hypothesis], [[reference]])
        return np.array([found.sys_len, found.ref_len, *found.counts, *found.totals])

    def of_counts(self, counts: np.ndarray) -> float:
        """BLEU of a corpus whose sentences have these counts together."""
        order = self.of_sacrebleu.max_ngram_order
        lengths, matched, total = counts[:2].tolist(), counts[2 : 2 + order].tolist(), counts[2 + order :].tolist()
        return self.of_sacrebleu.compute_bleu(correct=matched, total=total, sys_len=lengths[0], ref_len=lengths[1],
                                              smooth_method=self.of_sacrebleu.smooth_method, max_ngram_order=order).score

    def sentence(self, hypothesis: str, references: Sequence[str]) -> BleuScore:
        # Not sacreBLEU's sentence_score: it would warn at each sentence that another smoothing is usual.
        return _measure(self._sentence, [hypothesis], [[reference] for reference in references])


def _measure(metric: Any, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> BleuScore:
    assert all(len(texts) == len(hypotheses) for texts in references), "sacreBLEU would cut the longer one, silently"
    found = metric.corpus_score(hypotheses, references)
    return BleuScore(score=found.score, precisions=tuple(found.precisions), brevity_penalty=found.bp, sys_len=found.sys_len,
                     ref_len=found.ref_len, signature=str(metric.get_signature()))


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], *, is_tokenized: bool = False) -> float:
    """The figure alone, against one reference each: detokenized text (13a), or tokens as they stand."""
    return Bleu(is_tokenized=is_tokenized).corpus(hypotheses, [references]).score

"""chrF and TER through sacreBLEU, with its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PlainScore:
    """A figure, its name and sacreBLEU's signature."""

    name: str
    score: float
    signature: str

    @property
    def text(self) -> str:
        return f"{self.name} = {self.score:.2f}"


class _Plain:
    def __init__(self, metric: Any) -> None:
        self.of_sacrebleu = metric

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> PlainScore:
        """`references` holds one list for each reference file, as long as `hypotheses`."""
        assert all(len(texts) == len(hypotheses) for texts in references), "sacreBLEU would cut the longer one, silently"
        found = self.of_sacrebleu.corpus_score(hypotheses, references)
        return PlainScore(found.name, found.score, str(self.of_sacrebleu.get_signature()))

    def sentence(self, hypothesis: str, references: Sequence[str]) -> PlainScore:
        return self.corpus([hypothesis], [[reference] for reference in references])


class Chrf(_Plain):
    """F2 of character n-grams (Popović 2015); more is better."""

    def __init__(self, *, ignore_case: bool = False) -> None:
        from sacrebleu.metrics import CHRF

        super().__init__(CHRF(lowercase=ignore_case))


class Ter(_Plain):
    """Edits per reference word (Snover et al. 2006), in any case, as is its custom; less is better."""

    def __init__(self) -> None:
        from sacrebleu.metrics import TER

        super().__init__(TER())

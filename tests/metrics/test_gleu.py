"""GLEU, counted by hand."""

import math

import pytest

from lamina.metrics.gleu import Gleu, sentence_counts


def test_a_reference_against_itself_and_nothing_in_common():
    source, reference = "he go to school every day", "he goes to school every day"
    assert Gleu([source]).corpus([reference], [[reference]]).text == "GLEU = 100.00"
    assert Gleu([source]).corpus(["x y z w v"], [[reference]]).score == 0.0


def test_counts_by_hand():
    # 1-grams: five of six right, less `go`, which is the source's alone. 2-grams: to school, school every, every day,
    # less he go, go to. 3-grams: two right, less he go to, go to school. 4-grams: one right, less two, and never below 0.
    source, reference = "he go to school every day", "he goes to school every day"
    assert sentence_counts(source, source, reference) == [6, 6, 5 - 1, 6, 3 - 2, 5, 2 - 2, 4, 0, 3]
    # `the`, twice in the source and once in the reference, is no word that should have gone.
    assert sentence_counts("the the", "the the", "the")[2:4] == [1, 2]


def test_the_mean_of_precisions_and_brevity():
    # All n-grams right, five words for six: exp(1 - 6/5). One wrong word that is no word of the source costs its n-grams.
    reference = "a b c d e f"
    assert Gleu(["x"]).corpus(["a b c d e"], [[reference]]).score == pytest.approx(100 * math.exp(-0.2))
    assert Gleu(["x"]).corpus(["a b c d e z"], [[reference]]).score == pytest.approx(
        100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    # The source's own word costs twice: once as it is missing, once as it stayed.
    assert Gleu(["z"]).corpus(["a b c d e z"], [[reference]]).score == pytest.approx(
        100 * (4 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)


def test_several_references_take_turns():
    one, other = "a b c d e", "a b c d f"
    hypotheses = [one] * 40
    score = Gleu(["x"] * 40).corpus(hypotheses, [[one] * 40, [other] * 40])
    worst = Gleu(["x"] * 40).corpus(hypotheses, [[other] * 40]).score
    assert worst < score.score < 100
    assert score.deviation > 0
    assert score.signature == "nrefs:2|order:4|tok:none|draws:500|seed:0"
    assert score == Gleu(["x"] * 40).corpus(hypotheses, [[one] * 40, [other] * 40])
    # References that agree leave nothing to chance.
    assert Gleu(["x"] * 40).corpus(hypotheses, [[one] * 40, [one] * 40]).text == "GLEU = 100.00"

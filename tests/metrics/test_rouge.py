"""ROUGE: simple cases by hand, and what the package is told."""

import sys

import pytest

from lamina.errors import ConfigError
from lamina.metrics.rouge import Rouge

pytest.importorskip("rouge_score")


def test_a_summary_against_itself():
    score = Rouge().corpus(["the cat sat. it purred."], [["the cat sat. it purred."]])
    assert score.text == "ROUGE-1 = 100.00, ROUGE-2 = 100.00, ROUGE-L = 100.00, ROUGE-Lsum = 100.00"
    assert score.signature.startswith("nrefs:1|best:max|stemmer:no|sentences:punctuation|rouge-score:")


def test_by_hand():
    # Words: a b of 3 and 4, F = 2 * 2 / 7. Pairs: a b of 2 and 3. The longest subsequence is a b.
    found = Rouge().sentence("a b x", ["a b c d"]).f1
    assert found == pytest.approx({"rouge1": 400 / 7, "rouge2": 200 / 5, "rougeL": 400 / 7, "rougeLsum": 400 / 7})


def test_the_best_reference_counts_for_each_summary():
    score = Rouge().corpus(["a b", "c d"], [["a b", "x y"], ["x y", "c d"]])
    assert set(score.f1.values()) == {100.0}
    assert score.signature.startswith("nrefs:2|")
    assert set(Rouge().corpus(["a b", "c d"], [["a b", "x y"]]).f1.values()) == {50.0}


def test_sum_over_sentences():
    # In another order, sentences are found by L-sum and not by L, which can keep but one of them.
    found = Rouge().sentence("e f g. a b c.", ["a b c. e f g."]).f1
    assert (found["rougeL"], found["rougeLsum"]) == pytest.approx((50.0, 100.0))
    marked = Rouge(separator="<q>")
    found = marked.sentence("e f g<q>a b c", ["a b c<q>e f g"]).f1
    assert (found["rougeL"], found["rougeLsum"]) == pytest.approx((50.0, 100.0))
    assert "|sentences:<q>|" in marked.sentence("a", ["a"]).signature


def test_stems():
    assert Rouge().sentence("cats running", ["cat runs"]).f1["rouge1"] == 0.0
    stemmed = Rouge(uses_stemmer=True).sentence("cats running", ["cat runs"])
    assert stemmed.f1["rouge1"] == 100.0
    assert "|stemmer:yes|" in stemmed.signature


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(ConfigError, match=r"pip install 'lamina\[rouge\]'"):
        Rouge()

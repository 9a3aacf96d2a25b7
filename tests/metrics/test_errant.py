"""ERRANT: how edits are counted, by hand, and what its package finds, where it is installed."""

import sys

import pytest

from lamina.errors import ConfigError
from lamina.metrics.errant import Errant, count_equal
from lamina.metrics.m2 import Annotated, Counts, Edit


def edit(start, end, *corrections):
    return Edit(start, end, frozenset(tuple(text.split()) for text in corrections))


def test_edits_are_matched_once():
    very, dogs = edit(1, 1, "very"), edit(2, 3, "dogs", "hounds")
    assert count_equal([very, edit(2, 3, "hounds")], [very, dogs]) == Counts(2, 2, 2)
    assert count_equal([very, very], [very]) == Counts(1, 2, 1)
    assert count_equal([edit(2, 3, "cats"), edit(2, 4, "dogs")], [dogs]) == Counts(0, 2, 1)
    assert count_equal([], []) == Counts(0, 0, 0)


def test_a_correction():
    pytest.importorskip("errant")
    # The second annotator found a mistake in `school` and no correction for it: that is no edit to find.
    sentence = Annotated(tuple("He go to school yesterday .".split()), (
        (edit(1, 2, "went"), edit(2, 2, "back")), (edit(1, 2, "went"), edit(3, 4, "school"))))
    scorer = Errant([sentence])
    assert scorer.corpus(["He go to school yesterday ."]).counts == Counts(0, 0, 1)
    score = scorer.corpus(["He went to school yesterday ."])
    assert score.counts == Counts(1, 1, 1)
    assert score.text.startswith("ERRANT F0.5 = 100.00 (P=100.00, R=100.00, ")
    assert "errant:" in score.signature
    assert scorer.corpus(["He went to the school yesterday ."]).counts == Counts(1, 2, 1)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "errant", None)
    with pytest.raises(ConfigError, match=r"pip install 'lamina\[errant\]'"):
        Errant([])

"""Accuracy, F1 and correlation, by hand."""

import numpy as np
import pytest

from lamina.metrics.classes import accuracy, f1, pearson


def test_accuracy():
    assert accuracy([0, 1, 1, 2], [0, 1, 2, 2]) == 0.75
    assert accuracy([], []) == 0.0


def test_f1_of_one_class():
    # Two hits, three answers that name it, four that should: 4 / 7.
    assert f1([1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0], label=1) == pytest.approx(4 / 7)
    assert f1([0, 0], [0, 0], label=1) == 0.0


def test_macro_f1_is_the_mean_over_the_classes():
    predicted, correct = [0, 0, 1, 2, 2], [0, 1, 1, 2, 0]
    assert f1(predicted, correct) == pytest.approx(np.mean([2 / 4, 2 / 3, 2 / 3]))
    assert f1([0, 1], [0, 1]) == 1.0


def test_pearson():
    assert pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(1.0)
    assert pearson([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert pearson([1.0, 1.0], [0.0, 5.0]) == 0.0
    numbers = np.random.default_rng(0).random((2, 50))
    assert pearson(*numbers) == pytest.approx(np.corrcoef(*numbers)[0, 1])

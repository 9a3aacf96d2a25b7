"""The threshold of a cascade, chosen on made-up translations."""

import numpy as np
import pytest

from lamina.metrics.bleu import Bleu
from lamina.pruning.calibration import Curve, Pass, Point, curve_of

WORDS = "the old boat sings near a small river and birds read under trees".split()
BLEU = Bleu(is_tokenized=True)


def made_up(number=30, seed=0):
    """References, and translations of which every second word is wrong with some probability."""
    random = np.random.default_rng(seed)

    def noisy(text, share):
        return " ".join(str(random.choice(WORDS)) if random.random() < share else word for word in text.split())

    references = [" ".join(random.choice(WORDS, size=random.integers(6, 14))) for _ in range(number)]
    confidences = (-random.random(number)).round(2).tolist()
    shallow = Pass([noisy(text, -0.5 * sure) for text, sure in zip(references, confidences, strict=True)], confidences,
                   [1] * number, seconds=1.0)
    whole = Pass([noisy(text, 0.1) for text in references], [0.0] * number, [len(text.split()) for text in references],
                 seconds=4.0)
    return shallow, whole, references


@pytest.mark.parametrize("bleu", [BLEU, Bleu(is_tokenized=False)], ids=["tokens", "text"])
def test_each_point_is_bleu_of_what_the_threshold_gives(bleu):
    shallow, whole, references = made_up()
    curve = curve_of(shallow, whole, references, bleu)
    assert [point.num_kept for point in curve.points] == sorted({
        sum(sure >= threshold for sure in shallow.confidences) for threshold in (*shallow.confidences, np.inf)})
    for point in curve.points:
        is_kept = [sure >= point.threshold for sure in shallow.confidences]
        texts = [ours if kept else theirs for ours, theirs, kept in zip(shallow.texts, whole.texts, is_kept, strict=True)]
        assert sum(is_kept) == point.num_kept
        assert point.bleu == pytest.approx(bleu.corpus(texts, [references]).score)
        repeated = sum(tokens for tokens, kept in zip(whole.num_tokens, is_kept, strict=True) if not kept)
        assert point.seconds == pytest.approx(1.0 + 4.0 * repeated / sum(whole.num_tokens))


def test_the_choice_keeps_most_that_the_loss_allows():
    points = [Point(0, np.inf, 30.0, 5.0), Point(2, -0.1, 30.1, 4.0), Point(4, -0.2, 29.9, 3.0), Point(6, -0.3, 29.0, 2.0),
              Point(8, -0.4, 30.0, 1.0)]
    curve = Curve(points)
    assert [curve.chosen(loss).num_kept for loss in (0.0, 0.1, 0.99, 1.0)] == [8, 8, 8, 8]
    assert Curve(points[:-1]).chosen(0.5).num_kept == 4
    assert Curve([points[0], points[3]]).chosen(0.5) == points[0]
    assert [point.num_kept for point in curve.shown(3)] == [0, 4, 8]


def test_a_lucky_point_does_not_decide():
    """100 points that fall from 30 to 28, and one near the end that is back at 30."""
    points = [Point(number, -0.01 * number, 30.0 - 0.02 * number, 1.0) for number in range(101)]
    points[90] = Point(90, -0.9, 30.0, 1.0)
    assert Curve(points).chosen(0.2).num_kept == 10
    assert Curve(points).chosen(1.9).num_kept == 95


def test_what_was_lost_is_never_kept():
    shallow, whole, references = made_up(6)
    lost = Pass(shallow.texts, [-np.inf, *shallow.confidences[1:]], shallow.num_tokens, 1.0)
    assert curve_of(lost, whole, references, BLEU).points[-1].num_kept == 5

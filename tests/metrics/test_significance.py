"""Paired bootstrap against cases whose answer is plain."""

import random

from lamina.metrics.bleu import Bleu
from lamina.metrics.chrf_ter import Chrf
from lamina.metrics.significance import paired_bootstrap


def sentences(share_right, seed, references):
    draw = random.Random(seed)
    return [" ".join(word if draw.random() < share_right else "wrong" for word in line.split()) for line in references]


def test_a_difference_that_is_none_and_one_that_is_plain():
    draw = random.Random(1)
    references = [" ".join(draw.choices("a b c d e f g h".split(), k=12)) for _ in range(80)]
    metrics = {"bleu": Bleu(is_tokenized=True).of_sacrebleu, "chrf": Chrf().of_sacrebleu}
    good, other, bad = (sentences(share, seed, references) for share, seed in ((0.8, 2), (0.8, 3), (0.5, 4)))
    plain = paired_bootstrap(good, bad, [references], metrics, 200)
    assert [found.metric for found in plain] == ["bleu", "chrf"]
    assert all(found.score > found.baseline and found.p_value < 0.01 for found in plain)
    assert all(found.p_value > 0.05 for found in paired_bootstrap(good, other, [references], metrics, 200))
    same = paired_bootstrap(good, good, [references], metrics, 200)
    assert [found.p_value for found in same] == [1.0, 1.0]
    assert same == paired_bootstrap(good, good, [references], metrics, 200)
    assert plain[0].text.endswith(f"(+{plain[0].score - plain[0].baseline:.2f}, p = {plain[0].p_value:.4f})")

"""BLEU: by hand, against sacreBLEU's own functions, and to the letter."""

import math

import pytest
import sacrebleu

from lamina.metrics.bleu import Bleu, BleuScore, corpus_bleu, format_bleu

HYPOTHESES = ["the cat sat on the mat .", "There is a dog, in the garden.", "it rains again today", "word"]
REFERENCES = ["the cat sat on a mat .", "there is a dog in the garden .", "It rains today", "another word"]
OTHERS = ["the cat was sitting on the mat .", "a dog is in the garden .", "today it rains again", "word"]


def tokenized(**options):
    return Bleu(is_tokenized=True, **options)


def test_a_text_against_itself_is_perfect():
    for is_tokenized in (True, False):
        score = Bleu(is_tokenized=is_tokenized).corpus(HYPOTHESES, [HYPOTHESES])
        assert score.score == pytest.approx(100.0)
        assert score.precisions == (100.0,) * 4
        assert score.brevity_penalty == score.ratio == 1.0


def test_precisions_by_hand():
    # 5 of 6 words, ab bc ef of 5 pairs, abc of 4 triples; up to pairs, 5/6 * 3/5 = 1/2.
    score = tokenized().corpus(["a b c x e f"], [["a b c d e f"]])
    assert score.precisions[:3] == pytest.approx((100 * 5 / 6, 60.0, 25.0))
    score = tokenized(order=2).corpus(["a b c x e f"], [["a b c d e f"]])
    assert score.score == pytest.approx(100 * math.sqrt(0.5))
    assert len(score.precisions) == 2


def test_a_word_counts_no_more_often_than_in_the_reference():
    assert tokenized(order=1).corpus(["the the the the"], [["the cat the mat"]]).score == pytest.approx(50.0)


def test_brevity_by_hand():
    # All four n-grams match, but five words stand for six: exp(1 - 6/5).
    score = tokenized().corpus(["a b c d e"], [["a b c d e f"]])
    assert score.brevity_penalty == pytest.approx(math.exp(-0.2))
    assert score.score == pytest.approx(100 * math.exp(-0.2))
    assert (score.sys_len, score.ref_len) == (5, 6)
    assert tokenized().corpus(["a b c d e f g"], [["a b c d e f"]]).brevity_penalty == 1.0


def test_sentences_are_smoothed_by_adding_one():
    # 2 of 3 words, and with one added 1+1 of 2+1 pairs, 1 of 2 triples, 1 of 1 quadruples.
    score = tokenized().sentence("a b x", ["a b c"])
    assert score.score == pytest.approx(100 * (2 / 3 * 2 / 3 * 1 / 2) ** 0.25)
    assert "smooth:add-k" in score.signature
    assert tokenized().sentence("word", ["word"]).score == pytest.approx(100.0)
    assert tokenized().sentence("", ["word"]).score == 0.0
    assert tokenized().sentence("word", [""]).ratio == 0.0


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, OTHERS]])
@pytest.mark.parametrize(("is_tokenized", "tokenize", "smoothing"), [(True, "none", "none"), (False, "13a", "exp")])
@pytest.mark.parametrize("ignore_case", [False, True])
def test_agrees_with_sacrebleu(references, is_tokenized, tokenize, smoothing, ignore_case):
    ours = Bleu(is_tokenized=is_tokenized, ignore_case=ignore_case).corpus(HYPOTHESES, references)
    theirs = sacrebleu.corpus_bleu(HYPOTHESES, references, tokenize=tokenize, lowercase=ignore_case, force=True,
                                    smooth_method=smoothing)
    assert (ours.score, list(ours.precisions), ours.brevity_penalty) == (theirs.score, theirs.precisions, theirs.bp)
    assert (ours.sys_len, ours.ref_len) == (theirs.sys_len, theirs.ref_len)
    case = "lc" if ignore_case else "mixed"
    assert ours.signature.startswith(f"nrefs:{len(references)}|case:{case}|eff:no|tok:{tokenize}|smooth:{smoothing}|version:")


def test_the_figure_alone():
    assert corpus_bleu(HYPOTHESES, REFERENCES) == Bleu(is_tokenized=False).corpus(HYPOTHESES, [REFERENCES]).score
    assert corpus_bleu(HYPOTHESES, REFERENCES, is_tokenized=True) == tokenized().corpus(HYPOTHESES, [REFERENCES]).score


def test_the_line_that_scripts_read():
    score = BleuScore(score=41.587, precisions=(75.04, 51.7, 36.1, 25.8), brevity_penalty=0.95431, sys_len=1273, ref_len=1333,
                      signature="")
    line = "BLEU4 = 41.59, 75.0/51.7/36.1/25.8 (BP=0.954, ratio=0.955, syslen=1273, reflen=1333)"
    assert format_bleu(score) == score.text == line
    two = tokenized(order=2).corpus(["a b c x e f"], [["a b c d e f"]])
    assert format_bleu(two) == "BLEU2 = 70.71, 83.3/60.0 (BP=1.000, ratio=1.000, syslen=6, reflen=6)"


def test_texts_of_unequal_length_are_our_own_mistake():
    with pytest.raises(AssertionError, match="silently"):
        tokenized().corpus(HYPOTHESES, [REFERENCES[:-1]])


def test_the_references_own_line():
    """A generate run of fairseq: no 3-gram in common, so the whole is 0 and not smoothed."""
    hypotheses = ["il lit un livre sur la lune .", "le petit bateau passe devant le .", ".", "nous ."]
    references = ["le capitaine lit un <<unk>> près du port .", "un <<unk>> <<unk>> et la lune .", "deux chats",
                  "nous marchons"]
    score = Bleu(is_tokenized=True).corpus(hypotheses, [references])
    assert score.text == "BLEU4 = 0.00, 27.8/7.1/0.0/0.0 (BP=0.895, ratio=0.900, syslen=18, reflen=20)"

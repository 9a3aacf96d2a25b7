"""Masks: their shares, what they never touch, and that words stay whole."""

import numpy as np
import pytest

from lamina.data.masking import Masker, WordMarks
from lamina.errors import DataError
from lamina.text.vocabulary import BOS, EOS, FIRST_WORD_ID, UNK, Vocabulary


def vocabulary(words=None, counts=None):
    words = words or [f"w{number}" for number in range(200)]
    return Vocabulary(words, counts or [1] * len(words)).with_mask()


def masker(words=None, **changes):
    return Masker(vocabulary(words), **{"mask_p": 0.15, "keep_p": 0.1, "random_p": 0.1, **changes})


def block(generator, length=200, size=204):
    ids = generator.integers(FIRST_WORD_ID, size, length)
    return np.concatenate([[BOS], ids, [EOS]])


def within(number, total, p):
    """Four standard deviations of a binomial: one run in 16,000 would leave it by chance, and the seed is fixed."""
    return abs(number - total * p) < 4 * np.sqrt(total * p * (1 - p))


def test_fifteen_percent_of_which_eighty_ten_ten():
    generator, mask = np.random.default_rng(0), masker()
    total = chosen = masked = kept = changed = 0
    for _ in range(500):
        ids = block(generator)
        seen, places = mask(ids, generator)
        assert (np.delete(seen, places) == np.delete(ids, places)).all()
        total += len(ids) - 2
        chosen += len(places)
        masked += int((seen[places] == mask.mask_id).sum())
        kept += int((seen[places] == ids[places]).sum())
        changed += int(((seen[places] != ids[places]) & (seen[places] != mask.mask_id)).sum())
    # The number in a block is fixed up to rounding, so its share is tighter than a binomial's.
    assert abs(chosen / total - 0.15) < 0.001
    assert masked + kept + changed == chosen
    assert within(masked, chosen, 0.8)
    # One random word in 200 is the word itself.
    assert within(kept, chosen, 0.1 + 0.1 / 200)
    assert within(changed, chosen, 0.1 * 199 / 200)


def test_short_sentences_are_masked_as_often_as_long_ones():
    generator, mask = np.random.default_rng(1), masker()
    chosen = sum(len(mask(block(generator, length=3), generator)[1]) for _ in range(4000))
    assert within(chosen, 12000, 0.15)


@pytest.mark.parametrize("is_whole_words", [False, True])
def test_special_symbols_are_never_masked_and_never_put_in(is_whole_words):
    generator, mask = np.random.default_rng(0), masker(mask_p=1.0, random_p=0.9, is_whole_words=is_whole_words)
    for _ in range(50):
        ids = block(generator)
        ids[[10, 50]] = UNK, EOS
        seen, places = mask(ids, generator)
        assert not np.isin(places, np.flatnonzero(ids < FIRST_WORD_ID)).any()
        assert len(places) == len(ids) - 4
        assert (seen[places] >= FIRST_WORD_ID).all()


def test_no_random_word_is_the_mask():
    generator, mask = np.random.default_rng(0), masker(mask_p=1.0, keep_p=0.0, random_p=1.0)
    for _ in range(200):
        assert mask.mask_id not in mask(block(generator), generator)[0]


def test_one_generator_one_mask():
    ids, mask = block(np.random.default_rng(0)), masker()
    one, same, other = (mask(ids, np.random.default_rng(seed)) for seed in ([1, 2], [1, 2], [1, 3]))
    assert (one[0] == same[0]).all()
    assert (one[1] == same[1]).all()
    assert len(one[0]) == len(other[0])
    assert not (one[0] == other[0]).all()


def test_nothing_to_mask():
    seen, places = masker()(np.array([BOS, EOS]), np.random.default_rng(0))
    assert seen.tolist() == [BOS, EOS]
    assert len(places) == 0


def test_replacements_by_frequency():
    counts = [900, 100, 0]
    mask = Masker(vocabulary(["often", "seldom", "never"], counts), mask_p=1.0, keep_p=0.0, random_p=1.0,
                  is_frequency_weighted=True)
    seen, _ = mask(np.full(20_000, 4), np.random.default_rng(0))
    often, seldom, never = (int((seen == FIRST_WORD_ID + number).sum()) for number in range(3))
    assert within(often, 20_000, 0.9)
    assert often + seldom == 20_000
    assert never == 0
    with pytest.raises(DataError, match="--freq-weighted-replacement"):
        Masker(vocabulary(["a"], [0]), mask_p=0.1, keep_p=0.1, random_p=0.1, is_frequency_weighted=True).replacements  # noqa: B018


SENTENCEPIECE = ["▁the", "▁gar", "den", "s", "▁bird", "."]
BPE = ["the", "gar@@", "den@@", "s", "bird", "."]


@pytest.mark.parametrize(("words", "pieces", "numbers"), [
    (SENTENCEPIECE, "<s> ▁the ▁gar den s ▁bird . </s>", [0, 1, 2, 2, 2, 3, 3, 4]),
    (BPE, "<s> the gar@@ den@@ s bird . </s>", [0, 1, 2, 2, 2, 3, 4, 5]),
    (SENTENCEPIECE, "<s> ▁the <unk> s ▁bird </s>", [0, 1, 2, 3, 4, 5]),
    (["a", "b"], "<s> a b a </s>", [0, 1, 2, 3, 4]),
    # A block may begin in the middle of a word.
    (SENTENCEPIECE, "den s ▁bird", [0, 0, 1]),
])
def test_where_words_begin(words, pieces, numbers):
    own = vocabulary(words)
    assert WordMarks.of(own).word_numbers(np.array(own.ids(pieces.split()))).tolist() == numbers


@pytest.mark.parametrize("words", [SENTENCEPIECE, BPE])
def test_words_are_masked_whole(words):
    own = vocabulary(words)
    mask = Masker(own, mask_p=0.3, keep_p=0.1, random_p=0.1, is_whole_words=True)
    generator = np.random.default_rng(0)
    chosen = total = 0
    for _ in range(500):
        ids = np.concatenate([[BOS], generator.integers(FIRST_WORD_ID, len(own) - 1, 60), [EOS]])
        numbers = mask.marks.word_numbers(ids)
        seen, places = mask(ids, generator)
        is_chosen = np.isin(np.arange(len(ids)), places)
        for number in np.unique(numbers):
            own_tokens = numbers == number
            assert is_chosen[own_tokens].all() or not is_chosen[own_tokens].any()
            is_masked = seen[own_tokens] == mask.mask_id
            assert is_masked.all() or not is_masked.any()
        chosen += len(np.unique(numbers[places]))
        total += numbers[-1] - 1
    assert abs(chosen / total - 0.3) < 0.005


def test_numbers_for_pieces_hide_the_words():
    with pytest.raises(DataError, match="GPT-2"):
        WordMarks.of(vocabulary(["262", "11", "madeupword0000"]))

import json
import pickle
import sys
from itertools import product

import pytest

from lamina.errors import ConfigError, DataError
from lamina.text.subword import (
    Bpe,
    SentencePiece,
    Whitespace,
    learn_subword,
    load_subwords,
    remove_joiners,
    save_subwords,
    subword_from_dict,
    subword_to_dict,
)
from lamina.text.tokenizer import Moses

LINES = [
    "The small boat drifts past the quiet harbour.",
    "She writes a long letter to her brother, then sleeps.",
    "Șase nave mici plutesc (încet) pe lângă portul liniștit.",
    "It costs 3.50 €, doesn't it? 50% off!",
    "a b c",
] * 5


@pytest.fixture(scope="module", params=["whitespace", "sentencepiece", "bpe", "moses"])
def subword(request):
    if request.param == "whitespace":
        return Whitespace()
    if request.param == "moses":
        tokenizer = Moses(Whitespace(), "en")
        return Moses(learn_subword("bpe", map(tokenizer.tokenize, LINES), 150), "en")
    return learn_subword(request.param, LINES, 150)


def test_raw_text_in_gives_the_same_raw_text_out(subword):
    for line in LINES:
        pieces = subword.encode(line)
        assert all(piece and not piece.isspace() for piece in pieces)
        assert subword.decode(pieces) == line


@pytest.mark.parametrize("kind", ["sentencepiece", "bpe"])
def test_characters_that_unicode_would_fold_stay_as_they_are(kind):
    line = "ﬁrst ½ … ™ ＡＢＣ é e\u0301"
    subword = learn_subword(kind, [*LINES, line], 200)
    assert subword.decode(subword.encode(line)) == line


def test_white_space_is_made_single_spaces(subword):
    assert subword.decode(subword.encode("  the small \t boat\u3000drifts\u00a0past\r")) == "the small boat drifts past"
    assert subword.encode("") == subword.encode(" \t ") == []


def test_unseen_characters_survive_the_round_trip(subword):
    assert subword.decode(subword.encode("smile 😀 東京")) == "smile 😀 東京"


def test_plain_form_gives_the_same_segmentation(subword):
    again = subword_from_dict(json.loads(json.dumps(subword_to_dict(subword))))
    assert again.kind == subword.kind
    assert [again.encode(line) for line in LINES] == [subword.encode(line) for line in LINES]
    assert again.to_bytes() == subword.to_bytes()


def test_workers_can_receive_it(subword):
    assert pickle.loads(pickle.dumps(subword)).encode(LINES[1]) == subword.encode(LINES[1])


def test_folder_gives_back_what_it_was_given(subword, tmp_path):
    save_subwords(tmp_path, {"en": subword, "": Whitespace()})
    again = load_subwords(tmp_path)
    assert list(again) == ["en", ""]
    assert subword_to_dict(again["en"]) == subword_to_dict(subword)
    assert again[""].kind == "whitespace"


@pytest.mark.parametrize("kind", [Whitespace, SentencePiece, Bpe])
def test_bytes_round_trip(kind):
    original = Whitespace() if kind is Whitespace else learn_subword(kind.kind, LINES, 150)
    assert kind.from_bytes(original.to_bytes()).encode(LINES[0]) == original.encode(LINES[0])


def test_learned_models_are_about_as_large_as_asked_and_repeatable():
    syllables = ["ba", "ko", "lin", "mer", "sut", "dra", "vel", "on"]
    words = ["".join(parts) for parts in product(syllables, repeat=3)]
    lines = [" ".join(words[start::67]) for start in range(67)]
    for kind in ("sentencepiece", "bpe"):
        small, large = (learn_subword(kind, lines, size) for size in (50, 100))
        used = [{piece for line in lines for piece in model.encode(line)} for model in (small, large)]
        assert 20 < len(used[0]) <= 50
        assert len(used[0]) < len(used[1]) <= 100
        assert sum(len(large.encode(line)) for line in lines) < sum(len(small.encode(line)) for line in lines)
        assert learn_subword(kind, lines, 50).to_bytes() == small.to_bytes()


def test_a_small_text_gives_fewer_pieces_without_an_error():
    for kind in ("sentencepiece", "bpe"):
        model = learn_subword(kind, LINES, 8000)
        assert model.decode(model.encode(LINES[2])) == LINES[2]


def test_learning_is_silent(capfd):
    learn_subword("sentencepiece", LINES, 120)
    learn_subword("bpe", LINES, 120)
    assert capfd.readouterr() == ("", "")


def test_learning_says_what_is_impossible():
    with pytest.raises(DataError, match="leaves no room for merges: the text's characters alone make"):
        learn_subword("bpe", LINES, 10)
    with pytest.raises(DataError, match="could not learn 10 pieces"):
        learn_subword("sentencepiece", LINES, 10)
    with pytest.raises(DataError, match="every word of the text is a single character"):
        learn_subword("bpe", ["a b c"], 10)
    for kind in ("bpe", "sentencepiece"):
        with pytest.raises(DataError, match="has only empty lines"):
            learn_subword(kind, ["", " "], 10)
    with pytest.raises(ConfigError, match="must be sentencepiece or bpe"):
        learn_subword("morfessor", LINES, 100)


def test_joiners_are_removed_as_remove_bpe_does():
    assert remove_joiners("lo@@ w@@ er new@@ est@@") == "lower newest"
    assert Bpe(b"a b\n").decode(["lo@@", "w", "e@@", "r"]) == "low er"


def test_damaged_models_are_named():
    with pytest.raises(DataError, match=r"^x\.model is not a sentencepiece model"):
        SentencePiece.from_bytes(b"junk", "x.model")
    with pytest.raises(DataError, match=r"^x\.codes, line 3: expected two symbols"):
        Bpe.from_bytes(b"#version: 0.2\na b\na b c\n", "x.codes")
    with pytest.raises(DataError, match=r"^x\.codes is not valid UTF-8 at byte 2"):
        Bpe.from_bytes(b"a \xff\n", "x.codes")
    with pytest.raises(DataError, match="no merges"):
        Bpe.from_bytes(b"#version: 0.2\n", "x.codes")
    with pytest.raises(DataError, match="not one that this Lamina knows"):
        subword_from_dict({"kind": "morfessor"})


def test_folder_of_fairseq_is_split_at_white_space(tmp_path):
    for name in ("dict.en.txt", "dict.ro.txt"):
        (tmp_path / name).write_text("a 1\n")
    assert {language: subword.kind for language, subword in load_subwords(tmp_path).items()} == {
        "en": "whitespace", "ro": "whitespace"}
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "dict.txt").write_text("a 1\n")
    assert list(load_subwords(tmp_path / "only")) == [""]


def test_damaged_folder_is_an_error(tmp_path):
    save_subwords(tmp_path, {"en": learn_subword("bpe", LINES, 120)})
    (tmp_path / "subword.en.codes").unlink()
    with pytest.raises(DataError, match="is missing, though"):
        load_subwords(tmp_path)
    (tmp_path / "subwords.json").write_text("[]")
    with pytest.raises(DataError, match="cannot be read"):
        load_subwords(tmp_path)


def test_moses_without_sacremoses_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ConfigError, match=r"pip install 'lamina\[moses\]'"):
        Moses(Whitespace(), "en").encode("a")


def test_moses_splits_punctuation_and_escapes_nothing():
    assert Moses(Whitespace(), "en").encode("Tom & Jerry's, ok?") == ["Tom", "&", "Jerry", "'s", ",", "ok", "?"]

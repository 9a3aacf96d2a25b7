"""`lamina.prepare` takes what people have, and makes the folder that `lamina preprocess` would make of files."""

import os

import pytest
import torch

import lamina
from lamina.cli import main
from lamina.errors import ConfigError, DataError

PAIRS = [("the old boat", "le vieux bateau"), ("the moon", "la lune"), ("a bird", "un oiseau"), ("", "")]
EN, FR = zip(*PAIRS, strict=True)


class Dataset:
    """As of Hugging Face: iterates over rows, which are dictionaries."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


class Frame:
    """As of pandas: iterates over names of columns, and has itertuples."""

    def __init__(self, **columns):
        self.columns, self._values = list(columns), list(columns.values())

    def __iter__(self):
        return iter(self.columns)

    def itertuples(self, index, name):
        assert (index, name) == (False, None)
        return zip(*self._values, strict=True)


class Polars:
    def __init__(self, rows):
        self.rows = rows

    def iter_rows(self, named):
        assert named
        return iter(self.rows)


@pytest.fixture
def files(tmp_path):
    for name, lines in (("en", EN), ("fr", FR)):
        (tmp_path / f"text.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path / "text.en", tmp_path / "text.fr"


def content(folder):
    """What the files hold; the manifest also knows where the text came from."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".bin", ".idx", ".txt")}


@pytest.fixture
def expected(files, tmp_path):
    prefix = str(tmp_path / "text")
    assert main(["preprocess", "-s", "en", "-t", "fr", "--trainpref", prefix, "--validpref", prefix, "--workers", "1",
                 "--destdir", str(tmp_path / "expected")]) == 0
    return content(tmp_path / "expected")


def of_rows(names):
    return Dataset([dict(zip(names, pair, strict=True)) for pair in PAIRS])


NAMED = {"source_lang": "en", "target_lang": "fr"}
FORMS = {
    "list": (lambda files: PAIRS, NAMED),
    "list of lists": (lambda files: [list(pair) for pair in PAIRS], NAMED),
    "generator": (lambda files: (pair for pair in PAIRS), NAMED),
    "zip": (lambda files: zip(EN, FR, strict=True), NAMED),
    "paths": (lambda files: files, {}),
    "names of files": (lambda files: tuple(map(str, files)), {}),
    "column translation": (lambda files: Dataset([{"id": 1, "translation": dict(zip(("en", "fr"), pair, strict=True))}
                                                  for pair in PAIRS]), {}),
    "column translation, turned": (lambda files: Dataset([{"translation": {"fr": fr, "en": en}} for en, fr in PAIRS]), NAMED),
    "two columns": (lambda files: of_rows(("en", "fr")), {}),
    "columns of other names": (lambda files: of_rows(("question", "answer")), NAMED),
    "columns among others": (lambda files: Dataset([{"id": 7, "fr": fr, "en": en} for en, fr in PAIRS]), NAMED),
    "pandas": (lambda files: Frame(en=EN, fr=FR), {}),
    "polars": (lambda files: Polars([{"en": en, "fr": fr} for en, fr in PAIRS]), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_the_pairs_come_in_the_folder_is_that_of_the_command(files, expected, tmp_path, form):
    make, options = FORMS[form]
    data = lamina.prepare(train=make(files), valid=make(files), out=tmp_path / "data", workers=1, **options)
    assert content(tmp_path / "data") == expected
    assert (data.languages, data.splits) == (("en", "fr"), ("train", "valid"))
    assert os.listdir(tmp_path).count("data") == 1
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".data")]  # nothing is left behind


def test_what_a_folder_says_of_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = lamina.prepare(PAIRS, valid=PAIRS[:2], out="data", workers=1)
    assert data.languages == ("source", "target")
    assert repr(data) == "Data('data', source -> target, train 4 sentences, valid 2 sentences, 16 and 16 symbols)"
    assert data.summary[0] == "[source] dictionary: 16 symbols; segmentation: whitespace"
    assert repr(lamina.Data("data")) == repr(data)
    assert [len(vocabulary) for vocabulary in data.vocabularies] == [16, 16]
    assert os.fspath(data) == "data"
    with pytest.raises(DataError, match=r"there is no data folder nowhere\. lamina\.prepare or"):
        lamina.Data("nowhere")


@pytest.mark.parametrize("form", ["list", "path", "column", "frame"])
def test_texts_of_one_side(tmp_path, form):
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in EN), encoding="utf-8")
    texts = {"list": list(EN), "path": tmp_path / "text", "column": Dataset([{"id": 1, "text": line} for line in EN]),
             "frame": Frame(text=EN)}[form]
    data = lamina.prepare(texts, valid=["a bird"], out=tmp_path / "data", workers=1)
    assert len(data.languages) == 1
    assert data.splits == ("train", "valid")


def test_splits_of_an_earlier_run_are_replaced_and_the_others_have_to_fit(tmp_path):
    lamina.prepare(PAIRS, valid=PAIRS, out=tmp_path / "data", workers=1, **NAMED)
    data = lamina.prepare(PAIRS[:2], valid=PAIRS[:2], out=tmp_path / "data", workers=1, **NAMED)
    assert "train 2 sentences, valid 2 sentences" in repr(data)
    with pytest.raises(DataError, match=r"also holds valid.* which would no longer fit"):
        lamina.prepare(PAIRS, out=tmp_path / "data", workers=1, **NAMED)


def test_columns_of_train_serve_the_other_splits(tmp_path):
    """However they are ordered: sides that change places are a silent disaster."""
    turned = Dataset([{"fr": fr, "en": en} for en, fr in PAIRS])
    lamina.prepare(of_rows(("en", "fr")), valid=turned, out=tmp_path / "a", workers=1)
    assert content(tmp_path / "a")["valid.en-fr.en.bin"] == content(tmp_path / "a")["train.en-fr.en.bin"]
    turned = Dataset([{"answer": fr, "question": en} for en, fr in PAIRS])
    lamina.prepare(of_rows(("question", "answer")), valid=turned, out=tmp_path / "b", workers=1, **NAMED)
    assert content(tmp_path / "b")["valid.en-fr.en.bin"] == content(tmp_path / "b")["train.en-fr.en.bin"]


@pytest.mark.parametrize(("train", "valid", "options", "message"), [
    ("text.en", None, {}, "train is one string. Give a list of sentence pairs, a pair of file names, or a Path."),
    ([], None, {}, "train has no sentences."),
    (7, None, {}, "train is a int, which cannot be read row by row."),
    ({"train": PAIRS, "validation": PAIRS}, None, {}, "train is a dict of train, validation. Give one split of it, or pairs"),
    ([("a", "b", "c")], None, {}, "row 1 of train is ('a', 'b', 'c'); expected a pair of sentences."),
    ([*PAIRS, ("a", 3)], None, {}, "row 5 of train holds a int where a sentence belongs."),
    ([("a\nb", "c")], None, {}, "row 1 of train has a line break in 'a\\nb': a sentence is one line."),
    ([("a \ud800", "c")], None, {}, "row 1 of train holds half a character"),
    (PAIRS, ["one"], {}, "train has 2 sides, and valid has 1."),
    (Dataset([{"id": 1, "en": "a", "fr": "b"}]), None, {},
     "train has the columns id, en, fr: which are the two sides? Name them with source_lang and target_lang"),
    (("nowhere.en", "nowhere.fr"), None, {}, "nowhere.en cannot be read: No such file or directory."),
])
def test_what_cannot_be_used_is_named(tmp_path, monkeypatch, train, valid, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as found:
        lamina.prepare(train, valid=valid, out="data", workers=1, **options)
    assert message in str(found.value)
    assert os.listdir(tmp_path) == []


def test_files_in_the_other_order_are_refused(files, tmp_path):
    with pytest.raises(DataError, match="train is en -> fr, and valid is fr -> en: give both in the same order"):
        lamina.prepare(files, valid=files[::-1], out=tmp_path / "data", workers=1)
    files[1].write_text("one\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"text\.fr ends after line 1, and .*text\.en has more"):
        lamina.prepare(files, out=tmp_path / "data", workers=1)
    files[1].write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=r"text\.fr is not UTF-8"):
        lamina.prepare(files, out=tmp_path / "data", workers=1)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("options", "message"), [
    ({"vocabsize": 10}, "unknown option --vocabsize. Did you mean --vocab-size?"),
    ({"subword": "sentencpiece"}, "--subword is 'sentencpiece'"),
    ({"workers": 0}, "--workers is 0"),
])
def test_wrong_options_have_the_errors_of_the_command_line(tmp_path, options, message):
    with pytest.raises(ConfigError) as found:
        lamina.prepare(PAIRS, out=tmp_path / "data", **options)
    assert message in str(found.value)
    assert not (tmp_path / "data").exists()


def test_batches_are_those_of_training(tmp_path):
    data = lamina.prepare(PAIRS * 5, valid=PAIRS, out=tmp_path / "data", workers=1)
    one, again, next_epoch = ([batch.target for batch in data.batches(max_tokens=32, epoch=epoch)] for epoch in (1, 1, 2))
    assert all(map(torch.equal, one, again))
    assert not all(own.shape == other.shape and torch.equal(own, other) for own, other in zip(one, next_epoch, strict=False))
    assert max(len(batch.target) for batch in data.batches("valid", batch_size=2)) == 2
    with pytest.raises(DataError, match="test"):
        next(data.batches("test"))

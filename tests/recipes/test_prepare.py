"""Corpora from small files of the form in which they are downloaded; every description in recipes/data is tried."""

import json
from pathlib import Path

import pytest

from lamina.cli import main
from lamina.errors import ConfigError, DataError
from lamina.metrics.m2 import read_m2
from lamina.recipes.dataset import Cleaning, Dataset, TestSet, read_dataset
from lamina.recipes.prepare import apply_edits, prepare
from lamina.recipes.recipe_file import find_dataset
from small_recipe import NUM_PAIRS, write_downloads

DATASETS = sorted((Path(__file__).parents[2] / "recipes" / "data").glob("*.yaml"))


@pytest.mark.parametrize("path", DATASETS, ids=lambda path: path.stem)
def test_every_corpus_is_prepared_from_what_is_downloaded(path, tmp_path):
    dataset = read_dataset(path)
    if dataset.cleaning.tokenize:
        pytest.importorskip("sacremoses")
    downloads, out = tmp_path / "downloads", tmp_path / "text"
    downloads.mkdir()
    write_downloads(downloads, dataset)
    assert main(["recipe", "prepare", path.stem, "--data", str(downloads), "--out", str(out), "--workers", "1"]) == 0
    report = json.loads((out / "corpus.json").read_text())["splits"]
    assert sum(report["train"].values()) + sum(report["valid"].values()) >= NUM_PAIRS
    for split in ("train", "valid"):
        sides = [(out / f"{split}.{ending}").read_text().splitlines() for ending in dataset.endings]
        assert {len(lines) for lines in sides} == {report[split]["lines"]}
    for test in dataset.tests:
        lines = (out / f"{test.name}.{dataset.endings[0]}").read_text().splitlines()
        assert len(lines) == NUM_PAIRS * len(test.source)
        for number in range(len(test.references)):
            assert len((out / f"{test.name}.ref{number}").read_text().splitlines()) == len(lines)
        assert (out / f"{test.name}.m2").exists() == bool(test.m2)
    if dataset.cleaning.tokenize:
        first = (out / f"train.{dataset.endings[0]}").read_text().splitlines()[0]
        assert "( only )" in first
        assert "&amp;" not in first
        assert (first == first.lower()) == dataset.cleaning.lowercase


def corpus(tmp_path, source, target, **changes):
    (tmp_path / "t.en").write_text("".join(line + "\n" for line in source))
    (tmp_path / "t.de").write_text("".join(line + "\n" for line in target))
    given = {"name": "c", "about": "", "languages": ("en", "de"), "train": ("t.{lang}",), "valid": ("t.{lang}",), "tests": ()}
    return Dataset(**{**given, **changes})


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_cleaning_leaves_out_and_says_why(tmp_path):
    source = ["a b", "", "a b c d e f", "one two", "a  b\u2028c", "a b", "bad \ufffd"]
    target = ["x y", "x", "x y z u v w", "one", "x y z", "x y", "x y"]
    dataset = corpus(tmp_path, source, target, cleaning=Cleaning(max_length=5, max_ratio=1.5, deduplicate=True))
    counts = prepare(dataset, tmp_path, tmp_path / "out")
    assert read(tmp_path / "out" / "train.en") == ["a b", "a b c"]
    assert counts["train"] == {"lines": 2, "empty": 1, "too long": 1, "lengths differ": 1, "seen before": 1, "not UTF-8": 1}
    assert len(read(tmp_path / "out" / "valid.en")) == 7  # nothing is left out of validation


def test_every_nth_pair_is_held_out(tmp_path):
    lines = [f"line {number}" for number in range(1, 11)]
    dataset = corpus(tmp_path, lines, lines, valid=(), valid_every=4)
    prepare(dataset, tmp_path, tmp_path / "out", workers=2)
    assert read(tmp_path / "out" / "valid.de") == ["line 4", "line 8"]
    assert len(read(tmp_path / "out" / "train.en")) == 8


def test_order_and_pairs_survive_many_workers(tmp_path, monkeypatch):
    monkeypatch.setattr("lamina.recipes.prepare.CHUNK_LINES", 7)
    monkeypatch.setattr("lamina.recipes.prepare.CHUNKS_A_WORKER", 3)
    lines = [f"Line {number}" for number in range(200)]
    prepare(corpus(tmp_path, lines, lines, cleaning=Cleaning(lowercase=True)), tmp_path, tmp_path / "out", workers=2)
    assert read(tmp_path / "out" / "train.en") == [line.lower() for line in lines] == read(tmp_path / "out" / "train.de")


def test_references_lose_their_subword_marks(tmp_path):
    dataset = corpus(tmp_path, ["lo@@ w"], ["ti@@ ef"], has_bpe_marks=True,
                     tests=(TestSet("t", ("t.en",), (("t.de",),)),))
    prepare(dataset, tmp_path, tmp_path / "out")
    assert read(tmp_path / "out" / "t.en") == ["lo@@ w"]
    assert read(tmp_path / "out" / "t.ref0") == ["tief"]


def test_edits_are_applied_from_the_end():
    (annotated,) = read_m2(["S a b c", "A 0 1|||X|||x y|||REQUIRED|||-NONE-|||0", "A 2 3|||X||||||REQUIRED|||-NONE-|||0",
                            "A 1 1|||X|||new|||REQUIRED|||-NONE-|||0", "A 0 3|||X|||other|||REQUIRED|||-NONE-|||1"], "x")
    assert apply_edits(annotated) == ["x", "y", "new", "b"]


def test_sides_that_differ_in_length(tmp_path):
    with pytest.raises(DataError, match="de ends before line 2"):
        prepare(corpus(tmp_path, ["a", "b"], ["x"]), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*.part"))


def test_nothing_left(tmp_path):
    with pytest.raises(DataError, match="nothing is left for train"):
        prepare(corpus(tmp_path, ["a b c"], ["x"], cleaning=Cleaning(max_length=1)), tmp_path, tmp_path / "out")


def test_a_test_set_must_be_whole(tmp_path):
    (tmp_path / "long.de").write_text("x\ny\n")
    with pytest.raises(DataError, match="line N of one must belong to line N"):
        prepare(corpus(tmp_path, ["a"], ["x"], tests=(TestSet("t", ("t.en",), (("long.de",),)),)), tmp_path, tmp_path / "out")


@pytest.mark.parametrize(("text", "message"), [
    ("languages: [a, b, c]\ntrain: x\nvalid: y\n", "a source and a target"), ("train: x\n", "train and valid are needed"),
    ("trian: x\n", "unknown key 'trian'. Did you mean train"), ("train: x\nvalid: {every: 1}\n", "from 2 on"),
    ("train: x\nvalid: y\nclean: {max-length: long}\n", "must be a number"),
    ("train: x\nvalid: y\nclean: {lowercase: 1}\n", "true or"),
    ("train: x\nvalid: y\ntests: {t: {source: a}}\n", "nothing to compare with"),
    ("train: x\nvalid: y\ntests: {a/b: x}\n", "cannot be"),
    ("train: x\nvalid: y\npreprocess: 3\n", "preprocess must be a mapping"), ("- a\n", "must hold"),
    ("languages: [../x]\n", "source and a"),
])
def test_bad_descriptions(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_dataset(tmp_path / "c.yaml")


def test_an_unknown_corpus_and_a_folder_without_it(tmp_path, capsys):
    with pytest.raises(ConfigError, match="Did you mean multi30k_bpe"):
        find_dataset("multi30k-bpe")
    assert main(["recipe", "prepare", "iwslt14_de_en", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {tmp_path} has no de-en.tgz (http://dl.fbaipublicfiles.com")

"""Data folders byte for byte as fairseq's preprocess wrote them (tests/golden/databin_mmap)."""

import json
from pathlib import Path

import pytest

from lamina.cli import main
from lamina.data.binary import BinaryReader
from lamina.data.data_folder import read_manifest
from lamina.text.subword import Whitespace, load_subwords
from lamina.text.vocabulary import Vocabulary

GOLDEN = Path(__file__).parent.parent / "golden" / "databin_mmap"
COMMANDS = json.loads((GOLDEN / "config.json").read_text(encoding="utf-8"))["commands"]
IDS = json.loads((GOLDEN / "ids.json").read_text(encoding="utf-8"))
SIDES = ["--source-lang", "en", "--target-lang", "fr", "--trainpref", "raw/train", "--validpref", "raw/valid"]


def command_line(variant: str, destination: Path) -> list[str]:
    """The recorded words; all but the first command leave out what they share with it."""
    words = COMMANDS[variant].partition(" (")[0].split()
    words = words if "--trainpref" in words else [*SIDES, *words]
    return ["preprocess", *(str(GOLDEN / word) if word.startswith("raw/") else word for word in words),
            "--destdir", str(destination)]


@pytest.mark.parametrize("variant", COMMANDS)
def test_folder_has_fairseqs_bytes(variant, tmp_path):
    assert main(command_line(variant, tmp_path)) == 0
    expected = {path.name: path.read_bytes() for path in (GOLDEN / variant).iterdir()}
    assert len(expected) == 10
    assert {name: (tmp_path / name).read_bytes() for name in expected} == expected
    added = {path.name for path in tmp_path.iterdir()} - set(expected)
    assert added == {"manifest.json", "subwords.json"}


@pytest.mark.parametrize("variant", COMMANDS)
def test_fairseqs_folder_is_read(variant):
    assert read_manifest(GOLDEN / variant) is None
    assert {language: subword.kind for language, subword in load_subwords(GOLDEN / variant).items()} == {
        "en": "whitespace", "fr": "whitespace"}
    for language in ("en", "fr"):
        vocabulary = Vocabulary.load(GOLDEN / variant / f"dict.{language}.txt")
        recorded = IDS[variant][f"dict.{language}"]
        assert len(vocabulary) == recorded["size"]
        assert vocabulary.symbols == recorded["symbols"]
        for split in ("train", "valid"):
            reader = BinaryReader(GOLDEN / variant / f"{split}.en-fr.{language}")
            recorded = IDS[variant][f"{split}.{language}"]
            assert [ids.tolist() for ids in reader] == recorded["ids"]
            assert reader.sizes.tolist() == recorded["sizes"]
            assert reader.dtype.name == recorded["dtype"]
            assert [" ".join(vocabulary.decode(ids)) for ids in reader] == recorded["decoded"]


def test_lines_are_split_as_by_fairseq():
    for line, pieces in json.loads((GOLDEN / "tokenize_line.json").read_text(encoding="utf-8")):
        assert Whitespace().encode(line) == pieces

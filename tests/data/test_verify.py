"""The manifest's checksums are compared: whatever changed in a folder is noticed before a word of it is read."""

import json
import os
import random
import shutil

import numpy as np
import pytest

import lamina.data.verify as verify
from lamina.cli import main
from lamina.data.binary import HEADER, BinaryReader
from lamina.data.verify import VERIFIED_NAME, load_dictionary, load_folder_subwords, verify_splits
from lamina.errors import DataError
from lamina.files import quick_sum
from tiny import TINY_FLAGS, make_data

NOT_AS_WRITTEN = "is not as `lamina preprocess` wrote it"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("verify"), flags=("--joined-dictionary", "--subword", "bpe", "--vocab-size", "60"))


@pytest.fixture
def data(made, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(made, tmp_path / "data")


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def train(data, save_dir, *flags):
    return main(["train", str(data), *TINY_FLAGS, "--max-update", "1", "--no-save", "--save-dir", str(save_dir), *flags])


@pytest.mark.parametrize("name", ["train.en-xx.en.bin", "train.en-xx.xx.idx", "valid.en-xx.en.bin", "dict.en.txt",
                                  "subwords.json", "subword.xx.codes"])
def test_a_flipped_bit_is_noticed(data, name, tmp_path, capsys):
    """Wherever it is: the bits of a model or a dictionary may also make it unreadable, which is told as well."""
    whole, generator = (data / name).read_bytes(), random.Random(name)
    for _ in range(4):
        flip(data / name, generator.randrange(len(whole)), generator.randrange(8))
        assert train(data, tmp_path) == 2
        assert "lamina preprocess" in capsys.readouterr().err
        (data / name).write_bytes(whole)
    assert train(data, tmp_path) == 0


def test_swapped_words_of_a_dictionary(data, tmp_path, capsys):
    first, second, *rest = (data / "dict.en.txt").read_text().splitlines(keepends=True)
    for name in ("dict.en.txt", "dict.xx.txt"):
        (data / name).write_text("".join([second, first, *rest]))
    assert train(data, tmp_path) == 2
    assert f"dict.en.txt {NOT_AS_WRITTEN}" in capsys.readouterr().err
    with pytest.raises(DataError, match=NOT_AS_WRITTEN):
        load_dictionary(data, "en")


def test_lost_subwords(data, tmp_path, capsys):
    (data / "subwords.json").unlink()
    assert train(data, tmp_path) == 2
    assert "subwords.json is missing, though manifest.json lists it: text would be split" in capsys.readouterr().err
    (data / "manifest.json").unlink()  # as in a folder that fairseq made
    assert load_folder_subwords(data) == {}


def test_sentences_that_overlap_also_where_there_is_no_manifest(data):
    (data / "manifest.json").unlink()
    path = data / "train.en-xx.en.idx"
    content = bytearray(path.read_bytes())
    count = HEADER.unpack(content[: HEADER.size])[3]
    offsets = np.frombuffer(content, "<i8", offset=HEADER.size + 4 * count)
    offsets[1] = offsets[0]
    path.write_bytes(content)
    with pytest.raises(DataError, match="its sentences overlap, or leave gaps"):
        BinaryReader(data / "train.en-xx.en")


@pytest.fixture
def reads(monkeypatch):
    """Every file counts as large; which ones were read, and how."""
    monkeypatch.setattr(verify, "SMALL_BYTES", 0)
    found = []
    for real in (verify.quick_sum, verify.file_hash):
        def told(path, real=real):
            found.append((path.name, real.__name__))
            return real(path)

        monkeypatch.setattr(verify, real.__name__, told)

    def begin():
        found.clear()
        verify._known_good.clear()  # another process
        return found
    return begin


def test_large_files_are_read_once(data, reads):
    found = reads()
    verify_splits([data], ["train"], "once", pair=("xx", "en"))
    assert found == [(f"train.en-xx.{side}.bin", "quick_sum") for side in ("en", "xx")]
    found = reads()
    verify_splits([data], ["train"], "once")
    assert found == []
    verify_splits([data], ["train"], "full")
    assert found == [(f"train.en-xx.{side}.bin", "file_hash") for side in ("en", "xx")]
    found = reads()
    flip(data / "train.en-xx.en.bin", 7)
    verify_splits([data], ["train"], "off")
    with pytest.raises(DataError, match=rf"train.en-xx.en.bin {NOT_AS_WRITTEN}"):
        verify_splits([data], ["train"], "once")
    assert found == [("train.en-xx.en.bin", "quick_sum")]
    assert json.loads((data / VERIFIED_NAME).read_text()).keys() == {"train.en-xx.en.bin", "train.en-xx.xx.bin"}


def test_a_copy_is_another_file(data, reads, tmp_path):
    verify_splits([data], ["train"], "once")
    copy = shutil.copytree(data, tmp_path / "copy")  # with its times, and with what was remembered
    found = reads()
    verify_splits([copy], ["train"], "once")
    assert len(found) == 2


def test_a_folder_that_cannot_be_written_to(data, reads, tmp_path, monkeypatch):
    real = os.replace

    def refuse(source, target):
        if str(target).startswith(str(data)):
            raise PermissionError
        real(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    found = reads()
    verify_splits([data], ["train"], "once")
    assert len(found) == 2
    found = reads()
    verify_splits([data], ["train"], "once")
    assert found == []
    assert not list(data.glob(".*"))


@pytest.mark.parametrize("content", ["[]", "{", '{"train.en-xx.en.bin": 3}'])
def test_what_is_remembered_may_be_damaged(data, reads, content):
    (data / VERIFIED_NAME).write_text(content)
    found = reads()
    verify_splits([data], ["train"], "once")
    assert len(found) == 2


def test_a_manifest_without_checksums(data, tmp_path, capsys):
    manifest = json.loads((data / "manifest.json").read_text())
    for facts in manifest["files"].values():
        del facts["sha256"]
    (data / "manifest.json").write_text(json.dumps(manifest))
    assert train(data, tmp_path) == 2
    assert "manifest.json is damaged: it has no checksum of" in capsys.readouterr().err


def test_quick_sum(tmp_path):
    """Any bit, words and rows that change places, and lengths."""
    path = tmp_path / "x"
    whole = np.random.default_rng(0).integers(0, 2**63, 2048 + 3, dtype=np.int64)
    sums = set()
    for change in (lambda a: a, lambda a: a[:-1], lambda a: np.append(a, 0), lambda a: a[[1, 0, *range(2, len(a))]],
                   lambda a: np.concatenate([a[512:1024], a[:512], a[1024:]]), lambda a: a ^ (np.arange(len(a)) == 2049),
                   lambda a: a ^ ((np.arange(len(a)) == 5).astype(np.int64) << 62)):
        path.write_bytes(change(whole.copy()).tobytes())
        sums.add(quick_sum(path))
    assert len(sums) == 7
    path.write_bytes(b"")
    assert quick_sum(path) not in sums

"""Files are data: none runs code, and names in them lead nowhere."""

import collections
import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from fairseq_files import fixture_content
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.errors import DataError, LaminaError
from lamina.interop.any_format import load_any, load_foreign
from lamina.text.subword import load_subwords
from tiny import make_data, write_text

HOW = ("os.system", "eval", "builtins.getattr", "a class with __setstate__", "torch.load", "a stack of opcodes")


class ActiveLayers:
    """Unpickled, it calls something."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def malice(how):
    command = "touch pwned"
    match how:
        case "os.system":
            return ActiveLayers(os.system, command)
        case "eval":
            return ActiveLayers(eval, f"__import__('os').system({command!r})")
        case "builtins.getattr":
            return ActiveLayers(getattr, "x", "upper")
        case "a class with __setstate__":
            return collections.UserDict(x=ActiveLayers(os.system, command))
        case "torch.load":
            return ActiveLayers(torch.load, "inner.pt")
        case _:
            return ActiveLayers(exec, f"import os; os.system({command!r})")


def as_archive(content, how, path):
    """The same pickle in every shape that torch reads: its zip archive, its old stream, and bare."""
    plain = {"args": None, "model": {}, "cfg": {}, **content, "x": malice(how)}
    shapes = {}
    for name, is_zip in (("zip", True), ("stream", False)):
        torch.save(plain, path.with_suffix(f".{name}.pt"), _use_new_zipfile_serialization=is_zip)
        shapes[name] = path.with_suffix(f".{name}.pt")
    shapes["bare"] = path.with_suffix(".bare.pt")
    shapes["bare"].write_bytes(pickle.dumps(plain, protocol=2))
    return shapes


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("content", [{"lamina_format": 1}, {"args": {"arch": "transformer"}}], ids=["ours", "foreign"])
def test_no_checkpoint_runs_code(tmp_path, monkeypatch, how, content):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": malice("os.system")}, "inner.pt")
    for path in as_archive(content, how, tmp_path / "evil").values():
        for load in (load_checkpoint, load_any, load_foreign):
            with pytest.raises(LaminaError):
                load(path)
    assert not Path("pwned").exists()


def test_the_crafted_files_would_have_run(tmp_path, monkeypatch):
    """By a reader that trusts them: otherwise the test above would show nothing."""
    monkeypatch.chdir(tmp_path)
    shapes = as_archive({}, "os.system", tmp_path / "evil")
    torch.load(shapes["zip"], weights_only=False)
    assert Path("pwned").exists()


def test_the_offending_name_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = fixture_content("transformer_postln")
    torch.save({**content, "extra_state": ActiveLayers(os.system, "touch pwned")}, "evil.pt")
    with pytest.raises(LaminaError, match=r"posix\.system|nt\.system|os\.system"):
        load_foreign("evil.pt")
    assert not Path("pwned").exists()


@pytest.mark.parametrize("command", [["info"], ["generate", "DATA", "--path"], ["interactive", "--path"],
                                     ["average", "--output", "x.pt", "--inputs"],
                                     ["prune", "--encoder-layers-to-keep", "1", "--output", "x.pt"],
                                     ["train", "DATA", "--max-tokens", "64", "--finetune-from-model"]])
def test_no_command_runs_a_checkpoint(tmp_path, monkeypatch, capsys, command):
    data = make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("a b\n"))
    torch.save({"lamina_format": 1, "config": ActiveLayers(os.system, "touch pwned")}, "evil.pt")
    capsys.readouterr()
    assert main([str(data) if word == "DATA" else word for word in command] + ["evil.pt"]) == 2
    assert "system" in capsys.readouterr().err
    assert not Path("pwned").exists()


def test_archives_that_unpack_to_more_than_they_are_do_no_harm(tmp_path):
    """A megabyte of zeros, compressed to a kilobyte, in the place of a record: the reader compares sizes first."""
    torch.save({"lamina_format": 1, "w": torch.zeros(10)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as source, zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        for name in source.namelist():
            bomb.writestr(name, bytes(2**20) if name.endswith("data/0") else source.read(name))
    with pytest.raises(LaminaError):
        load_checkpoint(tmp_path / "bomb.pt")


@pytest.mark.parametrize("name", ["../outside.codes", "/etc/passwd", "..", "a/b", "c:\\x", "", 3, None])
def test_a_folder_cannot_name_files_elsewhere(tmp_path, name):
    (tmp_path / "outside.codes").write_text("#version: 0.2\na b\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "subwords.json").write_text(json.dumps({"en": {"kind": "bpe", "file": name}}))
    with pytest.raises(DataError, match=r"no plain name|cannot be read"):
        load_subwords(folder)


def test_preprocess_writes_nothing_outside_its_folder(tmp_path):
    """However the files are called that a stranger's folder names."""
    folder = tmp_path / "outer" / "data"
    folder.mkdir(parents=True)
    evil = "../../evil"
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": {evil: {}}, "splits": {evil: {}},
                                                      "vocabularies": {evil: {"file": evil}}}))
    (folder / "subwords.json").write_text(json.dumps({evil: {"kind": "whitespace"}}))
    text = write_text(tmp_path / "text", 3)
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--destdir", str(folder),
                 "--workers", "1"]) in (0, 2)
    assert sorted(os.listdir(tmp_path)) == ["outer", "text"]
    assert os.listdir(tmp_path / "outer") == ["data"]

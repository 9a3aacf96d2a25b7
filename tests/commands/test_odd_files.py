"""Texts that a terminal would obey, files that are pipes, numbers that are none, lines without an end, parts of the killed."""

import io
import json
import os
import re
import signal
import socket
import sys
from dataclasses import replace

import pytest

from lamina.checkpoint.format import load_checkpoint, save_checkpoint
from lamina.cli import main
from lamina.commands.interactive import MAX_LINE_BYTES, _lines
from lamina.console import printable
from tiny import TINY_FLAGS, make_data

EVIL = "\x1b[2J\x1b]0;title\x07 \x9b31m\r\u202egnp.exe"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    data = make_data(folder)
    assert main(["train", str(data), *TINY_FLAGS, "--cpu", "--encoder-layers", "2", "--max-update", "1", "--save-dir",
                 str(folder / "model")]) == 0
    return folder


def is_clean(text):
    return re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text) is None


def test_info_prints_no_terminal_escapes(made, tmp_path, capsys):
    checkpoint = load_checkpoint(made / "model/checkpoint_last.pt")
    path = tmp_path / "x.pt"
    save_checkpoint(path, replace(checkpoint, origin={"command": EVIL, EVIL: "x"}, versions={"torch": EVIL},
                                  metrics={EVIL: 1.0}, config=checkpoint.config | {"arch": EVIL}))
    for flags in ([], ["--json"]):
        assert main(["info", str(path), *flags]) == 0
        out = capsys.readouterr().out
        assert is_clean(out)
        assert "\\u001b[2J" in out
    assert json.loads(out)["origin"]["command"] == EVIL
    save_checkpoint(path, replace(checkpoint, config=checkpoint.config | {"task": EVIL}))
    assert main(["generate", str(made / "data"), "--path", str(path), "--cpu"]) == 2
    assert is_clean(capsys.readouterr().err)
    assert printable("a\tb\nă") == "a\tb\nă"


@pytest.fixture
def pipe(tmp_path):
    """Nobody writes to it: opening it would wait for ever."""
    def too_long(*_):
        raise TimeoutError("it waits for the pipe")

    handler = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(10)
    yield lambda path: (path.unlink(missing_ok=True), os.mkfifo(path))
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
@pytest.mark.parametrize("name", ["train.en-xx.en.idx", "train.en-xx.xx.bin", "dict.en.txt", "manifest.json", "subwords.json"])
def test_pipes_in_a_data_folder(tmp_path, capsys, pipe, name):
    data = make_data(tmp_path / "own")
    pipe(data / name)
    assert main(["train", str(data), *TINY_FLAGS, "--cpu", "--max-update", "1", "--no-save"]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
def test_pipes_as_text_or_checkpoint(tmp_path, capsys, pipe):
    pipe(tmp_path / "x.en")
    (tmp_path / "x.xx").write_text("a\n")
    words = ["preprocess", "-s", "en", "-t", "xx", "--trainpref", str(tmp_path / "x")]
    assert main([*words, "--destdir", str(tmp_path / "d")]) == 2
    assert "no ordinary file, but a pipe" in capsys.readouterr().err
    assert main(["info", str(tmp_path / "x.en")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["nan", "inf", "1e39"])
def test_vectors_that_are_not_finite(made, tmp_path, capsys, number):
    (tmp_path / "x.vec").write_text("1 16\nboat " + " ".join([number] + ["1"] * 15) + "\n")
    assert main(["train", str(made / "data"), *TINY_FLAGS, "--cpu", "--max-update", "1", "--no-save", "--encoder-embed-path",
                 str(tmp_path / "x.vec"), "--decoder-embed-path", str(tmp_path / "x.vec")]) == 2
    assert "x.vec, line 2: the vector of 'boat' holds values that are not finite" in capsys.readouterr().err


def test_a_line_without_an_end(capsys):
    """It is cut, and the next one is read as if nothing had been."""
    file = io.BytesIO(b"one\n" + b"a b " * MAX_LINE_BYTES + b"\nthree\n" + b"x" * (3 * MAX_LINE_BYTES))
    lines = list(_lines(file, "-", is_typed=False))
    assert [lines[0], lines[2]] == ["one", "three"]
    assert all(len(line) <= MAX_LINE_BYTES for line in lines)
    assert len(lines) == 4
    assert capsys.readouterr().err.count("the rest of it is left out") == 2


@pytest.mark.parametrize("command", ["average", "export", "prune"])
def test_parts_of_killed_commands_are_cleared_away(made, tmp_path, command):
    dead = f"{socket.gethostname()}-{2**22 + 1}.part"
    (tmp_path / f".x.pt.{dead}").write_text("half")
    (tmp_path / f".y.{dead}").mkdir()
    (tmp_path / f".y.{dead}" / "model.safetensors").write_text("half")
    model = str(made / "model/checkpoint_last.pt")
    words = {"average": ["--inputs", model], "export": [model], "prune": [model, "--encoder-layers-to-keep", "0"]}[command]
    assert main([command, *words, "--output", str(tmp_path / "out.pt")]) == 0
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]

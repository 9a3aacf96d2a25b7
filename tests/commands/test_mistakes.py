"""What a person, a launcher or a disk may get wrong: one line each, never a traceback."""

import copy
import os
import resource
import shutil
import signal
from contextlib import contextmanager

import pytest
import torch

from lamina.cli import main
from lamina.command_line import COMMANDS, load
from lamina.errors import ConfigError
from lamina.fields import coerce, unique_leaves
from tiny import TINY_FLAGS, make_data, write_text


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    data = make_data(folder)
    assert main(["train", str(data), *TINY_FLAGS, "--cpu", "--max-update", "2", "--save-dir", str(folder / "model")]) == 0
    return folder


def error_of(capsys):
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, err
    return lines[0]


@contextmanager
def full_disk(limit):
    """No file grows beyond this."""
    handler, before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("kind", ["safetensors", "fairseq"])
def test_a_full_disk_under_an_export(made, tmp_path, capsys, kind):
    with full_disk(8192):
        code = main(["export", str(made / "model/checkpoint_last.pt"), "--output", str(tmp_path / "x"), "--format", kind])
    assert code == 2
    assert "x could not be written: " in error_of(capsys)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_under_sentencepiece(made, tmp_path, capsys):
    with full_disk(1024):
        code = main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", str(made / "text/train"), "--destdir",
                     str(tmp_path / "x"), "--subword", "sentencepiece", "--vocab-size", "60", "--workers", "1"])
    assert code == 2
    assert "File too large" in error_of(capsys)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_under_the_demo(tmp_path, capsys):
    with full_disk(16384):
        assert main(["demo", "--folder", str(tmp_path / "x"), "--max-update", "1", "--train-pairs", "3000"]) == 2
    assert "File too large" in error_of(capsys)


def test_export_into_the_current_folder(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(made / "model/checkpoint_last.pt"), "--output", "."]) == 0
    assert "model.safetensors" in os.listdir(tmp_path)
    assert os.path.samefile(".", tmp_path)  # not another folder of this name
    assert main(["info", "."]) == 0


@pytest.mark.parametrize("environ", [{"RANK": "abc", "WORLD_SIZE": "2"}, {"RANK": "-1", "WORLD_SIZE": "2"},
                                     {"RANK": "0", "WORLD_SIZE": "x"}, {"RANK": "2", "WORLD_SIZE": "2"},
                                     {"RANK": "9" * 30, "WORLD_SIZE": "2"}, {"SLURM_STEP_NUM_TASKS": "x"},
                                     {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "\u00b2"}])
def test_what_launchers_put_into_the_environment(made, tmp_path, capsys, monkeypatch, environ):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["train", str(made / "data"), *TINY_FLAGS, "--cpu", "--max-update", "1", "--no-save"]) == 2
    assert "in the environment; " in error_of(capsys)


@pytest.mark.parametrize("name", COMMANDS)
def test_numbers_that_are_too_large(name):
    for leaf in unique_leaves(load(COMMANDS[name].config)):
        for number in ("2147483648", "1" + 20 * "0", "-" + "9" * 5000):
            if leaf.type in (int, int | None, tuple[int, ...]):
                with pytest.raises(ConfigError, match=r"must lie below 2\^31|it must be"):
                    coerce(leaf.type, number, leaf.name)


@pytest.mark.parametrize("words", [("analyze", "fusion", "m", "d", "--out", "o"), ("analyze", "depth", "m", "--out", "o"),
                                   ("interactive", "--path", "m"), ("demo",), ("train", "d", "--max-tokens", "5")])
def test_seeds(words, capsys):
    for seed in ("-1", "2147483648"):
        assert main([*words, "--seed", seed]) == 2
        assert f"--seed is {seed}; " in error_of(capsys)


@pytest.mark.parametrize("version", ["9.7", "x", ""])
def test_bpe_codes_of_an_unknown_version(made, tmp_path, capsys, version):
    (tmp_path / "codes").write_text(f"#version: {version}\na b\n")
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", str(made / "text/train"), "--destdir",
                 str(tmp_path / "x"), "--bpe-codes", str(tmp_path / "codes")]) == 2
    assert "known are 0.1 and 0.2" in error_of(capsys)


@pytest.mark.skipif(os.name != "posix", reason="names are bytes")
def test_names_that_are_not_utf8(made, tmp_path):
    odd = str(tmp_path / os.fsdecode(b"a\xff"))
    text = write_text(tmp_path / "text", 5)
    for language in ("en", "xx"):
        shutil.copy(text / f"train.{language}", f"{odd}.{language}")
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", odd, "--destdir", f"{odd}.bin", "--workers", "1"]) == 0
    assert main(["preprocess", "-s", "en", "-t", "xx", "--testpref", odd, "--destdir", f"{odd}.bin", "--workers", "1",
                 "--srcdict", f"{odd}.bin/dict.en.txt", "--tgtdict", f"{odd}.bin/dict.xx.txt"]) == 0
    shutil.copy(made / "model/checkpoint_last.pt", f"{odd}.pt")
    for words in (["info", f"{odd}.pt"], ["average", "--inputs", f"{odd}.pt", "--output", f"{odd}.mean"],
                  ["export", f"{odd}.mean", "--output", f"{odd}.folder"], ["info", f"{odd}.folder", "--json"]):
        assert main(words) == 0


ODD = (None, 3, -1, "x", [1], {"a": 1}, 1.5, True, torch.zeros(2), float("nan"))
FIELDS = [("training",), *(("training", name) for name in ("progress", "scale", "optimizer", "optimizer_kind", "run")),
          ("training", "optimizer", "step"), ("training", "optimizer", "exp_avg"), ("config", "encoder-layers"),
          *(("training", "progress", name) for name in ("updates", "epoch", "batches_done", "best", "seconds", "epoch_loss"))]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field[-1])
def test_mistyped_fields_of_a_checkpoint(made, tmp_path, field, capsys):
    """Whatever stands there, it is refused, or does no harm."""
    whole = torch.load(made / "model/checkpoint_last.pt", weights_only=True)
    for value in ODD:
        content = whole | {"training": copy.deepcopy(whole["training"]), "config": dict(whole["config"]), "is_sealed": False}
        holder = content
        for name in field[:-1]:
            holder = holder[name]
        holder[field[-1]] = value
        torch.save(content, tmp_path / "x.pt")
        for words in (["info", str(tmp_path / "x.pt")], ["train", str(made / "data"), *TINY_FLAGS, "--cpu", "--max-update", "3",
                                                         "--no-save", "--restore-file", str(tmp_path / "x.pt")]):
            if main(words) != 0:
                error_of(capsys)
            capsys.readouterr()

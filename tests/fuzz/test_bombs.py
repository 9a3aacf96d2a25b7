"""Small files that would become large ones, or never end: refused with one line, in seconds and within a gigabyte."""

import argparse
import gzip
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from fairseq_files import fixture_content, write_fixture_file
from fuzz.test_readers import _checkpoint, bounded
from lamina.checkpoint.format import load_checkpoint, read_archive, save_checkpoint
from lamina.checkpoint.limits import MAX_STEPS
from lamina.checkpoint.runs import read_mark
from lamina.cli import main
from lamina.errors import ConfigError, DamageError, DataError, LaminaError
from lamina.files import Budget
from lamina.interop.any_format import load_any
from lamina.recipes.recipe_file import read_recipe
from lamina.recipes.sources import MAX_LINE_BYTES, read_place


def laughs(depth, bottom="ha"):
    value = [bottom]
    for _ in range(depth):
        value = [value, value]
    return value


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def circle():
    value = {}
    value["again"] = value
    return value


def content(**changes):
    return {"lamina_format": 1, **vars(_checkpoint()), **changes}


class Call:
    """Pickles as a call of a function that torch's reader allows."""

    def __init__(self, function, *arguments):
        self.what = function, arguments

    def __reduce__(self):
        return self.what


def hex_of_hex(times):
    import _codecs

    value = b"\0" * 64
    for _ in range(times):
        value = Call(_codecs.encode, value, "hex")
    return value


def empty(dtype=torch.float32):
    return torch.zeros(1, dtype=dtype).expand(2**20, 2**20)


def namespace_circle():
    args = argparse.Namespace()
    args.again = args
    return args


BOMBS = {
    "shared lists": lambda: content(training={"x": laughs(60)}),
    "shared lists in the configuration": lambda: content(config={"task": "translation", "arch": laughs(60)}),
    "shared texts": lambda: content(subwords=({"kind": "whitespace", "model": ["x" * 2**20] * 2**12},) * 2),
    "a circle": lambda: content(training=circle()),
    "depth": lambda: content(training={"x": nested(90)}),
    "one number for many": lambda: content(weights={"w": empty()}),
    "one tensor under many names": lambda: content(weights=dict.fromkeys(map(str, range(100_000)), torch.zeros(2**20))),
    "a tensor of any size": lambda: content(training={"x": Call(torch.Tensor, 2**16, 2**16)}),
    "a storage of any size": lambda: content(training={"x": Call(torch.FloatTensor, 2**32)}),
    "bytes of any size": lambda: content(training={"x": Call(bytearray, 2**33)}),
    "bytes that double": lambda: content(training={"x": hex_of_hex(28)}),
    "a number of a million digits": lambda: content(metrics={"loss": 10**100_000}),
    "a number of twenty digits": lambda: content(metrics={"loss": 10**200}),
    "quantized": lambda: content(weights={"w": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}),
    "sparse": lambda: content(weights={"w": torch.ones(3).to_sparse()}),
    "meta": lambda: content(weights={"w": torch.empty(2**30, 2**10, device="meta")}),
    "complex": lambda: content(weights={"w": torch.ones(3, dtype=torch.complex64)}),
    "arguments that hold themselves": lambda: {**fixture_content("transformer_postln"), "args": namespace_circle()},
    "a configuration that holds itself": lambda: {**fixture_content("transformer_postln"), "args": None,
                                                  "cfg": {"model": circle(), "task": circle()}},
    "a wide model": lambda: fixture_content("transformer_postln", encoder_embed_dim=2**20, decoder_embed_dim=2**20),
    "many positions": lambda: fixture_content("transformer_postln", max_source_positions=10**12),
    "a deep model": lambda: (lambda whole: {**whole, "model": {**whole["model"], "encoder.layers.9999999.fc1.weight": next(
        iter(whole["model"].values()))}})(fixture_content("transformer_postln")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    write_fixture_file(folder, "transformer_postln")  # dictionaries
    return folder


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.filterwarnings("ignore")
def test_info_tells_of_a_bomb_in_one_line(folder, name, is_zip, capfd):
    path = folder / "bomb.pt"
    torch.save(BOMBS[name](), path, _use_new_zipfile_serialization=is_zip)
    assert path.stat().st_size < 2**24
    with bounded():
        code = main(["info", str(path)])
    out, err = capfd.readouterr()
    if name == "depth":
        assert code == 0
        return
    assert code == 2, out[:500]
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 1000
    with bounded():
        assert read_mark(path) is None


def test_a_bomb_of_steps(folder):
    steps = pickle.PROTO + b"\x02" + b"]0" * (MAX_STEPS // 2 + 5) + b"]."
    with zipfile.ZipFile(folder / "steps.pt", "w") as archive:
        archive.writestr("archive/data.pkl", steps)
        archive.writestr("archive/version", "3\n")
    with bounded(), pytest.raises(DamageError, match="steps of reading, which no checkpoint has"):
        read_archive(folder / "steps.pt")


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_a_packed_bomb(folder, is_overlapping):
    """3 GB of zeros in 3 MB; or the same bytes as the content of many files."""
    torch.save({"lamina_format": 1, "weights": {"w": torch.zeros(1000)}}, folder / "small.pt")
    path = folder / "packed.pt"
    with zipfile.ZipFile(folder / "small.pt") as small, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in small.namelist():
            archive.writestr(name, small.read(name))
        with archive.open("small/data/1", "w", force_zip64=True) as file:
            for _ in range(16 if is_overlapping else 3 * 64):
                file.write(b"\0" * 2**24)
        if is_overlapping:
            archive.filelist += [archive.getinfo("small/data/1")] * 20
    assert path.stat().st_size < 2**22
    with bounded(), pytest.raises(DamageError, match=r"bytes would unpack to \d+, which no checkpoint's do"):
        read_archive(path)


def test_honest_files_are_far_from_the_limits(folder):
    """Tied weights, dictionaries on both sides, optimizer state and the options of every kind."""
    checkpoint = _checkpoint()
    checkpoint.training["optimizer"] = OrderedDict(exp_avg=checkpoint.weights, step=torch.tensor(3))
    save_checkpoint(folder / "honest.pt", checkpoint)
    assert load_checkpoint(folder / "honest.pt").training["optimizer"]["step"] == 3
    assert Budget(1000).spend({"a": [1, 2.5, None, True, "text"], "b": (b"x", {1, 2})}) < 100


def test_laughs_in_a_recipe(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    (tmp_path / "recipe.yaml").write_text("\n".join(lines) + "\nabout: *a29\ndata: multi30k\n")
    with bounded(), pytest.raises(ConfigError, match="it refers to the same things so often"):
        read_recipe(tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text("about: &a [*a]\ndata: multi30k\n")
    with bounded(), pytest.raises(ConfigError, match="it holds itself"):
        read_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(("line", "what"), [(b"\0" * 2**20, "a line of more than"),
                                            (b"a\n" * 2**19, "unpacks to more than 200")])
def test_a_packed_corpus(tmp_path, line, what, monkeypatch):
    import lamina.recipes.sources as sources

    monkeypatch.setattr(sources, "SPARE_BYTES", 2**20)
    with gzip.open(tmp_path / "x.gz", "wb") as file:
        for _ in range(2 * MAX_LINE_BYTES // 2**20):
            file.write(line)
    with bounded(), pytest.raises(DataError, match=what):
        for _ in read_place(tmp_path, "x.gz"):
            pass


def test_an_exported_folder(folder, tmp_path):
    for text in ("[" * 100_000, '{"lamina_format": ' + "9" * 100_000 + "}", '{"lamina_format": 1, "languages": ' + "[" * 900):
        (tmp_path / "model.safetensors").write_bytes(b"\xff" * 8 + b"{")
        (tmp_path / "config.json").write_text(text)
        with bounded(), pytest.raises(LaminaError):
            load_any(Path(tmp_path))

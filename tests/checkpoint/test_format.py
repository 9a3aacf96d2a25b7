"""Checkpoints: what goes in comes out, and nothing else gets in."""

import os
import pickle
import random
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from lamina.checkpoint.format import SEAL_SIZE, Checkpoint, load_checkpoint, load_weights_, save_checkpoint
from lamina.errors import CheckpointError, DamageError
from lamina.fields import flatten
from lamina.models.build import build_model
from lamina.text.subword import Whitespace, subword_to_dict
from lamina.text.vocabulary import Vocabulary
from tiny import VOCABULARY_SIZE, tiny_config


def new_checkpoint(seed=0):
    torch.manual_seed(seed)
    words = [f"w{number}" for number in range(VOCABULARY_SIZE - 4)]
    text = Vocabulary(words, [1] * len(words)).to_text()
    subword = subword_to_dict(Whitespace())
    model = build_model(tiny_config(), VOCABULARY_SIZE, VOCABULARY_SIZE)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    return Checkpoint(config=flatten(tiny_config()), languages=("en", "xx"), dictionaries=(text, text),
                      subwords=(subword, subword), weights=weights), model.eval()


def test_a_checkpoint_rebuilds_its_model(tmp_path):
    checkpoint, model = new_checkpoint()
    save_checkpoint(tmp_path / "a" / "x.pt", checkpoint)
    loaded = load_checkpoint(tmp_path / "a" / "x.pt")
    source, target = torch.tensor([[5, 6, 2]]), torch.tensor([[2, 7]])
    torch.testing.assert_close(loaded.build_model().eval().log_probs(source, target), model.log_probs(source, target),
                               rtol=0, atol=0)
    assert loaded.model_config() == tiny_config()
    assert len(loaded.vocabularies()[0]) == VOCABULARY_SIZE
    assert loaded.subword_models()[0].encode("a b") == ["a", "b"]
    assert os.listdir(tmp_path / "a") == ["x.pt"]


class Malice:
    def __reduce__(self):
        return os.system, ("touch pwned",)


def test_a_checkpoint_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"lamina_format": 1, "config": Malice()}, tmp_path / "evil.pt")
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(Malice()))
    for name in ("evil.pt", "evil.pickle"):
        with pytest.raises(CheckpointError, match="cannot be read as a checkpoint") as refusal:
            load_checkpoint(tmp_path / name)
        assert "weights_only" not in str(refusal.value)
    assert not Path("pwned").exists()


def test_damage_is_one_clear_error(tmp_path):
    checkpoint, _ = new_checkpoint()
    path = tmp_path / "x.pt"
    save_checkpoint(path, checkpoint)
    whole = path.read_bytes()
    for number, content in enumerate((b"", b"text", whole[: len(whole) // 2], whole[:-100])):
        (tmp_path / f"{number}.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_checkpoint(tmp_path / f"{number}.pt")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "missing.pt")
    torch.save({"model": {}}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint of Lamina"):
        load_checkpoint(path)
    torch.save({"lamina_format": 99}, path)
    with pytest.raises(CheckpointError, match="format 99"):
        load_checkpoint(path)
    torch.save({"lamina_format": 1, "config": {}}, path)
    with pytest.raises(CheckpointError, match="lacks dictionaries"):
        load_checkpoint(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    checkpoint, _ = new_checkpoint()
    path = tmp_path / "x.pt"
    save_checkpoint(path, checkpoint)
    before = path.read_bytes()

    def full_disk(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_checkpoint(path, checkpoint)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.pt"]


def test_weights_that_do_not_fit_are_named():
    checkpoint, model = new_checkpoint()
    name = "encoder.layers.0.ffn.fc1.weight"
    with pytest.raises(CheckpointError, match=f"lacks {name}"):
        load_weights_(model, {key: value for key, value in checkpoint.weights.items() if key != name})
    with pytest.raises(CheckpointError, match="also holds extra"):
        load_weights_(model, {**checkpoint.weights, "extra": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=rf"{name} is \(3, 3\) there and \(32, 16\) here"):
        load_weights_(model, {**checkpoint.weights, name: torch.zeros(3, 3)})


def test_any_changed_byte_is_noticed(tmp_path):
    checkpoint, _ = new_checkpoint()
    path = tmp_path / "x.pt"
    save_checkpoint(path, checkpoint)
    whole = path.read_bytes()
    assert zipfile.ZipFile(path).comment.startswith(b"lamina sha256 ")
    generator = random.Random(0)
    for place in [0, len(whole) - 1, len(whole) - SEAL_SIZE, len(whole) - SEAL_SIZE - 1,
                  *(generator.randrange(len(whole)) for _ in range(100))]:
        changed = bytearray(whole)
        changed[place] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(DamageError):
            load_checkpoint(path)
    for size in (SEAL_SIZE, 1, generator.randrange(len(whole))):
        path.write_bytes(whole[:-size])
        with pytest.raises(DamageError):
            load_checkpoint(path)


def test_a_file_from_before_there_were_checksums_loads(tmp_path):
    checkpoint, _ = new_checkpoint()
    content = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint) if item.name != "origin"}
    torch.save({"lamina_format": 1, **content}, tmp_path / "old.pt")
    assert load_checkpoint(tmp_path / "old.pt").languages == ("en", "xx")


@pytest.mark.parametrize(("name", "value"), [
    ("config", []), ("config", {"task": 3}), ("languages", "en"), ("dictionaries", ("a", 2)), ("subwords", ("x", "y")),
    ("weights", {"a": 1}), ("training", None), ("metrics", {"loss": "low"}), ("versions", {1: "x"}), ("languages", ("en",))])
def test_fields_of_other_types_are_refused(tmp_path, name, value):
    checkpoint, _ = new_checkpoint()
    save_checkpoint(tmp_path / "x.pt", replace(checkpoint, **{name: value}))
    with pytest.raises(DamageError, match="does not hold what it should"):
        load_checkpoint(tmp_path / "x.pt")

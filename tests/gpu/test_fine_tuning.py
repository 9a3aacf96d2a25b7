"""Fine-tuning on a GPU: captured updates with frozen weights are those of a CPU, and what is frozen stays."""

import json

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    data = make_data(folder)
    assert main(["train", str(data), *TINY_FLAGS, "--encoder-layers", "2", "--decoder-layers", "2", "--max-epoch", "6", "--cpu",
                 "--dropout", "0.0", "--save-dir", str(folder / "base")]) == 0
    return data, folder / "base" / "checkpoint_last.pt"


def fine_tune(base, folder, *words):
    data, path = base
    return main(["train", str(data), *TINY_FLAGS, "--encoder-layers", "2", "--decoder-layers", "2", "--max-epoch", "8",
                 "--dropout", "0.0", "--lr", "0.002", "--finetune-from-model", str(path), "--save-dir", str(folder),
                 "--log-format", "json", *words])


def losses(out):
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [row["loss"] for row in rows if row.get("where") == "valid"]


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("frozen", [["--freeze", "source_embedding", "--freeze", "encoder"],
                                    ["--freeze", "source_embedding", "--freeze", "encoder.layers.0"],
                                    ["--freeze", "encoder.layers.1", "--freeze", "*.norm.*"],
                                    ["--freeze", "encoder.layers.0", "--encoder-layerdrop", "0.5"]],
                         ids=["encoder", "bottom", "middle", "layerdrop"])
def test_captured_updates_leave_frozen_weights_alone(base, tmp_path, capsys, frozen, optimizer):
    found = []
    for name, how in (("cpu", ["--cpu"]), ("gpu", ["--bf16"])):
        assert fine_tune(base, tmp_path / name, *frozen, "--optimizer", optimizer, *how) == 0
        out = capsys.readouterr().out
        assert "is off, since it failed" not in out
        found.append(losses(out))
    # Batches are packed on a GPU, and LayerDrop draws others: about the same descent, not the same numbers.
    assert found[1][-1] == pytest.approx(found[0][-1], rel=0.15)
    before, after = (load_checkpoint(path) for path in (base[1], tmp_path / "gpu" / "checkpoint_last.pt"))
    state = next(value for value in after.training["optimizer"].values() if isinstance(value, dict))
    for name, weight in before.weights.items():
        is_frozen = torch.equal(weight, after.weights[name])
        if name.startswith(frozen[1]):
            assert is_frozen, name
            assert name not in state
    assert not torch.equal(before.weights["decoder.layers.1.ffn.fc1.weight"], after.weights["decoder.layers.1.ffn.fc1.weight"])


@pytest.mark.parametrize("flags", [[], ["--encoder-layerdrop", "0.5", "--decoder-layerdrop", "0.5"],
                                   ["--lora-dropout", "0.1", "--lora-matrices", "q,v"]], ids=["all", "layerdrop", "q and v"])
def test_lora_is_captured_and_leaves_the_model_alone(base, tmp_path, capsys, flags):
    found = []
    for name, how in (("cpu", ["--cpu"]), ("gpu", ["--bf16"])):
        assert fine_tune(base, tmp_path / name, "--lora-rank", "4", "--lora-merge", "--lr", "0.02", *flags, *how) == 0
        out = capsys.readouterr().out
        assert "is off, since it failed" not in out
        found.append(losses(out))
    assert found[1][-1] == pytest.approx(found[0][-1], rel=0.15)
    before, after = (load_checkpoint(path) for path in (base[1], tmp_path / "gpu" / "checkpoint_last.pt"))
    adapter = after.model_config().adapter
    assert all(torch.equal(weight, after.weights[name]) for name, weight in before.weights.items())
    assert all(weight.ne(0).any() for name, weight in after.weights.items() if adapter.owns(name))
    assert load_checkpoint(tmp_path / "gpu" / "checkpoint_best.pt").weights.keys() == before.weights.keys()

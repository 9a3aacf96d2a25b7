"""--plan: what a run would take, against what it then takes."""

import json
from dataclasses import replace

import pytest
import torch

from lamina.cli import main
from lamina.config.ranks_options import RanksConfig
from lamina.config.train_options import OptimizationConfig
from lamina.distributed.weights import ALIGNMENT, FlatWeights
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.parts.muon import Muon
from lamina.parts.update_rules import Adam
from lamina.tasks.made_up import made_up_pairs
from lamina.training.memory_plan import bytes_kept, bytes_of_state, bytes_sent
from lamina.training.optimizers import build_optimizer
from tiny import TINY_FLAGS, VOCABULARY_SIZE, make_data, tiny_model


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("plan"), num_lines=30)


def plan(data, folder, capsys, *flags):
    """The numbers of the plan; nothing is written, whatever comes out."""
    capsys.readouterr()
    before = sorted(folder.rglob("*"))
    assert main(["train", str(data), *TINY_FLAGS, "--cpu", "--plan", "--log-format", "json", "--save-dir", str(folder / "run"),
                 *flags]) == 0
    assert sorted(folder.rglob("*")) == before
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


class Settings:
    """As much of a TrainConfig as the plan of memory asks."""

    def __init__(self, optimizer, ranks=None, update_freq=(1,)):
        self.optimization = OptimizationConfig(optimizer=optimizer, update_freq=update_freq)
        self.ranks = ranks or RanksConfig()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("update_freq", [1, 2])
@pytest.mark.parametrize("rule", [Adam(), Muon()], ids=["adam", "muon"])
def test_the_memory_of_weights_and_optimizer_is_what_is_allocated(dtype, update_freq, rule):
    planned = bytes_of_state(Settings(rule, update_freq=(update_freq,)), tiny_model(num_layers=3), dtype, 1, 1)
    model = tiny_model(num_layers=3)
    weights = FlatWeights(model, dtype, accumulates=update_freq > 1)
    optimizer = build_optimizer(rule, weights.master, weights)

    def size(*tensors):
        return sum({tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}.values())

    pads = 4 * ALIGNMENT * len(weights.names) * 2
    for kind, tensors in {"weights": (weights.master, weights.compute), "gradients": (weights.grad, weights.compute_grad),
                          "optimizer": optimizer.buffers.values()}.items():
        assert planned[kind] <= size(*tensors) <= planned[kind] + pads, kind


def test_shards_divide_it():
    model, settings = tiny_model(), Settings(Adam(), RanksConfig(fsdp=True))
    two, eight = (bytes_of_state(settings, model, torch.bfloat16, size, size) for size in (2, 8))
    assert two["optimizer"] == pytest.approx(4 * eight["optimizer"], rel=0.01)
    assert two["weights"] > eight["weights"]


def test_what_a_ring_of_ranks_sends():
    model = tiny_model()
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert bytes_sent(Settings(Adam()), model, torch.bfloat16, 1, 1) == 0
    assert bytes_sent(Settings(Adam()), model, torch.bfloat16, 2, 1) == size
    assert bytes_sent(Settings(Adam()), model, torch.bfloat16, 64, 1) == pytest.approx(2 * size, rel=0.02)
    # Sharded: bfloat16 weights are gathered twice, and float32 gradients scattered once.
    sharded = Settings(Adam(), RanksConfig(fsdp=True))
    assert bytes_sent(sharded, model, torch.bfloat16, 64, 64) == pytest.approx(size * 2 * 63 / 64, rel=0.01)


def test_weights_that_stay_whole():
    """The rest is shared. bfloat16 weights are gathered once in an update, and float32 gradients scattered."""
    model, settings = tiny_model(), Settings(Adam(), RanksConfig(fsdp=True))
    number = sum(parameter.numel() for parameter in model.parameters())
    found = bytes_of_state(settings, model, torch.bfloat16, 8, 8, reshards=False)
    expected = {"weights": 2 + 4 / 8, "gradients": 2 + 4 + 4 / 8, "optimizer": 8 / 8}
    assert found == {kind: pytest.approx(number * size, rel=0.01) for kind, size in expected.items()}
    assert bytes_sent(settings, model, torch.bfloat16, 8, 8, reshards=False) == pytest.approx(number * 6 * 7 / 8, rel=0.01)


@pytest.mark.parametrize("recomputes", [False, True])
def test_activations_without_a_model_are_those_with_one(recomputes):
    criterion = LabelSmoothedCrossEntropy(smoothing=0.1)
    batch = made_up_pairs((VOCABULARY_SIZE, VOCABULARY_SIZE), 6, 9, seed=1)
    real = bytes_kept(tiny_model(num_layers=4).train(), batch, criterion, recomputes=recomputes)
    with torch.device("meta"):
        model = tiny_model(num_layers=4)
    planned = bytes_kept(model, replace(batch, source=batch.source.to("meta"), target_in=batch.target_in.to("meta"),
                                        target_out=batch.target_out.to("meta")), criterion, recomputes=recomputes)
    assert planned == pytest.approx(real, rel=0.15)


def test_recomputing_keeps_less():
    criterion = LabelSmoothedCrossEntropy(smoothing=0.1)
    batch = made_up_pairs((VOCABULARY_SIZE, VOCABULARY_SIZE), 6, 9, seed=1)
    kept = [bytes_kept(tiny_model(num_layers=8), batch, criterion, recomputes=recomputes) for recomputes in (False, True)]
    assert kept[1] < kept[0] / 2


def test_a_plan_says_what_the_run_then_says(data, tmp_path, capsys):
    found = plan(data, tmp_path, capsys, "--update-freq", "2", "--distributed-world-size", "1")
    assert main(["train", str(data), *TINY_FLAGS, "--cpu", "--update-freq", "2", "--max-update", "1", "--no-save"]) == 0
    said = capsys.readouterr().out
    assert found["reason"] == ""
    assert f"| {found['effective_batch']}\n" in said
    assert f"num. model params: {found['parameters']} " in said
    assert f"in {found['batches']} batches, {100 * found['padding']:.1f} % padding" in said
    assert found["sent"] == 0
    assert set(found["memory"]) == {"weights", "gradients", "optimizer", "activations"}


def test_a_plan_for_more_ranks_than_there_are(data, tmp_path, capsys):
    found = plan(data, tmp_path, capsys, "--distributed-world-size", "64")
    assert found["ranks"] == 64
    assert found["effective_batch"] == "effective batch: up to 4096 tokens (max-tokens 64 x update-freq 1 x 64 ranks)"
    assert found["sent"] > 0


def gpu_plan(data, capsys, *flags):
    capsys.readouterr()
    assert main(["train", str(data), *TINY_FLAGS, "--plan", "--plan-memory", "0.0001", "--log-format", "json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan_for_gpus_that_are_not_here(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = ("--save-dir", str(tmp_path / "run"))
    here = plan(data, tmp_path, capsys)
    found = gpu_plan(data, capsys, *folder)
    assert (found["device"], found["precision"], found["ranks"]) == ("GPU of 0.0001 GiB", "bfloat16", 1)
    assert found["batches"] < here["batches"]  # packed
    assert found["memory"]["weights"] == pytest.approx(1.5 * here["memory"]["weights"], rel=0.01)
    assert gpu_plan(data, capsys, *folder, "--fp32")["memory"]["weights"] == here["memory"]["weights"]
    assert gpu_plan(data, capsys, *folder, "--fp16")["precision"] == "float16"
    padded = gpu_plan(data, capsys, *folder, "--no-pack", "--batch-order", "length")
    assert padded["batches"] == plan(data, tmp_path, capsys, "--batch-order", "length")["batches"]


def test_what_does_not_fit_into_gpus_that_are_not_here(data, tmp_path, capsys):
    folder = ("--save-dir", str(tmp_path / "run"))
    assert "GiB of each GPU's 0.0. Try --checkpoint-activations" in gpu_plan(data, capsys, *folder)["reason"]
    many = gpu_plan(data, capsys, *folder, "--distributed-world-size", "8")
    assert "Try --fsdp or --checkpoint-activations" in many["reason"]
    sharded = gpu_plan(data, capsys, *folder, "--distributed-world-size", "8", "--fsdp")
    assert sharded["reshards"]
    assert "of a GPU's 0.0 for weights" in sharded["sharding"]
    assert gpu_plan(data, capsys, *folder, "--plan-memory", "80")["reason"] == ""


@pytest.mark.parametrize(("flags", "message"), [
    (["--plan-memory", "80"], "has no effect without --plan"),
    (["--plan", "--plan-memory", "0"], "it must be the GiB of a GPU"),
    (["--plan", "--plan-memory", "nan"], "it must be"), (["--plan", "--plan-memory", "80", "--cpu"], "Leave one of them out")])
def test_memory_that_nothing_is_planned_for(data, capsys, flags, message):
    assert main(["train", str(data), *TINY_FLAGS, *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--tracker", "trackio", "--init-type", "admin"), ("--fsdp", "--optimizer", "muon"),
                                   ("--checkpoint-activations", "--bf16", "--freeze", "encoder.layers.0")])
def test_every_kind_of_run_can_be_planned(data, tmp_path, capsys, flags):
    assert plan(data, tmp_path, capsys, *flags)["parameters"] > 0


def test_the_first_reason_why_it_would_not_start(data, tmp_path, capsys):
    assert "there is no data folder" in plan(tmp_path / "nowhere", tmp_path, capsys)["reason"]
    assert "--restore-file goes" not in plan(data, tmp_path, capsys)["reason"]
    (tmp_path / "file").write_text("")
    unwritable = ("--save-dir", str(tmp_path / "file" / "x"))
    assert "no checkpoint could be written" in plan(data, tmp_path, capsys, *unwritable)["reason"]
    trained = ["train", str(data), *TINY_FLAGS, "--cpu", "--max-update", "1", "--save-dir", str(tmp_path / "run")]
    assert main(trained) == 0
    assert plan(data, tmp_path, capsys)["reason"] == ""
    wider = plan(data, tmp_path, capsys, "--encoder-embed-dim", "32")
    assert "does not fit the model" in wider["reason"]
    assert wider["parameters"] > plan(data, tmp_path, capsys)["parameters"]


def test_in_lines(data, tmp_path, capsys):
    capsys.readouterr()
    assert main(["train", str(data), *TINY_FLAGS, "--cpu", "--plan", "--save-dir", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| 1 rank, CPU, float32"
    assert lines[-1] == "| nothing that shows here keeps it from starting"
    assert any(line.startswith("| memory per rank, in GiB, estimated: weights ") for line in lines)

"""Muon on a GPU: captured, it moves weights as on a CPU, where it is torch's own; nobody asks the device a question."""

import json

import pytest
import torch

from lamina.cli import main
from lamina.distributed.weights import FlatWeights
from lamina.parts.muon import Muon
from lamina.training.optimizers import build_optimizer
from tiny import TINY_FLAGS, make_data, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

RULE = Muon(betas=(0.9, 0.98), weight_decay=0.01, no_decay=("norms", "biases"))


def random_gradients(weights, step):
    generator = torch.Generator().manual_seed(step)
    grad = torch.zeros(weights.master.shape)
    for view in weights.views(grad):
        view.copy_(torch.randn(view.shape, generator=generator))
    return grad


def test_a_captured_step_moves_weights_as_on_a_cpu_and_one_that_is_off_moves_none():
    one, other = FlatWeights(tiny_model()), FlatWeights(tiny_model().cuda())
    before = one.master.clone()
    plain, captured = build_optimizer(RULE, one.master, one), build_optimizer(RULE, other.master, other)
    grad, lr = torch.zeros_like(other.master), torch.zeros((), device="cuda", dtype=torch.float64)
    ok = torch.tensor(False, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        captured.step_(grad, lr, ok)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(captured.master.cpu(), before, rtol=0, atol=0)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            captured.step_(grad, lr, ok)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for step in range(12):
        is_good = step % 3 != 2
        values = random_gradients(one, step)
        grad.copy_(values if is_good else torch.full_like(values, torch.nan))
        lr.fill_(0.01 / (step + 1))
        ok.fill_(is_good)
        graph.replay()
        if is_good:
            plain.step_(values, 0.01 / (step + 1))
    assert captured.step.item() == plain.step.item() == 8
    moved = plain.master - before
    # Singular values are right to bfloat16's 0.4 % at each of five steps; where an update is small, so is the difference.
    assert (captured.master.cpu() - plain.master).norm() < 0.02 * moved.norm()
    for name, value in plain.state().items():
        torch.testing.assert_close(captured.state()[name].cpu(), value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("precision", [["--fp32"], ["--bf16"]], ids=["fp32", "bf16"])
def test_training_matches_the_cpu(tmp_path, capsys, precision):
    data = make_data(tmp_path / "data")
    words = ["train", str(data), *TINY_FLAGS, "--optimizer", "muon", "--weight-decay", "0.01", "--no-decay", "norms,biases",
             "--max-epoch", "6", "--dropout", "0.0", "--log-format", "json"]
    losses = []
    for name, how in (("cpu", ["--cpu"]), ("gpu", [*precision, "--no-pack"])):
        assert main([*words, "--save-dir", str(tmp_path / name), *how]) == 0
        out = capsys.readouterr().out
        assert "is off, since it failed" not in out
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        losses.append([row["loss"] for row in rows if row.get("where") == "valid"])
    assert losses[0][-1] < losses[0][0] - 0.3
    assert losses[1] == pytest.approx(losses[0], rel=3e-2)


def test_an_update_asks_the_device_no_question(tmp_path):
    from lamina.config.parser import resolve
    from lamina.config.train_options import TrainConfig
    from lamina.distributed.ranks import Ranks
    from lamina.training.run import open_run

    run = open_run(resolve(TrainConfig, {"data": str(make_data(tmp_path)), "arch": "tiny", "max-tokens": 64, "bf16": True,
                                    "update-freq": "2", "log-format": "none", "optimizer": "muon"}),
              Ranks(device=torch.device("cuda")))
    batches = list(run.feeds.train(1).batches(1))
    run.updater.update(batches[:1], 1e-3, seed=1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run.updater.update(batches[:2], 1e-3, seed=2)
    finally:
        torch.cuda.set_sync_debug_mode("default")

"""Ten updates of the references' trainer, through the loop that `lamina train` runs."""

import dataclasses

import pytest
import torch

from golden_files import HAS_ALL, read_json, read_model, read_tensors
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.data.batching import Batch
from lamina.data.feed import Share
from lamina.interop.fairseq import _DEAD, _PERHAPS_DEAD, places
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.parts.rate_schedules import InverseSqrt
from lamina.parts.update_rules import Adam
from lamina.training.divergence import DivergenceWatch
from lamina.training.loop import run_updates
from lamina.training.progress import Progress
from lamina.training.update import Updater


class Recorder(DivergenceWatch):
    """Keeps what each update did."""

    def __init__(self, *args):
        super().__init__(*args)
        self.rows = []

    def add(self, result, lr):
        loss, nll, norm, _, _ = result.numbers.tolist()
        self.rows.append({"update": self.progress.updates, "lr": lr, "loss_sum": loss, "nll_sum": nll, "grad_norm": norm,
                          "ntokens": result.num_tokens})


FIXTURES = ["train_trajectory_plain", "train_trajectory_sf", *(["train_trajectory_plain_main"] if HAS_ALL else [])]


@pytest.mark.parametrize("fixture", FIXTURES)
def test_trajectory(fixture):
    config, inputs = read_json(fixture), read_tensors(fixture, "inputs")
    smoothing = config["label_smoothing"]
    if "V-1" in config["loss_formula"]:
        smoothing *= config["tgt_vocab"] / (config["tgt_vocab"] - 1)
    optim = config["optim"]
    optimization = OptimizationConfig(
        criterion=LabelSmoothedCrossEntropy(smoothing=smoothing),
        optimizer=Adam(betas=tuple(optim["betas"]), eps=optim["eps"], weight_decay=optim["weight_decay"]),
        schedule=InverseSqrt(warmup_updates=optim["warmup_updates"], warmup_init_lr=optim["warmup_init_lr"]),
        lr=(optim["lr"],), clip_norm=optim["clip_norm"])
    model = read_model(fixture)
    updater = Updater(model, optimization, PrecisionConfig())
    schedule = build_schedule(optimization.schedule, lr=optimization.lr, min_lr=-1.0, max_update=0)
    progress = Progress()
    watch = Recorder(progress, PrecisionConfig(), updater.weights.names, torch.device("cpu"), torch.float32)
    shares = [Share([fixture_batch(inputs, number)], 1) for number in range(10)]
    for _ in run_updates(updater, schedule, shares, progress, watch, seed=1):
        pass

    for row, expected in zip(watch.rows, read_json(fixture, "updates.json"), strict=True):
        assert row["update"] == expected["update"]
        assert row["ntokens"] == expected["ntokens"]
        assert row["lr"] == pytest.approx(expected["lr"], rel=1e-12)
        for name in ("loss_sum", "nll_sum", "grad_norm"):
            assert row[name] == pytest.approx(expected[name], rel=1e-5), (name, row["update"])
    ours = dict(model.named_parameters(remove_duplicate=False))
    for name, value in read_tensors(fixture, "expected").items():
        # A key bias has no gradient: Adam turns the rounding noise into steps of the size of the learning rate.
        if _DEAD.fullmatch(name) or name.endswith("k_proj.bias"):
            continue
        if _PERHAPS_DEAD.fullmatch(name) and places(name)[0].name not in ours:
            continue
        parts = [place.view(ours[place.name]).detach() for place in places(name)]
        torch.testing.assert_close(torch.cat(parts), value, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def fixture_batch(inputs, number):
    read = {name: inputs[f"batch{number}.{name}"] for name in ("src_tokens", "prev_output_tokens", "target")}
    return Batch(read["src_tokens"], read["prev_output_tokens"], read["target"],
                 num_source_tokens=int(read["src_tokens"].ne(1).sum()), num_target_tokens=int(read["target"].ne(1).sum()),
                 indices=tuple(range(len(read["target"]))))


def test_fixture_batches_are_real_batches():
    batch = fixture_batch(read_tensors("train_trajectory_plain", "inputs"), 0)
    assert dataclasses.astuple(batch)[3:5] == (int(batch.source.ne(1).sum()), 26)

"""Where time goes: traces of updates, shares of waiting, and how much of a device is used."""

import json
import time

import pytest
import torch

from lamina.cli import main
from lamina.distributed.ranks import Ranks
from lamina.distributed.waiting import DATA, RANKS, Waits
from lamina.training.utilization import flops_per_target, peak_flops, utilization_per_speed
from tiny import TINY_FLAGS, make_data, tiny_language_model, tiny_model


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("profile"))


def train(data, folder, *flags):
    return main(["train", str(data), *TINY_FLAGS, "--cpu", "--save-dir", str(folder), *flags])


def test_a_trace_is_written_that_perfetto_opens(data, tmp_path, capsys):
    """Its format is Chrome's: complete events with a begin and a length, among a list by that name."""
    assert train(data, tmp_path, "--max-update", "3", "--profile", "2:3", "--no-save") == 0
    path = tmp_path / "profile-2-3-rank0.json"
    assert f"the trace of updates 2 to 3 is in {path}" in capsys.readouterr().out
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in complete)
    assert any("linear" in event["name"] or "mm" in event["name"] for event in complete)


def test_a_run_that_ends_early_writes_what_there_is(data, tmp_path):
    assert train(data, tmp_path, "--max-update", "2", "--profile", "2:9", "--no-save") == 0
    assert json.loads((tmp_path / "profile-2-9-rank0.json").read_text(encoding="utf-8"))["traceEvents"]


@pytest.mark.parametrize("told", ["0:2", "5:4", ":", "7:"])
def test_a_range_that_is_none_is_refused(data, tmp_path, told, capsys):
    assert train(data, tmp_path / "nothing", "--profile", told) == 2
    assert f"--profile is {told!r}; it must be FROM:TO" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_the_log_says_how_much_of_the_device_is_used_and_how_long_data_was_waited_for(data, tmp_path):
    assert train(data, tmp_path, "--max-update", "2", "--device-tflops", "0.001", "--log-format", "none") == 0
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    interval = next(row for row in rows if row["where"] == "train")
    assert 0.0 <= interval["data_wait"] <= 1.0
    assert "rank_wait" not in interval  # nobody to wait for
    assert interval["mfu"] > 0.0


def test_operations_are_those_of_matrices_and_the_output():
    model = tiny_model(num_layers=2)
    layers = {side: sum(parameter.numel() for name, parameter in model.named_parameters()
                        if name.startswith(f"{side}.layers") and parameter.dim() == 2) for side in ("encoder", "decoder")}
    output = model.head.output_weight.numel()
    whole = flops_per_target(model, 2.0, ((0.0, 0.0), (0.0, 0.0)))
    assert whole == 6 * (2.0 * layers["encoder"] + layers["decoder"] + output)
    halved = flops_per_target(model, 2.0, ((0.5, 0.5), (0.0, 0.0)))
    assert halved == 6 * (layers["encoder"] + layers["decoder"] + output)
    assert flops_per_target(tiny_language_model(), 1.0, ((), (0.0, 0.0))) > 0
    assert utilization_per_speed(model, [torch.ones(3) * 2, torch.ones(3)], ((0.0,) * 2,) * 2, 1e6, 4) == whole / 4e6
    assert utilization_per_speed(model, [], (), None, 1) is None


def test_the_peak_of_an_unknown_device_is_not_made_up():
    cpu = torch.device("cpu")
    assert peak_flops(cpu, torch.bfloat16, None) is None
    assert peak_flops(cpu, torch.bfloat16, 2.5) == 2.5e12


def test_waiting_is_counted_once():
    waits = Waits()
    with waits.on_host(DATA):
        time.sleep(0.01)
    with waits.for_ranks(torch.device("cpu")):
        time.sleep(0.02)
    taken = waits.take()
    assert taken[DATA] >= 0.01
    assert taken[RANKS] >= 0.02
    assert waits.take() == {DATA: 0.0, RANKS: 0.0}
    assert Ranks(0, 2) == Ranks(0, 2)  # what was waited is no part of who a rank is


def test_without_numbers_as_fairseq_has_it(data, tmp_path):
    """fairseq's --profile is a switch: the word behind it is the data folder."""
    assert main(["train", "--profile", str(data), *TINY_FLAGS, "--cpu", "--max-update", "1", "--no-save"]) == 0

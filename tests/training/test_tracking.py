"""Trackers get the numbers of train.jsonl, go on with their run when training does, and never stop or slow it."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

import lamina
from lamina.cli import main
from lamina.parts import Tracker
from lamina.plug_ins import restored
from lamina.training.events import PLACE, Event
from lamina.training.tracking import MAX_WAITING, Tracking
from tiny import TINY_FLAGS, make_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("tracking"))


def command(data, folder, *flags):
    return [sys.executable, "-m", "lamina", "train", str(data), *TINY_FLAGS, "--log-interval", "2", "--no-epoch-checkpoints",
            "--save-dir", str(folder / "out"), *flags]


def run(words, folder, **environ):
    found = subprocess.run(words, cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def expected(folder):
    """{"train/loss": [(2, 5.3), ..]} as the log of the run has it."""
    curves = defaultdict(list)
    for line in (folder / "out" / "train.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for name, value in row.items():
            if name not in PLACE and value is not None:
                curves[f"{row['where']}/{name}"].append((row["num_updates"], value))
    return dict(curves)


def test_mlflow_has_the_numbers_of_the_log_in_one_run(data, tmp_path):
    pytest.importorskip("mlflow")
    for limit in ("5", "9"):  # the second time, the run is resumed
        run(command(data, tmp_path, "--max-update", limit, "--tracker", "mlflow"), tmp_path)
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("lamina").experiment_id])
    curves = expected(tmp_path)
    assert curves["train/loss"][-1][0] == 8
    assert {name: [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, name)]
            for name in curves} == curves
    assert found.data.params["arch"] == "tiny"
    assert (found.info.run_name, found.info.status) == ("out", "FINISHED")


TRACKIO = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps({name: SQLiteStorage.get_logs("mine", name) for name in SQLiteStorage.get_runs("mine")}))
"""


def test_trackio_has_the_numbers_of_the_log_in_one_run(data, tmp_path):
    pytest.importorskip("trackio")
    place = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    for limit in ("5", "9"):
        run(command(data, tmp_path, "--max-update", limit, "--trackio-project", "mine"), tmp_path, **place)
    (found,) = json.loads(run([sys.executable, "-c", TRACKIO], tmp_path, **place)).values()
    curves = defaultdict(list)
    for row in found:
        for name, value in row.items():
            if "/" in name:
                curves[name].append((row["step"], value))
    assert {name: sorted(points) for name, points in curves.items()} == expected(tmp_path)


def test_tensorboard_forgets_what_a_resumed_run_does_again(data, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ["train", str(data), *TINY_FLAGS, "--save-dir", str(tmp_path / "out"), "--tracker", "tensorboard"]
    assert main([*words, "--max-epoch", "2"]) == 0
    (tmp_path / "out" / "checkpoint1.pt").replace(tmp_path / "out" / "checkpoint_last.pt")  # as after a kill
    time.sleep(1.1)  # event files are named and ordered by the second
    assert main([*words, "--max-epoch", "3"]) == 0
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    curve = [(point.step, point.value) for point in events.Scalars("train/loss")]
    assert curve == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected(tmp_path)["train/loss"]]


@pytest.mark.extra
def test_weights_and_biases_without_a_network_keeps_its_run_here(data, tmp_path):
    pytest.importorskip("wandb")
    nowhere = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "HOME": str(tmp_path)}
    said = run(command(data, tmp_path, "--max-update", "5", "--wandb-project", "mine"), tmp_path, **nowhere)
    said += run(command(data, tmp_path, "--max-update", "9", "--wandb-project", "mine"), tmp_path, WANDB_MODE="offline")
    assert said.count("Weights & Biases cannot be reached (") == 1
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 2  # `wandb sync` joins them: they are one run
    assert len({folder.name.rpartition("-")[2] for folder in folders}) == 1
    assert all(list(folder.glob("run-*.wandb")) for folder in folders)


# -- trackers of one's own, which misbehave

@pytest.fixture
def own():
    """Registers a tracker whose methods are given."""
    def make(**methods):
        cls = dataclass(frozen=True, kw_only=True)(type("Own", (Tracker,), {"__doc__": "A test's.", **methods}))
        return lamina.register.tracker("own")(cls)

    with restored():
        yield make


class Recorder:
    def __init__(self, write=lambda figures, updates: None, close=lambda: None):
        self.write, self.close = write, close


def train(data, folder, *flags):
    return main(["train", str(data), *TINY_FLAGS, "--max-update", "4", "--save-dir", str(folder), *flags])


def test_a_tracker_of_ones_own(data, tmp_path, own):
    told = []
    own(open=lambda self, run: told.append(run) or Recorder(lambda *row: told.append(row), lambda: told.append("closed")))
    assert train(data, tmp_path / "out", "--tracker", "own") == 0
    first, *rows, last = told
    assert (first.name, first.folder, first.updates, first.options["arch"], last) == ("out", tmp_path / "out", 0, "tiny",
                                                                                     "closed")
    assert [updates for figures, updates in rows if "train/loss" in figures] == [1, 2, 3, 4]
    assert {name.partition("/")[0] for figures, _ in rows for name in figures} == {"train", "epoch", "valid"}


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_one_that_fails_is_told_of_once_and_left_alone(data, tmp_path, own, capsys, where):
    def fail(*_):
        raise ConnectionError("the network is away\nwith a page of reasons")

    broken = Recorder(**{where: fail}) if where != "open" else None
    own(open=fail if broken is None else lambda self, run: broken)
    assert train(data, tmp_path, "--tracker", "own") == 0
    printed = capsys.readouterr()
    assert printed.out.count("warning: own takes no more figures: the network is away. Training continues without it") == 1
    assert "Traceback" not in printed.err


def test_one_that_hangs_slows_nothing(data, tmp_path, own, capsys, monkeypatch):
    hangs = threading.Event()
    own(open=lambda self, run: Recorder(lambda *_: hangs.wait(60)))
    monkeypatch.setattr(Tracking.close, "__defaults__", (0.2,))
    began = time.monotonic()
    try:
        assert train(data, tmp_path, "--tracker", "own") == 0
    finally:
        hangs.set()
    assert time.monotonic() - began < 30
    assert "warning: own has not taken all figures in 0.2 s" in capsys.readouterr().out


def test_what_a_dead_network_cannot_take_does_not_fill_the_memory(own):
    from lamina.parts.contracts import TrackedRun

    hangs = threading.Event()
    tracker = own(open=lambda self, run: Recorder(lambda *_: hangs.wait(60)))()
    tracking = Tracking(tracker, TrackedRun("id", "name", Path(), Path(), 0, {}, lambda _: None))
    event = Event("interval", {"where": "train", "epoch": 1, "num_updates": 1})
    for _ in range(MAX_WAITING + 10):
        tracking(event)
    assert tracking._rows.qsize() == MAX_WAITING
    tracking.close(0.1)
    hangs.set()


def test_a_package_that_is_missing_is_named_before_anything_begins(data, tmp_path, own, capsys):
    own(open=lambda self, run: Recorder(), package="no_such_package", extra="own-extra")
    assert train(data, tmp_path / "out", "--tracker", "own") == 2
    assert capsys.readouterr().err == ("error: --tracker own needs the package no_such_package: pip install "
                                       "'lamina[own-extra]'.\n")
    assert not (tmp_path / "out").exists()


def test_an_unknown_tracker(data, tmp_path, capsys):
    assert train(data, tmp_path, "--tracker", "wandb,neptune") == 2
    assert "--tracker is 'neptune'; it must be one of tensorboard, wandb, mlflow, trackio" in capsys.readouterr().err

"""The built-in trackers: the kinds of --tracker. Figures are named as in train.jsonl, after the set that they are of."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from lamina.errors import ConfigError
from lamina.fields import flag
from lamina.parts.tracking_contracts import Recorder, TrackedRun, Tracker
from lamina.registry import register

DEFAULT_PROJECT = "lamina"


@register.tracker("tensorboard")
@dataclass(frozen=True, kw_only=True)
class TensorBoard(Tracker):
    """Event files for TensorBoard."""

    package = "tensorboard"

    folder: str | None = flag(None, "folder for TensorBoard scalars; with --tracker tensorboard alone, the folder "
                                    "tensorboard in --save-dir", name="tensorboard-logdir")

    @property
    def is_on(self) -> bool:
        return self.folder is not None

    def place(self, run: TrackedRun) -> Path:
        return run.here / (self.folder or run.folder / "tensorboard")

    def check(self, run: TrackedRun) -> None:
        try:
            self.place(run).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--tensorboard-logdir {self.folder or self.place(run)} cannot be written: "
                              f"{error.strerror or error}. Choose another folder, or leave it out.") from None

    def open(self, run: TrackedRun) -> Recorder:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier sitting wrote after the update that the run continues from disappears from its curves.
        return _EventFiles(SummaryWriter(str(self.place(run)), purge_step=run.updates + 1 if run.updates else None))


class _EventFiles:
    def __init__(self, writer: Any) -> None:
        self._writer = writer
        threading.excepthook = _leave_out_tensorboard

    def write(self, figures: Mapping[str, float], updates: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, updates)

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            threading.excepthook = threading.__excepthook__


def _leave_out_tensorboard(told: threading.ExceptHookArgs) -> None:
    """Its writing thread raises what `write` is told as well; a traceback beside that would say nothing more."""
    if not (isinstance(told.exc_value, OSError) and type(told.thread).__module__.startswith("tensorboard")):
        threading.__excepthook__(told)


@register.tracker("wandb")
@dataclass(frozen=True, kw_only=True)
class WeightsAndBiases(Tracker):
    """Weights & Biases."""

    package = "wandb"

    project: str | None = flag(None, f"project of Weights & Biases, with or without --tracker wandb; {DEFAULT_PROJECT} if left "
                                     "out", name="wandb-project")

    @property
    def is_on(self) -> bool:
        return self.project is not None

    def open(self, run: TrackedRun) -> Recorder:
        import wandb

        told: dict[str, Any] = {"project": self.project or os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT), "id": run.id,
                                "name": os.environ.get("WANDB_NAME", run.name), "config": dict(run.options),
                                "dir": os.environ.get("WANDB_DIR", str(run.here)), "resume": "allow"}
        wanted: dict[str, Any] = {"silent": True, "console": "off", "init_timeout": 10, "finish_timeout": 20,
                                  "finish_timeout_raises": False}
        quiet = wandb.Settings(**{name: value for name, value in wanted.items() if name in wandb.Settings.model_fields})
        mode: Any = os.environ.get("WANDB_MODE", "online")
        begun, problem = None, ""
        place = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
        if mode == "online" and not _answers(place):  # it would try for minutes
            problem = f"{place} does not answer"
        else:
            try:
                if mode == "online" and not _has_key(wandb):  # it would ask the terminal for one
                    raise ConfigError("there is no API key, which `wandb login` stores")
                begun = wandb.init(**told, mode=mode, settings=quiet)
            except Exception as error:  # whatever it raises
                problem = str(error).partition("\n")[0]
                wandb.teardown()  # or the id would be in use
        if begun is None:
            begun = wandb.init(**told, mode="offline", settings=quiet)
            run.note(f"Weights & Biases cannot be reached ({problem}): figures are kept in {Path(begun.dir).parent}, and "
                     "`wandb sync` sends them")
        begun.define_metric("*", step_metric="num_updates")
        return _WandbRun(begun)


def _has_key(wandb: Any) -> bool:
    try:
        return bool(wandb.login(prompt=False))
    except TypeError:  # an older version
        return bool(wandb.api.api_key)


def _answers(place: str, seconds: float = 5.0) -> bool:
    address = urlsplit(place)
    if getproxies().get(address.scheme):  # which may lead there
        return True
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), seconds).close()
    except OSError:
        return False
    return True


class _WandbRun:
    def __init__(self, begun: Any) -> None:
        self._begun = begun

    def write(self, figures: Mapping[str, float], updates: int) -> None:
        self._begun.log({**figures, "num_updates": updates})

    def close(self) -> None:
        self._begun.finish()


@register.tracker("mlflow")
@dataclass(frozen=True, kw_only=True)
class MLflow(Tracker):
    """MLflow: the server of MLFLOW_TRACKING_URI, or a folder mlruns."""

    package = "mlflow"

    experiment: str | None = flag(None, "experiment of MLflow, with or without --tracker mlflow; "
                                        f"{DEFAULT_PROJECT} if left out. Runs go to the folder mlruns here, or to where "
                                        "MLFLOW_TRACKING_URI points", name="mlflow-experiment")

    @property
    def is_on(self) -> bool:
        return self.experiment is not None

    def open(self, run: TrackedRun) -> Recorder:
        place = os.environ.get("MLFLOW_TRACKING_URI") or (run.here / "mlruns").as_uri()
        if place.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # without it, MLflow wants a database
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = MlflowClient(place)
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", DEFAULT_PROJECT)
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        known = client.search_runs([experiment], f"tags.`lamina.run` = '{run.id}'", max_results=1)
        if known:
            client.set_terminated(known[0].info.run_id, "RUNNING")
            return _MlflowRun(client, known[0].info.run_id)
        own = client.create_run(experiment, tags={"lamina.run": run.id}, run_name=run.name).info.run_id
        options = [Param(name, str(value)) for name, value in run.options.items()]
        for first in range(0, len(options), 100):  # it takes no more at a time
            client.log_batch(own, params=options[first:first + 100])
        return _MlflowRun(client, own)


class _MlflowRun:
    def __init__(self, client: Any, own: str) -> None:
        self._client = client
        self._own = own

    def write(self, figures: Mapping[str, float], updates: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._own, metrics=[Metric(name, value, now, updates) for name, value in figures.items()])

    def close(self) -> None:
        self._client.set_terminated(self._own)


@register.tracker("trackio")
@dataclass(frozen=True, kw_only=True)
class Trackio(Tracker):
    """trackio, on this machine; `trackio show` is its page."""

    package = "trackio"

    project: str | None = flag(None, f"project of trackio, with or without --tracker trackio; {DEFAULT_PROJECT} if left out",
                               name="trackio-project")

    @property
    def is_on(self) -> bool:
        return self.project is not None

    def open(self, run: TrackedRun) -> Recorder:
        import trackio

        return _TrackioRun(trackio.init(project=self.project or DEFAULT_PROJECT, name=f"{run.name}-{run.id}", resume="allow",
                                        config=dict(run.options), embed=False, auto_log_gpu=False, auto_log_cpu=False))


class _TrackioRun:
    def __init__(self, begun: Any) -> None:
        self._begun = begun

    def write(self, figures: Mapping[str, float], updates: int) -> None:
        self._begun.log(dict(figures), step=updates)

    def close(self) -> None:
        self._begun.finish()

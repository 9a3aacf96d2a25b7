"""`lamina.train`: the loop of `lamina train` as a function."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import torch

from lamina import console
from lamina.api.data_sets import Data
from lamina.api.keyword_options import given_by, import_parts
from lamina.api.language_model import LanguageModel
from lamina.api.loaded_model import LoadedModel
from lamina.api.loading import AnyModel, Paths, load, model_of
from lamina.api.masked_model import MaskedLanguageModel
from lamina.api.translator import Translator
from lamina.checkpoint.format import Checkpoint
from lamina.checkpoint.runs import read_mark
from lamina.config.parser import resolve
from lamina.config.train_options import TrainConfig
from lamina.distributed.launch import num_to_start
from lamina.distributed.signals import saves_wait
from lamina.errors import AlreadyToldError, ConfigError, StopSignal
from lamina.training.events import Callback, Row
from lamina.training.function_loss import CriterionFunction, FunctionLoss
from lamina.training.keeper import BEST_NAME, LAST_NAME
from lamina.training.run import Run
from lamina.training.whole_run import run_training

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lamina.api.option_types import TrainOptions

MAX_TOKENS = 4096
_BATCH_LIMITS = ("max-tokens", "batch-size")


@overload
def train(data: Data | str | Path, *, task: Literal["translation"] = "translation",
          criterion: str | CriterionFunction | None = None, callbacks: Sequence[Callback] = (), user_dir: Paths = (),
          **options: Unpack[TrainOptions]) -> Translator: ...


@overload
def train(data: Data | str | Path, *, task: Literal["language_modeling"], criterion: str | CriterionFunction | None = None,
          callbacks: Sequence[Callback] = (), user_dir: Paths = (), **options: Unpack[TrainOptions]) -> LanguageModel: ...


@overload
def train(data: Data | str | Path, *, task: Literal["masked_lm", "sentence_prediction"],
          criterion: str | CriterionFunction | None = None, callbacks: Sequence[Callback] = (), user_dir: Paths = (),
          **options: Unpack[TrainOptions]) -> MaskedLanguageModel: ...


@overload
def train(data: Data | str | Path, *, task: str, criterion: str | CriterionFunction | None = None,
          callbacks: Sequence[Callback] = (), user_dir: Paths = (), **options: Unpack[TrainOptions]) -> AnyModel: ...


def train(data: Data | str | Path, *, task: str = "translation", criterion: str | CriterionFunction | None = None,
          callbacks: Sequence[Callback] = (), user_dir: Paths = (), **options: Unpack[TrainOptions]) -> AnyModel:
    """Train a model, as `lamina train` does: the same loop, and the same weights for the same options.

    It is one process on one GPU, or on the CPU. For more, start the script with torchrun. Where `save_dir` has a
    checkpoint_last.pt, training resumes from it. Ctrl-C finishes the update, saves, and raises KeyboardInterrupt.

    Arguments:
        data: what `lamina.prepare` gave, or the name of a data folder.
        task: what to learn: "translation", "language_modeling", "masked_lm", "sentence_prediction", or one of your own.
        criterion: the loss: a name, as for --criterion, or a function. That gets the log-probabilities of each next token,
            (sentences, tokens, symbols), and the batch, whose `target` has the right ones, and gives their losses, shaped like
            `target`, or the mean of them. Padding does not count. A function runs eagerly, and must be given again to resume.
        callbacks: functions of a lamina.Event, called in the first process. One that raises ends the run with its traceback;
            checkpoints stay as they are.
        user_dir: files or folders that register parts of your own.
        options: those of `lamina train`, with underscores: `max_update=800, lr=2e-3, save_dir="ck"`. A batch has 4096 tokens
            at most, unless max_tokens or batch_size says otherwise.

    Returns:
        The model of checkpoint_best.pt; without one of this run, the last state. Its `history` has the rows of train.jsonl.

    >>> model = lamina.train(data, arch="tiny", max_update=1, save_dir="ck", log_interval=1)  # doctest: +ELLIPSIS
    | [en] dictionary: 48 types
    ...
    | training stopped: 1 updates are done (--max-update 1)
    >>> [(row["where"], row["num_updates"]) for row in model.history]
    [('train', 1), ('epoch', 1), ('valid', 1)]
    """
    import_parts(user_dir)
    _check_functions(criterion, callbacks)
    function = None if criterion is None or isinstance(criterion, str) else FunctionLoss(criterion)
    named = {} if function is not None else {"criterion": criterion}
    given = given_by("train", TrainConfig, {**named, **options, "task": task}, [os.fspath(data)])
    if not any(name in given for name in _BATCH_LIMITS):
        given["max-tokens"] = MAX_TOKENS
    config = resolve(TrainConfig, given)
    for name in ("print_config", "plan", "plan_memory"):
        if getattr(config, name):
            raise ConfigError(f"{name} is for the command line; lamina.train only trains. Leave it out.")
    if num_to_start(config.ranks, os.environ, 0) > 1:
        raise ConfigError(f"distributed_world_size is {config.ranks.world_size}, but lamina.train is one process: start the "
                          "script with torchrun, which sets the number of processes.")
    try:
        # The caller's own random numbers stay what they were.
        with console.lasting_output(), saves_wait(), torch.random.fork_rng(devices=[]):
            outcome = run_training(config, callbacks, function, after=_outcome)
            model = _loaded(outcome)
    except (StopSignal, AlreadyToldError) as stop:
        _raise_as_python_does(stop)
        raise
    if isinstance(model, LoadedModel):
        model.history = outcome.rows
    return model


def _check_functions(criterion: object, callbacks: object) -> None:
    """Before hours of training find out."""
    if not (criterion is None or isinstance(criterion, str) or callable(criterion)):
        raise ConfigError(f"criterion is a {type(criterion).__name__}; it must be a name or a function of log-probabilities "
                          "and batch.")
    wrong = next((own for own in callbacks if not callable(own)), None) if isinstance(callbacks, (list, tuple)) else callbacks
    if wrong is not None:
        raise ConfigError(f"callbacks has a {type(wrong).__name__}; it must be a list of functions of an event: "
                          "callbacks=[on_event].")


class _Outcome(NamedTuple):
    rows: list[Row]
    model: Path | Checkpoint
    device: torch.device


def _outcome(run: Run) -> _Outcome:
    """Once all ranks have arrived here, what the first one wrote is there."""
    run.ranks.sum(0)
    keeper = run.saver.keeper
    if run.config.saving.is_on:
        for name in (BEST_NAME, LAST_NAME):
            mark = read_mark(keeper.folder / name)
            if mark is not None and mark.run == keeper.run and (name == BEST_NAME or mark.updates == run.progress.updates):
                return _Outcome(run.log.rows, keeper.folder / name, run.ranks.device)
    checkpoint = run.saver.checkpoint({})
    weights = {name: weight.detach().cpu().clone() for name, weight in checkpoint.weights.items()}
    plain = {name: value for name, value in checkpoint.training.items() if not name.startswith("optimizer")}
    return _Outcome(run.log.rows, replace(checkpoint, weights=weights, training=plain), run.ranks.device)


def _loaded(outcome: _Outcome) -> AnyModel:
    if isinstance(outcome.model, Path):
        return load(outcome.model, device=outcome.device)
    return model_of(outcome.model, "this model", outcome.device)


def _raise_as_python_does(stop: StopSignal | AlreadyToldError) -> None:
    """A signal that ended the run, as it would have ended any other Python."""
    code = stop.exit_code if isinstance(stop, StopSignal) else stop.code
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt(str(stop)) from None
    if isinstance(stop, StopSignal) or code > 128:
        raise SystemExit(code) from None

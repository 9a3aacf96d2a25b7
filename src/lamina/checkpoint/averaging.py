"""The mean of several checkpoints' weights, and which checkpoints of a folder to take."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.serialization import config as torch_files

from lamina.checkpoint.format import Checkpoint, load_checkpoint
from lamina.checkpoint.marks import joined_marks, layers_as_trained, marks_of
from lamina.config.keep import SIDES
from lamina.config.model import DropoutConfig, ModelConfig
from lamina.errors import CheckpointError
from lamina.fields import flatten

MAX_NAMES_SHOWN, MAX_DIFFERENCES_SHOWN = 20, 4


class Series(NamedTuple):
    """The checkpoints of a run that one number orders."""

    unit: str
    pattern: re.Pattern[str]
    option: str


# The names that training/keeper.py gives.
BY_EPOCH = Series("epoch", re.compile(r"checkpoint(\d+)\.pt"), "--num-epoch-checkpoints")
BY_UPDATE = Series("update", re.compile(r"checkpoint_\d+_(\d+)\.pt"), "--num-update-checkpoints")


def find_checkpoints(folder: Path, series: Series, upper_bound: int | None = None) -> list[Path]:
    """Those of a folder that are not above the bound, the newest last."""
    try:
        found = [(int(match[1]), path) for path in folder.iterdir() if (match := series.pattern.fullmatch(path.name))]
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read as a folder of checkpoints: {error.strerror or error}.") from None
    return [path for number, path in sorted(found) if upper_bound is None or number <= upper_bound]


def newest_checkpoints(folder: Path, series: Series, number: int, upper_bound: int | None = None) -> list[Path]:
    """The newest `number` of a folder, the newest last; fewer are an error."""
    found = find_checkpoints(folder, series, upper_bound)
    if len(found) >= number:
        return found[-number:]
    bound = "" if upper_bound is None else f" up to {series.unit} {upper_bound}"
    message = f"{series.option} asks for {number}, but {folder} has {_count(len(found), series)}{bound}"
    message += f": {_listed([path.name for path in found])}." if found else "."
    higher = len(find_checkpoints(folder, series)) - len(found)
    if higher:
        message += f" {higher} more {'is' if higher == 1 else 'are'} above --checkpoint-upper-bound."
    other = BY_UPDATE if series is BY_EPOCH else BY_EPOCH
    if not found and not higher and (others := find_checkpoints(folder, other)):
        message += f" It has {_count(len(others), other)}: use {other.option} for those."
    raise CheckpointError(message)


def _count(number: int, series: Series) -> str:
    return f"{number or 'no'} {series.unit} checkpoint{'s' if number != 1 else ''}"


def _listed(names: Sequence[str], most: int = MAX_NAMES_SHOWN) -> str:
    """All of a few; of many the first ones and how many are left."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def average_checkpoints(paths: Sequence[Path], *, advance: Callable[[int], None] = lambda _: None,
                        note: Callable[[str], None] = lambda _: None,
                        load: Callable[[Path], Checkpoint] | None = None) -> Checkpoint:
    """Mean weights; all else comes from the newest, less what only training or its validation could use.

    Read one at a time into a running mean, so that no more than two models are in memory however many there are.
    `note` is told of model options in which the checkpoints differ although their weights fit. `load` reads a file; only ours
    are read if it is left out.
    """
    assert paths, "nothing has no mean"
    mean: dict[str, Tensor] = {}
    marks: list[dict[str, Any]] = []
    newest: Checkpoint | None = None
    newest_path = paths[0]
    for number, path in enumerate(paths, start=1):
        checkpoint = _open(path, load or load_checkpoint)
        if newest is not None:
            _check_same_text(newest, newest_path, checkpoint, path)
            _check_same_layers(newest, newest_path, checkpoint, path)
            differences = [f"{name} ({here} and {there})" for name, here, there in _model_differences(newest, checkpoint)]
            if differences:
                note(f"{newest_path} and {path} differ in {_listed(differences, MAX_DIFFERENCES_SHOWN)}. Are they of one "
                     "model?")
        _add_(mean, checkpoint.weights, number, path, paths[0])
        # Lets go of the mapped file, with its optimizer state, before the next one is opened.
        checkpoint = replace(checkpoint, weights={}, training={"progress": checkpoint.training.get("progress", {}),
                                                               **marks_of(checkpoint)})
        marks.append(marks_of(checkpoint))
        if newest is None or _age(checkpoint) >= _age(newest):
            newest, newest_path = checkpoint, path
        advance(1)
    assert newest is not None
    return Checkpoint(config=newest.config, languages=newest.languages, dictionaries=newest.dictionaries,
                      subwords=newest.subwords, weights=mean,
                      training={**joined_marks(marks), "averaged": [path.name for path in paths]})


def _open(path: Path, load: Callable[[Path], Checkpoint]) -> Checkpoint:
    # Mapped, not read: optimizer states, twice the size of the weights, then stay on disk.
    with torch_files.patch({"load.mmap": True}):  # type: ignore[attr-defined]
        return load(path)


def _age(checkpoint: Checkpoint) -> tuple[int, int]:
    progress = checkpoint.training.get("progress", {})
    return progress.get("epoch", 0), progress.get("updates", 0)


@torch.no_grad()
def _add_(mean: dict[str, Tensor], weights: dict[str, Tensor], number: int, path: Path, first_path: Path) -> None:
    """`weights` are the `number`-th to go into the mean."""
    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{path}: {name} holds values that are not finite, and so would the average. "
                                  "Leave that checkpoint out.")
    if number == 1:
        mean |= {name: value.to(torch.float32, copy=True) for name, value in weights.items()}
        return
    for owner, other, names in ((first_path, path, mean.keys() - weights.keys()),
                                (path, first_path, weights.keys() - mean.keys())):
        if names:
            raise CheckpointError(f"{owner} has {_listed(sorted(names), MAX_DIFFERENCES_SHOWN)}, which {other} lacks. Only "
                                  "checkpoints of one model can be averaged.")
    differing = [name for name in mean if mean[name].shape != weights[name].shape]
    if differing:
        name = differing[0]
        raise CheckpointError(f"{_listed(differing, MAX_DIFFERENCES_SHOWN)}: another shape in {first_path} than in {path}, "
                              f"where {name} is {tuple(weights[name].shape)} instead of {tuple(mean[name].shape)}. Only "
                              "checkpoints of one model can be averaged.")
    for name, value in weights.items():
        # Towards the newcomer by its share, not a sum that is divided: equal weights then stay what they are, to the bit.
        mean[name].lerp_(value.to(torch.float32), 1.0 / number)


def _check_same_text(one: Checkpoint, one_path: Path, other: Checkpoint, other_path: Path) -> None:
    if one.task != other.task:
        raise CheckpointError(f"{one_path} was trained for {one.task} and {other_path} for {other.task}: they have no average.")
    if one.languages != other.languages:
        pairs = ["-".join(checkpoint.languages) for checkpoint in (one, other)]
        raise CheckpointError(f"{one_path} translates {pairs[0]} and {other_path} {pairs[1]}: they have no average.")
    if one.dictionaries == other.dictionaries:
        return
    for side, here, there in zip(one.sides, one.vocabularies(), other.vocabularies(), strict=True):
        if here != there:
            raise CheckpointError(f"{one_path} has the {side} dictionary {here.digest} and {other_path} {there.digest}: rows "
                                  "of their embeddings stand for different words, so they have no average.")


def _check_same_layers(one: Checkpoint, one_path: Path, other: Checkpoint, other_path: Path) -> None:
    """Layers of the same shapes under the same names may still be different ones."""
    here, there = layers_as_trained(one), layers_as_trained(other)
    for side in SIDES:
        if here.get(side) != there.get(side):
            what = [f"layers {kept[side]}" if side in kept else "all layers" for kept in (here, there)]
            raise CheckpointError(f"{one_path} has {what[0]} of its {side} and {other_path} {what[1]}: these are not the same "
                                  "layers, so they have no average. Average checkpoints before pruning, or prune all of them "
                                  "to the same layers.")
    folded = [checkpoint.training.get("folded") for checkpoint in (one, other)]
    if folded[0] != folded[1]:
        what = [f"was folded (--init-type {before})" if before else "was not" for before in folded]
        raise CheckpointError(f"{one_path} {what[0]} and {other_path} {what[1]}: what their layers hand on is scaled "
                              "differently, so they have no average. Average checkpoints before folding, and fold the result.")


def _model_differences(one: Checkpoint, other: Checkpoint) -> list[tuple[str, object, object]]:
    """Model options by name, with both values; dropout and LayerDrop may change within a run."""
    here, there = (flatten(_without_dropout(checkpoint.model_config())) for checkpoint in (one, other))
    return [(name, here.get(name), there.get(name)) for name in here | there if here.get(name) != there.get(name)]


def _without_dropout(config: ModelConfig) -> ModelConfig:
    return replace(config, dropout=DropoutConfig(), layer_drop_schedule="constant",
                   encoder=replace(config.encoder, layer_drop_p=0.0), decoder=replace(config.decoder, layer_drop_p=0.0))

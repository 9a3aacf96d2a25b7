"""The checkpoint file: what it holds, and how it is written and read.

A checkpoint is a torch archive of tensors and plain containers, read with weights_only=True. It carries all that is
needed to use the model: configuration, dictionaries, subword models. docs/formats.md describes it field by field.
"""

from __future__ import annotations

import os
import pickle
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lamina import __version__
from lamina.config.fields import build
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError, ConfigError
from lamina.models.build import BUILDERS
from lamina.text.subword import Subword, subword_from_dict
from lamina.text.vocabulary import Vocabulary

FORMAT = 1


@dataclass
class Checkpoint:
    """Plain values and tensors only."""

    config: dict[str, Any]  # the run's configuration in its flat form, the keys of a recipe
    languages: tuple[str, ...]  # translation: source and target
    dictionaries: tuple[str, ...]  # the texts of their dict.txt files
    subwords: tuple[dict[str, Any], ...]
    weights: dict[str, Tensor]  # float32, each tensor once
    training: dict[str, Any] = field(default_factory=dict)  # optimizer, loss scale, progress: what resuming needs
    metrics: dict[str, float] = field(default_factory=dict)  # of the last validation
    versions: dict[str, str] = field(default_factory=lambda: {
        "lamina": __version__, "torch": str(torch.__version__), "python": platform.python_version()})

    @property
    def task(self) -> str:
        return self.config.get("task", "translation")

    @property
    def sides(self) -> tuple[str, ...]:
        """What messages call the vocabularies."""
        return ("source", "target") if self.task == "translation" else self.languages

    def vocabularies(self) -> tuple[Vocabulary, ...]:
        return tuple(Vocabulary.from_text(text, f"the checkpoint's {language} dictionary")
                     for text, language in zip(self.dictionaries, self.languages, strict=True))

    def subword_models(self) -> tuple[Subword, ...]:
        return tuple(map(subword_from_dict, self.subwords))

    def model_config(self) -> ModelConfig:
        return model_config(self.config)

    def build_model(self) -> Any:
        """The model of the checkpoint's task, with its weights."""
        if self.task not in BUILDERS:
            raise CheckpointError(f"the checkpoint is of --task {self.task}, which this Lamina does not know; it knows "
                                  f"{', '.join(BUILDERS)}. Use the Lamina that wrote it, or a newer one.")
        model = BUILDERS[self.task](self.model_config(), tuple(map(len, self.vocabularies())))
        load_weights_(model, self.weights)
        return model


def model_config(config: dict[str, Any]) -> ModelConfig:
    """The model's part of a run's flat configuration."""
    from lamina.config.fields import unique_leaves

    names = {leaf.name for leaf in unique_leaves(ModelConfig)}
    return build(ModelConfig, {name: value for name, value in config.items() if name in names})


@torch.no_grad()
def load_weights_(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights by name; what is missing, left over or of another shape is named."""
    parameters = dict(model.named_parameters())
    for what, names in (("lacks", parameters.keys() - weights.keys()), ("also holds", weights.keys() - parameters.keys())):
        if names:
            raise CheckpointError(f"the checkpoint does not fit the model: it {what} {min(names)}"
                                  f"{f' and {len(names) - 1} more' if len(names) > 1 else ''}. Were the model flags changed?")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            raise CheckpointError(f"the checkpoint does not fit the model: {name} is {tuple(weights[name].shape)} there and "
                                  f"{tuple(parameter.shape)} here. Were the model flags or the dictionaries changed?")
        parameter.copy_(weights[name])


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write beside the target and move into place: a run that dies here leaves the old file whole."""
    content = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            torch.save({"lamina_format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as error:
        # torch's zip writer reports a full disk as a RuntimeError without an errno.
        raise CheckpointError(f"{path} could not be written: {getattr(error, 'strerror', None) or error}. Free some space "
                              "or write it elsewhere; earlier checkpoints are untouched.") from None
    finally:
        part.unlink(missing_ok=True)


def load_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    return checkpoint_of(read_archive(path, device), path)


def read_archive(path: str | Path, device: torch.device | str = "cpu",
                 allowed: Sequence[type | tuple[type, str]] = ()) -> Any:
    """What a file of tensors and plain values holds. Classes besides those are refused by name, unless they are `allowed`."""
    try:
        with torch.serialization.safe_globals(list(allowed)):
            return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}.") from None
    except Exception as error:  # a damaged file can make the reader raise anything at all
        # torch's own words recommend to load with weights_only=False, which would let the file run code.
        reason = _why_unpicklable(error) if isinstance(error, pickle.UnpicklingError) else (
            str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(f"{path} cannot be read as a checkpoint ({reason}). It may be damaged or of another "
                              "program; try an earlier one.") from None


def _why_unpicklable(error: pickle.UnpicklingError) -> str:
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    return (f"it needs the Python object {named[1]}, and from files only tensors and plain values are read" if named else
            "it is no archive of tensors and plain values")


def checkpoint_of(content: Any, path: str | Path) -> Checkpoint:
    """The content of a file of ours."""
    if not isinstance(content, dict) or "lamina_format" not in content:
        raise CheckpointError(f"{path} is not a checkpoint of Lamina.")
    if content["lamina_format"] != FORMAT:
        raise CheckpointError(f"{path} has format {content['lamina_format']}; this Lamina reads format {FORMAT}. "
                              "Use the Lamina that wrote it, or a newer one.")
    names = {item.name for item in fields(Checkpoint)}
    missing = sorted(names - content.keys())
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}: it is damaged.")
    try:
        return Checkpoint(**{name: content[name] for name in names})
    except (TypeError, ConfigError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None

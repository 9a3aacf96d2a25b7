"""A model as a folder: weights in safetensors, config.json, dictionaries and subword models. Lamina reads it back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file

from lamina.checkpoint.format import Checkpoint, checked, task_kind
from lamina.data.data_folder import dictionary_name
from lamina.errors import CheckpointError, DamageError, DataError
from lamina.files import file_hash, is_plain_name, read_json
from lamina.text.subword import load_subwords, save_subwords, subword_to_dict
from lamina.traits import PAIRS

FORMAT = 1
WEIGHTS_NAME, CONFIG_NAME = "model.safetensors", "config.json"
# What only resuming needs stays behind.
_OF_TRAINING = ("optimizer", "optimizer_kind", "optimizer_problem", "scale", "run")


def is_exported(path: Path) -> bool:
    """Whether a model lies in this folder."""
    return (path / WEIGHTS_NAME).is_file() and (path / CONFIG_NAME).is_file()


def file_keys(task: str, languages: Sequence[str]) -> list[str]:
    """What files are called after: the languages, made different where one stands on both sides; dict.txt for a single text."""
    if not task_kind(task).has(PAIRS):
        return ["", *languages[1:]]
    return [language if language not in languages[:place] else f"{language}{place + 1}"
            for place, language in enumerate(languages)]


def write_texts(folder: Path, checkpoint: Checkpoint) -> None:
    """Dictionaries and subword models, as a data folder has them."""
    keys = file_keys(checkpoint.task, checkpoint.languages)
    for key, text in zip(keys, checkpoint.dictionaries, strict=True):
        (folder / dictionary_name(key)).write_bytes(text.encode("utf-8"))
    save_subwords(folder, dict(zip(keys, checkpoint.subword_models(), strict=True)))


def write_folder(folder: Path, checkpoint: Checkpoint) -> None:
    save_file({name: weight.detach().cpu().contiguous() for name, weight in checkpoint.weights.items()},
              folder / WEIGHTS_NAME, metadata={"format": "pt"})
    described = {"lamina_format": FORMAT, "task": checkpoint.task, "languages": list(checkpoint.languages),
                 "config": checkpoint.config, "metrics": checkpoint.metrics, "versions": checkpoint.versions,
                 "training": {name: value for name, value in checkpoint.training.items() if name not in _OF_TRAINING}}
    write_texts(folder, checkpoint)
    described["files"] = {path.name: file_hash(path) for path in sorted(folder.iterdir()) if path.is_file()}
    (folder / CONFIG_NAME).write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n", encoding="utf-8",
                                      errors="backslashreplace")


def read_folder(folder: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """What `write_folder` wrote."""
    described = _described(folder)
    if described["lamina_format"] != FORMAT:
        raise CheckpointError(f"{folder / CONFIG_NAME} has format {described['lamina_format']!r}; this Lamina reads format "
                              f"{FORMAT}. Use the Lamina that wrote it, or a newer one.")
    try:
        _check_files(folder, described.get("files", {}))
        weights = _weights(folder / WEIGHTS_NAME, device)
        languages = tuple(described["languages"])
        keys = file_keys(described["task"], languages)
        subwords = load_subwords(folder)
        return checked(Checkpoint(
            config=described["config"], languages=languages,
            dictionaries=tuple((folder / dictionary_name(key)).read_bytes().decode("utf-8") for key in keys),
            subwords=tuple(subword_to_dict(subwords[key]) for key in keys), weights=weights,
            training=described["training"], metrics=described["metrics"], versions=described["versions"]), folder)
    except (OSError, KeyError, TypeError, AttributeError, UnicodeDecodeError, SafetensorError, DataError) as error:
        raise CheckpointError(f"{folder} cannot be read as an exported model: {error}. Export it again.") from None


def _weights(path: Path, device: torch.device | str) -> dict[str, torch.Tensor]:
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:  # a name that safetensors cannot open
        return {name: value.to(device) for name, value in load(path.read_bytes()).items()}
    return load_file(path, device=str(device))


def _check_files(folder: Path, sums: dict[str, str]) -> None:
    """Against the checksums of when they were written; an early folder has none."""
    for name, expected in sums.items():
        if not is_plain_name(name):
            raise TypeError(f"{CONFIG_NAME} lists {name!r}, which is no plain name")
        if file_hash(folder / name) != expected:
            raise DamageError(f"{folder / name} is damaged: its content does not match its checksum in {CONFIG_NAME}. Copy it "
                              "again, or export it again.")


def _described(folder: Path) -> dict[str, Any]:
    try:
        described = read_json(folder / CONFIG_NAME)
        if "lamina_format" in described and (folder / WEIGHTS_NAME).is_file():
            return described
    except (OSError, ValueError, TypeError):
        pass
    raise CheckpointError(f"{folder} is a folder, and not one that `lamina export --format safetensors` wrote or that "
                          "holds a model of Hugging Face's (config.json with a model_type). Name a checkpoint file in it.")

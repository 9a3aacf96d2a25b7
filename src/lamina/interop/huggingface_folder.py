"""What lies in a folder of Hugging Face's: its configuration and its tensors, read without running anything in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from lamina.checkpoint.format import read_archive
from lamina.errors import CheckpointError
from lamina.files import check_regular, is_plain_name, read_json

CONFIG_NAME = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
INDEX_ENDING = ".index.json"


def is_huggingface(folder: Path) -> bool:
    """Whether a folder says so itself: its config.json names a type of model."""
    try:
        described = read_json(folder / CONFIG_NAME)
    except (OSError, ValueError):
        return False
    return isinstance(described, dict) and "lamina_format" not in described and (
        "model_type" in described or "architectures" in described)


def read_described(folder: Path, name: str, *, is_needed: bool = True) -> dict[str, Any]:
    """The object in one of its JSON files; {} where it may be missing and is."""
    path = folder / name
    if not path.exists():
        if is_needed:
            raise CheckpointError(f"{folder} lacks {name}, which a model of Hugging Face's needs. Download the whole folder.")
        return {}
    try:
        described = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}). Download it again.") from None
    if not isinstance(described, dict):
        raise CheckpointError(f"{path} does not hold a JSON object. Download it again.")
    return described


def read_bytes(folder: Path, name: str, what: str) -> bytes:
    """One of its files, which is `what` to somebody who misses it."""
    path = folder / name
    try:
        check_regular(path)
        return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{folder} lacks {name}, {what}. Download the whole folder.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors by name, from safetensors if there are any, otherwise from a pickle that may hold nothing but tensors."""
    for name in WEIGHTS:
        if (folder / f"{name}{INDEX_ENDING}").is_file():
            return _read_shards(folder, name)
        if (folder / name).is_file():
            return _floats(_read_file(folder / name))
    raise CheckpointError(f"{folder} holds no weights: it has neither {' nor '.join(WEIGHTS)}. Download the whole folder; "
                          "weights of TensorFlow or Flax are not read.")


def _read_shards(folder: Path, name: str) -> dict[str, Tensor]:
    index = read_described(folder, f"{name}{INDEX_ENDING}").get("weight_map")
    if not isinstance(index, Mapping) or not index or not all(map(is_plain_name, index.values())):
        raise CheckpointError(f"{folder / name}{INDEX_ENDING} does not list the files of the weights. Download it again.")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(index.values())):
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder} lacks {file}, which {name}{INDEX_ENDING} names. Download the whole folder.")
        tensors |= _floats(_read_file(folder / file))
    return tensors


def _read_file(path: Path) -> Any:
    if path.suffix != ".safetensors":
        return read_archive(path)
    try:
        check_regular(path)
        try:
            str(path).encode("utf-8")
        except UnicodeEncodeError:  # a name that safetensors cannot open
            return load(path.read_bytes())
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors ({error}). Download it again.") from None


def _floats(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping) or not all(isinstance(name, str) and isinstance(value, Tensor)
                                                   for name, value in content.items()):
        raise CheckpointError("its weights are something else than tensors by name.")
    return {name: value.to(torch.float32) if value.is_floating_point() else value for name, value in content.items()}

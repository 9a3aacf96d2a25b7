"""The checkpoint file: what it holds, and how it is written and read.

A checkpoint is a torch archive of tensors and plain containers, read with weights_only=True. It carries all that is
needed to use the model: configuration, dictionaries, subword models. docs/formats.md describes it field by field.

The archive is a zip file. Its comment, the last bytes of the file, is the SHA-256 of all bytes before it: what a disk or a
network changed is noticed before anything is read.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lamina.checkpoint.limits import check_archive, check_content
from lamina.checkpoint.shards import OPTIMIZER, is_shards_record, read_shards
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError, DamageError
from lamina.fields import build, unique_leaves, with_switches_applied
from lamina.files import check_regular, is_plain_name, part_of, remove_stale_parts, replace_durably
from lamina.init.undrawn import Undrawn
from lamina.models.contract import Model
from lamina.parts.contracts import TaskKind
from lamina.provenance import versions
from lamina.registry import register
from lamina.text.subword import Subword, subword_from_dict
from lamina.text.vocabulary import Vocabulary

FORMAT = 1
# A checkpoint names the parts it needs; it never says where to import them from.
PLUG_IN_ADVICE = ("Name the file or folder that adds it with --user-dir (lamina.load(..., user_dir=...)), or install its "
                  "package; it may also be of a newer Lamina.")
SEAL_MARK = b"lamina sha256 "
SEAL_SIZE = len(SEAL_MARK) + 64
COMMENT_LENGTH = struct.Struct("<H")  # a zip file's last field before its comment
READ_BYTES = 2**22


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
    versions: dict[str, str] = field(default_factory=versions)
    origin: dict[str, str] = field(default_factory=dict)  # command line, commit, time
    shards: dict[str, Any] = field(default_factory=dict)  # where weights and optimizer lie, if in files of their own

    @property
    def task(self) -> str:
        return self.config.get("task") or next(iter(register.task))

    @property
    def kind(self) -> TaskKind:
        return task_kind(self.task)

    @property
    def sides(self) -> tuple[str, ...]:
        """What messages call the vocabularies."""
        return self.kind.sides(self.languages)

    def vocabularies(self) -> tuple[Vocabulary, ...]:
        return tuple(Vocabulary.from_text(text, f"the checkpoint's {language} dictionary")
                     for text, language in zip(self.dictionaries, self.languages, strict=True))

    def subword_models(self) -> tuple[Subword, ...]:
        return tuple(map(subword_from_dict, self.subwords))

    def model_config(self) -> ModelConfig:
        return model_config(self.config)

    def build_model(self) -> Model:
        """The model of the checkpoint's task, with its weights."""
        with Undrawn():
            model = self.kind.build_model(self.model_config(), tuple(map(len, self.vocabularies())))
        load_weights_(model, self.weights)
        return model


def task_kind(name: str) -> TaskKind:
    """What a task is; one that nobody registered is refused by name."""
    if name not in register.task:
        raise CheckpointError(f"the checkpoint is of --task {name}, which is not registered here; known are "
                              f"{', '.join(register.task)}. {PLUG_IN_ADVICE}")
    return register.task[name]()


def model_config(config: dict[str, Any]) -> ModelConfig:
    """The model's part of a run's flat configuration."""
    known = unique_leaves(ModelConfig)
    missing = [(leaf.name, config[leaf.name]) for leaf in known
               if leaf.info.choices is not None and isinstance(config.get(leaf.name), str)
               and config[leaf.name] not in leaf.info.choices]
    if missing:
        named = " and ".join(f"--{option} {name}" for option, name in missing)
        raise CheckpointError(f"the checkpoint needs {named}, which "
                              f"{'is' if len(missing) == 1 else 'are'} not registered here. {PLUG_IN_ADVICE}")
    names = {leaf.name for leaf in known}
    return build(ModelConfig, {name: value for name, value in config.items() if name in names})


@torch.no_grad()
def load_weights_(model: Any, weights: dict[str, Tensor], advice: str = "") -> None:
    """Copy weights by name; what is missing, left over or of another shape is named, with the `advice` that there may be."""
    parameters = dict(model.named_parameters())
    for what, names in (("lacks", parameters.keys() - weights.keys()), ("also holds", weights.keys() - parameters.keys())):
        if names:
            raise CheckpointError(f"the checkpoint does not fit the model: it {what} {min(names)}"
                                  f"{f' and {len(names) - 1} more' if len(names) > 1 else ''}. "
                                  f"{advice or 'Were the model flags changed?'}")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            raise CheckpointError(f"the checkpoint does not fit the model: {name} is {tuple(weights[name].shape)} there and "
                                  f"{tuple(parameter.shape)} here. "
                                  f"{advice or 'Were the model flags or the dictionaries changed?'}")
        parameter.copy_(weights[name])


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write beside the target and move into place: a run that dies here leaves the old file whole."""
    content = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}
    part = part_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_parts(path.parent)  # of commands that were killed
        with part.open("w+b") as file:
            with without_zip_checksums():
                torch.save({"lamina_format": FORMAT, "is_sealed": True, **content}, file)
            seal(file)
            file.flush()
            os.fsync(file.fileno())
        replace_durably(part, path)
    except (OSError, RuntimeError) as error:
        # torch's zip writer says of a full disk only that a position is unexpected, and hides what Python told it.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise CheckpointError(f"{path} could not be written: {getattr(cause, 'strerror', None) or cause}. Free some space "
                              "or write it elsewhere; earlier checkpoints are untouched.") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def without_zip_checksums() -> Iterator[None]:
    """Two thirds of the time that writing takes, and the seal tells of damage already."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def seal(file: BinaryIO) -> None:
    """Append the digest of a finished archive to it, as the zip file's comment."""
    end = file.seek(-COMMENT_LENGTH.size, os.SEEK_END)
    file.write(COMMENT_LENGTH.pack(SEAL_SIZE))
    seal_text = SEAL_MARK + _digest(file, end + COMMENT_LENGTH.size)
    file.seek(0, os.SEEK_END)
    file.write(seal_text)


def check_seal(file: BinaryIO, path: str | Path) -> bool:
    """Whether the file has a seal; one that is broken is an error. Files of early versions have none."""
    size = file.seek(0, os.SEEK_END)
    if size <= SEAL_SIZE:
        return False
    file.seek(size - SEAL_SIZE)
    found = file.read(SEAL_SIZE)
    if not found.startswith(SEAL_MARK):
        return False
    if found[len(SEAL_MARK):] != _digest(file, size - SEAL_SIZE):
        raise DamageError(f"{path} is damaged: its content does not match its checksum. Copy it again, or take an earlier "
                          "one.")
    return True


def _digest(file: BinaryIO, size: int) -> bytes:
    """The SHA-256 of the first `size` bytes, in hexadecimal."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (block := file.read(min(size, READ_BYTES))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest().encode()


def load_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    return checkpoint_of(read_archive(path, device), path)


def read_archive(path: str | Path, device: torch.device | str = "cpu",
                 allowed: Sequence[type | tuple[type, str]] = (), *, is_checked: bool = True) -> Any:
    """What a file of tensors and plain values holds. Classes besides those are refused by name, unless they are `allowed`.

    One that is not checked may be damaged in its tensors: for callers that read only the description.
    """
    try:
        check_regular(path)
        with open(path, "rb") as file:
            is_sealed = not is_checked or check_seal(file, path)
        check_archive(path, [f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else kind[1]
                             for kind in allowed])
        with torch.serialization.safe_globals(list(allowed)), _readable(path) as source:
            content = torch.load(source, map_location=device, weights_only=True,
                                 mmap=None if isinstance(source, (str, Path)) else False)
        check_content(content, os.path.getsize(path))
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}.") from None
    except (PermissionError, IsADirectoryError) as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    except (DamageError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a damaged file can make the reader raise anything at all
        # torch's own words recommend to load with weights_only=False, which would let the file run code.
        reason = _why_unpicklable(error) if isinstance(error, pickle.UnpicklingError) else (
            str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DamageError(f"{path} cannot be read as a checkpoint ({reason}). It may be damaged or of another "
                          "program; try an earlier one.") from None
    if isinstance(content, dict) and content.get("is_sealed") is True and not is_sealed:
        raise DamageError(f"{path} is damaged: its checksum, at the end, is missing. Copy it again, or take an earlier one.")
    return content


@contextmanager
def _readable(path: str | Path) -> Iterator[Any]:
    """What torch can open: not a name that is no UTF-8."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        with open(path, "rb") as file:
            yield file
    else:
        yield path


def _why_unpicklable(error: pickle.UnpicklingError) -> str:
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    return (f"it needs the Python object {named[1]}, and from files only tensors and plain values are read" if named else
            "it is no archive of tensors and plain values")


def checkpoint_of(content: Any, path: str | Path) -> Checkpoint:
    """The content of a file of ours."""
    if not isinstance(content, dict) or "lamina_format" not in content:
        raise CheckpointError(f"{path} is not a checkpoint of Lamina.")
    if type(content["lamina_format"]) is not int or content["lamina_format"] != FORMAT:
        raise CheckpointError(f"{path} has format {str(content['lamina_format'])[:20]}; this Lamina reads format {FORMAT}. "
                              "Use the Lamina that wrote it, or a newer one.")
    missing = sorted(item.name for item in fields(Checkpoint) if item.name not in content and item.default_factory is MISSING)
    if missing:
        raise DamageError(f"{path} lacks {', '.join(missing)}: it is damaged.")
    found = checked(Checkpoint(**{item.name: content[item.name] for item in fields(Checkpoint) if item.name in content}), path)
    return with_shards(found, Path(path)) if found.shards else found


def with_shards(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """The whole of a checkpoint whose weights and optimizer lie in files of their own."""
    try:
        weights, optimizer = read_shards(path, checkpoint.shards)
    except DamageError:
        again = read_archive(path)
        if not isinstance(again, dict) or again.get("shards") == checkpoint.shards:
            raise
        return checkpoint_of(again, path)  # a run has replaced it meanwhile, and removed the folder that it named
    training = dict(checkpoint.training)
    if optimizer:
        training[OPTIMIZER] = {**training.get(OPTIMIZER, {}), **optimizer}
    return checked(replace(checkpoint, weights=weights, training=training, shards={}), path)


def checked(checkpoint: Checkpoint, path: str | Path) -> Checkpoint:
    """The same, if its fields hold what they should: callers may rely on their types."""
    wrong = next(_wrong_fields(checkpoint), None)
    if wrong is not None:
        raise DamageError(f"{path} is damaged: its field {wrong} does not hold what it should.")
    checkpoint.config = upgraded(checkpoint.config)
    return checkpoint


def upgraded(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of an older checkpoint in today's words: switches that are now kinds of a part."""
    return with_switches_applied(ModelConfig, config)


def _wrong_fields(checkpoint: Checkpoint) -> Iterator[str]:
    """By name, the first first; later checks rely on earlier ones."""
    texts = ("languages", "dictionaries")
    mappings: dict[str, Any] = {"config": object, "weights": Tensor, "training": object, "metrics": (int, float),
                                "versions": str, "origin": str}
    for name in (*texts, "subwords"):
        kind, values = str if name in texts else dict, getattr(checkpoint, name)
        if not isinstance(values, (tuple, list)) or not all(isinstance(value, kind) for value in values):
            yield name
    for name, kind in mappings.items():
        values = getattr(checkpoint, name)
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values) or not all(
                isinstance(value, kind) for value in values.values()):
            yield name
    # They become parts of file names.
    if not all(map(is_plain_name, checkpoint.languages)):
        yield "languages"
    if not len(checkpoint.languages) == len(checkpoint.dictionaries) == len(checkpoint.subwords):
        yield "dictionaries"
    if not isinstance(checkpoint.config, dict) or not isinstance(checkpoint.task, str) or not _is_plain(checkpoint.config):
        yield "config"
    if not is_shards_record(checkpoint.shards):
        yield "shards"
    if isinstance(checkpoint.training, dict):
        yield from _wrong_training(checkpoint.training)


def _wrong_training(training: dict[str, Any]) -> Iterator[str]:
    progress, scale, optimizer = (training.get(name, {}) for name in ("progress", "scale", "optimizer"))
    if not isinstance(progress, dict) or not all(_is_progress(name, value) for name, value in progress.items()):
        yield "training, progress"
    if not isinstance(scale, dict) or not all(isinstance(value, Tensor) and value.dim() == 0 for value in scale.values()):
        yield "training, scale"
    if not isinstance(optimizer, dict) or not all(isinstance(value, Tensor) or (isinstance(value, dict) and all(
            isinstance(item, Tensor) for item in value.values())) for value in optimizer.values()):
        yield "training, optimizer"
    if not isinstance(training.get("optimizer_kind", ""), str):
        yield "training, optimizer_kind"
    rest = {name: value for name, value in training.items() if name not in ("optimizer", "scale")}
    if not _is_plain(rest):
        yield "training"


def _is_progress(name: str, value: Any) -> bool:
    """Counts, sums and scores, as training/progress.py has them; names that it does not know are its to refuse."""
    if name == "is_check_pending":
        return isinstance(value, bool)
    if name == "best" and value is None:
        return True
    if name in ("corpus", "plan"):
        return isinstance(value, str)
    if name == "best_of":
        return isinstance(value, dict) and _is_plain(value)
    if name == "schedule":
        return isinstance(value, dict) and all(isinstance(key, str) and type(item) in (int, float)
                                               for key, item in value.items())
    if name in ("updates", "epoch", "batches_done", "schedule_start", "epoch_tokens", "sentences_done"):
        return type(value) is int and (1 if name == "epoch" else 0) <= value < 2**62
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and (name != "seconds" or 0 <= value < math.inf)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return all(map(_is_plain, value)) if isinstance(value, (list, tuple)) else value is None or isinstance(
        value, (bool, int, float, str))

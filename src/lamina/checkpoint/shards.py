"""Sharded checkpoints: a folder with the rows that each rank held, and a small checkpoint file that says which.

The file, `checkpoint.pt` in the folder, is an ordinary checkpoint without tensors of weights and optimizer. Its other names,
such as checkpoint_best.pt, lie beside the folder. A reader of one of them gets the whole checkpoint. docs/formats.md has the
details; distributed/shard_writer.py writes them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.serialization import config as torch_files

from lamina.checkpoint.limits import check_packed, check_tensor
from lamina.checkpoint.shard_index import INDEX_NAME, Chunk, Stored, read_index
from lamina.errors import CheckpointError, DamageError
from lamina.files import file_hash, is_plain_name

DESCRIPTION_NAME = "checkpoint.pt"
SHARDS_PREFIX = "shards-"  # of folders' names, before the id of their run
WEIGHTS, OPTIMIZER = "weights", "optimizer"


def is_sharded(path: Path) -> bool:
    """Whether this folder is a sharded checkpoint."""
    return (path / INDEX_NAME).is_file() and (path / DESCRIPTION_NAME).is_file()


def description_of(path: Path) -> Path:
    """The file to read where `path` is such a folder; any other path as it is."""
    if is_sharded(path):
        return path / DESCRIPTION_NAME
    if (path / INDEX_NAME).is_file():
        raise CheckpointError(f"{path} is a folder of torch.distributed.checkpoint that Lamina did not write: it has no "
                              f"{DESCRIPTION_NAME}. Name a checkpoint of Lamina's.")
    return path


def is_shards_record(value: Any) -> bool:
    """What a checkpoint says of its shards: nothing, or the name of their folder and the SHA-256 of each file in it."""
    if not isinstance(value, dict):
        return False
    files = value.get("files", {})
    return not value or (is_plain_name(value.get("folder")) and isinstance(files, dict) and INDEX_NAME in files and all(
        (is_plain_name(name) or name == INDEX_NAME) and isinstance(digest, str) for name, digest in files.items()))


def read_shards(path: Path, shards: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Weights by name, and the optimizer's state by kind and name, of the checkpoint that `path` describes.

    Where torch maps files into memory instead of reading them, tensors are read when they are looked at.
    """
    folder = folder_of(path, shards["folder"])
    for name, expected in shards["files"].items():
        try:
            found = file_hash(folder / name)
        except OSError as error:
            raise DamageError(f"{path} needs {folder / name}, which cannot be read: {error.strerror}. Its folder belongs to "
                              "it: copy both, or make one file of them with lamina convert where they lie.") from None
        if found != expected:
            raise DamageError(f"{folder / name} is damaged: its content does not match its checksum in {path}. Copy it again, "
                              "or take an earlier one.")
    weights: dict[str, Tensor] = {}
    optimizer: dict[str, dict[str, Tensor]] = {}
    for name, stored in read_index(folder).items():
        if any(chunk.file not in shards["files"] for chunk in stored.chunks):
            raise DamageError(f"{folder / INDEX_NAME} names files that {path} does not: they are not of one checkpoint.")
        kind, _, rest = name.partition("/")
        group, _, parameter = rest.partition("/")
        if kind not in (WEIGHTS, OPTIMIZER):
            raise DamageError(f"{folder / INDEX_NAME} has a tensor {name[:100]!r}, which no checkpoint of Lamina has.")
        reader = _reader_of(folder, stored)
        tensor: Any = LazyTensor(stored, reader) if torch_files.load.mmap else _whole(stored, reader)
        if kind == WEIGHTS:
            weights[rest] = tensor
        else:
            optimizer.setdefault(group, {})[parameter] = tensor
    return weights, optimizer


def folder_of(path: Path, name: str) -> Path:
    """Beside the file, or the file is in it, whatever it is called by now."""
    return path.parent if path.name == DESCRIPTION_NAME and (path.parent / INDEX_NAME).is_file() else path.parent / name


Rows = Callable[[range], Iterator[Tensor]]  # reads those rows of a tensor, chunk by chunk


def _reader_of(folder: Path, stored: Stored) -> Rows:
    def read(rows: range) -> Iterator[Tensor]:
        for chunk in stored.chunks:
            start, stop = max(rows.start, chunk.rows.start), min(rows.stop, chunk.rows.stop)
            if start < stop:
                yield _read_chunk(folder, chunk, stored)[start - chunk.rows.start : stop - chunk.rows.start]

    return read


def _read_chunk(folder: Path, chunk: Chunk, stored: Stored) -> Tensor:
    """An archive of one tensor in the middle of a file."""
    path = folder / chunk.file
    try:
        with path.open("rb") as file:
            file.seek(chunk.offset)
            packed = io.BytesIO(file.read(chunk.length))
        check_packed(packed, chunk.length)
        tensor = torch.load(packed, map_location="cpu", weights_only=True, mmap=False)
        shape = (len(chunk.rows), *stored.shape[1:])
        if not isinstance(tensor, Tensor) or tensor.shape != shape or tensor.dtype != stored.dtype:
            raise ValueError("a tensor is not of the shape and type that the checkpoint says")
        check_tensor(tensor)
    except Exception as error:  # a damaged file can make the reader raise anything at all
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DamageError(f"{path} cannot be read ({reason}). It may be damaged; try an earlier checkpoint.") from None
    return tensor


def _whole(stored: Stored, reader: Rows) -> Tensor:
    whole = torch.empty(stored.shape, dtype=stored.dtype)
    first = 0
    for rows in reader(range(stored.shape[0])):
        whole[first : first + len(rows)] = rows
        first += len(rows)
    return whole


class LazyTensor(Tensor):
    """A tensor in files, which is read each time that it is looked at: some rows where those are asked for, or else all."""

    _stored: Stored
    _reader: Rows

    @staticmethod
    def __new__(cls, stored: Stored, reader: Rows) -> LazyTensor:
        own: LazyTensor = Tensor._make_wrapper_subclass(cls, stored.shape, dtype=stored.dtype,  # type: ignore[attr-defined]
                                                        device=torch.device("cpu"))
        own._stored, own._reader = stored, reader
        return own

    def __init__(self, stored: Stored, reader: Rows) -> None:
        super().__init__()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"LazyTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (),  # type: ignore[override]
                           options: Any = None) -> Any:
        aten = torch.ops.aten
        first = arguments[0]
        if function is aten.copy_.default and first.is_meta:  # where a shape is all that is wanted
            return first
        if function is aten.slice.Tensor and isinstance(first, cls) and list(arguments[1:2]) in ([], [0]) and not arguments[4:]:
            rows = range(len(first))[slice(*arguments[2:4])]
            return first._stored_rows(rows)
        return function(*tree_map_only(cls, _read, arguments), **tree_map_only(cls, _read, options or {}))

    def _stored_rows(self, rows: range) -> Tensor:
        found = list(self._reader(rows))
        return torch.cat(found) if found else torch.empty((0, *self._stored.shape[1:]), dtype=self._stored.dtype)


def _read(lazy: LazyTensor) -> Tensor:
    return _whole(lazy._stored, lazy._reader)

"""What lies where in a folder of torch.distributed.checkpoint, read off its `.metadata` without running anything.

That file is a plain pickle, and torch unpickles it as it is: whatever it names would be imported and called. Here the names of
torch's own classes are known, and stand for records that do nothing; any other name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lamina.errors import DamageError
from lamina.files import is_plain_name

INDEX_NAME = ".metadata"
# Of the largest models on a thousand ranks.
MAX_INDEX_BYTES = 2**28
MAX_DIMS = 8


class Chunk(NamedTuple):
    """Neighbouring rows of a tensor, and where they are in which file."""

    rows: range
    file: str
    offset: int
    length: int


class Stored(NamedTuple):
    """A tensor whose chunks, one after the other, have all its rows."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...]


class Record:
    """What a pickle has of an object of torch's: how it was made, and what it held."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {}


class Metadata(Record):
    """The whole."""


class TensorStorageMetadata(Record):
    """Shape, type and chunks of a tensor."""


class TensorProperties(Record):
    """Its type, first of all."""

    def __setstate__(self, state: Any) -> None:
        self.state = {"dtype": state[0]} if isinstance(state, tuple) and state else {}


class ChunkStorageMetadata(Record):
    """Where a chunk begins in its tensor, and its shape."""


class MetadataIndex(Record):
    """The name of a tensor, and which of its chunks."""


class StorageInfo(Record):
    """A file, and where in it."""


def _size(values: Any = ()) -> tuple[Any, ...]:
    return tuple(values)


_METADATA = "torch.distributed.checkpoint.metadata"
# By module and name. What is not of interest is a record too.
KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    (_METADATA, "Metadata"): Metadata,
    (_METADATA, "TensorStorageMetadata"): TensorStorageMetadata,
    (_METADATA, "TensorProperties"): TensorProperties,
    (_METADATA, "ChunkStorageMetadata"): ChunkStorageMetadata,
    (_METADATA, "MetadataIndex"): MetadataIndex,
    (_METADATA, "BytesStorageMetadata"): Record,
    (_METADATA, "StorageMeta"): Record,
    (_METADATA, "_MEM_FORMAT_ENCODING"): Record,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): StorageInfo,
    ("torch.serialization", "_get_layout"): Record,
    ("torch", "Size"): _size,
    ("builtins", "getattr"): Record,  # of members of enumerations, by Python up to 3.11.3
    ("pathlib", "PosixPath"): Record,
    ("pathlib._local", "PosixPath"): Record,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        if module == "torch" and isinstance(found := vars(torch).get(name), torch.dtype):
            return found
        raise pickle.UnpicklingError(f"it needs the Python object {module}.{name}, and from files only tensors and plain "
                                     "values are read")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside of it")


def read_index(folder: Path) -> dict[str, Stored]:
    """By name. All that is said of files is looked at: their names, how long they are, and that each tensor is whole."""
    path = folder / INDEX_NAME
    try:
        if (size := path.stat().st_size) > MAX_INDEX_BYTES:
            raise ValueError(f"its {size} bytes are more than any needs")
        index = _Unpickler(io.BytesIO(path.read_bytes())).load()
        found = dict(_tensors(index))
        _check_places(folder, found)
    except FileNotFoundError as error:
        raise DamageError(f"{error.filename or path} is missing: the checkpoint is not whole. Copy it again, or take an "
                          "earlier one.") from None
    except Exception as error:  # a damaged pickle can make the reader raise anything at all
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DamageError(f"{path} cannot be read ({reason}). It may be damaged or of another program; try an earlier "
                          "checkpoint.") from None
    return found


def _tensors(index: Any) -> Iterator[tuple[str, Stored]]:
    places: dict[tuple[str, tuple[int, ...]], Any] = {}
    for key, info in _of(index, Metadata, "storage_data", dict).items():
        places[_of(key, MetadataIndex, "fqn", str), _of(key, MetadataIndex, "offset", tuple)] = info
    for name, tensor in _of(index, Metadata, "state_dict_metadata", dict).items():
        _check(isinstance(name, str), "a name is no text")
        shape = _shape(_of(tensor, TensorStorageMetadata, "size", tuple))
        dtype = _of(_of(tensor, TensorStorageMetadata, "properties", TensorProperties), TensorProperties, "dtype", torch.dtype)
        chunks: list[Chunk] = []
        for chunk in _of(tensor, TensorStorageMetadata, "chunks", list):
            offsets, sizes = (_shape(_of(chunk, ChunkStorageMetadata, item, tuple)) for item in ("offsets", "sizes"))
            first = chunks[-1].rows.stop if chunks else 0
            _check(bool(shape) and len(sizes) == len(shape) and sizes[1:] == shape[1:] and sizes[0] > 0
                   and offsets == (first, *[0] * (len(shape) - 1)), f"{name} is not cut into rows that follow each other")
            info = places[name, offsets]
            file, offset, length = (_of(info, StorageInfo, item, kind) for item, kind in
                                    (("relative_path", str), ("offset", int), ("length", int)))
            _check(is_plain_name(file), f"{name} would lie in {file!r}, which is no plain name")
            _check(not info.state.get("transform_descriptors"), f"{name} is packed in a way that is not known here")
            _check(offset >= 0 and math.prod(sizes) * dtype.itemsize <= length, f"{name} is larger than its place")
            chunks.append(Chunk(range(first, first + sizes[0]), file, offset, length))
        _check(bool(chunks) and chunks[-1].rows.stop == shape[0], f"{name} lacks some of its rows")
        yield name, Stored(shape, dtype, tuple(chunks))


def _check_places(folder: Path, found: dict[str, Stored]) -> None:
    """Files that are there, and hold each chunk once: one piece for many would be a small file of a huge model."""
    total = 0
    sizes: dict[str, int] = {}
    for name, stored in found.items():
        for chunk in stored.chunks:
            if chunk.file not in sizes:
                sizes[chunk.file] = (folder / chunk.file).stat().st_size
            _check(chunk.offset + chunk.length <= sizes[chunk.file], f"{chunk.file} is shorter than {name} needs")
            total += chunk.length
    _check(total <= sum(sizes.values()), "it names the same bytes more than once")


def _of(record: Any, kind: type[Record], name: str, value_kind: type) -> Any:
    _check(isinstance(record, kind), f"it has no {kind.__name__} where one should be")
    value = record.state.get(name)
    _check(isinstance(value, value_kind) and not isinstance(value, bool), f"the {name} of a {kind.__name__} is not what it "
                                                                          "should be")
    return value


def _shape(values: tuple[Any, ...]) -> tuple[int, ...]:
    _check(len(values) <= MAX_DIMS and all(type(value) is int and 0 <= value < 2**62 for value in values),
           "a shape is no shape")
    return values


def _check(is_right: bool, why_not: str) -> None:
    if not is_right:
        raise ValueError(why_not)

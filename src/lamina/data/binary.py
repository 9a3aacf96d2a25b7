"""Sentences of ids on disk, in the layout of fairseq's memory-mapped datasets.

PREFIX.bin holds the ids of all sentences one after the other, little-endian. PREFIX.idx says where each begins:

    9 bytes  magic          8 bytes  version, 1          1 byte  code of the id type          8 bytes  sentences, n
    n times 4 bytes  sizes in ids                        n times 8 bytes  offsets into PREFIX.bin in bytes
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType

import numpy as np

from lamina.data.data_folder import check_finished
from lamina.data.verify import check_small
from lamina.errors import DataError
from lamina.files import check_regular

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQ")
INT_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
FLOAT_CODES = (6, 7)
# From here on fairseq spends four bytes on an id; it leaves room below 2**16.
FIRST_WIDE_SIZE = 65500


def id_type(vocabulary_size: int) -> np.dtype:
    """The type that fairseq 0.9 gives the ids of such a vocabulary."""
    return np.dtype("<u2" if vocabulary_size < FIRST_WIDE_SIZE else "<i4")


class BinaryWriter:
    """Writes a pair of files under temporary names; `finish` puts both in place, the index last.

    As a context manager it finishes at the end of the block, or leaves nothing behind if the block failed.
    """

    def __init__(self, prefix: str | Path, vocabulary_size: int) -> None:
        self.prefix = str(prefix)
        self.dtype = id_type(vocabulary_size)
        self._sizes: list[np.ndarray] = []
        self._data = open(f"{self.prefix}.bin.tmp", "wb")  # noqa: SIM115, closed by finish or discard

    def write(self, ids: np.ndarray) -> None:
        """One sentence."""
        self.write_block(ids, np.array([len(ids)]))

    def write_block(self, ids: np.ndarray, sizes: np.ndarray) -> None:
        """Many sentences at once: their ids in one array, and how many belong to each."""
        assert int(sizes.sum()) == len(ids), "sizes and ids disagree"
        self._data.write(np.ascontiguousarray(ids, dtype=self.dtype).data.cast("B"))
        self._sizes.append(np.asarray(sizes, dtype="<i4"))

    def finish(self) -> None:
        self._data.close()
        with open(f"{self.prefix}.idx.tmp", "wb") as index:
            code = next(code for code, name in INT_TYPES.items() if np.dtype(name) == self.dtype)
            index.write(HEADER.pack(MAGIC, VERSION, code, sum(map(len, self._sizes))))
            for sizes in self._sizes:
                index.write(sizes.tobytes())
            start = 0
            for sizes in self._sizes:
                ends = start + np.cumsum(sizes, dtype="<i8") * self.dtype.itemsize
                index.write((ends - sizes.astype("<i8") * self.dtype.itemsize).tobytes())
                start = int(ends[-1]) if len(ends) else start
        os.replace(f"{self.prefix}.bin.tmp", f"{self.prefix}.bin")
        os.replace(f"{self.prefix}.idx.tmp", f"{self.prefix}.idx")

    def discard(self) -> None:
        with suppress(OSError):  # closing flushes, and the disk may be full
            self._data.close()
        for ending in (".bin.tmp", ".idx.tmp"):
            with suppress(FileNotFoundError):
                os.remove(self.prefix + ending)

    def __enter__(self) -> BinaryWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.discard()


class BinaryReader:
    """Sentences by number, straight from the mapped file; everything the index claims is checked when it is opened."""

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        check_finished(Path(self.prefix).parent)
        self.dtype, self.sizes, offsets = self._read_index()
        self._starts = self._check_against_data(offsets)
        check_small(Path(f"{self.prefix}.idx"))
        # Views of a plain array are several times cheaper to make than views of a memmap.
        self._data = (np.asarray(np.memmap(f"{self.prefix}.bin", dtype=self.dtype, mode="r"))
                      if self.num_tokens else np.zeros(0, self.dtype))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        start = self._starts[index]
        return self._data[start:start + self.sizes[index]]

    def end_to_end(self, numbers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The first `sizes` ids of these sentences, one behind the other."""
        places = np.repeat(self._starts[numbers] - (np.cumsum(sizes) - sizes), sizes)
        places += np.arange(len(places))
        return self._data[places]

    def __reduce__(self) -> tuple[type[BinaryReader], tuple[str]]:
        # Another process maps the file itself instead of receiving a copy of it.
        return BinaryReader, (self.prefix,)

    @cached_property
    def tokens(self) -> np.ndarray:
        """All sentences end to end, as one array."""
        return self._data

    @property
    def num_tokens(self) -> int:
        return int(self.sizes.sum(dtype=np.int64))

    def _read_index(self) -> tuple[np.dtype, np.ndarray, np.ndarray]:
        path = f"{self.prefix}.idx"
        try:
            for ending in (".idx", ".bin"):
                check_regular(f"{self.prefix}{ending}")
            length = os.path.getsize(path)
            with open(path, "rb") as index:
                header = index.read(HEADER.size)
                if len(header) < HEADER.size:
                    raise self._damaged(".idx", f"it has {len(header)} bytes, and its header alone takes {HEADER.size}")
                magic, version, code, count = HEADER.unpack(header)
                if magic != MAGIC:
                    raise self._damaged(".idx", "it does not begin like an index (fairseq's lazy and cached data sets "
                                        "are no memory-mapped ones)")
                if version != VERSION:
                    raise self._damaged(".idx", f"it has version {version}; known is version {VERSION}")
                if code in FLOAT_CODES:
                    raise self._damaged(".idx", "it announces floating-point numbers, not ids")
                if code not in INT_TYPES:
                    raise self._damaged(".idx", f"it announces the unknown type {code}")
                expected = HEADER.size + 12 * count
                if length != expected:
                    raise self._damaged(".idx", f"{count} sentences need {expected} bytes, but it has {length}")
                sizes, offsets = np.fromfile(index, "<i4", count), np.fromfile(index, "<i8", count)
        except FileNotFoundError:
            raise DataError(f"{path} is missing. `lamina preprocess` makes it; check the folder, the split and the "
                            "languages.") from None
        except OSError as error:
            raise DataError(f"{error.filename or path} cannot be read: {error.strerror}.") from None
        if len(sizes) != count or len(offsets) != count:
            raise self._damaged(".idx", "it became shorter while being read")
        return np.dtype(INT_TYPES[code]), sizes, offsets

    def _check_against_data(self, offsets: np.ndarray) -> np.ndarray:
        """The starts of the sentences in ids; every one of them, and its end, lies inside the .bin."""
        try:
            found = os.path.getsize(f"{self.prefix}.bin")
        except OSError:
            raise DataError(f"{self.prefix}.bin is missing, but its index is there. "
                            "Run `lamina preprocess` again.") from None
        if not len(offsets):
            if found:
                raise self._damaged(".bin", f"expected 0 bytes, found {found}")
            return offsets
        if self.sizes.min() < 0:
            raise self._damaged(".idx", f"sentence {int(self.sizes.argmin())} has a negative size")
        width = self.dtype.itemsize
        # Bounded first, so that the sums below cannot overflow.
        if offsets.min() < 0 or offsets.max() > 2**62 or (offsets % width).any():
            raise self._damaged(".idx", "an offset is impossible")
        expected = int((offsets + self.sizes.astype(np.int64) * width).max())
        if found != expected:
            raise self._damaged(".bin", f"expected {expected} bytes, found {found}")
        # As everybody writes them; a damaged offset would otherwise be another sentence.
        if not np.array_equal(offsets // width, np.cumsum(self.sizes, dtype=np.int64) - self.sizes):
            raise self._damaged(".idx", "its sentences overlap, or leave gaps")
        return offsets // width

    def _damaged(self, ending: str, what: str) -> DataError:
        return DataError(f"{self.prefix}{ending} is damaged: {what}. Run `lamina preprocess` again.")

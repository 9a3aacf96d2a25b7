"""What the workers do: text to provisional ids, and provisional ids to a split of the data folder.

The text is read, checked and segmented once. A piece gets the number of its first appearance in its range; when all
ranges are counted and the dictionary stands, translating such numbers into ids is one array lookup. Segmenting twice,
to count and then to encode, would take twice as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lamina.data.binary import BinaryWriter
from lamina.files import file_hash, quick_sum
from lamina.preprocess.line_blocks import TextRange, read_line_blocks
from lamina.preprocess.workers import check_stop
from lamina.text.subword import Subword
from lamina.text.vocabulary import EOS, FIRST_WORD_ID, SPECIAL_SYMBOLS, UNK, Vocabulary

# Number 0 closes every sentence. No piece can be spelled like that: lines end there.
END_OF_LINE = "\n"
PART_ENDINGS = ("numbers", "sizes", "pieces", "counts")


@dataclass(frozen=True)
class CountTask:
    """Segment a range and number its pieces; the result goes to files that begin with `stem`."""

    text: TextRange
    subword: Subword
    max_line_length: int
    stem: str


@dataclass(frozen=True)
class SplitTask:
    """Turn the counted ranges of one file into PREFIX.bin and PREFIX.idx."""

    stems: tuple[str, ...]
    prefix: str


@dataclass(frozen=True)
class SideTask:
    """Everything that one dictionary encodes for one language."""

    vocabulary: Vocabulary
    splits: tuple[SplitTask, ...]


@dataclass(frozen=True)
class SplitReport:
    """What became of one side of one split; tokens include the eos of each sentence, as in fairseq's report."""

    prefix: str
    num_sentences: int
    num_tokens: int
    num_unknown: int  # pieces that the dictionary lacks; a written-out <unk> is not one of them
    num_empty: int
    num_reserved: int  # pieces spelled <s>, <pad> or </s>, which a model will take for the real thing
    hashes: dict[str, str]
    quick_sums: dict[str, str]


class FirstSeen(dict[str, int]):
    """Gives each new piece the next number."""

    def __missing__(self, piece: str) -> int:
        self[piece] = number = len(self)
        return number


def count_range(task: CountTask) -> None:
    numbers = FirstSeen({END_OF_LINE: 0})
    counts = np.zeros(1, np.int64)
    encode, number_of = task.subword.encode, numbers.__getitem__
    with open(f"{task.stem}.numbers", "wb") as numbers_file, open(f"{task.stem}.sizes", "wb") as sizes_file:
        for lines in read_line_blocks(task.text, task.max_line_length):
            check_stop()
            pieces: list[str] = []
            sizes = []
            for line in lines:
                found = encode(line)
                pieces += found
                pieces.append(END_OF_LINE)
                sizes.append(len(found) + 1)
            block = np.fromiter(map(number_of, pieces), np.int32, len(pieces))
            block_counts = np.bincount(block, minlength=len(numbers))
            block_counts[:len(counts)] += counts
            counts = block_counts
            numbers_file.write(block.tobytes())
            sizes_file.write(np.array(sizes, np.int32).tobytes())
    Path(f"{task.stem}.pieces").write_bytes("\n".join(list(numbers)[1:]).encode("utf-8"))
    counts.astype(np.int64).tofile(f"{task.stem}.counts")


def _pieces(stem: str) -> list[str]:
    text = Path(f"{stem}.pieces").read_bytes().decode("utf-8")
    return text.split("\n") if text else []


def merge_counts(stems: Iterable[str]) -> Counter[str]:
    total: Counter[str] = Counter()
    get = total.get
    for stem in stems:
        counts = np.fromfile(f"{stem}.counts", np.int64)[1:].tolist()
        for piece, count in zip(_pieces(stem), counts, strict=True):
            total[piece] = get(piece, 0) + count
    return total


def write_side(task: SideTask) -> list[SplitReport]:
    return [_write_split(split, task.vocabulary) for split in task.splits]


def _write_split(task: SplitTask, vocabulary: Vocabulary) -> SplitReport:
    sentences = tokens = unknown = empty = reserved = 0
    specials = [symbol for symbol in SPECIAL_SYMBOLS if vocabulary.id(symbol) < FIRST_WORD_ID]
    with BinaryWriter(task.prefix, len(vocabulary)) as writer:
        for stem in task.stems:
            check_stop()
            pieces = _pieces(stem)
            ids = np.array([EOS, *vocabulary.ids(pieces)], writer.dtype)
            sizes, numbers = np.fromfile(f"{stem}.sizes", np.int32), np.fromfile(f"{stem}.numbers", np.int32)
            counts = np.fromfile(f"{stem}.counts", np.int64)
            writer.write_block(ids[numbers], sizes)
            written_out = {symbol: int(counts[1 + pieces.index(symbol)]) for symbol in specials if symbol in pieces}
            literal_unknown = written_out.pop(SPECIAL_SYMBOLS[UNK], 0)
            sentences += len(sizes)
            tokens += len(numbers)
            empty += int((sizes == 1).sum())
            unknown += int(counts[ids == UNK].sum()) - literal_unknown
            reserved += sum(written_out.values())
            for ending in PART_ENDINGS:  # makes room on the disk for what comes next
                Path(f"{stem}.{ending}").unlink()
    hashes = {Path(f"{task.prefix}{ending}").name: file_hash(f"{task.prefix}{ending}") for ending in (".bin", ".idx")}
    quick_sums = {Path(f"{task.prefix}.bin").name: quick_sum(f"{task.prefix}.bin")}
    return SplitReport(task.prefix, sentences, tokens, unknown, empty, reserved, hashes, quick_sums)

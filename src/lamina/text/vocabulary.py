"""Pieces to ids and back, in the order and the dict.txt bytes that fairseq uses."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from lamina.errors import DataError

SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
BOS, PAD, EOS, UNK = range(len(SPECIAL_SYMBOLS))
FIRST_WORD_ID = len(SPECIAL_SYMBOLS)
MASK_SYMBOL = "<mask>"  # the last of a masked language model's dictionary; dict.txt does not list it

# A dict.txt may say so after the count, to list a symbol a second time: the later id then wins.
OVERWRITE_MARK = "#fairseq:overwrite"


class Vocabulary:
    """The special symbols, then the words; a symbol's place is its id."""

    bos, pad, eos, unk = BOS, PAD, EOS, UNK

    def __init__(self, words: Iterable[str] = (), counts: Iterable[int] = ()) -> None:
        self.symbols: list[str] = [*SPECIAL_SYMBOLS, *words]
        self.counts: list[int] = [0] * FIRST_WORD_ID + list(counts)
        assert len(self.symbols) == len(self.counts), "a count for every word"
        # Of a symbol that is listed twice the last place counts, which is what the overwrite mark means.
        self._ids = {symbol: place for place, symbol in enumerate(self.symbols)}

    def __len__(self) -> int:
        return len(self.symbols)

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.symbols == other.symbols and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} symbols, digest {self.digest})"

    def id(self, symbol: str) -> int:
        return self._ids.get(symbol, UNK)

    def ids(self, pieces: Iterable[str]) -> list[int]:
        lookup = self._ids.get
        return [lookup(piece, UNK) for piece in pieces]

    def encode(self, pieces: Sequence[str]) -> np.ndarray:
        """The ids of a sentence's pieces, closed by eos."""
        return np.array([*self.ids(pieces), EOS], dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The pieces behind ids; what only frames or fills a sentence is left out."""
        return [self.symbols[i] for i in map(int, ids) if i not in (BOS, PAD, EOS)]

    def with_mask(self) -> Vocabulary:
        """The same symbols and <mask>, as fairseq adds it when a masked language model is set up."""
        if MASK_SYMBOL in self:
            return self
        return Vocabulary([*self.symbols[FIRST_WORD_ID:], MASK_SYMBOL], [*self.counts[FIRST_WORD_ID:], 1])

    @classmethod
    def build(cls, counts: Mapping[str, int], *, threshold: int = -1, max_size: int = -1,
              padding_factor: int = 1) -> Vocabulary:
        """The words seen at least `threshold` times, the most frequent first, equals by code point.

        `max_size` counts the special symbols, -1 means all. `madeupword0000` and so on fill the size up to a multiple
        of `padding_factor`, so that the output matrix has a width that GPUs like.
        """
        # A special symbol in the text already has its place (WikiText spells out <unk>).
        words = sorted(word for word, seen in counts.items() if seen >= threshold and word not in SPECIAL_SYMBOLS)
        words.sort(key=counts.__getitem__, reverse=True)  # stable: equals keep their order
        if max_size > 0:
            del words[max(max_size - FIRST_WORD_ID, 0):]
        # A text may hold such a word itself; its number is then passed over.
        taken = {word for word in words if word.startswith("madeupword")}
        free = (filler for filler in map("madeupword{:04d}".format, itertools.count()) if filler not in taken)
        fillers = list(itertools.islice(free, -(len(words) + FIRST_WORD_ID) % padding_factor))
        return cls(words + fillers, [*map(counts.__getitem__, words), *[0] * len(fillers)])

    def to_text(self) -> str:
        """The dict.txt of this vocabulary: `symbol count` lines without the special symbols."""
        words, counts = self.symbols[FIRST_WORD_ID:], self.counts[FIRST_WORD_ID:]
        if len(self._ids) == len(self):  # every symbol stands once: the ordinary case, and the fast one
            return "".join(map("{} {}\n".format, words, counts))
        lines, seen = [], set(SPECIAL_SYMBOLS)
        for symbol, count in zip(words, counts, strict=True):
            lines.append(f"{symbol} {count} {OVERWRITE_MARK}\n" if symbol in seen else f"{symbol} {count}\n")
            seen.add(symbol)
        return "".join(lines)

    @classmethod
    def from_text(cls, text: str, name: str = "dictionary") -> Vocabulary:
        """What `to_text`, or fairseq, wrote; `name` is what an error message calls it."""
        words: list[str] = []
        counts: list[int] = []
        first_line = dict.fromkeys(SPECIAL_SYMBOLS, 0)
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        for number, line in enumerate(lines, start=1):
            # At the last space, since a symbol may itself be some other kind of white space.
            symbol, space, count = line.rstrip().rpartition(" ")
            overwrites = count == OVERWRITE_MARK
            if overwrites:
                symbol, space, count = symbol.rpartition(" ")
            if not (space and symbol and _is_whole_number(count)):
                raise DataError(f"{name}, line {number}: expected `symbol count`, found {_shorten(line)!r}. "
                                "A dictionary is what `lamina preprocess` or fairseq wrote as dict.LANG.txt.")
            if symbol in first_line and not overwrites:
                before = first_line[symbol]
                where = f"already stands in line {before}" if before else "is a special symbol with an id of its own"
                raise DataError(f"{name}, line {number}: {symbol!r} {where}. Remove the line, "
                                f"or put {OVERWRITE_MARK} behind its count if its new place should win.")
            first_line.setdefault(symbol, number)
            words.append(symbol)
            counts.append(int(count))
        return cls(words, counts)

    @cached_property
    def digest(self) -> str:
        """Short name of the dict.txt's content, the same wherever the file lies."""
        return hashlib.sha256(self.to_text().encode("utf-8")).hexdigest()[:12]

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.to_text().encode("utf-8"))

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such dictionary. `lamina preprocess` writes it as dict.LANG.txt; "
                            "check the folder and the languages.") from None
        except OSError as error:
            raise DataError(f"{path}: the dictionary cannot be read: {error.strerror}.") from None
        try:
            return cls.from_text(data.decode("utf-8"), str(path))
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise DataError(f"{path}, line {line}: byte {error.start} is not valid UTF-8. "
                            "Convert the dictionary to UTF-8, for example with iconv.") from None


def _is_whole_number(text: str) -> bool:
    # No count has more digits; Python refuses to read numbers of thousands of them.
    return text.removeprefix("-").isdecimal() and len(text) <= 20


def _shorten(line: str) -> str:
    return line if len(line) <= 40 else line[:37] + "..."

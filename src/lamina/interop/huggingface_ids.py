"""Ids of Hugging Face's models in the order of ours: <s>, <pad>, </s>, <unk>, then the words.

Rows of tables are put into that order once, on the way in. Everything behind it (data, batches, searches, exports) then
finds </s> and padding where it expects them, in training too. What has no counterpart there gets a row of zeros, which the
bias at the output keeps from ever being said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lamina.errors import CheckpointError
from lamina.text.vocabulary import EOS, FIRST_WORD_ID, PAD, SPECIAL_SYMBOLS, Vocabulary

ABSENT_BIAS = -1000.0  # at the output, of a symbol that the model does not have: e^-1000 is 0, also in half precision
LARGEST_VOCABULARY = 10**7


@dataclass(frozen=True)
class IdPlan:
    """Where each of our ids comes from."""

    rows: tuple[int | None, ...]  # theirs, by ours; None: there is none
    vocabulary: Vocabulary
    start: int  # ours, of what the decoder reads first

    @property
    def has_absent(self) -> bool:
        return None in self.rows

    @property
    def reads(self) -> tuple[str, ...]:
        """For --decoder-reads: </s> stands in front of every target, and is read as the symbol that they start from."""
        return () if self.start == EOS else (f"{EOS}:{self.start}",)

    def ours(self, theirs: object, what: str) -> int:
        if theirs not in self.rows or theirs is None:
            raise CheckpointError(f"{what} is {theirs!r}, which is no id of its dictionary.")
        return self.rows.index(theirs)  # type: ignore[arg-type]

    def arranged(self, table: Tensor, absent: float = 0.0) -> Tensor:
        """A table or a bias of theirs, its rows in our order."""
        known = torch.tensor([row is not None for row in self.rows])
        arranged = table.new_full((len(self.rows), *table.shape[1:]), absent)
        arranged[known] = table[torch.tensor([row for row in self.rows if row is not None])]
        return arranged


def plan_ids(pieces: Sequence[str | None], special: Mapping[str, Any], start: int | None) -> IdPlan:
    """`pieces` by their id, None where no file names one; `special`: the ids of bos, pad, eos and unk, None for none.

    Where padding is also what the decoder starts from (Marian), its vector is that of the start: padding is never read here.
    """
    def checked(name: str) -> int | None:
        number = special.get(name)
        if number is not None and (type(number) is not int or not 0 <= number < len(pieces)):
            raise CheckpointError(f"its {name}_token_id is {number!r}, which is no id of its {len(pieces)} symbols.")
        return number

    bos, pad, eos, unk = (checked(name) for name in ("bos", "pad", "eos", "unk"))
    if eos is None:
        raise CheckpointError("it does not say which symbol ends a text: config.json has no eos_token_id.")
    start = eos if start is None else start
    if type(start) is not int or not 0 <= start < len(pieces):
        raise CheckpointError(f"its decoder_start_token_id is {start!r}, which is no id of its {len(pieces)} symbols.")
    first: list[int | None] = [bos if bos not in (pad, eos, unk) else None, pad if pad != eos else None, eos,
                               unk if unk not in (eos, pad) else None]
    extra: list[int | None] = []
    if start == pad != eos:
        first[PAD] = None
        if first[0] is None:
            first[0] = pad
        else:
            extra = [pad]
    taken = {*first, *extra}
    rows = [*first, *extra, *(number for number in range(len(pieces)) if number not in taken)]
    vocabulary = Vocabulary(_names([None if row is None else pieces[row] for row in rows[FIRST_WORD_ID:]],
                                   rows[FIRST_WORD_ID:]), [1] * (len(rows) - FIRST_WORD_ID))
    return IdPlan(tuple(rows), vocabulary, rows.index(start))


def nameless(number: int) -> str:
    """What a row of their tables is called for which no file has a piece."""
    return f"madeupword{number:04d}"


def _names(pieces: Sequence[str | None], rows: Sequence[int | None]) -> list[str]:
    """One each: a piece that is called like a symbol of ours, or has no name, is called by its number."""
    seen: set[str] = set(SPECIAL_SYMBOLS)
    names = []
    for piece, row in zip(pieces, rows, strict=True):
        if piece is None or "\n" in piece or not piece.strip(" "):
            assert row is not None, "a symbol that no row stands for has a name"
            name = nameless(row)
        else:
            name = piece
        while name in seen:
            name = f"{name}#{row}"
        seen.add(name)
        names.append(name)
    return names


def pieces_by_id(vocabulary: Mapping[str, Any], size: int, name: str) -> list[str | None]:
    """A vocab.json the other way round, as long as the model's table."""
    if not 0 < size <= LARGEST_VOCABULARY:
        raise CheckpointError(f"its tables have {size} rows, and {LARGEST_VOCABULARY} are the most that are read.")
    pieces: list[str | None] = [None] * size
    for piece, number in vocabulary.items():
        if type(number) is not int or number < 0:
            raise CheckpointError(f"{name} gives {piece[:40]!r} the id {str(number)[:20]}; ids are numbers from 0 on.")
        if number >= size:
            raise CheckpointError(f"{name} has the id {number} ({piece[:40]!r}), but the model's table has {size} rows. Do "
                                  "they belong together?")
        pieces[number] = piece
    return pieces

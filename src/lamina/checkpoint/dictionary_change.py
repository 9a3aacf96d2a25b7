"""A checkpoint's weights for another dictionary, so that a model can be fine-tuned on text that has other words.

A type that both dictionaries have keeps its row. A new one begins as the mean of its pieces under the checkpoint's own subword
model, or where none of those is known, as the mean of all words. What a model says of old text is then what it said, up to the
share of probability that new types take.
"""

# V vocabulary, D model_dim

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lamina.checkpoint.format import Checkpoint
from lamina.errors import CheckpointError
from lamina.nn.adaptive import AdaptiveHead, AdaptiveTable
from lamina.text.subword import Subword, Whitespace, library_behind, library_of
from lamina.text.tokenizer import Moses
from lamina.text.vocabulary import FIRST_WORD_ID, UNK, Vocabulary

FILLER = "madeupword"  # what fills a dictionary up to a round size


class Rows(NamedTuple):
    """Parameters whose rows stand for types, the first rows first: one, or one for each band of an adaptive vocabulary."""

    side: int  # which of the model's vocabularies
    names: tuple[str, ...]


class Match(NamedTuple):
    """Where each row of a new dictionary comes from."""

    old_ids: list[int | None]  # the same type's, if the old dictionary has it
    pieces: dict[int, list[int]]  # of the others: ids of the pieces in the old dictionary, perhaps none
    num_left_out: int  # types of the old dictionary that the new one lacks

    def in_words(self) -> str:
        num_taken = sum(old is not None for old in self.old_ids)
        found = [pieces for pieces in self.pieces.values() if pieces]
        text = f"{num_taken} of {len(self.old_ids)} types keep their row"
        if found:
            average = sum(map(len, found)) / len(found)
            text += f", {len(found)} begin as the mean of their pieces ({average:.1f} each)"
        if rest := len(self.pieces) - len(found):
            text += f", {rest} as the mean of all words"
        return text + (f"; {self.num_left_out} old types are left out" if self.num_left_out else "")


def with_dictionaries(checkpoint: Checkpoint, model: nn.Module, vocabularies: Sequence[Vocabulary], subwords: Sequence[Subword],
                      path: Path, note: Callable[[str], object]) -> Checkpoint:
    """The checkpoint with rows for these dictionaries, which `model` was built for; itself where they are the same."""
    theirs = checkpoint.vocabularies()
    tables = [table for table in vocabulary_rows(model) if any(name in checkpoint.weights for name in table.names)]
    changed = [side for side, (old, new) in enumerate(zip(theirs, vocabularies, strict=False))
               if old.symbols != new.symbols and any(table.side == side for table in tables)]
    joined = len(theirs) == 2 and all(table.side == 0 for table in tables)  # one table for both sides
    if joined and 0 in changed:
        changed = [0, 1]
    weights, dictionaries = dict(checkpoint.weights), list(checkpoint.dictionaries)
    for side in changed:
        new, name = vocabularies[side], checkpoint.sides[side]
        if not (joined and side == 1):
            match = _matched(theirs[side], checkpoint.subword_models()[side], new, subwords[side])
            _check_same_text(match, theirs[side], name, path)
            for table in tables:
                if table.side == side:
                    _fill(weights, table, match, model, new, f"the {name} dictionary")
            note(f"another {'dictionary' if len(theirs) == 1 or joined else f'{name} dictionary'} than that of {path}: "
                 f"{match.in_words()}")
        dictionaries[side] = new.to_text()
    # The same types with other counts, as text that was counted again has them.
    for side, (old, own) in enumerate(zip(theirs, vocabularies, strict=False)):
        if old.symbols == own.symbols:
            dictionaries[side] = own.to_text()
    return replace(checkpoint, weights=weights, dictionaries=tuple(dictionaries))


def vocabulary_rows(model: nn.Module) -> list[Rows]:
    """Every parameter of a model that has a row, or a number, for each type; shared ones once."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    last = 1 if hasattr(model, "source_embedding") and hasattr(model, "target_embedding") else 0
    found: list[Rows] = []

    def add(side: int, parameters: Sequence[Tensor]) -> None:
        rows = Rows(side, tuple(names[id(parameter)] for parameter in parameters))
        if not any(set(rows.names) & set(own.names) for own in found):
            found.append(rows)

    for side, name in ((0, "source_embedding"), (last, "target_embedding")):
        if hasattr(model, name):
            table = getattr(model, name).table
            add(side, [band.table.weight for band in table.bands] if isinstance(table, AdaptiveTable) else [table.weight])
    head: Any = getattr(model, "head", None)
    if isinstance(head, AdaptiveHead):
        add(last, [head.table.weight, *(tail.table.weight for tail in head.tails)])
    elif head is not None:
        add(last, [head.table.weight])
        if isinstance(head.output_bias, nn.Parameter):
            # Of the table that it stands beside, which may be that of both sides.
            add(next(own.side for own in found if names[id(head.table.weight)] in own.names), [head.output_bias])
    return found


def _matched(old: Vocabulary, old_subword: Subword, new: Vocabulary, new_subword: Subword) -> Match:
    places: dict[tuple[str, int], int] = {}
    seen: Counter[str] = Counter()
    for number, symbol in enumerate(old.symbols):  # a symbol may be listed twice
        places[symbol, seen[symbol]] = number
        seen[symbol] += 1
    segmented = _Segmented(old, old_subword, new, new_subword)
    seen = Counter()
    old_ids: list[int | None] = []
    pieces: dict[int, list[int]] = {}
    for number, symbol in enumerate(new.symbols):
        place = places.get((symbol, seen[symbol]))
        seen[symbol] += 1
        old_ids.append(place)
        if place is None:
            pieces[number] = segmented.pieces(symbol)
    return Match(old_ids, pieces, sum(symbol not in new for symbol in old.symbols))


def _check_same_text(match: Match, old: Vocabulary, side: str, path: Path) -> None:
    known = [old.symbols[place] for place in match.old_ids if place is not None and place >= FIRST_WORD_ID]
    if all(word.startswith(FILLER) for word in known) and len(old) > FIRST_WORD_ID:
        raise CheckpointError(f"no word of the {side} dictionary is one of {path}'s: nothing of its embeddings could be kept. "
                              "Is it of other languages, or were the two sides exchanged? Preprocess with its subword model "
                              "(--bpe-codes, --sentencepiece-model), which `lamina export` writes beside the dictionaries.")


class _Segmented:
    """New types cut into pieces that the old dictionary has."""

    def __init__(self, old: Vocabulary, old_subword: Subword, new: Vocabulary, new_subword: Subword) -> None:
        self.old = old
        self.subword = old_subword.inner if isinstance(old_subword, Moses) else old_subword
        self.old_library, self.new_library = (
            library_behind(vocabulary.symbols[FIRST_WORD_ID:]) if library_of(subword).name == Whitespace.kind
            else library_of(subword) for vocabulary, subword in ((old, old_subword), (new, new_subword)))
        # By the text of a piece, whether a word begins with it, and whether the word continues behind it.
        self.ids: dict[tuple[str, bool, bool], int] = {}
        self.any_id: dict[str, int] = {}
        for number, symbol in enumerate(old.symbols[FIRST_WORD_ID:], start=FIRST_WORD_ID):
            text, begins, continues = self._seen_by(self.old_library, symbol)
            self.ids.setdefault((text, begins, continues), number)
            self.any_id.setdefault(text, number)
        self.any_id.pop("", None)
        self.longest = max(map(len, self.any_id), default=0)

    @staticmethod
    def _seen_by(library: Any, symbol: str) -> tuple[str, bool, bool]:
        return library.spell([symbol]), library.begins_word(symbol), library.continues(symbol)

    def pieces(self, symbol: str) -> list[int]:
        text, begins, continues = self._seen_by(self.new_library, symbol)
        if not text:
            return []
        found = [self._as_inside(piece, begins or number > 0) for number, piece in enumerate(self.subword.encode(text))]
        if continues and found:
            found[-1] = self._variant(found[-1], continues=True)
        known = [place for piece in found if (place := self.old.id(piece)) != UNK]
        return known if len(known) == len([piece for piece in found if piece]) else self._longest_matches(text, begins) or known

    def _as_inside(self, piece: str, may_begin: bool) -> str:
        """A piece as it is inside a word, where the type does not begin one."""
        if may_begin:
            return piece
        text, begins, continues = self._seen_by(self.old_library, piece)
        if not begins:
            return piece
        place = self.ids.get((text, False, continues))
        return self.old.symbols[place] if place is not None else piece if text else ""

    def _variant(self, piece: str, *, continues: bool) -> str:
        text, begins, _ = self._seen_by(self.old_library, piece)
        place = self.ids.get((text, begins, continues))
        return piece if place is None else self.old.symbols[place]

    def _longest_matches(self, text: str, begins: bool) -> list[int]:
        """From left to right: for dictionaries whose subword model was not kept."""
        found, start = [], 0
        while start < len(text):
            for end in range(min(len(text), start + self.longest), start, -1):
                part, is_first, is_last = text[start:end], begins and start == 0, end == len(text)
                place = self.ids.get((part, is_first, not is_last), self.any_id.get(part))
                if place is not None:
                    found.append(place)
                    break
            else:
                end = start + 1
            start = end
        return found


@torch.no_grad()
def _fill(weights: dict[str, Tensor], table: Rows, match: Match, model: nn.Module, new: Vocabulary, what: str) -> None:
    """Rows for the new dictionary in place of the old ones, band by band."""
    shapes = dict(model.named_parameters())
    if missing := [name for name in table.names if name not in weights]:
        raise CheckpointError(f"{what} reaches into a band of the adaptive vocabulary that the old one has no vectors for "
                              f"({missing[0]}). Keep to the size of the old dictionary, or to bands that it fills.")
    old_bands = [weights[name] for name in table.names]
    old_starts, new_starts = (_starts(lengths) for lengths in
                              ([len(band) for band in old_bands], [len(shapes[name]) for name in table.names]))
    for number, (name, old_band) in enumerate(zip(table.names, old_bands, strict=True)):
        start, end = new_starts[number], new_starts[number] + len(shapes[name])
        own = range(old_starts[number], old_starts[number] + len(old_band))
        words = old_band[max(0, FIRST_WORD_ID - own.start) :]
        rows = old_band.new_empty((end - start, *old_band.shape[1:]))
        mean = (words if len(words) else old_band).double().mean(dim=0)
        taken = [(place, old) for place, old in enumerate(match.old_ids[start:end]) if old is not None]
        for place, old in taken:
            if old not in own:
                raise CheckpointError(f"the type {new.symbols[start + place]!r} of {what} moves to another band of the "
                                      "adaptive vocabulary, whose vectors have another width. Keep the old order: extend the "
                                      "old dictionary at its end, and preprocess with it (--srcdict, --tgtdict).")
        if taken:
            to, of = (torch.tensor(ids, device=rows.device) for ids in zip(*taken, strict=True))
            rows[to] = old_band[of - own.start]
        for place in range(start, end):
            if match.old_ids[place] is None:
                pieces = [piece - own.start for piece in match.pieces[place] if piece in own]
                rows[place - start] = old_band[pieces].double().mean(dim=0) if pieces else mean
        weights[name] = rows


def _starts(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:number]) for number in range(len(lengths))]


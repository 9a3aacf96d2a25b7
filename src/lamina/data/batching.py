"""Grouping examples of similar length into batches, and padding them into tensors."""

# B batch, S source, T target

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from lamina.errors import DataError
from lamina.packed import Rows
from lamina.text.vocabulary import EOS, PAD

if TYPE_CHECKING:
    from lamina.data.corpus import Example
    from lamina.data.layer_subsets import Draw


# Of rows to decode or to score, where no limit is given.
DEFAULT_BATCH_SIZE = 64
# Of batches of row numbers, those to work on here.
ChooseBatches = Callable[[list[list[int]]], list[list[int]]]


class AnyBatch(Protocol):
    """What training asks of a batch, whatever the task: the model is called as model(*batch.inputs, active=...)."""

    @property
    def inputs(self) -> tuple[Rows, ...]: ...

    @property
    def target(self) -> Tensor:
        """What should come out, padded where nothing counts."""

    @property
    def num_target_tokens(self) -> int:
        """How many targets count: the loss is averaged over them."""

    @property
    def num_sentences(self) -> int: ...

    @property
    def indices(self) -> tuple[int, ...]:
        """Of the examples in their corpus."""

    def to(self, device: torch.device) -> AnyBatch: ...

    def rows(self, rows: slice) -> AnyBatch:
        """Some of its examples, as a batch of their own."""


B = TypeVar("B")


@dataclass(frozen=True)
class Batch:
    """Padded rows (on the right) and what the host must know of them without asking the device."""

    source: Tensor  # (B, S)
    target_in: Tensor  # (B, T): the target moved right by one, </s> in front
    target_out: Tensor  # (B, T)
    num_source_tokens: int
    num_target_tokens: int
    indices: tuple[int, ...]  # of the examples in their corpus
    drawn: Tensor | None = None  # int32: where the sentences are that run each layer, as `draw` cuts it
    draw: Draw | None = None  # LayerDrop per sentence (data/layer_subsets.py)

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        return self.source, self.target_in

    @property
    def target(self) -> Tensor:
        return self.target_out

    @property
    def num_sentences(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> Batch:
        return moved(self, device)

    def rows(self, rows: slice) -> Batch:
        source, target_out = self.source[rows], self.target_out[rows]
        return cut_draw(self, rows, Batch(source, self.target_in[rows], target_out,
                                          num_source_tokens=int(source.ne(PAD).sum()),
                                          num_target_tokens=int(target_out.ne(PAD).sum()), indices=self.indices[rows]))


@dataclass(frozen=True)
class TokenBatch:
    """Rows of one text, padded on the right, and what should be said at each place; pads where nothing counts."""

    tokens: Tensor  # (B, T)
    target: Tensor  # (B, T)
    num_target_tokens: int
    indices: tuple[int, ...]
    target_on_host: np.ndarray | None = None  # the target again, where the host may look at it without asking the device
    drawn: Tensor | None = None  # int32: where the sentences are that run each layer, as `draw` cuts it
    draw: Draw | None = None  # LayerDrop per sentence (data/layer_subsets.py)

    @property
    def inputs(self) -> tuple[Tensor]:
        return (self.tokens,)

    @property
    def num_sentences(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> TokenBatch:
        return moved(self, device)

    def rows(self, rows: slice) -> TokenBatch:
        target = self.target[rows]
        return cut_draw(self, rows, TokenBatch(
            self.tokens[rows], target, num_target_tokens=int(target.ne(PAD).sum()), indices=self.indices[rows],
            target_on_host=None if self.target_on_host is None else self.target_on_host[rows]))


def cut_draw(whole: Any, rows: slice, part: B) -> B:
    """Some rows of a batch, with their part of what was drawn for it."""
    return part if whole.draw is None else whole.draw.cut(rows).given_to(part)  # type: ignore[no-any-return]


def moved(batch: B, device: torch.device) -> B:
    """The same batch with its tensors on the device, copied while the host continues."""
    if device.type == "cpu":
        return batch
    values = {item.name: getattr(batch, item.name) for item in fields(batch)}  # type: ignore[arg-type]
    return replace(batch, **{name: value.pin_memory().to(device, non_blocking=True)  # type: ignore[type-var]
                             for name, value in values.items() if isinstance(value, Tensor)})


def collate(examples: Sequence[Example], indices: Sequence[int]) -> Batch:
    target_out = pad_rows([example.target for example in examples])
    target_in = np.full_like(target_out, PAD)
    target_in[:, 0] = EOS
    for row, example in zip(target_in, examples, strict=True):
        row[1 : len(example.target)] = example.target[:-1]
    return Batch(
        source=torch.from_numpy(pad_rows([example.source for example in examples])),
        target_in=torch.from_numpy(target_in),
        target_out=torch.from_numpy(target_out),
        num_source_tokens=sum(len(example.source) for example in examples),
        num_target_tokens=sum(len(example.target) for example in examples),
        indices=tuple(indices),
    )


def pad_rows(rows: Sequence[np.ndarray], width: int = 0) -> np.ndarray:
    """As wide as the longest, and at least `width`."""
    padded = np.full((len(rows), max(width, *map(len, rows))), PAD, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded


def batch_by_size(order: Iterable[int], lengths: np.ndarray, *, max_tokens: int | None = None,
                  max_sentences: int | None = None, multiple: int = 1) -> list[list[int]]:
    """Cut `order` into batches whose rows, times the longest of them, stay within `max_tokens`.

    A full batch gives up the sentences beyond a multiple of `multiple` to the next one; the last batch is kept as it is.
    """
    token_limit = max_tokens or float("inf")
    sentence_limit = max_sentences or float("inf")
    batches: list[list[int]] = []
    batch: list[int] = []
    longest = 0
    for index, length in zip(order, lengths[np.asarray(order)].tolist(), strict=True):
        if length > token_limit:
            raise DataError(f"example {index} has {length} tokens, more than --max-tokens {max_tokens}. "
                            "Raise --max-tokens, or leave such examples out.")
        longest = max(longest, length)
        if batch and (len(batch) == sentence_limit or (len(batch) + 1) * longest > token_limit):
            whole = len(batch) // multiple * multiple or len(batch)
            batches.append(batch[:whole])
            batch = batch[whole:]
            longest = max([length, *lengths[batch].tolist()])
        batch.append(index)
    if batch:
        batches.append(batch)
    return batches


def length_order(sizes: Sequence[np.ndarray], generator: np.random.Generator | None) -> np.ndarray:
    """Indices by the first sizes, then the second; ties are drawn by the generator, or keep their order."""
    count = len(sizes[0])
    ties = generator.permutation(count) if generator is not None else np.arange(count)
    return np.lexsort((ties, *reversed(sizes)))


def length_batches(rows: Sequence[np.ndarray], max_tokens: int | None, batch_size: int | None) -> list[list[int]]:
    """Indices of the rows in batches, the longest first: what does not fit into memory shows at once."""
    if not rows:
        return []
    if max_tokens is None and batch_size is None:
        batch_size = DEFAULT_BATCH_SIZE
    lengths = np.array([len(row) for row in rows])
    # A row longer than the limit is a batch by itself.
    limit = None if max_tokens is None else max(max_tokens, int(lengths.max()))
    return batch_by_size(np.argsort(-lengths, kind="stable").tolist(), lengths, max_tokens=limit, max_sentences=batch_size)

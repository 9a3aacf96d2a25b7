"""Grouping examples of similar length into batches, and padding them into tensors."""

# B batch, S source, T target

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lamina.data.corpus import Example
from lamina.errors import DataError
from lamina.text.vocabulary import EOS, PAD


@dataclass(frozen=True)
class Batch:
    """Padded rows (on the right) and what the host must know of them without asking the device."""

    source: Tensor  # (B, S)
    target_in: Tensor  # (B, T): the target moved right by one, </s> in front
    target_out: Tensor  # (B, T)
    num_source_tokens: int
    num_target_tokens: int
    indices: tuple[int, ...]  # of the examples in their corpus

    @property
    def num_sentences(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        move = {name: getattr(self, name).pin_memory().to(device, non_blocking=True)
                for name in ("source", "target_in", "target_out")}
        return Batch(**move, num_source_tokens=self.num_source_tokens, num_target_tokens=self.num_target_tokens,
                     indices=self.indices)


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


def pad_rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    padded = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int64)
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


def length_order(source_sizes: np.ndarray, target_sizes: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
    """Indices by source length, then target length; ties are drawn by the generator, or keep their order."""
    ties = generator.permutation(len(source_sizes)) if generator is not None else np.arange(len(source_sizes))
    return np.lexsort((ties, target_sizes, source_sizes))

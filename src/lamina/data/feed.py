"""The stream of batches of a run: planned by seed and epoch, prepared ahead of the step that needs them.

A batch of the plan is one list of sentences. With --batch-order mixed these are of any length, one behind the other: in rows of
one shape where a GPU replays captured updates (packed), and in rows without pads, as long as they need to be, elsewhere (flat).
With --batch-order length they are about as long as each other, and padded, as in fairseq.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from lamina.config.batches import BY_LENGTH, MIXED, BatchConfig
from lamina.data.batching import AnyBatch, batch_by_size, length_order
from lamina.data.corpus import Corpus, FlatCorpus, PackedCorpus
from lamina.data.flat_texts import FlatTexts, TextShape, room_for_count
from lamina.data.layer_subsets import DEVIATIONS, LayerSubsets
from lamina.data.packing import PLACES_MULTIPLE, PackedShape, plan_packed
from lamina.errors import DataError

# Batches ready per preparing thread: enough to ride out a slow one, few enough to cost no memory.
AHEAD = 4
# Blocks of text that are about as long as each other need no flat rows: the longest, over their mean.
ALIKE = 1.05
# A GPU captures padded ones if so many are as long as the longest, and packs the others.
ALL_BUT_FEW = 0.99


class TooLong(NamedTuple):
    """Examples that do not fit, which are named and never dropped in silence."""

    indices: np.ndarray
    total: int

    def describe(self, corpus: Corpus, limits: str) -> str:
        shown = ", ".join(map(str, self.indices[:10].tolist()))
        more = ", ..." if len(self.indices) > 10 else ""
        return (f"{len(self.indices)} of {self.total} {corpus.unit} of {corpus.name} are longer than {limits} and are left "
                f"out: {shown}{more}")


class Share(NamedTuple):
    """One update's batches, as far as they are this rank's. Those of all ranks are dealt out in turn.

    A batch whose place among all is not below `total` is a filler: it keeps a rank in step, and counts for nothing.
    """

    batches: Sequence[AnyBatch]
    total: int  # of all ranks


class Place(NamedTuple):
    """How far an epoch has come, so that a run with other batches can tell that they are others."""

    corpus: str = ""  # digest of what there is to train on; empty between epochs
    plan: str = ""  # digest of the epoch's batches
    sentences: int = 0  # in the batches that are done


class Feed:
    """Batches of one corpus. The same seed and epoch give the same batches, wherever the run was interrupted."""

    def __init__(self, corpus: Corpus, *, seed: int, limits: BatchConfig, max_positions: tuple[int, ...],
                 device: torch.device, is_shuffled: bool, is_packed: bool = False, subsets: LayerSubsets | None = None) -> None:
        """`subsets` draws which sentences of a batch run each layer."""
        self.corpus = corpus
        self.seed = seed
        self.limits = limits
        self.device = device
        self.is_shuffled = is_shuffled
        max_tokens = limits.max_tokens or np.iinfo(np.int64).max
        fits = corpus.lengths <= max_tokens
        for sizes, limit in zip(corpus.sizes.values(), max_positions, strict=True):
            fits &= sizes <= limit
        self.too_long = TooLong(np.flatnonzero(~fits), len(corpus))
        self._fitting = np.flatnonzero(fits)
        if not len(self._fitting):
            raise DataError(f"{corpus.name} has nothing that fits: {len(corpus)} {corpus.unit}, of which {len(corpus)} are "
                            f"longer than {self.describe_limits(max_positions)}. Raise those limits.")
        self._plan: tuple[int, list[list[int]]] | None = None
        self._digested: tuple[int, str] | None = None  # the plan's digest, by epoch
        self._max_positions = max_positions
        self.packed_shape: PackedShape | None = None  # of pairs
        self.text_shape: TextShape | None = None  # of single texts that fit into it
        is_pairs = isinstance(corpus, PackedCorpus)
        # Sorted by length, so many sentences may be long or short ones: no row of one shape suits them.
        self._is_mixed = limits.order != BY_LENGTH and not limits.curriculum
        is_packed = is_packed and (limits.max_tokens is not None or self._is_mixed)
        self.is_flat = (is_shuffled and limits.order == MIXED and isinstance(corpus, FlatCorpus)
                        and not (is_packed if is_pairs else self._stays_padded(is_packed)))
        self._row = self._row_shape(is_packed)
        if is_packed and is_pairs:
            self.packed_shape = self._row
        elif is_packed and self.is_flat:
            masked = room_for_count(getattr(corpus, "masked_share", 0.0) * self._row.places)
            self.text_shape = TextShape(self._row.places, self._row.max_sentences, self._row.longest, masked)
        self.subsets = subsets
        shape = self.packed_shape or self.text_shape
        self._capacities = {} if subsets is None or shape is None else subsets.capacities(
            shape, [sizes[self._fitting] for sizes in corpus.sizes.values()])

    def _stays_padded(self, is_packed: bool) -> bool:
        """Blocks that are about as long as each other; where batches should have one shape, of one length."""
        lengths = self.corpus.lengths[self._fitting]
        if not is_packed:
            return int(lengths.max()) <= ALIKE * float(lengths.mean())
        return float((lengths == lengths.max()).mean()) >= ALL_BUT_FEW and getattr(self.corpus, "padded_batches_recur", True)

    def _row_shape(self, is_packed: bool) -> PackedShape:
        """What limits the rows of a batch: tokens, or so many sentences, which may have any number of them."""
        limits, sides = self.limits, [sizes[self._fitting] for sizes in self.corpus.sizes.values()]
        places = limits.max_tokens or sum(int(sizes.sum(dtype=np.int64)) for sizes in sides)
        if is_packed and limits.max_sentences is not None and self._is_mixed:
            # They may leave most of a row empty. A batch that chance makes longer has fewer of them.
            places = min(places, max(_room_for(limits.max_sentences, sizes) for sizes in sides))
        return PackedShape.of(sides, places, limits.max_sentences)

    def describe_limits(self, max_positions: tuple[int, ...]) -> str:
        tokens = f" or --max-tokens {self.limits.max_tokens}" if self.limits.max_tokens else ""
        sides = (f"{limit} {side}" for side, limit in zip(self.corpus.sizes, max_positions, strict=True))
        return f"{' or '.join(sides)} positions{tokens}"

    def describe_too_long(self) -> str:
        return self.too_long.describe(self.corpus, self.describe_limits(self._max_positions))

    def plan(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, as indices into the corpus."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._make_plan(epoch))
        return self._plan[1]

    def _make_plan(self, epoch: int) -> list[list[int]]:
        generator = np.random.default_rng([self.seed, epoch]) if self.is_shuffled else None
        if self.packed_shape is not None:
            return self._make_packed_plan(self.packed_shape, epoch, generator)
        if self.is_flat:
            # In rows of one shape, what a multiple leaves out would be pads.
            multiple = self.limits.multiple if self.text_shape is None else 1
            return self._make_packed_plan(self._row, epoch, generator, multiple)
        order = length_order([sizes[self._fitting] for sizes in self.corpus.sizes.values()], generator)
        batches = batch_by_size(self._fitting[order].tolist(), self.corpus.lengths, max_tokens=self.limits.max_tokens,
                                max_sentences=self.limits.max_sentences, multiple=self.limits.multiple)
        if generator is not None and epoch > self.limits.curriculum:
            generator.shuffle(batches)  # type: ignore[arg-type]
        return batches

    def _make_packed_plan(self, shape: PackedShape, epoch: int, generator: np.random.Generator | None,
                          multiple: int = 1) -> list[list[int]]:
        """Sentences as they come, whatever their length: where nothing is padded, nothing is gained by sorting."""
        sizes = list(self.corpus.sizes.values())
        is_shuffled = generator is not None and epoch > self.limits.curriculum
        if generator is not None and is_shuffled and self.limits.order != BY_LENGTH:
            return plan_packed(self._fitting[generator.permutation(len(self._fitting))], sizes, shape, multiple)
        order = length_order([side[self._fitting] for side in sizes], generator)
        batches = plan_packed(self._fitting[order], sizes, shape, multiple)
        if generator is not None and is_shuffled:
            generator.shuffle(batches)  # type: ignore[arg-type]
        return batches

    def place(self, epoch: int, batches_done: int) -> Place:
        if not batches_done:
            return Place()
        return Place(self._corpus_digest, self._plan_digest(epoch), sum(map(len, self.plan(epoch)[:batches_done])))

    def find(self, epoch: int, place: Place) -> int | None:
        """The number of batches after which this epoch has come as far; None where it is of other data."""
        if place.corpus != self._corpus_digest:
            return None
        ends = np.cumsum([len(batch) for batch in self.plan(epoch)])
        return min(int(np.searchsorted(ends, place.sentences)) + 1, len(ends))

    def is_planned_as(self, epoch: int, place: Place) -> bool:
        return (self._corpus_digest, self._plan_digest(epoch)) == (place.corpus, place.plan)

    @cached_property
    def _corpus_digest(self) -> str:
        """Of the lengths: other text of the very same ones is not told apart, and its batches are the same."""
        return _digest(self.corpus.sizes.values())

    def _plan_digest(self, epoch: int) -> str:
        if self._digested is None or self._digested[0] != epoch:
            plan = self.plan(epoch)
            self._digested = (epoch, _digest([np.array([len(batch) for batch in plan]), np.concatenate(plan)]))
        return self._digested[1]

    def padding_share(self, epoch: int) -> float:
        """How much of an epoch's batches is padding, all sides counted; that inside attention alone is not."""
        plan = self.plan(epoch)
        if (shape := self.packed_shape or self.text_shape) is not None:
            sides = self.corpus.sizes.values()
            tokens = sum(int(sizes[self._fitting].sum(dtype=np.int64)) for sizes in sides)
            return max(0.0, 1.0 - tokens / (len(plan) * len(sides) * shape.places))
        if self.is_flat:
            return 0.0
        starts = np.cumsum([0, *map(len, plan[:-1])])
        order = np.concatenate(plan)
        tokens = cells = 0
        for sizes in self.corpus.sizes.values():
            tokens += int(sizes[order].sum())
            cells += int((np.maximum.reduceat(sizes[order], starts) * list(map(len, plan))).sum())
        return 1.0 - tokens / cells

    def batches(self, epoch: int = 1, start: int = 0, rank: int = 0, size: int = 1, *,
                has_fillers: bool = False) -> Generator[AnyBatch]:
        """The epoch's batches from number `start` on, on the device; those that fall to one of several ranks.

        With fillers all ranks have as many: the last one of a rank that would have one less counts for nothing.
        """
        plan = self.plan(epoch)
        yield from self._prepared(plan, self._numbers_of(plan, start, rank, size, has_fillers=has_fillers), epoch)

    def num_batches_of(self, rank: int, size: int, epoch: int = 1) -> int:
        """Of those, how many count."""
        return len(range(rank, len(self.plan(epoch)), size))

    def _numbers_of(self, plan: Sequence[list[int]], start: int, rank: int, size: int, *, has_fillers: bool) -> list[int]:
        own, left = list(range(start + rank, len(plan), size)), len(plan) - start
        if has_fillers and left > 0 and len(own) < -(-left // size):
            own.append(len(plan) - 1)
        return own

    def shares(self, epoch: int, start: int, update_freq: int, rank: int = 0, size: int = 1, *,
               has_fillers: bool = False) -> Generator[Share]:
        """One a rank and an update. The last update of an epoch may leave a rank without a batch, or with a filler."""
        plan = self.plan(epoch)
        left = len(plan) - start
        batches = self._prepared(plan, self._numbers_of(plan, start, rank, size, has_fillers=has_fillers), epoch)
        for first in range(0, left, update_freq * size):
            total = min(update_freq * size, left - first)
            yield Share(list(islice(batches, -(-total // size) if has_fillers else len(range(rank, total, size)))), total)

    def _prepared(self, plan: Sequence[list[int]], numbers: Iterable[int], epoch: int) -> Iterator[AnyBatch]:
        """Batches of the plan, by their numbers in it."""
        if self.limits.num_workers == 0:
            for number in numbers:
                yield self._load(plan[number], epoch, number)
            return
        pending: deque[Future[AnyBatch]] = deque()
        with ThreadPoolExecutor(self.limits.num_workers, thread_name_prefix="batches") as threads:
            try:
                for number in numbers:
                    pending.append(threads.submit(self._load, plan[number], epoch, number))
                    if len(pending) > AHEAD * self.limits.num_workers:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                # A caller that stops reading half-way should not wait for batches it will not see.
                threads.shutdown(wait=False, cancel_futures=True)

    def _load(self, indices: list[int], epoch: int, number: int) -> AnyBatch:
        batch = self._read(indices, epoch)
        if self.subsets is not None:
            # Where a GPU may replay an update, its shapes do not depend on what was drawn.
            is_static = getattr(batch, "recurs", False) or (self.device.type == "cuda" and not self.is_flat)
            batch = self.subsets.given_to(batch, epoch, number, is_static=is_static, capacities=self._capacities)
        return batch.to(self.device)

    def _read(self, indices: list[int], epoch: int) -> AnyBatch:
        if self.packed_shape is not None:
            assert isinstance(self.corpus, PackedCorpus), "pairs of sentences are packed"
            return self.corpus.packed_batch(indices, self.packed_shape)
        if self.is_flat:
            assert isinstance(self.corpus, FlatCorpus), "it has been asked"
            batch = self.corpus.flat_batch(indices, (self.seed, epoch))
            return batch if self.text_shape is None or not isinstance(batch, FlatTexts) else batch.in_shape(self.text_shape)
        return self.corpus.batch(indices, (self.seed, epoch))


def _room_for(number: int, sizes: np.ndarray) -> int:
    """Tokens of so many sentences, and for chance."""
    most = number * float(sizes.mean()) + DEVIATIONS * math.sqrt(number) * float(sizes.std())
    return max(int(sizes.max()), PLACES_MULTIPLE * math.ceil(most / PLACES_MULTIPLE))


def _digest(numbers: Iterable[np.ndarray]) -> str:
    found = hashlib.sha256()
    for values in numbers:
        found.update(np.ascontiguousarray(values, dtype="<i8").tobytes())
    return found.hexdigest()[:16]

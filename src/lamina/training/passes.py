"""The passes that an update consists of: one for each of its batches, or for each piece of a batch that had to be cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from lamina.data.batching import AnyBatch
from lamina.distributed.ranks import Ranks
from lamina.nn.stack import ActiveLayers

# Between the seeds of an update's batches: far enough that those of other updates are not met. In the lower 32 bits, since
# torch's generator for the CPU reads no others.
SEED_STRIDE = 0x9E3779B1


class Pass(NamedTuple):
    """One forward and backward pass."""

    batch: AnyBatch
    seed: int | None  # of its dropout; None: draws on where the piece before ended
    active: ActiveLayers
    is_filler: bool = False  # keeps a rank in step with others, and counts for nothing
    is_last: bool = True  # of the update, on this rank

    def begin(self) -> None:
        if self.seed is not None:
            torch.manual_seed(self.seed)

    def cut_at(self, row: int) -> tuple[Pass, Pass]:
        """Two passes whose gradients add up to this one's."""
        first, second = (self.batch.rows(rows) for rows in (slice(0, row), slice(row, self.batch.num_sentences)))
        return self._replace(batch=first, is_last=False), self._replace(batch=second, seed=None)


def passes_of(batches: Sequence[AnyBatch], seed: int, draws: Sequence[ActiveLayers], total: int | None,
              ranks: Ranks) -> Iterator[Pass]:
    """Of this rank's batches, out of the update's `total`. The first of all is the first rank's, the next the second's."""
    for number, batch in enumerate(batches):
        place = ranks.rank + number * ranks.size
        # Seeded by the number of the update and the batch's place in it: a resumed run draws the same dropout as one that never
        # stopped, and several ranks the same as one.
        yield Pass(batch, seed + place * SEED_STRIDE, draws[place % len(draws)],
                   is_filler=total is not None and place >= total, is_last=number == len(batches) - 1)

"""Whole matrices out of rows that lie on many ranks: each is put together on one of them, and its rows go back.

A product of many ranks' rows would travel at every step of an iteration. So each matrix has an owner, which gets the rows of
all ranks and hands them out again transformed: two exchanges of as many bytes as the matrices have, and all share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from lamina.distributed.ranks import Ranks
from lamina.distributed.weights import MatrixPlace, transform_by_shape


def rows_of_rank(num_rows: int, rank: int, size: int) -> range:
    """Those of a whole parameter that a rank holds, as torch deals them out: the last ranks may have fewer, or none."""
    share = -(-num_rows // size)
    return range(min(rank * share, num_rows), min((rank + 1) * share, num_rows))


def overlap(held: range, place: MatrixPlace) -> range:
    """The rows of the parameter that are both held and of this matrix; an empty range lies within those held."""
    first = place.matrix * place.shape[0]
    start = min(max(held.start, first), held.stop)
    return range(start, max(start, min(held.stop, first + place.shape[0])))


class MatrixExchange:
    """For matrices at these places; `num_rows` are those of each whole parameter."""

    def __init__(self, places: Sequence[MatrixPlace], num_rows: Sequence[int], ranks: Ranks) -> None:
        self.places = list(places)
        self.ranks = ranks
        # Of each matrix, how many elements each rank holds.
        self._sizes = [[len(overlap(rows_of_rank(num_rows[place.parameter], rank, ranks.size), place)) * place.shape[1]
                        for rank in range(ranks.size)] for place in places]
        owners = owners_of([place.shape for place in places], ranks.size)
        self._owned = [[number for number, owner in enumerate(owners) if owner == rank] for rank in range(ranks.size)]

    def __call__(self, rows: Sequence[Tensor], transform: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """This rank's rows of each matrix, transformed with the others'."""
        rank, own = self.ranks.rank, self._owned[self.ranks.rank]
        to_owners = [[self._sizes[number][rank] for number in numbers] for numbers in self._owned]
        from_ranks = [[self._sizes[number][other] for number in own] for other in range(self.ranks.size)]
        parts = self._sent([rows[number] for numbers in self._owned for number in numbers], to_owners, from_ranks)
        whole = [torch.cat([part[place] for part in parts]).view(self.places[number].shape)
                 for place, number in enumerate(own)]
        made = [matrix.reshape(-1) for matrix in transform_by_shape(whole, transform)]
        cut = [matrix.split(self._sizes[number]) for number, matrix in zip(own, made, strict=True)]
        back = self._sent([pieces[other] for other in range(self.ranks.size) for pieces in cut], from_ranks, to_owners,
                          made[0].dtype if made else rows[0].dtype)
        found = list(rows)
        for numbers, pieces in zip(self._owned, back, strict=True):
            for number, piece in zip(numbers, pieces, strict=True):
                found[number] = piece.view(-1, self.places[number].shape[1])
        return found

    def _sent(self, tensors: Sequence[Tensor], sizes: list[list[int]], expected: list[list[int]],
              dtype: torch.dtype | None = None) -> list[list[Tensor]]:
        """What all ranks have for this one, flat: sizes[r] are of what goes to rank r, expected[r] of what comes from it."""
        sent = torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else self._nothing(dtype)
        received = sent.new_empty(sum(map(sum, expected)))
        # As bytes: not every backend knows every type.
        width = sent.element_size()
        dist.all_to_all_single(received.view(torch.uint8), sent.view(torch.uint8), [width * sum(row) for row in expected],
                               [width * sum(row) for row in sizes])
        return [list(part.split(row)) for part, row in zip(received.split(list(map(sum, expected))), expected, strict=True)]

    def _nothing(self, dtype: torch.dtype | None) -> Tensor:
        return torch.empty(0, dtype=dtype, device=self.ranks.device)


def owners_of(shapes: Sequence[tuple[int, int]], size: int) -> list[int]:
    """A rank for each matrix: the costliest first, each to whom has least to do so far. A product costs R * R * C, R <= C."""
    loads, owners = [0] * size, [0] * len(shapes)
    costs = [min(shape) ** 2 * max(shape) for shape in shapes]
    for number in sorted(range(len(shapes)), key=lambda number: (-costs[number], number)):
        owner = loads.index(min(loads))
        owners[number] = owner
        loads[owner] += costs[number]
    return owners

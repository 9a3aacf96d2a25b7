"""Weights of which every rank keeps some rows, with their gradients, masters and the optimizer's state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lamina.distributed.matrix_exchange import MatrixExchange, overlap, rows_of_rank
from lamina.distributed.ranks import Ranks
from lamina.distributed.weights import FlatWeights, MatrixPlace


class RowsOfWeights(FlatWeights, ABC):
    """The contract of FlatWeights for this rank's rows of each parameter; `named` and `fill_` speak of whole ones.

    What a rank keeps lies in flat tensors, as without shards, so that optimizers need not know of them.
    """

    ranks: Ranks
    shard_size: int  # that many neighbours share one copy of the weights
    shapes: tuple[torch.Size, ...]  # of the whole parameters
    _row_shapes: Sequence[torch.Size]  # of what this rank has of them
    _exchange: MatrixExchange | None = None

    def _rows_held(self, num_rows: int) -> range:
        return rows_of_rank(num_rows, self.ranks.rank % self.shard_size, self.shard_size)

    def views(self, flat: Tensor) -> Iterator[Tensor]:
        for start, shape in zip(self.starts, self._row_shapes, strict=True):
            yield flat[start : start + shape.numel()].view(shape)

    def rows_by_name(self) -> dict[str, Tensor]:
        """What this rank has of every weight of the model, in float32, in the order of files."""
        found = {**self._frozen_rows(), **dict(zip(self.names, self.views(self.master), strict=True))}
        return {name: found[name] for name in self._order}

    def shapes_by_name(self) -> dict[str, torch.Size]:
        """Of the whole ones, in the same order."""
        found = {**{name: parameter.shape for name, parameter in self._frozen.items()},
                 **dict(zip(self.names, self.shapes, strict=True))}
        return {name: found[name] for name in self._order}

    @abstractmethod
    def _frozen_rows(self) -> dict[str, Any]:
        """What this rank has of weights that are not trained."""

    def fill_(self, pieces: Mapping[int, Tensor], stored: Mapping[str, Tensor]) -> None:
        for number, piece in pieces.items():
            if (name := self.names[number]) in stored:
                own = self._rows_held(self.shapes[number][0])
                piece.copy_(stored[name][own.start : own.stop])

    def rows_of(self, place: MatrixPlace, piece: Tensor) -> Tensor:
        held = self._rows_held(self.shapes[place.parameter][0])
        own = overlap(held, place)
        return piece[own.start - held.start : own.stop - held.start]

    def transformed(self, places: Sequence[MatrixPlace], rows: Sequence[Tensor],
                    transform: Callable[[Tensor], Tensor]) -> list[Tensor]:
        assert self.shard_size == self.ranks.size, "matrices are exchanged among all ranks"
        if self._exchange is None or self._exchange.places != list(places):
            self._exchange = MatrixExchange(places, [shape[0] for shape in self.shapes], self.ranks)
        return self._exchange(rows, transform)

    def grad_norms(self) -> Tensor:
        squares = torch.stack(torch._foreach_norm(self._grad_views)).double().square()
        # Each row counts once, however many ranks have a copy of it.
        return (self.ranks.sum_(squares) / (self.ranks.size // self.shard_size)).sqrt().float()

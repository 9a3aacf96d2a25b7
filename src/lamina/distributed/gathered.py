"""Every rank has whole weights to compute with, and keeps the rest of its rows alone: masters, gradients, optimizer state.

Between updates nothing travels, so passes are captured as on one GPU (ZeRO's second stage, Rajbhandari et al. 2020, §5.2).
Gradients are scattered after the last pass of an update, and weights gathered after its step: as many bytes as an all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from lamina.distributed.matrix_exchange import rows_of_rank
from lamina.distributed.ranks import Ranks
from lamina.distributed.rows import RowsOfWeights
from lamina.distributed.weights import starts_of
from lamina.nn.stack import ActiveLayers


class GatheredWeights(RowsOfWeights):
    """What travels lies rank by rank: all rows of the first rank, in the order of parameters, then those of the second.

    Each rank's part has room for as many rows as the first one's.
    """

    is_half = True  # the model computes with other tensors than the masters, also in float32
    accumulates = True
    exchanges_in_step = True

    def __init__(self, model: nn.Module, dtype: torch.dtype, ranks: Ranks) -> None:
        """The model is whole, on its device and in float32, the same on all ranks."""
        self.ranks = ranks
        self.shard_size = ranks.size
        parameters = self._sort_out(model)
        self.names = tuple(parameters)
        self.shapes = tuple(parameter.shape for parameter in parameters.values())
        self._parameters = tuple(parameters.values())
        self._row_shapes = [torch.Size((len(self._rows_held(shape[0])), *shape[1:])) for shape in self.shapes]
        self.starts, size = starts_of([len(rows_of_rank(shape[0], 0, ranks.size)) * shape[1:].numel() for shape in self.shapes])
        device = ranks.device
        self.master, self.grad = (torch.zeros(size, device=device) for _ in range(2))
        self.compute_grad = torch.zeros(ranks.size * size, device=device, dtype=dtype)
        self._sent = torch.zeros(ranks.size * size, device=device)  # this rank's gradient of an update
        # When that has left, weights arrive in the same memory.
        self._received = self._sent.view(dtype)[: ranks.size * size]
        self._grad_views = list(self.views(self.grad))
        with torch.no_grad():
            for view, parameter in zip(self.views(self.master), self._parameters, strict=True):
                own = self._rows_held(parameter.shape[0])
                view.copy_(parameter[own.start : own.stop])
        starts, whole = starts_of([shape.numel() for shape in self.shapes])
        self.compute = torch.zeros(whole, device=device, dtype=dtype)
        for start, shape, parameter in zip(starts, self.shapes, self._parameters, strict=True):
            parameter.data = self.compute[start : start + shape.numel()].view(shape)
        self._compute_pieces = self._cut([parameter.detach() for parameter in self._parameters])
        self._received_pieces, self._grad_pieces = (self._pieces_of(flat) for flat in (self._received, self.compute_grad))
        self.publish_()
        self._keep_frozen_(dtype)

    def _cut(self, wholes: list[Tensor]) -> list[Tensor]:
        """The rows of each rank, parameter by parameter; a rank that has none of one is left out."""
        return [rows for whole in wholes for rows in whole.split(len(rows_of_rank(whole.shape[0], 0, self.ranks.size)))]

    def _pieces_of(self, flat: Tensor) -> list[Tensor]:
        """The same rows, where they travel."""
        pieces, size = [], len(self.master)
        for start, shape in zip(self.starts, self.shapes, strict=True):
            for rank in range(self.ranks.size):
                if own := rows_of_rank(shape[0], rank, self.ranks.size):
                    place = rank * size + start
                    pieces.append(flat[place : place + len(own) * shape[1:].numel()].view(len(own), *shape[1:]))
        return pieces

    @property
    def added_up(self) -> Tensor:
        return self._sent

    @torch.no_grad()
    def collect_grad_(self) -> None:
        """What a pass has left in the parameters."""
        made = self._cut([torch.zeros_like(own) if own.grad is None else own.grad for own in self._parameters])
        torch._foreach_copy_(self._grad_pieces, made)
        self._sent.add_(self.compute_grad)
        for parameter in self._parameters:
            parameter.grad = None

    @contextmanager
    def gathering(self) -> Iterator[None]:
        for parameter in self._parameters:
            parameter.grad = None
        yield
        self.collect_grad_()

    def sum_grad_(self, active: ActiveLayers) -> None:
        with self.ranks.waits.for_ranks(self.ranks.device):
            dist.reduce_scatter_tensor(self.grad, self._sent)

    def zero_grad_(self) -> None:
        self._sent.zero_()

    def forget_grad_(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self.zero_grad_()

    @torch.no_grad()
    def publish_(self) -> None:
        dist.all_gather_into_tensor(self._received, self.master.to(self._received.dtype))
        torch._foreach_copy_(self._compute_pieces, self._received_pieces)

    def whole_by_name(self, pieces: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """On the host of the first rank, which writes files; all take part, and the others keep nothing."""
        whole = {}
        for number, piece in pieces.items():
            shape = self.shapes[number]
            share = len(rows_of_rank(shape[0], 0, self.ranks.size))
            own = piece.new_zeros(share, *shape[1:])
            own[: len(piece)] = piece
            found = piece.new_empty(share * self.ranks.size, *shape[1:])
            dist.all_gather_into_tensor(found, own)
            if self.ranks.is_first:
                whole[self.names[number]] = found[: shape[0]].cpu()
        return whole

    def _whole_frozen(self) -> dict[str, Tensor]:
        return self._frozen if self.ranks.is_first else {}

    def _frozen_rows(self) -> dict[str, Any]:
        rows = {name: self._rows_held(value.shape[0]) for name, value in self._frozen.items()}
        return {name: value[rows[name].start : rows[name].stop] for name, value in self._frozen.items()}

"""Every rank holds some rows of each weight, of its gradient and of the optimizer's state (FSDP2, Zhao et al. 2023).

torch gathers a layer's weights when it runs and scatters its gradients when they are there; a layer that is skipped costs
nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from lamina.distributed.ranks import Ranks
from lamina.distributed.rows import RowsOfWeights
from lamina.distributed.weights import starts_of
from lamina.nn.stack import stacks_of


class ShardedWeights(RowsOfWeights):
    """Weights whose rows are all that a rank has, but while a layer runs."""

    needs_fillers = True  # a rank that does not run a layer does not hand out its rows of it either
    why_uncaptured = "--fsdp gathers weights in the middle of a pass where it reshards"
    is_half = False  # torch rounds what it gathers; what a rank keeps, gradients too, is float32

    def __init__(self, model: nn.Module, dtype: torch.dtype, ranks: Ranks, first: Iterable[tuple[str, Tensor]] = (),
                 shard_size: int | None = None) -> None:
        """`first` are the weights of a model on the meta device, by name, one after the other: no rank holds all of them.

        Of a `shard_size`, that many neighbours share one copy of the weights, and others have copies of their own.
        """
        self.ranks = ranks
        self.shard_size = shard_size or ranks.size
        trained = self._sort_out(model)
        self.names = tuple(trained)
        self.shapes = tuple(parameter.shape for parameter in trained.values())  # of the whole ones
        self._layers: list[Any] = [layer for stack in stacks_of(model).values() for layer in stack.layers]
        self._model: Any = model
        copies = ranks.size // self.shard_size
        mesh = (init_device_mesh(ranks.device.type, (ranks.size,)) if copies == 1 else
                init_device_mesh(ranks.device.type, (copies, self.shard_size), mesh_dim_names=("copies", "shards")))
        for part in (*self._layers, model):
            fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32))
            # The sum of what ranks found, not its mean: training/update.py divides by the tokens of all.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        # What a model returns is read, never changed in place, which is what this warns of.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        if hasattr(model, "classify"):
            register_fsdp_forward_method(model, "classify")
        if any(parameter.is_meta for parameter in model.parameters()):
            model.to_empty(device=ranks.device)
            self._take_(model, first)
        now = dict(model.named_parameters())  # sharding has put others in their place
        self._frozen = {name: now[name] for name in self._frozen}
        self._parameters: list[Any] = [now[name] for name in self.names]
        self._rows = [parameter.detach().to_local() for parameter in self._parameters]
        self._row_shapes = [rows.shape for rows in self._rows]
        self.starts, size = starts_of([rows.numel() for rows in self._rows])
        self.master = torch.zeros(size, device=ranks.device)
        self.grad = torch.zeros(size, device=ranks.device)
        self._master_views, self._grad_views = list(self.views(self.master)), list(self.views(self.grad))
        torch._foreach_copy_(self._master_views, self._rows)

    @torch.no_grad()
    def _take_(self, model: nn.Module, first: Iterable[tuple[str, Tensor]]) -> None:
        """This rank's rows of each weight as it comes."""
        missing: dict[str, Any] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for name, value in first:
            own = missing.pop(name)
            if isinstance(own, DTensor):
                rows = self._rows_held(value.shape[0])
                own.to_local().copy_(value[rows.start : rows.stop])
            else:
                own.copy_(value)
        assert not missing, f"weights that were not made:  {', '.join(missing)}"

    def take_rows_(self, other: ShardedWeights) -> None:
        """What the other model computes with, in float32; it is sharded likewise."""
        assert self._order == other._order, "two models of one shape"
        rows = dict(zip(other.names, other._rows, strict=True))
        with torch.no_grad():
            torch._foreach_copy_(self._master_views, [rows[name] for name in self.names])
            for name, parameter in self._frozen.items():
                parameter.to_local().copy_(rows[name])
        self.publish_()

    @property
    def can_begin_again(self) -> bool:
        return False  # the others wait in the middle of a layer

    def whole_by_name(self, pieces: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """On the host of the first rank, which writes files; all take part, and the others keep nothing."""
        whole = {}
        for number, piece in pieces.items():
            parameter = self._parameters[number]
            value = DTensor.from_local(piece, parameter.device_mesh, parameter.placements, run_check=False,
                                       shape=parameter.shape, stride=parameter.stride()).full_tensor()
            if self.ranks.is_first:
                whole[self.names[number]] = value.cpu()
        return whole

    def _whole_frozen(self) -> dict[str, Tensor]:
        whole = {name: parameter.detach().full_tensor() for name, parameter in self._frozen.items()}
        return {name: value.cpu() for name, value in whole.items()} if self.ranks.is_first else {}

    def _frozen_rows(self) -> dict[str, Any]:
        return {name: parameter.detach().to_local() for name, parameter in self._frozen.items()}

    @torch.no_grad()  # or else autograd is asked for each gradient's rows
    def collect_grad_(self) -> None:
        pairs = [(view, parameter.grad.to_local()) for view, parameter in zip(self._grad_views, self._parameters, strict=True)
                 if parameter.grad is not None]
        if pairs:
            torch._foreach_add_(*map(list, zip(*pairs, strict=True)))
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def publish_(self) -> None:
        torch._foreach_copy_(self._rows, self._master_views)

    @contextmanager
    def whole(self) -> Iterator[None]:
        for layer in self._layers:
            layer.set_reshard_after_forward(False)
        parts: tuple[FSDPModule, ...] = (self._model, *self._layers)
        for part in parts:
            part.unshard()
        try:
            yield
        finally:
            for layer in self._layers:
                layer.set_reshard_after_forward(True)
            for part in parts:
                part.reshard()

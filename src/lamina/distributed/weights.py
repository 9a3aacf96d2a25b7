"""All of a model's weights in one tensor, with their gradients and float32 masters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lamina.nn.parameter_kinds import Parameter, parameters_of
from lamina.nn.stack import ActiveLayers

# Each parameter starts at a multiple of this many elements, so that kernels can use their widest loads on any of them.
ALIGNMENT = 64


def starts_of(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Where each piece begins in a flat tensor, and how long that is."""
    starts, size = [], 0
    for length in lengths:
        starts.append(size)
        size += -(-length // ALIGNMENT) * ALIGNMENT
    return starts, size


class MatrixPlace(NamedTuple):
    """One matrix of those that a parameter holds."""

    parameter: int  # its number
    matrix: int  # of those that lie in it, rows below rows
    shape: tuple[int, int]


class FlatWeights:
    """Parameters become views of one tensor, so that an update is a few kernels however many layers there are.

    A parameter that took no part in a step keeps its zero gradient and is stepped like the rest: a skipped layer
    (LayerDrop) needs no special case. In half precision the model computes with `compute`, and `master` keeps float32.
    """

    needs_fillers = False  # whether a rank must run the model as often as the others
    why_uncaptured = ""  # why passes cannot be captured, if so
    sends = False  # whether gradients travel, which they do in float32
    accumulates = False  # whether half-precision gradients are added up in a tensor of their own
    exchanges_in_step = False  # whether ranks talk during the optimizer's step, which then is not captured

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.float32, *, accumulates: bool = True) -> None:
        """Where an update is one batch, nothing is added up, and its gradients need no float32 copy: `accumulates` is False."""
        parameters = self._sort_out(model)
        self.names = tuple(parameters)
        self.shapes = tuple(parameter.shape for parameter in parameters.values())
        self.starts, size = starts_of([parameter.numel() for parameter in parameters.values()])
        device = next(iter(parameters.values())).device
        self.master = torch.zeros(size, device=device)
        self.is_half = dtype != torch.float32
        self.compute = torch.zeros(size, device=device, dtype=dtype) if self.is_half else self.master
        self.compute_grad = torch.zeros(size, device=device, dtype=dtype)
        self.accumulates = self.is_half and accumulates
        is_apart = self.accumulates or (self.is_half and self.sends)
        self.grad = torch.zeros(size, device=device) if is_apart else self.compute_grad
        # Cut once: a deep model has a thousand.
        self._grad_views, self._compute_grad_views = list(self.views(self.grad)), list(self.views(self.compute_grad))
        self._parameters: Sequence[nn.Parameter] = tuple(parameters.values())
        with torch.no_grad():
            for view, parameter in zip(self.views(self.master), parameters.values(), strict=True):
                view.copy_(parameter)
        self.publish_()
        views = zip(parameters.values(), self.views(self.compute), self._compute_grad_views, strict=True)
        for parameter, weight, grad in views:
            parameter.data = weight
            parameter.grad = grad
        self._keep_frozen_(dtype)

    def _sort_out(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters that are trained; those without `requires_grad` have no master, no gradient and no optimizer state."""
        everything = dict(model.named_parameters())
        self._order = tuple(everything)
        self._frozen: dict[str, Any] = {name: value for name, value in everything.items() if not value.requires_grad}
        self.described: Sequence[Parameter] = [own for own in parameters_of(model) if own.name not in self._frozen]
        return {name: value for name, value in everything.items() if value.requires_grad}

    @torch.no_grad()
    def _keep_frozen_(self, dtype: torch.dtype) -> None:
        """What the model computes with is rounded; files hold what it was, which waits on the host."""
        for name, parameter in self._frozen.items():
            self._frozen[name] = parameter.detach().to("cpu", torch.float32, copy=True) if self.is_half else parameter.detach()
            if self.is_half:
                parameter.data = parameter.to(dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """Every weight of the model by name, as files hold it; all ranks ask together."""
        found = {**self._whole_frozen(), **self.named(self.master)}
        return {name: found[name] for name in self._order if name in found}

    def _whole_frozen(self) -> dict[str, Tensor]:
        return self._frozen

    def views(self, flat: Tensor) -> Iterator[Tensor]:
        """The pieces of a flat tensor, each in its parameter's shape."""
        for start, shape in zip(self.starts, self.shapes, strict=True):
            yield flat[start : start + shape.numel()].view(shape)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """By parameter, as files hold it."""
        return self.whole_by_name(dict(enumerate(self.views(flat))))

    def whole_by_name(self, pieces: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """What this process has of some parameters, by number, made whole; all ranks ask for the same ones."""
        return {self.names[number]: piece for number, piece in pieces.items()}

    def fill_(self, pieces: Mapping[int, Tensor], stored: Mapping[str, Tensor]) -> None:
        """The inverse of `whole_by_name`; what is not stored is left alone."""
        for number, piece in pieces.items():
            if self.names[number] in stored:
                piece.copy_(stored[self.names[number]])

    def rows_of(self, place: MatrixPlace, piece: Tensor) -> Tensor:
        """The rows of a matrix among those that this process has of the parameter. (R, C)"""
        return piece.view(-1, *place.shape)[place.matrix]

    def transformed(self, places: Sequence[MatrixPlace], rows: Sequence[Tensor],
                    transform: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """What becomes of the rows that this process has of matrices, when `transform` gets them whole (N, R, C)."""
        return transform_by_shape(rows, transform)

    def collect_grad_(self) -> None:
        """Add a batch's gradients to the update's, in float32: half precision would lose the small ones of many."""
        if self.accumulates:
            self.grad.add_(self.compute_grad)
            self.compute_grad.zero_()

    @property
    def added_up(self) -> Tensor:
        """The gradient of an update as far as its passes are done."""
        return self.grad

    @property
    def replaces(self) -> bool:
        """Whether what a pass gathers replaces the gradient, so that an update can be one such pass and no more."""
        return self.is_half and not self.accumulates

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """A backward pass that leaves each gradient where it was made; at the end all are gathered at once, and collected."""
        for parameter in self._parameters:
            parameter.grad = None
        yield
        # Straight into the update's gradient, where there is nothing to add to.
        views = self._compute_grad_views if self.accumulates else self._grad_views
        made = [(view, parameter.grad) for view, parameter in zip(views, self._parameters, strict=True)]
        places, grads = [view for view, grad in made if grad is not None], [grad for _, grad in made if grad is not None]
        if self.is_half:
            for view, grad in made:
                if grad is None:
                    view.zero_()
        if places:
            (torch._foreach_copy_ if self.is_half else torch._foreach_add_)(places, grads)
        for view, parameter in zip(self._compute_grad_views, self._parameters, strict=True):
            parameter.grad = view
        if self.accumulates:
            FlatWeights.collect_grad_(self)

    def expect_replays_(self) -> None:
        """From now on most passes are replayed: what they find is there all at once, when they end."""

    def expect_last_(self, active: ActiveLayers) -> None:
        """The next backward pass is the last of this update, whose batches run these layers, not each of them all."""

    def sum_grad_(self, active: ActiveLayers) -> None:
        """Add the gradients of other ranks, if there are any."""

    def zero_grad_(self) -> None:
        self.grad.zero_()

    @property
    def can_begin_again(self) -> bool:
        """Whether a pass that came to no end can be forgotten: not if other ranks have seen some of it."""
        return True

    def forget_grad_(self) -> None:
        """Also what a pass left behind that came to no end."""
        self.compute_grad.zero_()
        self.zero_grad_()

    def grad_norms(self) -> Tensor:
        """One norm a parameter, in one multi-tensor kernel; they also tell which gradient was not finite. (P,)"""
        return torch.stack(torch._foreach_norm(self._grad_views, 2, torch.float32))

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, a rank can run the model without the others."""
        yield

    def publish_(self) -> None:
        """Let the model compute with the masters' new values."""
        if self.is_half:
            self.compute.copy_(self.master)


def transform_by_shape(matrices: Sequence[Tensor], transform: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """All matrices of one shape at a time, whatever their order."""
    numbers: dict[torch.Size, list[int]] = {}
    for number, matrix in enumerate(matrices):
        numbers.setdefault(matrix.shape, []).append(number)
    found = list(matrices)
    for own in numbers.values():
        for number, made in zip(own, transform(torch.stack([matrices[number] for number in own])).unbind(), strict=True):
            found[number] = made
    return found

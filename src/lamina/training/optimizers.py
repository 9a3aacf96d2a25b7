"""Optimizers over one flat float32 tensor that holds all weights.

However many parameters a model has, a step is the same handful of element-wise kernels. Nothing here waits for the
device or branches on its data, so a step can be compiled and captured in a CUDA graph: the learning rate may be a
tensor, the step count is one, and whether the step counts at all (`ok`) is decided on the device. Where it does not, the
gradient is replaced (not multiplied, NaN * 0 is NaN) by zeros. The rules are parts (parts/update_rules.py).

A rule may give some parameters another one (`rule_for`). Parameters with equal rules are a group, which is moved in one flat
tensor as well: gathered from the weights, and put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lamina.distributed.weights import FlatWeights, MatrixPlace, starts_of
from lamina.errors import CheckpointError
from lamina.parts.contracts import MatrixRule
from lamina.parts.contracts import Optimizer as Rule

# Six tensors of this many floats (weights, gradient, two moments, two of scratch) are 24 MiB, which a server CPU's
# cache holds, so that only the first kernel of a step reads memory. Adam, 37M weights, 2 threads that sleep while they wait:
# 48 ms, 61 ms in pieces of half the size and 45 ms in pieces of twice; with threads that turn 35, 37 and 39 ms.
CPU_CHUNK = 2**20


class Group(NamedTuple):
    """Parameters that one rule moves."""

    rule: Rule | MatrixRule
    numbers: tuple[int, ...]


class Places(NamedTuple):
    """Where some parameters' pieces lie in a flat tensor of their own."""

    numbers: tuple[int, ...]
    starts: list[int]
    shapes: list[torch.Size]
    size: int

    def views(self, flat: Tensor) -> list[Tensor]:
        return [flat[start : start + shape.numel()].view(shape) for start, shape in zip(self.starts, self.shapes, strict=True)]


class Optimizer:
    """The walk over groups and chunks; the rule names its buffers and says what happens to one chunk."""

    def __init__(self, rule: Rule, master: Tensor, weights: FlatWeights | None = None) -> None:
        """Without `weights`, which know what lies where in `master`, one rule moves all."""
        assert (master.dim(), master.dtype) == (1, torch.float32), "master is one flat float32 tensor"
        self.master = master.detach()
        self.step = torch.zeros((), dtype=torch.int64, device=master.device)
        self.weights = weights
        self.rule = rule
        self.groups = _groups(rule, weights)
        self.buffers: dict[str, Tensor] = {}
        self._places: dict[str, Places] = {}  # of buffers that not all parameters have
        for name in dict.fromkeys(name for group in self.groups for name in group.rule.buffers):
            having = [group for group in self.groups if name in group.rule.buffers]
            if len(having) < len(self.groups):
                self._places[name] = self._places_of(tuple(sorted(number for group in having for number in group.numbers)))
            self.buffers[name] = (torch.zeros_like(self.master) if len(having) == len(self.groups) else
                                  self.master.new_zeros(self._places[name].size))

    @property
    def is_uniform(self) -> bool:
        """Whether one rule moves all weights where they lie."""
        return len(self.groups) == 1 and isinstance(self.groups[0].rule, Rule)

    @torch.no_grad()
    def step_(self, grad: Tensor, lr: Tensor | float, ok: Tensor | None = None) -> None:
        """One update in place. Where the 0-dim `ok` is False nothing changes: weights, moments and step count stay."""
        device = self.master.device
        # full() fills on the device: unlike a copy of a Python number, it does not wait for it.
        rate = (lr.to(device, torch.float64) if isinstance(lr, Tensor)
                else torch.full((), lr, dtype=torch.float64, device=device))
        step = (self.step + 1).double()
        if self.is_uniform:
            assert isinstance(self.groups[0].rule, Rule)
            self._walk(self.groups[0].rule, (self.master, grad, *self.buffers.values()), step, rate, ok)
        else:
            self._step_by_groups(grad, step, rate, ok)
        self.step.add_(1 if ok is None else ok)

    def _walk(self, rule: Rule, wholes: Sequence[Tensor], step: Tensor, rate: Tensor, ok: Tensor | None) -> None:
        """Weights, gradient and buffers of one rule, chunk by chunk."""
        factors = rule.factors(step, rate, ok)
        master = wholes[0]
        size = min(CPU_CHUNK, master.numel()) if master.device.type == "cpu" else master.numel()
        # Two tensors, not rows of one: the compiler fuses writes to a tensor of their own, not those to a part.
        scratch, masked = (master.new_empty(size if needed else 0) for needed in (True, ok is not None))
        zero = scratch.new_zeros(())
        for weights, gradient, *buffers in zip(*(whole.split(size) for whole in wholes), strict=True):
            length = weights.numel()
            if ok is not None:
                gradient = torch.where(ok, gradient, zero, out=masked[:length])
            rule.update_(weights, gradient, buffers, factors, scratch[:length])

    def _step_by_groups(self, grad: Tensor, step: Tensor, rate: Tensor, ok: Tensor | None) -> None:
        base = self._base()
        taken: list[tuple[Group, Places, list[Tensor]]] = []
        for group in self.groups:
            if group is not base:
                places = self._places_of(group.numbers)
                buffers = [self._taken(self.buffers[name], self._places.get(name), places) for name in group.rule.buffers]
                taken.append((group, places, [self._taken(self.master, None, places), self._taken(grad, None, places),
                                              *buffers]))
        if base is not None:
            # Also over what the others move: that was taken out before, and is put back moved by its own rule.
            assert isinstance(base.rule, Rule)
            self._walk(base.rule, (self.master, grad, *(self.buffers[name] for name in base.rule.buffers)), step, rate, ok)
        for group, places, (weights, gradient, *buffers) in taken:
            if isinstance(group.rule, MatrixRule):
                self._move_matrices(group.rule, places, (weights, gradient, *buffers), step, rate, ok)
            else:
                self._walk(group.rule, (weights, gradient, *buffers), step, rate, ok)
            self._put_back(weights, self.master, None, places)
            for name, buffer in zip(group.rule.buffers, buffers, strict=True):
                self._put_back(buffer, self.buffers[name], self._places.get(name), places)

    def _base(self) -> Group | None:
        """The largest group, if all the others have its buffers: it can be moved where it lies."""
        if any(isinstance(group.rule, MatrixRule) or group.rule.buffers != self.groups[0].rule.buffers
               for group in self.groups):
            return None
        return max(self.groups, key=lambda group: sum(shape.numel() for shape in self._places_of(group.numbers).shapes))

    def _move_matrices(self, rule: MatrixRule, places: Places, wholes: Sequence[Tensor], step: Tensor, rate: Tensor,
                       ok: Tensor | None) -> None:
        weights, gradient, *buffers = wholes
        assert self.weights is not None, "there are no groups without them"
        if ok is not None:
            gradient = torch.where(ok, gradient, gradient.new_zeros(()))
        factors = rule.factors(step, rate, ok)
        directions = places.views(rule.direction(gradient, buffers, factors))
        matrices: list[MatrixPlace] = []
        rows: list[Tensor] = []
        own: list[Tensor] = []
        for number, piece, direction in zip(places.numbers, places.views(weights), directions, strict=True):
            parameter = self.weights.described[number]
            num_rows, num_columns = parameter.shape
            for matrix in range(parameter.num_matrices):
                place = MatrixPlace(number, matrix, (num_rows // parameter.num_matrices, num_columns))
                matrices.append(place)
                rows.append(self.weights.rows_of(place, direction))
                own.append(self.weights.rows_of(place, piece))
        steps = self.weights.transformed(matrices, rows, rule.whole)
        for shape in dict.fromkeys(place.shape for place in matrices):
            alike = [number for number, place in enumerate(matrices) if place.shape == shape and own[number].numel()]
            if alike:
                rule.move_([own[number] for number in alike], [steps[number] for number in alike], shape, factors)

    def _places_of(self, numbers: tuple[int, ...]) -> Places:
        assert self.weights is not None, "there are no groups without them"
        views = list(self.weights.views(self.master))
        shapes = [views[number].shape for number in numbers]
        starts, size = starts_of([shape.numel() for shape in shapes])
        return Places(numbers, starts, shapes, size)

    def _views(self, flat: Tensor, places: Places | None, numbers: Sequence[int]) -> list[Tensor]:
        """The pieces of some parameters in a flat tensor; without `places`, one like the weights'."""
        assert self.weights is not None, "there are no groups without them"
        if places is None:
            views = list(self.weights.views(flat))
            return [views[number] for number in numbers]
        by_number = dict(zip(places.numbers, places.views(flat), strict=True))
        return [by_number[number] for number in numbers]

    def _taken(self, flat: Tensor, places: Places | None, wanted: Places) -> Tensor:
        """These parameters' pieces in a flat tensor of their own; the tensor itself, where it holds no others."""
        if places is not None and places.numbers == wanted.numbers:
            return flat
        taken = flat.new_zeros(wanted.size)
        torch._foreach_copy_(wanted.views(taken), self._views(flat, places, wanted.numbers))
        return taken

    def _put_back(self, taken: Tensor, flat: Tensor, places: Places | None, wanted: Places) -> None:
        if taken is not flat:
            torch._foreach_copy_(self._views(flat, places, wanted.numbers), wanted.views(taken))

    def pieces(self) -> dict[str, dict[int, Tensor]]:
        """Of each buffer, what there is of each parameter, by its number."""
        assert self.weights is not None, "only they know what lies where"
        everything = range(len(self.weights.names))
        found = {}
        for name, flat in self.buffers.items():
            places = self._places.get(name)
            numbers = everything if places is None else places.numbers
            found[name] = dict(zip(numbers, self._views(flat, places, numbers), strict=True))
        return found

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold to resume from here. Live tensors: copy them to keep them."""
        return {"step": self.step, **self.buffers}

    def load_state_(self, state: dict[str, Tensor]) -> None:
        own, remedy = self.state(), "Choose the --optimizer that wrote the checkpoint, or add --reset-optimizer."
        if state.keys() != own.keys():
            raise CheckpointError(f"the optimizer state holds {_listed(state)}, but this optimizer keeps "
                                  f"{_listed(own)}. {remedy}")
        for name, tensor in own.items():
            if state[name].shape != tensor.shape:
                raise CheckpointError(f"{name} of the optimizer state has shape {tuple(state[name].shape)}, but this "
                                      f"model needs {tuple(tensor.shape)}: the model has other weights than the one "
                                      "that was saved. Give the model options it was trained with, or add "
                                      "--reset-optimizer.")
        for name, tensor in own.items():
            tensor.copy_(state[name])


def build_optimizer(rule: Rule, master: Tensor, weights: FlatWeights | None = None) -> Optimizer:
    """The optimizer that `--optimizer` and its flags describe, over the flat float32 `master` weights."""
    return Optimizer(rule, master, weights)


def _groups(rule: Rule, weights: FlatWeights | None) -> list[Group]:
    numbers: dict[Any, list[int]] = {}
    for number, parameter in enumerate(weights.described if weights is not None else ()):
        numbers.setdefault(rule.rule_for(parameter), []).append(number)
    return [Group(own, tuple(found)) for own, found in numbers.items()] or [Group(rule, ())]


def _listed(state: dict[str, Tensor]) -> str:
    return ", ".join(sorted(state)) or "nothing"

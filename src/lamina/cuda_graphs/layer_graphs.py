"""Layers recorded one by one, for passes that do not run all of them (LayerDrop) or whose head asks the host.

One recording of the whole pass would do as many layers each time. Here every layer has a recording of its forward pass and
one of its backward pass, on memory of its own; what is not to run is not replayed. The rest of the model runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lamina.cuda_graphs.recorder import Captured, Recorder
from lamina.nn.compiling import replaced
from lamina.nn.stack import stacks_of

Forward = Callable[..., Tensor]


class LayerGraphs:
    """Of all layers of a model, for one shape. `grads` are where the parameters' gradients are added up."""

    def __init__(self, model: nn.Module, forwards: Mapping[nn.Module, Forward], grads: Mapping[nn.Parameter, Tensor],
                 recorder: Recorder, run: Callable[[], object]) -> None:
        """`run` is a forward pass over all layers, whose memory the recordings keep for their own."""
        self.graphs: dict[nn.Module, _LayerGraph] = {}
        self._inputs: list[_Input] = []
        layers = [layer for stack in stacks_of(model).values() for layer in stack.layers]

        def recording(layer: nn.Module, forward: Forward) -> Forward:
            def call(x: Tensor, *others: Any) -> Tensor:
                self.graphs[layer] = graph = _LayerGraph(forward, layer, x, others, recorder, self._inputs)
                return graph(x, *others)
            return call

        with self.in_use({layer: recording(layer, forwards.get(layer, layer.forward)) for layer in layers}):
            run()
        # In the order in which they will run, so that what one frees the next may take, and none takes what is still needed.
        for graph in reversed(self.graphs.values()):
            graph.record_backward(grads, recorder)

    @contextmanager
    def in_use(self, forwards: Mapping[nn.Module, Any]) -> Iterator[None]:
        """One pass, in which these functions, recordings among them, take the place of the parts' own."""
        with replaced(forwards):
            yield
        for kept in self._inputs:
            kept.given = None


class _Input:
    """A tensor that layers read besides their stream, in memory that stays: a memory, or part of a layout.

    Layers that are given one and the same tensor share it.
    """

    def __init__(self, given: Tensor) -> None:
        self.given: Tensor | None = given
        # Parts of a packed layout lie in the batch, whose memory stays already; other tensors stay by being held here.
        self.static = _static(given) if given.is_floating_point() else given

    def fill_(self, given: Tensor) -> None:
        """By the first layer of a pass that runs; the others find it there."""
        if given is self.given:
            return
        self.given = given
        if given.data_ptr() != self.static.data_ptr():
            # .data, since autograd takes the inputs of a recording for changed after the fact otherwise.
            self.static.data.copy_(given)


class _LayerGraph:
    """One layer: its stream, and what else it reads, are copied to where its recordings find them."""

    def __init__(self, forward: Forward, layer: nn.Module, x: Tensor, others: tuple[Any, ...], recorder: Recorder,
                 inputs: list[_Input]) -> None:
        self._parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        self._stream = _static(x)
        self._others: list[_Input] = []
        for given in _tensors_in(others):
            known = next((own for own in inputs if own.given is given), None)
            if known is None:
                known = _Input(given)
                inputs.append(known)
            self._others.append(known)
        statics = _with_tensors(others, [own.static for own in self._others])
        self._inputs = [own for own in (self._stream, *(own.static for own in self._others)) if own.requires_grad]
        # Parameters are no input of a replayed layer: where nothing below it is trained, this says that it has a gradient.
        self._anchor = x.new_zeros(0, requires_grad=bool(self._parameters))

        def compute() -> Tensor:
            return forward(self._stream, *statics)

        def compute_both() -> None:
            out = compute()
            if self._has_gradient:
                torch.autograd.grad(out, [*self._inputs, *self._parameters], torch.zeros_like(out), allow_unused=True)

        recorder.warm_up(compute_both)
        self._forward: Captured[Tensor] = recorder.capture(compute)
        self._out_grad = torch.zeros_like(self._forward.result)
        self._backward: Captured[list[Tensor | None]] | None = None

    @property
    def _has_gradient(self) -> bool:
        """Whether it, or anything below it, is trained."""
        return bool(self._inputs or self._parameters)

    def record_backward(self, grads: Mapping[nn.Parameter, Tensor], recorder: Recorder) -> None:
        if not self._has_gradient:
            return

        def compute() -> list[Tensor | None]:
            found = torch.autograd.grad(self._forward.result, [*self._inputs, *self._parameters], self._out_grad,
                                        allow_unused=True)
            own = zip(self._parameters, found[len(self._inputs) :], strict=True)
            pairs = [(grads[parameter], grad) for parameter, grad in own if grad is not None]
            if pairs:
                torch._foreach_add_([total for total, _ in pairs], [grad for _, grad in pairs])
            return list(found[: len(self._inputs)])

        self._backward = recorder.capture(compute)

    def __call__(self, x: Tensor, *others: Any) -> Tensor:
        tensors = _tensors_in(others)
        for own, given in zip(self._others, tensors, strict=True):
            own.fill_(given)
        read = (given for given in tensors if given.is_floating_point())
        return _Replayed.apply(self, x, self._anchor, *read)

    def run_forward(self, x: Tensor) -> Tensor:
        self._stream.data.copy_(x)
        return self._forward.replay().detach()

    def run_backward(self, out_grad: Tensor) -> list[Tensor | None]:
        assert self._backward is not None, "recorded before it is run"
        self._out_grad.copy_(out_grad)
        gradients = iter(self._backward.replay())
        inputs = (self._stream, *(own.static for own in self._others if own.static.is_floating_point()))
        return [next(gradients) if own.requires_grad else None for own in inputs]


class _Replayed(torch.autograd.Function):
    """`memories` are where gradients go; what they hold has been copied. The anchor is for layers that read no gradient."""

    @staticmethod
    def forward(ctx: Any, graph: _LayerGraph, x: Tensor, anchor: Tensor, *memories: Tensor) -> Tensor:
        ctx.graph = graph
        return graph.run_forward(x)

    @staticmethod
    def backward(ctx: Any, out_grad: Tensor) -> tuple[Tensor | None, ...]:
        of_x, *of_memories = ctx.graph.run_backward(out_grad)
        return None, of_x, None, *of_memories


def _tensors_in(inputs: tuple[Any, ...]) -> list[Tensor]:
    """Those that are inputs themselves, and those of layouts."""
    return [value for item in inputs for value in (item if isinstance(item, tuple) else (item,)) if isinstance(value, Tensor)]


def _with_tensors(inputs: tuple[Any, ...], tensors: list[Tensor]) -> list[Any]:
    """The same inputs with these tensors in place of theirs."""
    rest = iter(tensors)

    def new(item: Any) -> Any:
        if isinstance(item, Tensor):
            return next(rest)
        return type(item)(*map(new, item)) if isinstance(item, tuple) else item

    return [new(item) for item in inputs]


def _static(x: Tensor) -> Tensor:
    """With a gradient where the original has one: what nothing trained stands behind needs none."""
    return x.detach().clone().requires_grad_(x.requires_grad)

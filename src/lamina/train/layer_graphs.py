"""Layers recorded one by one, for passes that do not run all of them (LayerDrop) or whose head asks the host.

One recording of the whole pass would do as many layers each time. Here every layer has a recording of its forward pass and
one of its backward pass, on memory of its own; what is not to run is not replayed. The rest of the model runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lamina.nn.stack import stacks_of
from lamina.train.captured import Recorded, Recorder, replaced, warm_up

Forward = Callable[..., Tensor]


class LayerGraphs:
    """Of all layers of a model, for one shape. `grads` are where the parameters' gradients are added up."""

    def __init__(self, model: nn.Module, forwards: dict[nn.Module, Forward], grads: dict[nn.Parameter, Tensor],
                 recorder: Recorder, run: Callable[[], object]) -> None:
        """`run` is a forward pass over all layers, whose memory the recordings keep for their own."""
        self.graphs: dict[nn.Module, _LayerGraph] = {}
        layers = [layer for stack in stacks_of(model).values() for layer in stack.layers]

        def recording(layer: nn.Module, forward: Forward) -> Forward:
            def call(x: Tensor, *others: Any) -> Tensor:
                self.graphs[layer] = graph = _LayerGraph(forward, layer, x, others, recorder, list(self.graphs.values()))
                return graph(x, *others)
            return call

        with replaced({layer: recording(layer, forwards.get(layer, layer.forward)) for layer in layers}):
            run()
        # In the order in which they will run, so that what one frees the next may take, and none takes what is still needed.
        for graph in reversed(self.graphs.values()):
            graph.record_backward(grads, recorder)


class _LayerGraph:
    """One layer. Of its inputs, layouts lie in the batch, which never moves; the stream, and a memory, are copied in."""

    def __init__(self, forward: Forward, layer: nn.Module, x: Tensor, others: tuple[Any, ...], recorder: Recorder,
                 before: list[_LayerGraph]) -> None:
        self._parameters = list(layer.parameters())
        self._given = next((other for other in others if isinstance(other, Tensor)), None)  # a memory, or None
        self._stream = _static(x)
        # Layers that read one and the same memory share the copy.
        shared = next((graph._memory for graph in before if graph._given is not None and graph._given is self._given), None)
        self._copies_memory = self._given is not None and shared is None
        self._memory: Tensor | None = shared if shared is not None or self._given is None else _static(self._given)
        inputs = [self._memory if other is self._given else other for other in others]
        self._inputs = [self._stream, *([] if self._memory is None else [self._memory])]

        def compute() -> Tensor:
            return forward(self._stream, *inputs)

        def compute_both() -> None:
            out = compute()
            torch.autograd.grad(out, [*self._inputs, *self._parameters], torch.zeros_like(out), allow_unused=True)

        warm_up(compute_both, recorder.stream)
        self._forward: Recorded[Tensor] = recorder(compute, is_warm=True)
        self._out_grad = torch.zeros_like(self._forward.result)
        self._backward: Recorded[list[Tensor | None]] | None = None

    def record_backward(self, grads: dict[nn.Parameter, Tensor], recorder: Recorder) -> None:
        def compute() -> list[Tensor | None]:
            found = torch.autograd.grad(self._forward.result, [*self._inputs, *self._parameters], self._out_grad,
                                        allow_unused=True)
            own = zip(self._parameters, found[len(self._inputs) :], strict=True)
            pairs = [(grads[parameter], grad) for parameter, grad in own if grad is not None]
            torch._foreach_add_([total for total, _ in pairs], [grad for _, grad in pairs])
            return list(found[: len(self._inputs)])

        self._backward = recorder(compute, is_warm=True)
        self._given = None

    def __call__(self, x: Tensor, *others: Any) -> Tensor:
        memory = next((other for other in others if isinstance(other, Tensor)), None)
        return _Replayed.apply(self, x, memory)

    def run_forward(self, x: Tensor, memory: Tensor | None) -> Tensor:
        # .data, since autograd takes the inputs of a recording for changed after the fact otherwise.
        self._stream.data.copy_(x)
        if self._copies_memory and memory is not None and self._memory is not None:
            self._memory.data.copy_(memory)
        return self._forward.replay().detach()

    def run_backward(self, out_grad: Tensor) -> list[Tensor | None]:
        assert self._backward is not None, "recorded before it is run"
        self._out_grad.copy_(out_grad)
        return self._backward.replay()


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: _LayerGraph, x: Tensor, memory: Tensor | None) -> Tensor:
        ctx.graph, ctx.has_memory = graph, memory is not None
        return graph.run_forward(x, memory)

    @staticmethod
    def backward(ctx: Any, out_grad: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.graph.run_backward(out_grad)
        return None, found[0], found[1] if ctx.has_memory else None


def _static(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()

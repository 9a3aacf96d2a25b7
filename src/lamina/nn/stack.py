"""Layers, and the stack that runs them in order.

On a GPU whole passes are captured in a CUDA graph and replayed (cuda_graphs/), and layers are compiled. The contract that a
layer, and whatever it calls, keeps so that this works:

- It asks the device nothing: no `.item()`, no `if` on a tensor, no mask as an index, no shape that depends on numbers.
- It moves nothing between host and device, and makes no tensor out of Python numbers on the device (`torch.full` is fine).
- Its shapes depend on those of its inputs and on the configuration alone.
- It keeps nothing from one call to the next: a replay runs no Python. What changes must be a tensor that is changed in place.
- It draws random numbers from torch's default generator alone, which replays move on.
- It is called with positional arguments, the stream first: tensors, and NamedTuples of tensors and numbers. It returns one
  tensor. With `is_compiled_whole` torch.compile must take its `forward` in one piece.

tests/cuda_graphs/test_capture_contract.py checks this for all parts without a GPU; for your own, run a layer inside
cuda_graphs.capture_contract.NoQuestions. On a GPU, a breach turns CUDA graphs off with a notice; with
LAMINA_STRICT_CUDA_GRAPHS=1, as in tests, it is an error.
"""

# B batch, T tokens, K beams, D model_dim

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lamina.nn.attention import CrossAttention, SelfAttention
from lamina.nn.cache import KeyValues, LayerCache, Turn
from lamina.nn.embedding import Embedded
from lamina.nn.feed_forward import FeedForward
from lamina.nn.layout import AnyLayout, Layout
from lamina.nn.subset import lay_out_part, put, take
from lamina.packed import Subset


class StackOutput(NamedTuple):
    """What a stack offers to whoever reads it."""

    final: Tensor  # (B, T, D), after the stack's last norm, if it has one
    states: tuple[Tensor | None, ...]  # raw, the stack's input first; None where nobody reads it
    embedding: Tensor  # (B, T, D), scaled token vectors without positions


class ActiveLayers(NamedTuple):
    """Which layers of a model's stacks run in a pass: each, or for which sentences; None: all of them for all."""

    encoder: Sequence[bool | Subset] | None = None
    decoder: Sequence[bool | Subset] | None = None


ALL_LAYERS = ActiveLayers()


class EncoderLayer(nn.Module):
    is_compiled_whole = True  # torch.compile takes it as one piece; layers of a kind share their code

    def __init__(self, attention: SelfAttention, attn_residual: nn.Module, ffn: FeedForward,
                 ffn_residual: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.attn_residual = attn_residual
        self.ffn = ffn
        self.ffn_residual = ffn_residual

    def forward(self, x: Tensor, layout: AnyLayout, kept: Subset | None = None, passed: Tensor | None = None) -> Tensor:
        """With `kept`, what these sentences of x become among all of `passed`, where the others stay as they are."""
        if kept is None:
            return self._run(x, layout)
        assert passed is not None, "what the others pass on"
        return put(passed, self._run(take(x, kept.own), lay_out_part(layout, kept.own)), kept.own)

    def _run(self, x: Tensor, layout: AnyLayout) -> Tensor:
        return self._sub_layers(x, lambda x: self.attention(x, layout))

    def _sub_layers(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        return self.ffn_residual(self.attn_residual(x, attend, x), self.ffn, x)


class CausalLayer(EncoderLayer):
    """A decoder layer that reads nothing but its own past."""

    def _run(self, x: Tensor, layout: AnyLayout) -> Tensor:
        return self._sub_layers(x, lambda x: self.attention.causal(x, layout))

    def read(self, x: Tensor, past: KeyValues) -> Tensor:
        """The first tokens of each text, which its beams share. x: (B, T, D)"""
        return self._sub_layers(x, lambda x: self.attention.read(x, past))

    def step(self, x: Tensor, past: KeyValues, turn: Turn) -> Tensor:
        """The next token of each beam. x: (B, K, D)"""
        return self._sub_layers(x, lambda x: self.attention.step(x, past, turn))


class DecoderLayer(nn.Module):
    is_compiled_whole = True  # torch.compile takes it as one piece; layers of a kind share their code

    def __init__(self, attention: SelfAttention, attn_residual: nn.Module, cross_attention: CrossAttention,
                 cross_residual: nn.Module, ffn: FeedForward, ffn_residual: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.attn_residual = attn_residual
        self.cross_attention = cross_attention
        self.cross_residual = cross_residual
        self.ffn = ffn
        self.ffn_residual = ffn_residual

    def forward(self, x: Tensor, layout: AnyLayout, memory: Tensor, memory_layout: AnyLayout, kept: Subset | None = None,
                passed: Tensor | None = None) -> Tensor:
        """With `kept`, what these sentences of x become among all of `passed`; others' keys and values are not projected."""
        if kept is None:
            return self._run(x, layout, memory, memory_layout)
        assert passed is not None, "what the others pass on"
        own = self._run(take(x, kept.own), lay_out_part(layout, kept.own), take(memory, kept.memory),
                        lay_out_part(memory_layout, kept.memory))
        return put(passed, own, kept.own)

    def _run(self, x: Tensor, layout: AnyLayout, memory: Tensor, memory_layout: AnyLayout) -> Tensor:
        projected = self.cross_attention.project(memory)
        return self._sub_layers(x, lambda x: self.attention.causal(x, layout),
                                lambda x: self.cross_attention(x, projected, memory_layout, layout))

    def step(self, x: Tensor, cache: LayerCache, turn: Turn, memory_layout: Layout) -> Tensor:
        """The next token of each beam. x: (B, K, D)"""
        return self._sub_layers(x, lambda x: self.attention.step(x, cache.past, turn),
                                lambda x: self.cross_attention.step(x, cache.memory, memory_layout))

    def _sub_layers(self, x: Tensor, attend: Callable[[Tensor], Tensor], read: Callable[[Tensor], Tensor]) -> Tensor:
        attended = self.cross_residual(self.attn_residual(x, attend, x), read, x)
        return self.ffn_residual(attended, self.ffn, x)


# How to run one layer: call(layer, its index, what it reads), or for some sentences alone call(.., which, the stream so far).
LayerCall = Callable[..., Tensor]


class LayerStack(nn.Module):
    """Layers in order; a sentence, or a whole batch, that leaves a layer out passes it unchanged (Fan et al. 2020).

    With a `mixing`, layer i reads mixing(states, i), the stack's input and the outputs below it, instead of the last of them.
    With `recomputes`, training keeps each layer's input alone and computes the rest again for the gradient, with the same
    dropout (Chen et al. 2016, §4).
    """

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None, kept_states: Collection[int] = (),
                 mixing: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.mixing = mixing
        self.kept_states = frozenset(kept_states)
        self.recomputes = False

    def forward(self, embedded: Embedded, call: LayerCall, active: Sequence[bool | Subset] | None = None) -> StackOutput:
        assert active is None or len(active) == len(self.layers), "a yes, a no or a subset for each layer"
        x = embedded.input
        states, below = [self._kept(0, x)], [x]
        if self.recomputes and self.training and torch.is_grad_enabled():
            call = _recomputed(call)
        for index, layer in enumerate(self.layers):
            # Identity, not absence: states[i + 1] is always the output of layer i, so readers need no special case.
            kept = True if active is None else active[index]
            if kept is not False:
                read = x if self.mixing is None else self.mixing(below, index)
                x = call(layer, index, read, kept, x) if isinstance(kept, Subset) else call(layer, index, read)
            states.append(self._kept(index + 1, x))
            if self.mixing is not None:
                below.append(x)
        return StackOutput(x if self.norm is None else self.norm(x), tuple(states), embedded.tokens)

    def _kept(self, index: int, x: Tensor) -> Tensor | None:
        return x if index in self.kept_states else None


def _recomputed(call: LayerCall) -> LayerCall:
    return lambda *arguments: checkpoint(call, *arguments, use_reentrant=False)


def stacks_of(model: nn.Module) -> dict[str, LayerStack]:
    """By their names in the model; the encoder first, where there are two."""
    return {name: part for name, part in model.named_modules() if isinstance(part, LayerStack)}

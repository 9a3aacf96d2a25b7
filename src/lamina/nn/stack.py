"""Layers, and the stack that runs them in order.

On a GPU whole passes are captured in a CUDA graph and replayed (cuda_graphs/), and layers are compiled. The contract that a
layer, and whatever it calls, keeps so that this works:

- It asks the device nothing: no `.item()`, no `if` on a tensor, no mask as an index, no shape that depends on numbers.
- It moves nothing between host and device, and makes no tensor out of Python numbers on the device (`torch.full` is fine).
- Its shapes depend on those of its inputs and on the configuration alone.
- It keeps nothing from one call to the next: a replay runs no Python. What changes must be a tensor that is changed in place.
- It draws random numbers from torch's default generator alone, which replays move on.
- It is called with positional arguments, the stream first: tensors, and NamedTuples of tensors and numbers. It returns one
  tensor, or what a mixing reads (nn/mixing.py). With `is_compiled_whole` torch.compile must take its `forward` in one piece; no
  `_replace` of a NamedTuple there, whose fields torch 2.11 loses.

tests/cuda_graphs/test_capture_contract.py checks this for all parts without a GPU; for your own, run a layer inside
cuda_graphs.capture_contract.NoQuestions. On a GPU, a breach turns CUDA graphs off with a notice; with
LAMINA_STRICT_CUDA_GRAPHS=1, as in tests, it is an error.
"""

# B batch, T tokens, K beams, D model_dim

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lamina.nn.attention import CrossAttention, SelfAttention
from lamina.nn.cache import KeyValues, LayerCache, Turn
from lamina.nn.dropout import DRAWS, drawing_from
from lamina.nn.embedding import Embedded
from lamina.nn.feed_forward import FeedForward
from lamina.nn.layout import AnyLayout, Layout
from lamina.nn.mixing import Lower, StackMixing, with_lower
from lamina.nn.recomputing import computed_again
from lamina.nn.residual import PreNorm
from lamina.nn.subset import begins_with_norm, lay_out_part, put, put_begun, take, take_and_norm
from lamina.packed import Places, Subset


class StackOutput(NamedTuple):
    """What a stack offers to its readers."""

    final: Tensor  # (B, T, D), after the stack's last norm, if it has one
    states: tuple[Tensor | None, ...]  # raw, the stack's input first; None where it is not read
    embedding: Tensor  # (B, T, D), scaled token vectors without positions


def split_output(output: StackOutput, sizes: Sequence[int]) -> Iterator[StackOutput]:
    """Groups of so many rows each."""
    def parts(tensor: Tensor | None) -> Sequence[Tensor | None]:
        return [None] * len(sizes) if tensor is None else tensor.split(list(sizes))

    states = zip(*map(parts, output.states), strict=True)
    for final, own, embedding in zip(parts(output.final), states, parts(output.embedding), strict=True):
        yield StackOutput(final, own, embedding)  # type: ignore[arg-type]


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

    def forward(self, x: Any, layout: AnyLayout, kept: Subset | None = None, passed: Tensor | None = None) -> Any:
        """With `kept`, for these sentences alone: put back among all of `passed`, where the others stay as they are.

        Without `passed`, x is theirs already, and so is the result.
        """
        if kept is None:
            return self._all(x, layout)
        return _in_part(self._all, self.attn_residual, x, kept.own, passed, lay_out_part(layout, kept.own))

    def _all(self, x: Any, layout: AnyLayout, **known: Tensor) -> Any:
        return self._run(x, lambda x, lower: self.attention(x, layout, lower=lower), **known)

    def _run(self, x: Any, attend: Callable[[Tensor, Lower | None], Tensor], **known: Tensor) -> Any:
        """Tensors, or what the stack's mixing makes of them (nn/mixing.py)."""
        def run(x: Any, lower: Lower | None) -> Any:
            return self.ffn_residual(self.attn_residual(x, lambda x: attend(x, lower), x, **known), self.ffn, x)

        return with_lower(x, run)


class CausalLayer(EncoderLayer):
    """A decoder layer that reads nothing but its own past."""

    def _all(self, x: Any, layout: AnyLayout, **known: Tensor) -> Any:
        return self._run(x, lambda x, lower: self.attention.causal(x, layout, lower), **known)

    def read(self, x: Tensor, past: KeyValues) -> Tensor:
        """The first tokens of each text, which its beams share. x: (B, T, D)"""
        return self._run(x, lambda x, lower: self.attention.read(x, past, lower))

    def step(self, x: Tensor, past: KeyValues, turn: Turn) -> Tensor:
        """The next token of each beam. x: (B, K, D)"""
        return self._run(x, lambda x, lower: self.attention.step(x, past, turn, lower))


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

    def forward(self, x: Any, layout: AnyLayout, memory: Tensor, memory_layout: AnyLayout, kept: Subset | None = None,
                passed: Tensor | None = None) -> Any:
        """With `kept`, for these sentences alone, as in EncoderLayer; the others' keys and values are not projected."""
        if kept is None:
            return self._all(x, layout, memory, memory_layout)
        return _in_part(self._all, self.attn_residual, x, kept.own, passed, lay_out_part(layout, kept.own),
                        take(memory, kept.memory), lay_out_part(memory_layout, kept.memory))

    def _all(self, x: Any, layout: AnyLayout, memory: Tensor, memory_layout: AnyLayout, **known: Tensor) -> Any:
        projected = self.cross_attention.project(memory)
        return self._run(x, lambda x, lower: self.attention.causal(x, layout, lower),
                         lambda x: self.cross_attention(x, projected, memory_layout, layout), **known)

    def step(self, x: Tensor, cache: LayerCache, turn: Turn, memory_layout: Layout) -> Tensor:
        """The next token of each beam. x: (B, K, D)"""
        return self._run(x, lambda x, lower: self.attention.step(x, cache.past, turn, lower),
                         lambda x: self.cross_attention.step(x, cache.memory, memory_layout))

    def _run(self, x: Any, attend: Callable[[Tensor, Lower | None], Tensor], read: Callable[[Tensor], Tensor],
             **known: Tensor) -> Any:
        """Tensors, or what the stack's mixing makes of them (nn/mixing.py)."""
        def run(x: Any, lower: Lower | None) -> Any:
            attended = self.cross_residual(self.attn_residual(x, lambda x: attend(x, lower), x, **known), read, x)
            return self.ffn_residual(attended, self.ffn, x)

        return with_lower(x, run)


def _in_part(run: Callable[..., Any], first: nn.Module, x: Any, places: Places, passed: Tensor | None, *others: Any) -> Any:
    """run(what `places` take of x, *others), put back among all of `passed`; a Pre-LN layer's first norm comes with taking."""
    if passed is None:
        return run(x, *others)
    norm = first.norm if type(first) is PreNorm else None
    if type(norm) is nn.LayerNorm and begins_with_norm(x, places, norm):
        begun = take_and_norm(x, places, norm)
        return put_begun(begun, run(begun.own, *others, normed=begun.normed), places)
    return put(passed, run(take(x, places), *others), places)


# How to run one layer: call(layer, its index, the stream so far), or for some sentences alone call(.., which, what they pass).
LayerCall = Callable[..., Any]


class LayerStack(nn.Module):
    """Layers in order; a sentence, or a whole batch, that leaves a layer out passes it unchanged (Fan et al. 2020).

    With a `mixing`, a layer reads what that makes of the states and layers below it (nn/mixing.py).
    With `recomputes`, training keeps each layer's input alone and computes the rest again for the gradient, with the same
    dropout (Chen et al. 2016, §4).
    """

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None, kept_states: Collection[int] = (),
                 mixing: StackMixing | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.mixing = mixing
        self.kept_states = frozenset(kept_states)
        self.recomputes = False

    def forward(self, embedded: Embedded, call: LayerCall, active: Sequence[bool | Subset] | None = None) -> StackOutput:
        assert active is None or len(active) == len(self.layers), "a yes, a no or a subset for each layer"
        x, mixing = embedded.input, self.mixing
        states, below = [self._kept(0, x)], None if mixing is None else mixing.begin(x)
        if self.recomputes and self.training and torch.is_grad_enabled():
            call = _recomputed(call)
        for index, layer in enumerate(self.layers):
            # Identity, not absence: states[i + 1] is always the output of layer i, so readers need no special case.
            kept = True if active is None else active[index]
            if mixing is None:
                if kept is not False:
                    x = call(layer, index, x, kept, x) if isinstance(kept, Subset) else call(layer, index, x)
            elif isinstance(kept, Subset):
                own = mixing.part(mixing.read(below, layer, index), kept.own)
                mixing.note_part(below, index, call(layer, index, own, kept, None), kept.own)
            elif kept:
                mixing.note(below, index, call(layer, index, mixing.read(below, layer, index)))
            else:
                mixing.skip(below, index)
            if mixing is not None and index + 1 in self.kept_states:
                x = mixing.state(below)
            states.append(self._kept(index + 1, x))
        if mixing is not None:
            x = mixing.final(below, len(self.layers))
        return StackOutput(x if self.norm is None else self.norm(x), tuple(states), embedded.tokens)

    def _kept(self, index: int, x: Tensor) -> Tensor | None:
        return x if index in self.kept_states else None


def _recomputed(call: LayerCall) -> LayerCall:
    if not DRAWS.is_on:
        return lambda *arguments: computed_again(call, *arguments, keeps_generator=True)

    # A generator cannot be set back inside a CUDA graph. So each layer draws a seed, and all else it draws follows from that.
    def counted(seed: Tensor, *arguments: Any) -> Any:
        with drawing_from(seed):
            return call(*arguments)

    def recomputed(layer: nn.Module, *arguments: Any) -> Any:
        seed = torch.randint(2**62, (1,), device=next(layer.parameters()).device)
        return computed_again(counted, seed, layer, *arguments)

    return recomputed


def stacks_of(model: nn.Module) -> dict[str, LayerStack]:
    """By their names in the model; the encoder first, where there are two."""
    return {name: part for name, part in model.named_modules() if isinstance(part, LayerStack)}

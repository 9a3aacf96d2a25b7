"""What the layers of a stack read of those below them, besides the one just below: the contract of a stack's mixing.

A stack asks its mixing: `begin` once for each pass, `read` before a layer, `note` after it or `skip` instead of it, `final` at
the end. All of it works position by position, so stepwise decoding needs no cache of its own for it.
"""

# B batch, T tokens (or K beams), D model_dim

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lamina.errors import CheckpointError, ConfigError
from lamina.nn.recomputing import computed_again
from lamina.nn.subset import put, take
from lamina.packed import Places

INPUT = "input"
OUTPUT = "output"


def layer_name(number: int) -> str:
    """Of a layer, counted from 1 as people do."""
    return f"layer {number}"


class DepthWeights(NamedTuple):
    """How much each reader takes of each column; NaN where it cannot read it."""

    readers: tuple[str, ...]
    columns: tuple[str, ...]
    weights: Tensor  # (readers, columns)
    meaning: str  # of a weight, in a sentence without its full stop


class StackMixing(nn.Module):
    """The simplest kind reads states: it is called as mixing(states, index) for what layer `index` reads.

    `states` holds the stack's input and the outputs of the layers below; a layer that does not run hands its input on. With
    `index` the number of layers, it is asked for what the stack hands on. Other kinds override more.
    """

    def begin(self, x: Tensor) -> Any:
        """What is kept during a pass. x: the stack's input, (B, T, D)"""
        return [x]

    def read(self, kept: Any, layer: Any, index: int) -> Any:
        """What the layer is called with."""
        return self(kept, index)

    def note(self, kept: Any, index: int, output: Any) -> None:
        """What the layer put out."""
        kept.append(output)

    def skip(self, kept: Any, index: int) -> None:
        """The layer does not run."""
        kept.append(kept[-1])

    def part(self, read: Any, places: Places) -> Any:
        """What some sentences alone read."""
        return take(read, places)

    def note_part(self, kept: Any, index: int, output: Any, places: Places) -> None:
        """What the layer put out for some sentences; the others do not run it."""
        if type(self).note is not StackMixing.note:
            raise ConfigError(f"{type(self).__name__} does not say what a layer notes that some sentences leave out: give it "
                              "`part` and `note_part` (lamina.nn.mixing.StackMixing), or take --layerdrop-draws batch.")
        kept.append(put(kept[-1], output, places))

    def state(self, kept: Any) -> Tensor:
        """The stream after the layers so far, for those who read states of the stack. (B, T, D)"""
        state: Tensor = kept[-1]
        return state

    def final(self, kept: Any, num_layers: int) -> Tensor:
        """What the stack hands on, ahead of its last norm. (B, T, D)"""
        mixed: Tensor = self(kept, num_layers)
        return mixed

    def watch_(self, stack: Any, is_token: Callable[[], Tensor] | None) -> None:
        """For analyses: from now on, keep of each pass what `read_weights` needs, where weights depend on the tokens.

        `is_token` says where the text that runs has tokens, (B, T); None: keep nothing more.
        """

    def read_weights(self, stack: Any) -> DepthWeights:
        """For analyses."""
        raise CheckpointError(f"{type(self).__name__} does not say how much each layer reads of those below: give it "
                              "`read_weights` (lamina.nn.mixing.StackMixing).")


class Reads(NamedTuple):
    """The stream, and what a layer's attention reads of lower layers' keys and values; from a layer, what it offers others."""

    stream: Tensor
    below: Tensor | None
    has_below: Tensor | None = None  # (B, T, 1): where there is something below; None: everywhere


class Lower:
    """The same while a layer runs: its attention reads `below` and leaves what it offers."""

    def __init__(self, below: Tensor | None, has_below: Tensor | None) -> None:
        self.below = below
        self.has_below = has_below
        self.offered: Tensor | None = None

    def where_there_is(self, mixed: Tensor, alone: Tensor) -> Tensor:
        return mixed if self.has_below is None else torch.where(self.has_below, mixed, alone)


def with_lower(x: Any, run: Callable[[Any, Lower | None], Any]) -> Any:
    """How a layer runs whose attention may read lower layers: run(stream, lower)."""
    if not isinstance(x, Reads):
        return run(x, None)
    lower = Lower(x.below, x.has_below)
    return Reads(run(x.stream, lower), lower.offered)


def recomputed(function: Callable[..., Any], *inputs: Any) -> Any:
    """The result alone is kept for the gradient: what a mix stacks up on the way is as large as all states together."""
    if not torch.is_grad_enabled():
        return function(*inputs)
    return computed_again(function, *inputs)

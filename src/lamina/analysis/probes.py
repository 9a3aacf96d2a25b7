"""Hooks that watch a model run: what each residual adds up, and what each layer puts out."""

# B batch, T tokens, N tokens that are no padding, D model_dim

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from lamina.errors import CheckpointError
from lamina.nn.embedding import InputEmbedding
from lamina.nn.layout import Layout
from lamina.nn.residual import Add, PostNorm, PreNorm
from lamina.nn.stack import StackOutput, stacks_of


@dataclass(frozen=True)
class Sum:
    """One residual at work: what it added."""

    stream: Tensor  # (N, D), as it came in
    shortcut_scale: Tensor | float
    branch: Tensor  # (N, D), scaled as it went into the sum
    norm: nn.LayerNorm | None  # applied to the sum; None in Pre-LN and where there is none
    returns_input: int = 0  # how many sub-layers ago, itself included, the stream was what it holds once more; 0: it does not

    @property
    def shortcut(self) -> Tensor:
        return self.stream * self.shortcut_scale

    @property
    def total(self) -> Tensor:
        return self.shortcut + self.branch

    @property
    def output(self) -> Tensor:
        return self.total if self.norm is None else self.norm(self.total)

    def normalised(self, part: Tensor) -> Tensor:
        """What becomes of a part of the sum: but for its bias, LayerNorm is linear once its statistics are the whole's."""
        if self.norm is None:
            return part
        spread = (self.total.var(dim=1, correction=0, keepdim=True) + self.norm.eps).sqrt()
        return self.norm.weight * (part - part.mean(dim=1, keepdim=True)) / spread


def _scales(add: nn.Module) -> tuple[Tensor | float, Tensor | float]:
    """Of the shortcut and of the branch, as the sum itself says."""
    if not isinstance(add, Add):
        raise CheckpointError(f"sums of {type(add).__name__} do not say how they scale shortcut and branch: let the class "
                              "inherit from lamina.nn.residual.Add and answer `scales`.")
    return add.scales()


class _Tokens:
    """Where the text of the stack that runs has tokens, and no padding; its embedding saw it last. (B, T)"""

    mask: Tensor

    def hooks(self, model: nn.Module) -> list[Any]:
        def embed(_: nn.Module, inputs: tuple[Tensor, Layout]) -> None:
            self.mask = ~inputs[1].is_pad

        return [part.register_forward_pre_hook(embed) for part in model.modules() if isinstance(part, InputEmbedding)]


@contextmanager
def watch_sums(model: nn.Module) -> Iterator[dict[str, list[Sum]]]:
    """While it lasts, each forward pass fills in the sums of each stack, in order; padding is left out."""
    found: dict[str, list[Sum]] = {}
    tokens, current = _Tokens(), PostNorm(nn.Identity(), nn.Identity(), 0.0)
    sums: list[Sum] = []

    def enter_stack(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            nonlocal sums
            sums = found[name] = []
        return hook

    def enter_residual(residual: PostNorm, _: Any) -> None:
        nonlocal current
        current = residual

    def add(part: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        stream, branch = (one[tokens.mask] for one in inputs)
        shortcut_scale, branch_scale = _scales(part)
        is_normed = not isinstance(current, PreNorm) and isinstance(current.norm, nn.LayerNorm)
        sums.append(Sum(stream, shortcut_scale, branch * branch_scale,
                        current.norm if is_normed else None, current.returns_input))  # type: ignore[arg-type]

    hooks = tokens.hooks(model)
    for name, stack in stacks_of(model).items():
        residuals = [part for part in stack.modules() if isinstance(part, PostNorm)]
        others = {type(residual).__name__ for layer in stack.layers for part, residual in layer.named_children()
                  if part.endswith("_residual") and not isinstance(residual, PostNorm)}
        if others:
            raise CheckpointError(f"the residuals of the {name} are of a kind ({', '.join(sorted(others))}) whose sums cannot "
                                  "be looked into: only norm and sum in one of two orders can (PostNorm and PreNorm in "
                                  "lamina.nn.residual, and classes that inherit from them).")
        hooks.append(stack.register_forward_pre_hook(enter_stack(name)))
        hooks += [residual.register_forward_pre_hook(enter_residual) for residual in residuals]
        # Once each: the sub-layers of a ReZero layer share one.
        hooks += [part.register_forward_pre_hook(add) for part in dict.fromkeys(residual.add for residual in residuals)]
    with _until_removed(hooks):
        yield found


@contextmanager
def watch_layers(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """While it lasts, the outputs of each stack's layers, by stack; they keep their gradients. (B, T, D) each"""
    outputs: dict[str, list[Tensor]] = {name: [] for name in stacks_of(model)}

    def keep(found: list[Tensor]) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            if output.requires_grad:
                output.retain_grad()
            found.append(output)
        return hook

    hooks = [layer.register_forward_hook(keep(outputs[name]))
             for name, stack in stacks_of(model).items() for layer in stack.layers]
    with _until_removed(hooks):
        yield outputs


class LayerStates(NamedTuple):
    """What a stack's layers read and put out, in order; padding is left out. (N, D) each"""

    inputs: list[Tensor]
    outputs: list[Tensor]


@contextmanager
def watch_layer_states(model: nn.Module) -> Iterator[dict[str, LayerStates]]:
    """While it lasts, what enters and leaves each layer, by stack."""
    found = {name: LayerStates([], []) for name in stacks_of(model)}
    tokens = _Tokens()

    def keep(states: LayerStates) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            after = output[0] if isinstance(output, tuple) else output
            if not isinstance(inputs[0], Tensor):
                raise CheckpointError("the layers of this model hand on several tensors, so there is no state before and after "
                                      "each to compare. Take --importance loss, or the search without --importance.")
            states.inputs.append(inputs[0][tokens.mask])
            states.outputs.append(after[tokens.mask])
        return hook

    hooks = [layer.register_forward_hook(keep(found[name]))
             for name, stack in stacks_of(model).items() for layer in stack.layers]
    with _until_removed([*tokens.hooks(model), *hooks]):
        yield found


@contextmanager
def watch_final(model: nn.Module, stack: nn.Module) -> Iterator[list[Tensor]]:
    """While it lasts, what each pass through one of the model's stacks puts out; padding is left out. (N, D) each"""
    finals: list[Tensor] = []
    tokens = _Tokens()

    def keep(_: nn.Module, __: Any, output: StackOutput) -> None:
        finals.append(output.final[tokens.mask])

    with _until_removed([*tokens.hooks(model), stack.register_forward_hook(keep)]):
        yield finals


@contextmanager
def _until_removed(hooks: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

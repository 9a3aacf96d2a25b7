"""Admin's omegas before step 0: measured on data, or from the number of sub-layers alone (Liu et al. 2020)."""

# B batch, T tokens, D model_dim

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lamina.errors import ConfigError, DataError
from lamina.nn.attention import SelfAttention
from lamina.nn.embedding import InputEmbedding
from lamina.nn.layout import AnyLayout
from lamina.nn.mixing import Lower
from lamina.nn.residual import OmegaAdd
from lamina.nn.stack import stacks_of

# Per stack, by its name in the model and in the order of its sub-layers: what each omega is filled with.
Profile = dict[str, list[float]]


def omegas(stack: nn.Module) -> list[OmegaAdd]:
    """In the order in which they take part: layer by layer, and in a layer as they are called."""
    return [part for part in stack.modules() if isinstance(part, OmegaAdd)]


@torch.no_grad()
def fill_closed_form_(stack: nn.Module) -> None:
    """One omega for all, from the number of residual branches: what the authors' later code uses instead of a profile."""
    adds = omegas(stack)
    for add in adds:
        add.omega.fill_(closed_form_omega(len(adds)))


def closed_form_omega(num_branches: int) -> float:
    return math.sqrt((num_branches + 1) / math.log(num_branches + 1) - 1)


@torch.no_grad()
def profile_omegas_(model: nn.Module, forwards: Iterable[Callable[[], object]], *, counts_pads: bool = False) -> Profile:
    """Watch the model run once a batch, fill each omega with the spread accumulated before it, and say with what.

    Within a stack the ratio starts at 1; each sub-layer takes it as its omega, and hands on the square root of what the
    variances of shortcut and branch sum up to (Admin §4.3). It takes effect as the batch proceeds, so one pass is enough.
    Over several batches the squares are averaged: they are sums of variances, which ratios are not.
    """
    squares: dict[str, list[Tensor]] = {}
    with _watching(model, counts_pads=counts_pads) as found:
        for forward in forwards:
            forward()
            for name, ratios in found.items():
                squares.setdefault(name, []).append(torch.stack(ratios).double().square())
    profile = {name: torch.stack(rows).mean(dim=0).sqrt().tolist() for name, rows in squares.items()}
    set_omegas_(model, profile)
    return profile


@contextmanager
def _watching(model: nn.Module, *, counts_pads: bool) -> Iterator[dict[str, list[Tensor]]]:
    """While it lasts, each omega is filled as its turn comes; gives the ratios of the current batch, by stack."""
    found: dict[str, list[Tensor]] = {}
    ratios: list[Tensor] = []
    following, is_token = torch.ones(()), torch.empty(0, dtype=torch.bool)

    def embed(_: nn.Module, inputs: tuple[Tensor, AnyLayout]) -> None:
        nonlocal is_token
        is_token = ~inputs[1].is_pad

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            nonlocal ratios, following
            ratios = found[name] = []
            following = torch.ones((), device=is_token.device)
        return hook

    def fill(add: OmegaAdd, inputs: tuple[Tensor, Tensor]) -> None:
        nonlocal following
        # Deviates from the authors' code unless asked to: without pads, the batch's shape does not matter.
        shortcut, branch = inputs if counts_pads else (part[is_token] for part in inputs)
        add.omega.fill_(following)
        ratios.append(following)
        following = ((add.omega * shortcut).var(correction=0) + branch.var(correction=0)).sqrt()

    # Only where pads count does it matter what they see: as in fairseq, no padded key.
    attentions = [part for part in model.modules() if isinstance(part, SelfAttention)] if counts_pads else []
    for part in attentions:
        part.causal = _causal_among_tokens(part, lambda: is_token)  # type: ignore[method-assign, assignment]
    hooks = [part.register_forward_pre_hook(embed) for part in model.modules() if isinstance(part, InputEmbedding)]
    for name, stack in stacks_of(model).items():
        hooks.append(stack.register_forward_pre_hook(enter(name)))
        hooks += [add.register_forward_pre_hook(fill) for add in omegas(stack)]
    try:
        yield found
    finally:
        for handle in hooks:
            handle.remove()
        for part in attentions:
            del part.causal  # type: ignore[method-assign]


def _causal_among_tokens(attention: SelfAttention, is_token: Callable[[], Tensor]) -> Callable[..., Tensor]:
    def causal(x: Tensor, _: AnyLayout, lower: Lower | None = None) -> Tensor:
        query, key, value = map(attention.split, attention.project(x, lower).chunk(3, dim=2))
        is_past = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()
        return attention.attend(query, key, value, may_attend=is_past & is_token()[:, None, None, :])
    return causal


@torch.no_grad()
def set_omegas_(model: nn.Module, profile: Profile) -> None:
    stacks = stacks_of(model)
    for name, values in profile.items():
        for add, value in zip(omegas(stacks[name]), values, strict=True):
            add.omega.fill_(value)


def profile_to_text(profile: Profile) -> str:
    """The references' profile.ratio.init: a line `number ratio` a sub-layer, counted from 1 in each stack, encoder first."""
    return "".join(f"{number} {ratio}\n" for ratios in profile.values() for number, ratio in enumerate(ratios, start=1))


def profile_from_text(text: str, model: nn.Module, name: str) -> Profile:
    """The reverse, for a model that it must fit; `name` is what messages call the file."""
    found: list[list[float]] = []
    for line_number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        try:
            number, ratio = int(words[0]), float(words[1])
            is_line = len(words) == 2 and math.isfinite(ratio) and ratio > 0
        except (ValueError, IndexError):
            is_line = False
        if not is_line:
            raise DataError(f"{name}, line {line_number}: expected the number of a sub-layer and a ratio above 0, such as "
                            f"`1 1.0`, found {line!r}.")
        if number == 1:
            found.append([])
        if not found or number != len(found[-1]) + 1:
            wanted = f"{len(found[-1]) + 1} or 1" if found else "1"
            raise DataError(f"{name}, line {line_number}: expected sub-layer {wanted}, found {number}.")
        found[-1].append(ratio)
    wanted_counts = {stack: len(omegas(part)) for stack, part in stacks_of(model).items()}
    if [len(ratios) for ratios in found] != list(wanted_counts.values()):
        theirs = " and ".join(str(len(ratios)) for ratios in found) or "none"
        ours = " and ".join(f"{count} in the {stack}" for stack, count in wanted_counts.items())
        raise ConfigError(f"{name} does not fit the model: it has ratios for {theirs} sub-layers, the model has {ours}. Set "
                          "--encoder-layers and --decoder-layers as they were when it was written, or profile again with "
                          "--init-type adaptive-profiling.")
    return dict(zip(wanted_counts, found, strict=True))

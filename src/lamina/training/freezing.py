"""Weights that training leaves as they are (--freeze)."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Collection, Sequence

from torch import nn

from lamina.errors import ConfigError


def freeze_(model: nn.Module, patterns: Sequence[str], note: Callable[[str], object]) -> None:
    """Take `requires_grad` from the parameters that these patterns name; a pattern that names none is an error.

    A shared parameter may be named by any of its names.
    """
    if not patterns:
        return
    named = dict(model.named_parameters(remove_duplicate=False))
    wanted = {name for pattern in patterns for name in matching(pattern, named, "freeze")}
    for name in wanted:
        named[name].requires_grad_(False)
    everything = list(model.parameters())
    frozen = [parameter for parameter in everything if not parameter.requires_grad]
    if len(frozen) == len(everything):
        raise ConfigError(f"--freeze {','.join(patterns)} leaves nothing to train. Freeze less.")
    sizes = [sum(parameter.numel() for parameter in several) for several in (frozen, everything)]
    note(f"frozen: {len(frozen)} of {len(everything)} weights, {sizes[0]:,} of {sizes[1]:,} parameters")
    for name in sorted(wanted):
        others = sorted(other for other, parameter in named.items() if parameter is named[name] and other not in wanted)
        if others:
            note(f"{name} is shared: {' and '.join(others)} {'is' if len(others) == 1 else 'are'} frozen with it")


def matching(pattern: str, names: Collection[str], option: str) -> list[str]:
    """The names that a pattern with * and ? matches, or those below it, as everything in a layer is below the layer's name."""
    found = fnmatch.filter(names, pattern) or fnmatch.filter(names, f"{pattern}.*")
    if not found:
        known = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
        close = difflib.get_close_matches(pattern, sorted(known), n=3, cutoff=0.6)
        parts = sorted({name.partition(".")[0] for name in names})
        hint = f"Did you mean {' or '.join(close)}?" if close else f"They begin with {', '.join(parts)}."
        raise ConfigError(f"--{option} {pattern} names none of the model's weights. {hint} `lamina info CHECKPOINT --weights` "
                          "lists those of a checkpoint.")
    return found

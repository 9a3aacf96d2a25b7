"""The layers of a model that a depth names."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from lamina.config.chosen_depth import Depth
from lamina.config.keep import SIDES
from lamina.errors import ConfigError
from lamina.nn.stack import ActiveLayers, stacks_of


def stack_sizes(model: nn.Module) -> dict[str, int]:
    """The number of layers of each stack; 0 of one that the model lacks."""
    return dict.fromkeys(SIDES, 0) | {name: len(stack.layers) for name, stack in stacks_of(model).items()}


def active_layers(depth: Depth, models: Sequence[nn.Module]) -> ActiveLayers:
    """Layers to run in each stack, the same in all models of an ensemble; None where all of them run."""
    sizes, *others = map(stack_sizes, models)
    chosen = {side: depth.layers(side, sizes[side]) for side in SIDES}
    if any(len(layers) < sizes[side] for side, layers in chosen.items()) and any(other != sizes for other in others):
        raise ConfigError("the models of this ensemble differ in depth, so no choice of layers means the same in all of them. "
                          "Ask for full depth.")
    return ActiveLayers(**{side: None if len(layers) == sizes[side] else tuple(layer in layers for layer in range(sizes[side]))
                           for side, layers in chosen.items()})


def layer_counts(active: ActiveLayers, model: nn.Module) -> dict[str, int]:
    """How many layers of each stack run."""
    own = {"encoder": active.encoder, "decoder": active.decoder}
    return {side: size if (chosen := own[side]) is None else sum(map(bool, chosen))
            for side, size in stack_sizes(model).items()}

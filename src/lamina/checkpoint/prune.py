"""A smaller model out of a trained one: some of its layers, renumbered, and everything else as it was.

A pruned model computes what the whole one computes with the other layers skipped. All here is pure: configuration and
weights in, configuration and weights out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lamina.checkpoint.format import Checkpoint
from lamina.config.fields import flatten
from lamina.config.keep import SIDES, KeepConfig, kept_layers, record_text, was_kept
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError, ConfigError

# To the letter: people's scripts look for it, with "| " in front.
PRUNING_LINE = "Pruning model to specified layer configuration"

# What the whole model scored is no mark for the pruned one: it would never be the best.
_NO_SCORES = {"best": None, "stale_validations": 0}
# Other settings of a model that pruning changes, by flag.
_FOLLOWING = ("deepnet-layers",)
_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)")


class Keep(NamedTuple):
    """The layers to keep of each stack, ascending; None: all of them."""

    encoder: tuple[int, ...] | None = None
    decoder: tuple[int, ...] | None = None


def prune(config: ModelConfig, weights: Mapping[str, Tensor], keep: Keep) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model of the kept layers. Tensors are handed on, not copied."""
    return _pruned_config(config, keep), _kept(weights, keep)


def _pruned_config(config: ModelConfig, keep: Keep) -> ModelConfig:
    if keep == Keep():
        return config
    config = config.with_trained_depths()
    for side, layers in zip(SIDES, keep, strict=True):
        if layers is not None:
            config = replace(config, **{side: replace(getattr(config, side), num_layers=len(layers))})
    return config


def _kept(tensors: Mapping[str, Tensor], keep: Keep) -> dict[str, Tensor]:
    kept = {}
    for name, tensor in tensors.items():
        match = _LAYER.fullmatch(name)
        layers = getattr(keep, match[1]) if match else None
        if match is None or layers is None:
            kept[name] = tensor
        elif int(match[2]) in layers:
            kept[f"{match[1]}.layers.{layers.index(int(match[2]))}.{match[3]}"] = tensor
    return kept


def prune_config(config: ModelConfig, wanted: KeepConfig) -> tuple[ModelConfig, dict[str, str]]:
    """A configuration for the wanted layers, and what to note down of it, by flag; nothing where all layers stay."""
    keep = chosen_layers(config, wanted)
    return _pruned_config(config, keep), _records(config, keep)


def chosen_layers(config: ModelConfig, wanted: KeepConfig, owner: str = "") -> Keep:
    """What the texts mean for a model of this depth; a side that stays whole is None."""
    chosen: dict[str, tuple[int, ...]] = {}
    for side in SIDES:
        text, depth = getattr(wanted, side), getattr(config, side).num_layers
        layers = None if text is None else kept_layers(text, depth, side, owner)
        if layers is not None and len(layers) < depth:
            chosen[side] = layers
    return Keep(**chosen)


def prune_checkpoint(checkpoint: Checkpoint, keep: Keep) -> Checkpoint:
    """The whole file, the optimizer's memory of the kept layers included."""
    if "folded" in checkpoint.training:
        raise CheckpointError("the checkpoint was folded: what a layer hands on is scaled for the layer after it, so none can "
                              "be taken out. Prune the model as it was trained, and fold the result.")
    config = checkpoint.model_config()
    pruned, weights = prune(config, checkpoint.weights, keep)
    training = dict(checkpoint.training)
    if "optimizer" in training:
        training["optimizer"] = {name: _kept_moments(value, weights, keep) if isinstance(value, dict) else value
                                 for name, value in training["optimizer"].items()}
    if "progress" in training:
        training["progress"] = training["progress"] | _NO_SCORES
    return replace(checkpoint, config=checkpoint.config | flatten(pruned) | _records(config, keep), weights=weights,
                   training=training, metrics={})


def _kept_moments(moments: Mapping[str, Tensor], weights: Mapping[str, Tensor], keep: Keep) -> dict[str, Tensor]:
    """What the optimizer remembers of each weight; zero for those that pruning gave another shape."""
    return {name: value if value.shape == weights[name].shape else torch.zeros_like(weights[name])
            for name, value in _kept(moments, keep).items()}


def _records(config: ModelConfig, keep: Keep) -> dict[str, str]:
    return {f"{side}-layers-to-keep": record_text(layers, getattr(config, side).num_layers)
            for side, layers in zip(SIDES, keep, strict=True) if layers is not None}


def structure_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What pruning decided about a checkpoint's model, by flag; nothing for one that was never pruned."""
    records = {name: text for side in SIDES if (text := checkpoint.config.get(name := f"{side}-layers-to-keep")) is not None}
    if not records:
        return {}
    flat = flatten(checkpoint.model_config())
    depths = [record.removesuffix("-to-keep") for record in records]
    return records | {name: flat[name] for name in (*depths, *_FOLLOWING) if name in flat}


def prune_on_loading(checkpoint: Checkpoint, wanted: KeepConfig, path: Path | str, *, say: Callable[[str], object],
                     warn: Callable[[str], object]) -> Checkpoint:
    """A checkpoint with only the wanted layers; one that was pruned to them before is left as it is."""
    def is_done(side: str) -> bool:
        text, record = getattr(wanted, side), checkpoint.config.get(f"{side}-layers-to-keep")
        return text is not None and record is not None and was_kept(text, record, side)

    for side in SIDES:
        if getattr(wanted, side) is not None and not any(name.startswith(f"{side}.layers.") for name in checkpoint.weights):
            raise ConfigError(f"--{side}-layers-to-keep cannot be: the {checkpoint.task} model {path} has no {side}.")
    wanted = replace(wanted, **{side: None for side in SIDES if is_done(side)})
    config = checkpoint.model_config()
    keep = chosen_layers(config, wanted, str(path))
    if keep == Keep():
        return checkpoint
    say(PRUNING_LINE)
    for side, layers in zip(SIDES, keep, strict=True):
        if layers is not None and not getattr(config, side).layer_drop_p:
            warn(f"{path} was trained without --{side}-layerdrop: its {side} has not learned to do without layers, so expect "
                 "much worse results until it is trained further")
    return prune_checkpoint(checkpoint, keep)

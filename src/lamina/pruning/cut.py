"""A smaller model out of a trained one: some of its layers, renumbered, and everything else as it was.

A pruned model computes what the whole one computes with the other layers skipped. All here is pure: configuration and
weights in, configuration and weights out; what there is to say goes to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from lamina.checkpoint.format import Checkpoint
from lamina.checkpoint.marks import layers_as_trained
from lamina.config.drop_rates import schedule_of_layers
from lamina.config.keep import SIDES, KeepConfig, kept_layers, layers_of_record, record_text, was_kept
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError, ConfigError
from lamina.fields import flatten

# To the letter: people's scripts look for it, with "| " in front.
PRUNING_LINE = "Pruning model to specified layer configuration"

# What the whole model scored is no mark for the pruned one: it would never be the best.
_NO_SCORES = {"best": None, "stale_validations": 0}
_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)")


class Keep(NamedTuple):
    """The layers to keep of each stack, ascending; None: all of them."""

    encoder: tuple[int, ...] | None = None
    decoder: tuple[int, ...] | None = None


class Cut(NamedTuple):
    """Which layers stay, as parts are asked about it: indices, ascending, of stacks that had so many."""

    encoder: tuple[int, ...]
    decoder: tuple[int, ...]
    num_encoder: int
    num_decoder: int

    @property
    def is_encoder_cut(self) -> bool:
        return len(self.encoder) < self.num_encoder

    @property
    def is_decoder_cut(self) -> bool:
        return len(self.decoder) < self.num_decoder

    def encoder_state(self, state: int) -> int:
        """The same state of the pruned stack: a layer that is gone passed on what came from the last kept one below it."""
        return sum(layer < state for layer in self.encoder)

    def decoder_state(self, state: int) -> int:
        return sum(layer < state for layer in self.decoder)


def _cut(config: ModelConfig, keep: Keep) -> Cut:
    depths = [getattr(config, side).num_layers for side in SIDES]
    encoder, decoder = (tuple(range(depth)) if layers is None else layers for depth, layers in zip(depths, keep, strict=True))
    return Cut(encoder, decoder, *depths)


def prune(config: ModelConfig, weights: Mapping[str, Tensor], keep: Keep) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model of the kept layers. Tensors are handed on, not copied."""
    kept, pruned = _kept(weights, keep), _pruned_config(config, keep)
    if keep == Keep():
        return pruned, kept
    for part in (config.fusion, config.mixing):
        part.prune_weights_(kept, _cut(config, keep))
    if not (pruned.fusion.reads_final or pruned.surface.reads_final):
        # The decoder layers that read the encoder's output are gone, and so is what made it.
        makers = ("encoder.norm.", *(f"encoder.mixing.{name}" for name in config.mixing.output_weights))
        kept = {name: weight for name, weight in kept.items() if not name.startswith(makers)}
    return pruned, kept


def _pruned_config(config: ModelConfig, keep: Keep) -> ModelConfig:
    if keep == Keep():
        return config
    config = config.with_trained_depths()
    cut = _cut(config, keep)
    return replace(config, init=config.init.pruned(cut),
                   layer_drop_schedule=schedule_of_layers(config.layer_drop_schedule, (cut.encoder, cut.decoder)),
                   encoder=replace(config.encoder, num_layers=len(cut.encoder)),
                   decoder=replace(config.decoder, num_layers=len(cut.decoder)), fusion=config.fusion.pruned(cut),
                   surface=config.surface.pruned(cut), mixing=config.mixing.pruned(cut))


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
    keep = _chosen({side: getattr(config, side).num_layers for side in SIDES}, wanted, "")
    return _pruned_config(config, keep), _records(config, keep)


def _chosen(depths: Mapping[str, int], wanted: KeepConfig, owner: str) -> Keep:
    """What the texts mean for stacks of these depths; a side that stays whole is None."""
    chosen: dict[str, tuple[int, ...]] = {}
    for side in SIDES:
        text = getattr(wanted, side)
        if text is None:
            continue
        layers = kept_layers(text, depths[side], side, owner)
        if len(layers) < depths[side]:
            chosen[side] = layers
    return Keep(**chosen)


def stack_depths(checkpoint: Checkpoint) -> dict[str, int]:
    """Layers of each stack; 0 where a model has no such stack, whatever its configuration says of it."""
    config = checkpoint.model_config()
    return {side: getattr(config, side).num_layers if any(name.startswith(f"{side}.layers.") for name in checkpoint.weights)
            else 0 for side in SIDES}


def chosen_layers(checkpoint: Checkpoint, wanted: KeepConfig, path: Path | str) -> Keep:
    """The layers that the texts name; a side that stays whole is None."""
    depths = stack_depths(checkpoint)
    for side in SIDES:
        if getattr(wanted, side) is not None and not depths[side]:
            raise ConfigError(f"--{side}-layers-to-keep has no effect: the {checkpoint.task} model {path} has no {side}. Leave "
                              "it out.")
    return _chosen(depths, wanted, str(path))


def doubts(checkpoint: Checkpoint, keep: Keep, path: Path | str) -> list[str]:
    """Why the pruned model may disappoint."""
    config = checkpoint.model_config()
    return [f"{path} was trained without --{side}-layerdrop: its {side} has not learned to do without layers, so expect much "
            "worse results until it is trained further" for side, layers in zip(SIDES, keep, strict=True)
            if layers is not None and not getattr(config, side).layer_drop_p]


def check_prunable(checkpoint: Checkpoint) -> None:
    if "folded" in checkpoint.training:
        raise CheckpointError("the checkpoint was folded: what a layer hands on is scaled for the layer after it, so none can "
                              "be left out. Prune the model as it was trained, and fold the result.")


def prune_checkpoint(checkpoint: Checkpoint, keep: Keep) -> Checkpoint:
    """The whole file, the optimizer's memory of the kept layers included."""
    check_prunable(checkpoint)
    config = checkpoint.model_config()
    pruned, weights = prune(config, checkpoint.weights, keep)
    training = dict(checkpoint.training)
    if "optimizer" in training:
        training["optimizer"] = {name: _kept_moments(value, weights, config, keep) if isinstance(value, dict) else value
                                 for name, value in training["optimizer"].items()}
    if "progress" in training:
        training["progress"] = training["progress"] | _NO_SCORES
    records = _records(config, keep)
    training.pop("layers", None)
    if again := _layers_as_trained_of_pruned(checkpoint, keep, records):
        training["layers"] = again
    return replace(checkpoint, config=checkpoint.config | flatten(pruned) | records, weights=weights, training=training,
                   metrics={})


def _kept_moments(moments: Mapping[str, Tensor], weights: Mapping[str, Tensor], config: ModelConfig,
                  keep: Keep) -> dict[str, Tensor]:
    """What the optimizer remembers of each weight that stays."""
    kept = {name: value for name, value in _kept(moments, keep).items() if name in weights}
    if keep != Keep():
        for part in (config.fusion, config.mixing):
            part.prune_moments_(kept, _cut(config, keep))
    return kept


def _records(config: ModelConfig, keep: Keep) -> dict[str, str]:
    return {f"{side}-layers-to-keep": record_text(layers, getattr(config, side).num_layers)
            for side, layers in zip(SIDES, keep, strict=True) if layers is not None}


def _layers_as_trained_of_pruned(checkpoint: Checkpoint, keep: Keep, records: Mapping[str, str]) -> dict[str, str]:
    """After pruning; only what the new records, which count the layers of the model just pruned, do not say."""
    before = layers_as_trained(checkpoint)
    after = dict(before)
    for side, layers in zip(SIDES, keep, strict=True):
        if layers is not None and side in before:
            numbers, depth = layers_of_record(before[side], side)
            after[side] = record_text([numbers[layer] for layer in layers], depth)
    told = {**checkpoint.config, **records}
    return {side: text for side, text in after.items() if told.get(f"{side}-layers-to-keep") != text}


def structure_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What pruning decided about a checkpoint's model, by flag; nothing for one that was never pruned."""
    records = {name: text for side in SIDES if (text := checkpoint.config.get(name := f"{side}-layers-to-keep")) is not None}
    if not records:
        return {}
    config = checkpoint.model_config()
    following = [name for part in config.model_parts() for name in part.set_by_pruning]
    flat = flatten(config)
    depths = [record.removesuffix("-to-keep") for record in records]
    return records | {name: flat[name] for name in (*depths, *following) if name in flat}


def prune_on_loading(checkpoint: Checkpoint, wanted: KeepConfig, path: Path | str, *, say: Callable[[str], object],
                     warn: Callable[[str], object]) -> Checkpoint:
    """A checkpoint with only the wanted layers; one that was pruned to them before is left as it is."""
    def is_done(side: str) -> bool:
        text, record = getattr(wanted, side), checkpoint.config.get(f"{side}-layers-to-keep")
        return text is not None and record is not None and was_kept(text, record, side)

    wanted = replace(wanted, **{side: None for side in SIDES if is_done(side)})
    keep = chosen_layers(checkpoint, wanted, path)
    if keep == Keep():
        return checkpoint
    say(PRUNING_LINE)
    for doubt in doubts(checkpoint, keep, path):
        warn(doubt)
    return prune_checkpoint(checkpoint, keep)

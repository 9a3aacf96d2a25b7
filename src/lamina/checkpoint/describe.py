"""What there is to say of a checkpoint, in plain values: `lamina info` prints them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from torch import Tensor

from lamina.checkpoint.format import Checkpoint
from lamina.checkpoint.marks import marks_of
from lamina.checkpoint.runs import read_mark
from lamina.checkpoint.shards import folder_of
from lamina.config.train_options import TrainConfig
from lamina.fields import unique_leaves

# The options that make a model more than a plain Transformer, and the values that leave it one.
TECHNIQUES: dict[str, tuple[Any, ...]] = {
    "surfacefusion": ("none", None), "sf-mode": (None,), "fusion": ("none", None), "mixing": ("none", None),
    "adapter": ("none", None), "init-type": ("default",), "encoder-layerdrop": (0.0,), "decoder-layerdrop": (0.0,),
    "encoder-layers-to-keep": (None, ""), "decoder-layers-to-keep": (None, "")}
STACK_SIZES = {"layers": "{}-layers", "model_dim": "{}-embed-dim", "ffn_dim": "{}-ffn-embed-dim", "heads": "{}-attention-heads"}


def describe(checkpoint: Checkpoint, path: Path) -> dict[str, Any]:
    """Sections of names and values, all of which JSON can hold."""
    config, training = checkpoint.config, checkpoint.training
    progress = dict(training.get("progress", {}))
    if progress.get("batches_done") == 0 and progress.get("epoch", 1) > 1:
        progress["epoch"] -= 1  # an epoch that has just ended, not the one that would come next
    parts = parameters_by_part(checkpoint.weights)
    return {
        "file": {"path": str(path), "bytes": _size(path), "has_optimizer_state": "optimizer" in training},
        "model": {"task": checkpoint.task, "arch": config.get("arch"), **_stacks(checkpoint),
                  "dictionaries": {language: len(vocabulary) for language, vocabulary in
                                   zip(checkpoint.languages, checkpoint.vocabularies(), strict=True)},
                  "subwords": [plain.get("kind") for plain in checkpoint.subwords]},
        "techniques": {name: config[name] for name, plain in TECHNIQUES.items() if config.get(name, plain[0]) not in plain},
        "parameters": {**parts, "total": sum(parts.values())},
        "training": {"seed": config.get("seed")} | {
            name: progress[name] for name in ("updates", "epoch", "best", "seconds") if progress.get(name) is not None},
        "metrics": dict(checkpoint.metrics),
        "made_from": marks_of(checkpoint),
        "origin": dict(checkpoint.origin),
        "versions": dict(checkpoint.versions),
        "config": dict(config),
    }


def parameters_by_part(weights: dict[str, Tensor]) -> dict[str, int]:
    """How many numbers each part of the model holds; a tensor that parts share is counted once, as it is stored."""
    counts: Counter[str] = Counter()
    for name, value in weights.items():
        counts[name.partition(".")[0]] += value.numel()
    return dict(counts)


def changed_options(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration, less what is at its default."""
    defaults = {leaf.name: leaf.default for leaf in unique_leaves(TrainConfig)}
    return {name: value for name, value in config.items() if name not in defaults or value != (
        list(defaults[name]) if isinstance(defaults[name], tuple) else defaults[name])}


def _size(path: Path) -> int:
    """Of the file with the shards that belong to it, or of all files of an exported folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir())
    mark = read_mark(path)
    return _size(folder_of(path, mark.shards)) if mark is not None and mark.shards else path.stat().st_size


def _stacks(checkpoint: Checkpoint) -> dict[str, Any]:
    """The sizes of the encoder and the decoder, those that there are; layers as counted in the weights."""
    stacks = {}
    for side in ("encoder", "decoder"):
        numbers = {int(match[1]) for name in checkpoint.weights if (match := re.match(rf"{side}\.layers\.(\d+)\.", name))}
        if numbers:
            own = {what: checkpoint.config.get(name.format(side)) for what, name in STACK_SIZES.items()}
            stacks[side] = own | {"layers": len(numbers)}
    return stacks

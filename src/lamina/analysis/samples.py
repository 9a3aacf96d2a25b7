"""A batch to look at a model with: the first of a data folder."""

from __future__ import annotations

from typing import Any

import torch

from lamina.config.batches import BatchConfig, DataConfig
from lamina.config.model import ModelConfig
from lamina.data.batching import AnyBatch
from lamina.data.feed import Feed
from lamina.errors import ConfigError
from lamina.fields import build, unique_leaves
from lamina.parts.contracts import TaskKind
from lamina.tasks.base import Task
from lamina.traits import CLASSES


def open_task(kind: TaskKind, model: ModelConfig, folder: str, flat: dict[str, Any]) -> Task:
    """The data folder, read as a run of this flat configuration would."""
    if kind.has(CLASSES):
        raise ConfigError(f"--data: the data of --task {kind.name} is not read here; leave it out, and made-up tokens are "
                          "used.")
    names = {leaf.name for leaf in unique_leaves(DataConfig)}
    data = build(DataConfig, {key: value for key, value in flat.items() if key in names} | {"data": folder})
    return kind.open(data, model)


def first_batch(task: Task, max_tokens: int, device: torch.device, seed: int) -> AnyBatch:
    """That of a run's first epoch."""
    feed = Feed(task.train_corpus(1), seed=seed, limits=BatchConfig(max_tokens=max_tokens, num_workers=0), device=device,
                max_positions=task.max_positions, is_shuffled=True)
    return next(iter(feed.batches(1)))

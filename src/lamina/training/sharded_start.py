"""How a run with sharded weights begins: no rank ever holds the whole model in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lamina.config.train_options import TrainConfig
from lamina.distributed.ranks import Ranks
from lamina.distributed.sharded import ShardedWeights
from lamina.errors import ConfigError
from lamina.init.deferred import Deferred, deferred, tensors_of_model
from lamina.nn.parameter_kinds import parameters_of
from lamina.nn.stack import stacks_of
from lamina.parts.contracts import Beginning, MatrixRule, Residual
from lamina.tasks.base import Task
from lamina.training.feeds import Feeds
from lamina.training.freezing import freeze_
from lamina.training.keeper import Keeper
from lamina.training.report import Reporter
from lamina.training.restore import StartingPoint, restore_weights_


def starts_in_pieces(config: TrainConfig, start: StartingPoint | None) -> bool:
    """Not where a checkpoint of another run is adapted, or a profile written: those look at whole weights."""
    return not config.model.init.why_stop() and (start is None or start.is_resumed)


def sharded_start(config: TrainConfig, task: Task, ranks: Ranks, dtype: torch.dtype, start: StartingPoint | None, feeds: Feeds,
                  keeper: Keeper, reporter: Reporter) -> tuple[Any, ShardedWeights]:
    """Model and weights: those of the checkpoint, or those that the seed gives any number of ranks."""
    if start is None and config.model.adapter.needs_trained_model:
        raise ConfigError(f"{config.model.adapter.spelled} trains a little beside a model that is trained already, and this "
                          "run has none. Name one with --finetune-from-model.")
    shard_size = config.ranks.num_shards(ranks.size)
    model, notes = deferred(task.build_model)
    shapes = tensors_of_model(model)  # before they are sharded
    _check_rules(config, model, shard_size, ranks.size)
    stored: Mapping[str, Tensor] = {}
    if start is not None:
        stored = restore_weights_(model, start.checkpoint, task, start.path, reporter.note)
    for stack in stacks_of(model).values():
        stack.recomputes = config.precision.checkpoint_activations
    freeze_(model, config.optimization.freeze, reporter.note)
    weights = ShardedWeights(model, dtype, ranks, _one_by_one(shapes, notes, config.seed, stored), shard_size)
    if start is None and type(config.model.init).begin_ is not Residual.begin_:
        weights.take_rows_(_profiled(config, task, ranks, feeds, keeper, reporter, shard_size))
    return model, weights


def _one_by_one(shapes: Mapping[str, Tensor], notes: Deferred, seed: int,
                stored: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What is stored, and of the rest what the seed gives."""
    here = {name: value for name, value in stored.items() if not value.is_meta}
    yield from here.items()
    rest = {name: shape for name, shape in shapes.items() if name not in here}
    if rest:
        yield from notes.weights(rest, seed)


def _profiled(config: TrainConfig, task: Task, ranks: Ranks, feeds: Feeds, keeper: Keeper, reporter: Reporter,
              shard_size: int) -> ShardedWeights:
    """A model of its own in float32, whose layers all ranks gather together to run the same batches."""
    model, notes = deferred(task.build_model)
    first = _one_by_one(tensors_of_model(model), notes, config.seed, {})
    weights = ShardedWeights(model, torch.float32, ranks, first, shard_size)
    config.model.init.begin_(Beginning(model, feeds.first_batches, keeper.folder, config.seed, reporter.note))
    return weights


def _check_rules(config: TrainConfig, model: Any, shard_size: int, num_ranks: int) -> None:
    rule = config.optimization.optimizer
    if shard_size < num_ranks and any(isinstance(rule.rule_for(own), MatrixRule) for own in parameters_of(model)):
        raise ConfigError(f"--optimizer {rule.name} puts matrices together among all ranks, and --fsdp-size {shard_size} keeps "
                          "several copies of them. Leave --fsdp-size out.")

"""A training run: what it consists of, and how that is put together from the configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from lamina import console
from lamina.checkpoint.marks import marks_of
from lamina.config.train_options import BY_BATCH, BY_SENTENCE, TrainConfig
from lamina.data.file_guard import FileGuard
from lamina.data.verify import verify_splits
from lamina.distributed.ranks import ALONE, Ranks
from lamina.distributed.replicated import ReplicatedWeights
from lamina.distributed.weights import FlatWeights
from lamina.errors import ConfigError
from lamina.fields import flatten
from lamina.nn.stack import stacks_of
from lamina.parts.contracts import Beginning, Criterion, Curve, Rates, TrackedRun, ValidatedCurve
from lamina.tasks.base import Task
from lamina.training.checks import Checks
from lamina.training.compute_type import compute_type
from lamina.training.distillation import criterion_of
from lamina.training.divergence import DivergenceWatch
from lamina.training.events import Callback
from lamina.training.feeds import Feeds
from lamina.training.freezing import freeze_
from lamina.training.function_loss import MARK, FunctionLoss, criterion_in_force
from lamina.training.keeper import Keeper
from lamina.training.layer_drop import LayerDrop
from lamina.training.measure import VALIDATED, forget_other_scores_, measure_of, size_of
from lamina.training.packed_runs import is_packed, was_packed
from lamina.training.profiling import UpdateProfiler
from lamina.training.progress import Progress
from lamina.training.report import Reporter
from lamina.training.resharding import resharding_of_run
from lamina.training.restore import (
    StartingPoint,
    check_same_start,
    find_place_,
    mapped_files,
    pruned_config,
    restore_training,
    restore_weights_,
    run_of,
    run_to_be,
    starting_point,
)
from lamina.training.saver import Saver
from lamina.training.settled import settled
from lamina.training.stopping_rules import StoppingRules
from lamina.training.tracking import Tracking, check_package
from lamina.training.train_log import TrainLog
from lamina.training.update import Updater
from lamina.training.utilization import peak_flops, utilization_per_speed
from lamina.training.validator import Validator

if TYPE_CHECKING:
    from lamina.distributed.shard_writer import ShardWriter


@dataclass(frozen=True)
class Run:
    """The parts of a run, one for each concern. `training.loop.train` moves them; nothing else does."""

    config: TrainConfig  # as it is in force: settled, and for the layers that the model has
    ranks: Ranks
    dtype: torch.dtype
    task: Task
    model: Any
    feeds: Feeds  # data
    layer_drop: LayerDrop | None  # where not each sentence draws for itself
    schedule: Curve
    updater: Updater  # one update of the weights
    progress: Progress
    rules: StoppingRules
    validator: Validator
    saver: Saver
    checks: Checks  # validating and saving where they are due
    watch: DivergenceWatch
    files: FileGuard  # over the data's
    reporter: Reporter
    log: TrainLog
    profiler: UpdateProfiler

    def tell(self, kind: Literal["start", "end"], reason: str = "") -> None:
        """Those who listen, that the run begins or is over."""
        self.reporter.listeners.tell(kind, where=kind, epoch=self.progress.epoch, updates=self.progress.updates, reason=reason)


def _layer_drop(config: TrainConfig) -> LayerDrop | None:
    draws = config.optimization.layer_drop_draws
    if draws == BY_SENTENCE or not any(map(any, config.model.layer_drop_rates)):
        return None
    return LayerDrop(config.model, config.seed, is_by_batch=draws == BY_BATCH)


def open_run(config: TrainConfig, ranks: Ranks = ALONE, callbacks: Sequence[Callback] = (),
             function: FunctionLoss | None = None) -> Run:
    """From the configuration and, where there is one, the checkpoint to resume from or to begin with.

    `function` takes the place of the configuration's criterion.
    """
    reporter = Reporter(config.log, ranks, config.optimization, callbacks)
    for tracker in config.log.chosen_trackers:
        check_package(tracker)  # on all ranks: an error that all have is told once
    dtype = compute_type(config.precision, ranks.device, reporter.note)
    if advice := config.model.surface.advice():
        reporter.note(advice)
    packs = is_packed(config, dtype, ranks.device, reporter.note)
    is_sharded = config.ranks.is_sharded and ranks.talks
    with mapped_files() if is_sharded else nullcontext():
        start = starting_point(config, torch.device("cpu") if is_sharded else ranks.device, reporter.note, reporter.warn)
    # A pruned checkpoint decides how deep the model is; from here on this is the configuration, also on disk.
    config = pruned_config(config, None if start is None else start.checkpoint, reporter.note)
    config = settled(config, start, reporter.note, was_packed=was_packed(config, dtype, ranks.device))
    criterion = criterion_in_force(config, function, start, reporter.note)
    schedule = _schedule(config)
    task = open_task(config, ranks, reporter)
    feeds = Feeds(task, config, ranks.device, reporter.note, is_packed=packs)
    run = run_to_be(start, config.saving)
    keeper = Keeper(config.saving, reporter.note, run, _shard_writer(config, ranks, run, reporter))
    model, weights = _begin(config, task, ranks, dtype, start, feeds, keeper, reporter)
    updater = _updater(config, task, model, dtype, ranks, keeper, reporter, criterion, weights)
    progress = Progress()
    if start is not None and start.is_resumed:
        progress = restore_training(start, updater, config, reporter.note)
    if isinstance(schedule, ValidatedCurve):
        schedule.state = progress.schedule  # which every checkpoint holds
    check_same_start(progress, ranks)
    find_place_(progress, feeds, reporter.note)
    watch = DivergenceWatch(progress, config.precision, updater.weights.names, ranks.device, dtype, reporter)
    _open_validation(config, task, feeds, progress, reporter, criterion)
    log = _open_log(config, start, progress, keeper, model, ranks, reporter)
    peak = peak_flops(ranks.device, dtype, config.log.device_tflops)
    reporter.utilization_per_speed = utilization_per_speed(model, list(feeds.train(progress.epoch).corpus.sizes.values()),
                                                           config.model.layer_drop_rates, peak, ranks.size)
    rules = StoppingRules(config, schedule, progress)
    validator = Validator(config, task, model, updater.weights, feeds, progress, ranks, reporter, criterion)
    marks = {} if start is None else marks_of(start.checkpoint)
    saver = Saver(config, task, updater, feeds, progress, keeper, watch, ranks, reporter,
                  marks if function is None else marks | {MARK: function.called})
    return Run(config=config, ranks=ranks, dtype=dtype, task=task, model=model, feeds=feeds,
               layer_drop=_layer_drop(config),
               schedule=schedule, updater=updater, progress=progress, rules=rules, validator=validator, saver=saver,
               checks=Checks(config, progress, schedule, rules, validator, saver, reporter), watch=watch,
               files=FileGuard(task.folders, (config.data.train_subset, *task.valid_splits)), reporter=reporter, log=log,
               profiler=UpdateProfiler(config.log.profiled, keeper.folder, ranks.rank, ranks.device, reporter.note))


def _schedule(config: TrainConfig) -> Curve:
    options = config.optimization
    return options.schedule.build(Rates(options.lr, options.min_lr, options.max_update))


def open_task(config: TrainConfig, ranks: Ranks, reporter: Reporter) -> Task:
    task: Task = config.kind.open(config.data, config.model)
    if ranks.is_first or os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID")) == "0":  # once on each machine
        verify_splits(task.data_parts(task.folders), (config.data.train_subset, *task.valid_splits), config.data.verify,
                      pair=task.language_pair, note=reporter.note)
    return task


def _shard_writer(config: TrainConfig, ranks: Ranks, run: str, reporter: Reporter) -> ShardWriter | None:
    if not (config.saving.is_on and config.saving.is_sharded):
        return None
    if not ranks.talks:
        reporter.note("--sharded-save has no effect on one rank: its checkpoints are ordinary files")
        return None
    from lamina.distributed.shard_writer import ShardWriter  # here, since it takes a second to import

    return ShardWriter(ranks, config.ranks.num_shards(ranks.size), run, 60 * config.ranks.timeout)


def _begin(config: TrainConfig, task: Task, ranks: Ranks, dtype: torch.dtype, start: StartingPoint | None, feeds: Feeds,
           keeper: Keeper, reporter: Reporter) -> tuple[Any, FlatWeights]:
    """The model and its weights, which may be sharded before they are whole."""
    reshards = False
    if config.ranks.is_sharded and ranks.talks:
        reshards, why = resharding_of_run(config, task, dtype, ranks)
        if why:
            reporter.note(why)
    if reshards:
        from lamina.training.sharded_start import sharded_start, starts_in_pieces  # here: it takes a second to import

        if starts_in_pieces(config, start):
            return sharded_start(config, task, ranks, dtype, start, feeds, keeper, reporter)
    model = _model(config, task, ranks, start, feeds, keeper, reporter)
    return model, _weights(config, model, dtype, ranks, reporter, reshards=reshards)


def _model(config: TrainConfig, task: Task, ranks: Ranks, start: StartingPoint | None, feeds: Feeds, keeper: Keeper,
           reporter: Reporter) -> Any:
    """On the device, with the weights that training begins with: the same on all ranks."""
    torch.manual_seed(config.seed)
    model = task.build_model().to(ranks.device)
    for stack in stacks_of(model).values():
        stack.recomputes = config.precision.checkpoint_activations
    if start is not None:
        restore_weights_(model, start.checkpoint, task, start.path, reporter.note, is_resumed=start.is_resumed)
        if not start.is_resumed:
            reporter.note(f"weights taken from {start.path}")
    elif config.model.adapter.needs_trained_model:
        raise ConfigError(f"{config.model.adapter.spelled} trains a little beside a model that is trained already, and this "
                          "run has none. Name one with --finetune-from-model.")
    elif ranks.is_first:
        # What the residuals want of data, where the weights are new: those of a checkpoint have it behind them.
        config.model.init.begin_(Beginning(model, feeds.first_batches, keeper.folder, config.seed, reporter.note))
    for parameter in model.parameters():
        ranks.broadcast_(parameter.data)  # Admin's omegas are measured by the first rank alone
    freeze_(model, config.optimization.freeze, reporter.note)
    return model


def _updater(config: TrainConfig, task: Task, model: Any, dtype: torch.dtype, ranks: Ranks, keeper: Keeper,
             reporter: Reporter, criterion: Criterion, weights: FlatWeights) -> Updater:
    # Each rank has a memory of its own to run out of.
    tell = reporter.note if ranks.is_first else lambda text: console.notice(f"rank {ranks.rank}: {text}")
    precision = config.precision
    if isinstance(criterion, FunctionLoss):  # it may ask the device whatever it likes
        precision = replace(precision, cuda_graphs=False)
    updater = Updater(model, config.optimization, precision, dtype, ranks, weights, tell, reporter.skip_time,
                      criterion_of(config, criterion, task, dtype, ranks.device, tell))
    updater.before_step = keeper.before_change
    return updater


def _weights(config: TrainConfig, model: Any, dtype: torch.dtype, ranks: Ranks, reporter: Reporter, *,
             reshards: bool) -> FlatWeights:
    options = config.ranks
    accumulates = max(config.optimization.update_freq) > 1
    if not ranks.talks:
        if options.is_sharded:
            reporter.note("--fsdp has no effect on one rank: it holds all weights")
        return FlatWeights(model, dtype, accumulates=accumulates)
    if options.is_sharded:
        if not reshards:
            from lamina.distributed.gathered import GatheredWeights

            return GatheredWeights(model, dtype, ranks)
        from lamina.distributed.sharded import ShardedWeights  # here, since it takes a second to import

        return ShardedWeights(model, dtype, ranks, shard_size=options.num_shards(ranks.size))
    return ReplicatedWeights(model, dtype, ranks, options.bucket_cap_mb * 2**20 // 4, accumulates=accumulates)


def _open_log(config: TrainConfig, start: StartingPoint | None, progress: Progress, keeper: Keeper, model: Any, ranks: Ranks,
              reporter: Reporter) -> TrainLog:
    """What listens to the run, and the folder that it is saved in: on the first rank."""
    log = TrainLog(keeper.folder if config.saving.is_on else None, reporter.note)
    if ranks.is_first:
        keeper.open()
        keeper.on_written = reporter.saved
        reporter.listeners.model = model
        log.begin(progress.updates, is_same_run=start is not None and run_of(start.checkpoint) == keeper.run,
                  is_validation_due=progress.is_check_pending)
        run = TrackedRun(id=keeper.run, name=keeper.folder.resolve().name, folder=keeper.folder, here=Path.cwd(),
                         updates=progress.updates, options=flatten(config), note=reporter.note)
        reporter.listen(log, [Tracking(tracker, run) for tracker in config.log.chosen_trackers])
    return log


def _open_validation(config: TrainConfig, task: Task, feeds: Feeds, progress: Progress, reporter: Reporter,
                     criterion: Criterion) -> None:
    """Now, not hours later: what it lacks is an error."""
    for line in task.describe_figures(config.validation):
        reporter.note(line)
    if feeds.valid:
        deciding = next(iter(feeds.valid.values()))
        measure = measure_of(flatten(config)) | {VALIDATED: size_of(deciding)}
        if isinstance(criterion, FunctionLoss) and "criterion" in measure:
            measure["criterion"] = criterion.name
        forget_other_scores_(progress, measure, reporter.note)

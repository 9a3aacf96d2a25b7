"""A training run: its parts, put together from the configuration, and its decisions."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import torch

from lamina import console
from lamina.checkpoint.format import Checkpoint
from lamina.checkpoint.marks import marks_of
from lamina.config.batches import BY_LENGTH, BatchConfig
from lamina.config.train_options import TrainConfig
from lamina.data.batching import AnyBatch
from lamina.data.corpus import Corpus, ParallelCorpus
from lamina.data.feed import Feed
from lamina.data.file_guard import FileGuard
from lamina.data.verify import verify_splits
from lamina.distributed.ranks import ALONE, Ranks
from lamina.distributed.replicated import ReplicatedWeights
from lamina.distributed.signals import StopWish
from lamina.distributed.weights import FlatWeights
from lamina.errors import AlreadyToldError, CheckpointError, DataError, StopSignal
from lamina.fields import flatten
from lamina.interop.any_format import load_any
from lamina.interop.fairseq_file import DictionaryPlaces
from lamina.nn.stack import stacks_of
from lamina.parts.contracts import Beginning, Rates
from lamina.provenance import origin
from lamina.pruning.cut import prune_on_loading
from lamina.text.subword import subword_to_dict
from lamina.training.distillation import criterion_of
from lamina.training.divergence import DivergenceWatch
from lamina.training.keeper import LAST_NAME, Keeper
from lamina.training.layer_drop import LayerDrop
from lamina.training.measure import VALIDATED, forget_other_scores_, measure_of, size_of
from lamina.training.progress import Progress
from lamina.training.report import Reporter
from lamina.training.restore import (
    DEFAULT_RESTORE_FILE,
    StartingPoint,
    check_start,
    describe_fresh_start,
    find_restore_file,
    load_whole,
    optimizer_state,
    pruned_config,
    restore_training,
    restore_weights_,
    run_to_be,
)
from lamina.training.settled import settled
from lamina.training.update import Updater
from lamina.training.validate import bits_per_token, validation_loss
from lamina.traits import PAIRS


class Run:
    def __init__(self, config: TrainConfig, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.device = ranks.device
        self.dtype, notices = _compute_type(config, self.device)
        # Where attention has kernels for it.
        self.is_packed = (config.precision.packs and self.device.type == "cuda" and self.dtype != torch.float32
                          and config.kind.has(PAIRS) and config.batches.max_tokens is not None)
        optimization = config.optimization
        self.reporter = Reporter(config.log, ranks, optimization)
        for notice in filter(None, [*notices, config.model.surface.advice()]):
            self.reporter.note(notice)
        start = self._starting_point(config)
        # A pruned checkpoint decides how deep the model is; from here on this is the configuration, also on disk.
        config = pruned_config(config, None if start is None else start.checkpoint, self.reporter.note)
        self.config = config = settled(config, start, self.reporter.note, is_packed=self.is_packed)
        self.task = config.kind.open(config.data, config.model)
        self.schedule = optimization.schedule.build(Rates(optimization.lr, optimization.min_lr, optimization.max_update))
        if ranks.is_first or os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID")) == "0":  # once on each machine
            verify_splits(self.task.data_parts(self.task.folders), (config.data.train_subset, *self.task.valid_splits),
                          config.data.verify, pair=self.task.language_pair, note=self.reporter.note)
        torch.manual_seed(config.seed)
        self.model = self.task.build_model().to(self.device)
        for stack in stacks_of(self.model).values():
            stack.recomputes = config.precision.checkpoint_activations
        self.keeper = Keeper(config.saving, self.reporter.note, run_to_be(start, config.saving))
        self._marks = {} if start is None else marks_of(start.checkpoint)
        self.progress = Progress()
        self._feeds: dict[int, Feed] = {}
        if start is None:
            self._begin_()
        else:
            restore_weights_(self.model, start.checkpoint, self.task, start.path, self.reporter.note,
                             is_resumed=start.is_resumed)
            if not start.is_resumed:
                self.reporter.note(f"weights taken from {start.path}")
        self.layer_drop = LayerDrop(config.model, config.seed, is_by_batch=optimization.layer_drop_draws == "batch")
        for parameter in self.model.parameters():
            ranks.broadcast_(parameter.data)  # Admin's omegas are measured by the first rank alone
        # Each rank has a memory of its own to run out of.
        tell = self.reporter.note if ranks.is_first else lambda text: console.notice(f"rank {ranks.rank}: {text}")
        self.updater = Updater(self.model, optimization, config.precision, self.dtype, ranks, self._weights(), tell,
                               self.reporter.skip_time, criterion_of(config, self.task, self.dtype, self.device, tell))
        self.updater.before_step = self.keeper.before_change
        if start is not None and start.is_resumed:
            self.progress = restore_training(start, self.updater, config, self.reporter.note)
        self._check_same_start()
        self._find_place()
        self.watch = DivergenceWatch(self.progress, config.precision, self.updater.weights.names, self.device, self.dtype,
                           self.reporter)
        for line in self.task.describe_figures(config.validation):
            self.reporter.note(line)
        self._valid_feeds = {} if config.validation.is_off else {
            split: self._valid_feed(split) for split in self.task.valid_splits}
        if self._valid_feeds:
            deciding = next(iter(self._valid_feeds.values()))
            forget_other_scores_(self.progress, measure_of(flatten(config)) | {VALIDATED: size_of(deciding)},
                                 self.reporter.note)
        self.files = FileGuard(self.task.folders, (config.data.train_subset, *self.task.valid_splits))
        if ranks.is_first:
            self.keeper.open()
        self._last_check: tuple[int, bool] | None = None
        self._sitting_started = time.perf_counter() - self.progress.seconds

    # -- data

    def train_feed(self, epoch: int) -> Feed:
        """The epoch's feed; folders that take turns keep one each."""
        folder = (epoch - 1) % len(self.task.folders)
        if folder not in self._feeds:
            self._feeds[folder] = self._feed(self.task.train_corpus(epoch), self.config.batches, is_shuffled=True,
                                             is_packed=self.is_packed)
            if len(self._feeds[folder].too_long.indices):
                self.reporter.note(self._feeds[folder].describe_too_long())
        return self._feeds[folder]

    def _valid_feed(self, split: str) -> Feed:
        batches = self.config.batches
        limits = replace(batches, max_tokens=batches.max_tokens_valid or batches.max_tokens,
                         max_sentences=batches.max_sentences_valid or batches.max_sentences)
        feed = self._feed(self.task.corpus(split), limits, is_shuffled=False)
        if len(feed.too_long.indices):
            if not batches.skip_invalid_valid:
                raise DataError(f"{feed.describe_too_long()}. That would change the score: raise the limits, or add "
                                "--skip-invalid-size-inputs-valid-test to go on without them.")
            self.reporter.note(feed.describe_too_long())
        return feed

    def _feed(self, corpus: Corpus, limits: BatchConfig, *, is_shuffled: bool, is_packed: bool = False) -> Feed:
        return Feed(corpus, seed=self.config.seed, limits=limits, device=self.device, is_shuffled=is_shuffled,
                    max_positions=self.task.max_positions, is_packed=is_packed and isinstance(corpus, ParallelCorpus))

    def update_freq(self, epoch: int) -> int:
        numbers = self.config.optimization.update_freq
        return numbers[min(epoch, len(numbers)) - 1]

    # -- when to stop, validate and save

    def why_stop(self) -> str:
        """The reason to stop before the next update, or nothing."""
        optimization, progress = self.config.optimization, self.progress
        if reason := self.config.model.init.why_stop():
            return reason
        if optimization.max_epoch and progress.epoch > optimization.max_epoch:
            return f"{optimization.max_epoch} epochs are done (--max-epoch)"
        if optimization.max_update and progress.updates >= optimization.max_update:
            return f"{progress.updates} updates are done (--max-update {optimization.max_update})"
        if self._is_rate_at_floor():
            return "the learning rate has fallen to its floor (--min-lr or --stop-min-lr)"
        patience = self.config.validation.patience
        if patience > 0 and progress.stale_validations >= patience:
            return f"no improvement in {patience} validations (--patience)"
        return ""

    def _is_rate_at_floor(self) -> bool:
        """Only a rate that falls counts: warm-up begins below every floor."""
        done = self.progress.updates - self.progress.schedule_start
        if done == 0:
            return False
        optimization = self.config.optimization
        now, before = (self.schedule(number, self.progress.epoch) for number in (done, done - 1))
        floor = max(optimization.stop_min_lr, -1.0 if optimization.schedule.uses_min_lr else optimization.min_lr)
        return now <= before and now <= floor

    def is_check_due(self) -> bool:
        """In the middle of an epoch: is this update one to validate or save after?"""
        return self._is_due(self.config.saving.is_on, self.config.saving.interval_updates) or self._is_validation_due()

    def _is_validation_due(self) -> bool:
        return self._is_due(not self.config.validation.is_off, self.config.validation.interval_updates)

    def _is_due(self, is_on: bool, every: int) -> bool:
        return is_on and every > 0 and self.progress.updates % every == 0

    def close_epoch(self, *, is_cut_short: bool) -> None:
        progress = self.progress
        epoch = progress.epoch
        figures: dict[str, Any] = bits_per_token(progress.epoch_loss, progress.epoch_nll, progress.epoch_tokens)
        lr = self.schedule(progress.updates - progress.schedule_start, epoch)
        self.reporter.summary(epoch, {**figures, "lr": lr, "train_wall": round(self._seconds())}, progress.updates)
        if not is_cut_short:
            progress.begin_epoch(epoch + 1)
        if self._last_check != (progress.updates, is_cut_short):
            self.check(epoch, is_epoch_end=not is_cut_short)

    def check(self, epoch: int, *, is_epoch_end: bool) -> None:
        """Validate where it is due, and save."""
        started = time.perf_counter()
        self.watch.flush()
        metrics: dict[str, float] = {}
        validation = self.config.validation
        is_due = not is_epoch_end or epoch % validation.interval == 0 or self._is_validation_due() or self.why_stop()
        if is_due and not validation.is_off:
            metrics = self._validate(epoch)
            self.watch.validated(metrics)
        self.watch.check_weights(self.updater.weights, self.updater.optimizer.state(), self.ranks)
        best_before = self.progress.best
        is_best = not self.watch.doubt and self._is_best(metrics)
        if metrics:
            # An equal score is worth keeping, and no reason for more patience.
            is_better = is_best and self.progress.best != best_before
            self.progress.stale_validations = 0 if is_better else self.progress.stale_validations + 1
        self.progress.seconds = self._seconds()
        self.progress.is_check_pending = False
        names = self.keeper.names_due(epoch=epoch, updates=self.progress.updates, is_epoch_end=is_epoch_end, is_best=is_best)
        self._save(metrics, names, epoch)
        self._last_check = (self.progress.updates, not is_epoch_end)
        self.reporter.skip_time(time.perf_counter() - started)

    def _save(self, metrics: dict[str, float], names: Sequence[str], epoch: int) -> None:
        if self.watch.doubt:
            # The update before may have ruined the weights: what is on disk is better than what would replace it.
            self.reporter.note(f"no checkpoint now: {self.watch.doubt}")
            return
        checkpoint = self.checkpoint(metrics)  # to which all ranks may contribute; one writes it
        if self.ranks.is_first:
            self.keeper.save(checkpoint, names, f" (epoch {epoch} @ {self.progress.updates} updates)")

    def heed(self, wish: StopWish, *, is_check_next: bool = False) -> bool:
        """Whether any rank heard a signal to stop; one to save is granted here.

        Ranks hear signals at different moments, and must stop or save after the same update.
        """
        stops, saves = self.ranks.sum(int(wish.signal is not None), int(wish.take_save()))
        if saves and not stops:
            self._save_now(is_check_next=is_check_next)
        return stops > 0

    def _save_now(self, *, is_check_next: bool) -> None:
        """As a run that stops here would, and then go on."""
        if not self.config.saving.is_on:
            self.reporter.note("SIGUSR1: nothing is saved (--no-save)")
            return
        started = time.perf_counter()
        self.watch.flush()
        self.progress.seconds = self._seconds()
        self.progress.is_check_pending = is_check_next
        self.watch.check_weights(self.updater.weights, self.updater.optimizer.state(), self.ranks)
        self._save({}, [LAST_NAME], self.progress.epoch)
        self.progress.is_check_pending = False
        self.reporter.skip_time(time.perf_counter() - started)

    def stop_for(self, wish: StopWish, *, is_check_skipped: bool = False) -> NoReturn:
        """Leave as a signal wished: with all that was done on disk. What was due now is done when the run goes on.

        Not even a validation comes first: whoever takes a machine away waits for half a minute.
        """
        self.watch.flush()
        self.reporter.end_epoch()
        progress, saving = self.progress, self.config.saving
        progress.seconds = self._seconds()
        progress.is_check_pending = is_check_skipped
        if saving.is_on:
            self.watch.check_weights(self.updater.weights, self.updater.optimizer.state(), self.ranks)
            self._save({}, [LAST_NAME], progress.epoch)
        self.keeper.finish()
        self.ranks.sum(0)  # launchers end all ranks when one is gone: nobody leaves before the state is on disk
        number = wish.signal or signal.SIGTERM
        if not self.ranks.is_first:
            raise AlreadyToldError(128 + number)
        saved = f"{self.keeper.folder / LAST_NAME} is saved, and the same command goes on from there"
        if not saving.is_on or self.watch.doubt:
            saved = f"nothing is saved ({'--no-save' if not saving.is_on else self.watch.doubt})"
        raise StopSignal(f"stopped by {number.name} after update {progress.updates}: {saved}.", number)

    def _validate(self, epoch: int) -> dict[str, float]:
        validation = self.config.validation
        first: dict[str, float] = {}
        for split, feed in self._valid_feeds.items():
            batches = partial(feed.batches, rank=self.ranks.rank, size=self.ranks.size)
            with self.updater.weights.whole():
                figures = validation_loss(self.model, batches(), self.config.optimization.criterion, ranks=self.ranks)
                figures |= self.task.figures(self.model, batches(), validation, self.reporter.note, self.ranks.gather)
            first = first or figures
            best = self.progress.best
            metric = figures[validation.best_metric]
            if split == next(iter(self._valid_feeds)):
                shown_best = metric if best is None else (max if self._is_maximized else min)(best, metric)
                self.reporter.summary(epoch, {**figures, f"best_{validation.best_metric}": shown_best},
                                      self.progress.updates, where=split)
            else:
                self.reporter.summary(epoch, figures, self.progress.updates, where=split)
        return first

    @property
    def _is_maximized(self) -> bool:
        return self.config.validation.prefers_larger

    def _is_best(self, metrics: dict[str, float]) -> bool:
        """Of two equal scores the later one is kept, as in fairseq."""
        if not metrics:
            return False
        value, best = metrics[self.config.validation.best_metric], self.progress.best
        is_best = math.isfinite(value) and (best is None or (value >= best if self._is_maximized else value <= best))
        if is_best:
            self.progress.best = value
        return is_best

    def _seconds(self) -> float:
        return time.perf_counter() - self._sitting_started

    # -- checkpoints

    def _starting_point(self, config: TrainConfig) -> StartingPoint | None:
        """The checkpoint whose weights the model begins with, cut to the layers to keep, if there is one."""
        saving = config.saving
        if config.model.init.why_stop():
            # A profile is of the weights that training begins with, whatever has been trained already.
            return None
        check_start(saving)
        path = find_restore_file(saving)
        is_resumed = path is not None
        if not is_resumed and saving.restore_file != DEFAULT_RESTORE_FILE:
            self.reporter.warn(describe_fresh_start(saving))
        if is_resumed and saving.finetune_from_model:
            self.reporter.note(f"{path} is there: this run goes on, and {saving.finetune_from_model} is not read again")
        if path is None and saving.finetune_from_model:
            path = Path(saving.finetune_from_model)
        if path is None:
            return None
        data = config.data
        places = DictionaryPlaces.of(data.data, source_lang=data.source_lang, target_lang=data.target_lang)
        path, whole = load_whole(path, lambda path: load_any(path, self.device, places=places, notice=self.reporter.note),
                                 self.reporter.note, may_fall_back=is_resumed and saving.restore_file == DEFAULT_RESTORE_FILE)
        checkpoint = prune_on_loading(whole, config.keep, path, say=self.reporter.note, warn=self.reporter.note)
        if checkpoint is not whole and path.parent.resolve() == Path(saving.save_dir).resolve():
            self.reporter.note(f"checkpoints of the pruned model take the place of the whole one's in {saving.save_dir}: to "
                               "keep those, choose another --save-dir")
        # A model of another task lends its weights; its updates and scores mean nothing here.
        is_resumed = is_resumed and checkpoint.task == config.task
        return StartingPoint(path, checkpoint, is_resumed)

    def _begin_(self) -> None:
        """What the residuals want of data, where the weights are new: those of a checkpoint have it behind them."""
        if self.ranks.is_first:
            self.config.model.init.begin_(Beginning(self.model, self._first_batches, self.keeper.folder, self.config.seed,
                                                    self.reporter.note))

    def _weights(self) -> FlatWeights:
        options = self.config.ranks
        if self.ranks.size == 1:
            if options.is_sharded:
                self.reporter.note("--fsdp has no effect on one rank: it holds all weights")
            return FlatWeights(self.model, self.dtype, accumulates=max(self.config.optimization.update_freq) > 1)
        if options.is_sharded:
            from lamina.distributed.sharded import ShardedWeights  # here, since it takes a second to import

            return ShardedWeights(self.model, self.dtype, self.ranks)
        return ReplicatedWeights(self.model, self.dtype, self.ranks, options.bucket_cap_mb * 2**20 // 4)

    def _check_same_start(self) -> None:
        """Ranks that went on from different checkpoints would train different models."""
        progress = self.progress
        starts = self.ranks.gather([[progress.updates, progress.epoch, progress.batches_done]])
        if starts.count(starts[0]) < len(starts):
            other = next(rank for rank, start in enumerate(starts) if start != starts[0])
            raise CheckpointError(f"rank 0 goes on from update {starts[0][0]}, but rank {other} from update "
                                  f"{starts[other][0]}: they found different files. --save-dir must be one folder that all "
                                  "machines see.")

    def _find_place(self) -> None:
        """Inside an epoch, a number of batches says nothing where the batches are others than those that were counted."""
        progress, place = self.progress, self.progress.place
        if not progress.batches_done or not place.plan:
            return
        epoch, feed = progress.epoch, self.train_feed(progress.epoch)
        if feed.is_planned_as(epoch, place):
            return
        done = feed.find(epoch, place)
        if done is None:
            self.reporter.note(f"the training data is not what epoch {epoch} of the checkpoint had: the epoch begins again")
            progress.begin_epoch(epoch)
            return
        num_fitting = len(feed.corpus) - len(feed.too_long.indices)
        self.reporter.note(f"the batches are not those that epoch {epoch} of the checkpoint had (as with another --max-tokens "
                           f"or --seed): it goes on after as many {feed.corpus.unit}, {place.sentences} of {num_fitting}, at "
                           f"batch {done} of {len(feed.plan(epoch))} instead of {progress.batches_done}; some may come twice "
                           "in this epoch, and others not at all")
        progress.batches_done = done

    def _first_batches(self, number: int) -> list[AnyBatch]:
        """In padded rows, whatever training makes of them: a profile does not depend on how the GPU likes its batches."""
        limits = replace(self.config.batches, order=BY_LENGTH)
        feed = self._feed(self.task.train_corpus(1), limits, is_shuffled=True)
        with closing(feed.batches(1)) as batches:
            return list(islice(batches, number))

    def checkpoint(self, metrics: dict[str, float]) -> Checkpoint:
        progress = self.progress
        if progress.batches_done:
            progress.place = self.train_feed(progress.epoch).place(progress.epoch, progress.batches_done)
        training: dict[str, Any] = {**self._marks, "run": self.keeper.run, "progress": self.progress.state(),
                                    "scale": self.updater.scale.state()}
        if self.config.saving.has_optimizer_state:
            training["optimizer"] = optimizer_state(self.updater)
            training["optimizer_kind"] = self.config.optimization.optimizer.name
        return Checkpoint(
            config=flatten(self.config),
            languages=tuple(self.task.languages),
            dictionaries=tuple(vocabulary.to_text() for vocabulary in self.task.vocabularies),
            subwords=tuple(map(subword_to_dict, self.task.subwords)),
            weights=self.updater.weights.named(self.updater.weights.master),
            training=training,
            metrics=metrics,
            origin=origin(),
        )


def _compute_type(config: TrainConfig, device: torch.device) -> tuple[torch.dtype, list[str]]:
    precision = config.precision
    if precision.fp16 and device.type == "cpu":
        return torch.float32, ["--fp16 has no effect without a GPU: computing in float32"]
    if precision.fp16:
        return torch.float16, []
    if device.type == "cpu":
        return torch.bfloat16 if precision.bf16 else torch.float32, []
    # Not emulated: that would be slower than float32.
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    if precision.bf16 and not has_bf16:
        return torch.float32, ["--bf16 is not supported by this GPU: computing in float32; --fp16 would be faster"]
    return torch.bfloat16 if has_bf16 and not precision.fp32 else torch.float32, []

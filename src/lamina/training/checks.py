"""Checks of a run: at an epoch's end, and at updates in between, it is validated and saved where that is due."""

from __future__ import annotations

import time
from typing import Any

from lamina.config.train_options import TrainConfig
from lamina.parts.contracts import Curve, ValidatedCurve
from lamina.training.progress import Progress
from lamina.training.report import Reporter
from lamina.training.saver import Saver
from lamina.training.stopping_rules import StoppingRules
from lamina.training.validate import bits_per_token
from lamina.training.validator import Validator


class Checks:
    def __init__(self, config: TrainConfig, progress: Progress, schedule: Curve, rules: StoppingRules, validator: Validator,
                 saver: Saver, reporter: Reporter) -> None:
        self.config = config
        self.progress = progress
        self.schedule = schedule
        self.rules = rules
        self.validator = validator
        self.saver = saver
        self.reporter = reporter
        self._last: tuple[int, bool] | None = None  # the update of the last check, and whether it was within an epoch

    def is_due(self) -> bool:
        """In the middle of an epoch: is this update one to validate or save after?"""
        saving = self.config.saving
        return self._is_multiple(saving.is_on, saving.interval_updates) or self._is_validation_due()

    def check(self, epoch: int, *, is_epoch_end: bool) -> None:
        """Validate where it is due, and save."""
        started = time.perf_counter()
        progress, watch = self.progress, self.saver.watch
        watch.flush()
        metrics: dict[str, float] = {}
        validation = self.config.validation
        is_due = (not is_epoch_end or epoch % validation.interval == 0 or self._is_validation_due()
                  or bool(self.rules.why_stop()))
        if is_due and not validation.is_off:
            metrics = self.validator.figures(epoch)
            watch.validated(metrics)
            if is_epoch_end and isinstance(self.schedule, ValidatedCurve):
                self.schedule.validated(metrics[validation.best_metric], progress.updates - progress.schedule_start,
                                        larger_is_better=validation.prefers_larger)
        self.saver.check_weights()
        is_best = bool(metrics) and self.validator.take_score(metrics, is_doubtful=bool(watch.doubt))
        names = self.saver.keeper.names_due(epoch=epoch, updates=progress.updates, is_epoch_end=is_epoch_end, is_best=is_best)
        self.saver.save(metrics, names, epoch)
        self._last = (progress.updates, not is_epoch_end)
        self.rules.hear(self.reporter.listeners.stop_wish, self.saver.ranks)
        self.reporter.skip_time(time.perf_counter() - started)

    def close_epoch(self, *, is_cut_short: bool) -> None:
        progress = self.progress
        epoch = progress.epoch
        figures: dict[str, Any] = bits_per_token(progress.epoch_loss, progress.epoch_nll, progress.epoch_tokens)
        lr = self.schedule(progress.updates - progress.schedule_start, epoch)
        seconds = round(self.saver.stopwatch.seconds())
        self.reporter.epoch_done(epoch, {**figures, "lr": lr, "train_wall": seconds}, progress.updates)
        if not is_cut_short:
            progress.begin_epoch(epoch + 1)
        if self._last != (progress.updates, is_cut_short):
            self.check(epoch, is_epoch_end=not is_cut_short)

    def _is_validation_due(self) -> bool:
        return self._is_multiple(not self.config.validation.is_off, self.config.validation.interval_updates)

    def _is_multiple(self, is_on: bool, every: int) -> bool:
        return is_on and every > 0 and self.progress.updates % every == 0

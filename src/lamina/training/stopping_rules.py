"""When a run is over."""

from __future__ import annotations

from lamina.config.train_options import TrainConfig
from lamina.distributed.ranks import Ranks
from lamina.parts.contracts import Curve
from lamina.training.progress import Progress

ASKED = "a callback asked for it"


class StoppingRules:
    def __init__(self, config: TrainConfig, schedule: Curve, progress: Progress) -> None:
        self.config = config
        self.schedule = schedule
        self.progress = progress
        self.asked = ""  # by a callback, once all ranks know

    def why_stop(self) -> str:
        """The reason to stop before the next update, or nothing."""
        optimization, progress = self.config.optimization, self.progress
        if self.asked:
            return self.asked
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

    def hear(self, wish: str, ranks: Ranks) -> None:
        """A wish of a callback, which only the first rank knows of; all call this together."""
        (wishes,) = ranks.sum(int(bool(wish)))
        if wishes:
            self.asked = wish or ASKED

    def _is_rate_at_floor(self) -> bool:
        """Only a rate that falls counts: warm-up begins below every floor."""
        done = self.progress.updates - self.progress.schedule_start
        if done == 0:
            return False
        optimization = self.config.optimization
        now, before = (self.schedule(number, self.progress.epoch) for number in (done, done - 1))
        floor = max(optimization.stop_min_lr, -1.0 if optimization.schedule.uses_min_lr else optimization.min_lr)
        return now <= before and now <= floor

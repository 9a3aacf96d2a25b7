"""What a run shows while it works: a live bar, plain lines or JSON lines. All that it measures goes to its listeners too."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina import console
from lamina.config.train_options import LogConfig, OptimizationConfig
from lamina.distributed.ranks import Ranks
from lamina.distributed.waiting import DATA, RANKS
from lamina.parts.figures import known_figures
from lamina.training.events import Callback, Listeners, Row
from lamina.training.keeper import Written
from lamina.training.live_bar import LiveBar, clock, in_notebook, open_bar
from lamina.training.tracking import Tracking
from lamina.training.train_log import TrainLog
from lamina.training.validate import bits_per_token


@dataclass
class Interval:
    """Sums since the last line."""

    started: float
    loss: float = 0.0
    nll: float = 0.0
    num_tokens: int = 0
    num_sentences: int = 0
    num_updates: int = 0
    grad_norm: float = 0.0

    def figures(self, now: float) -> dict[str, float]:
        seconds = max(now - self.started, 1e-9)
        return {
            **bits_per_token(self.loss, self.nll, self.num_tokens),
            "wps": self.num_tokens / seconds,
            "ups": self.num_updates / seconds,
            "wpb": self.num_tokens / max(self.num_updates, 1),
            "bsz": self.num_sentences / max(self.num_updates, 1),
            "gnorm": self.grad_norm / max(self.num_updates, 1),
        }


def gib_in_use(device: torch.device) -> float:
    """Peak memory: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    try:
        import resource
    except ImportError:  # not a Unix
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**30


# Of the run itself; what it is judged by says its own.
DECIMALS = {"wps": 0, "ups": 2, "wpb": 1, "bsz": 1, "gnorm": 3, "mem_gib": 2, "mfu": 3, "data_wait": 3, "rank_wait": 3}
IN_BAR = ("loss", "ppl", "wps", "mfu", "data_wait", "rank_wait")


def format_figure(name: str, value: Any) -> str:
    name = name.removeprefix("best_")
    if name == "lr":
        return f"{value:.6g}"
    if known := known_figures().get(name):
        return known.figure.shown(value)
    return f"{value:.{DECIMALS[name]}f}" if name in DECIMALS else str(value)


class Reporter:
    """Collects what updates did and shows it every interval; a summary of an epoch and of a validation at once."""

    def __init__(self, config: LogConfig, ranks: Ranks, optimization: OptimizationConfig,
                 callbacks: Sequence[Callback] = ()) -> None:
        self.config = config
        self.ranks = ranks
        self.optimization = optimization
        # Its figures are those of all ranks, so one tells them.
        self.format = _chosen_format(config) if ranks.is_first else "none"
        self.listeners = Listeners(callbacks if ranks.is_first else ())
        self.interval = Interval(time.perf_counter())
        self.utilization_per_speed: float | None = None  # for each target per second, where it is known
        ranks.waits.take()
        self._latest: dict[str, Any] = {}  # of the last interval that is over
        self._bar: LiveBar | None = None
        self._trackers: Sequence[Tracking] = ()
        self._warnings: list[str] = []

    def listen(self, log: TrainLog, trackers: Sequence[Tracking]) -> None:
        """In front of callbacks, which may read what they wrote."""
        self.listeners.add(log, *trackers)
        self._trackers = trackers

    def begin_epoch(self, num_batches: int) -> None:
        if self.format == "rich" and self._bar is None:
            self._bar = open_bar()
        self.num_batches = num_batches

    def updated(self, *, epoch: int, batches_done: int, updates: int, lr: float, loss: float, nll: float, grad_norm: float,
                num_tokens: int, num_sentences: int, loss_scale: float | None) -> None:
        interval = self.interval
        interval.loss += loss
        interval.nll += nll
        interval.num_tokens += num_tokens
        interval.num_sentences += num_sentences
        interval.num_updates += 1
        interval.grad_norm += grad_norm
        scale = {} if loss_scale is None else {"loss_scale": loss_scale}
        self.listeners.tell("update", where="update", epoch=epoch, updates=updates, figures={
            **bits_per_token(loss, nll, num_tokens), "num_tokens": num_tokens, "num_sentences": num_sentences,
            "gnorm": grad_norm, "lr": lr, **scale})
        left = self._updates_left(epoch, batches_done, updates)
        now = time.perf_counter()
        if updates % self.config.interval == 0:
            figures: dict[str, Any] = {**interval.figures(now), **self._use_of_time(now - interval.started),
                                       "num_updates": updates, "lr": lr,
                                       "mem_gib": gib_in_use(self.ranks.device), **scale}
            if self.utilization_per_speed is not None:
                figures["mfu"] = figures["wps"] * self.utilization_per_speed
            if left is not None:
                figures["eta_s"] = left / figures["ups"]
            self.interval, self._latest = Interval(now), figures
            self._show_interval(epoch, batches_done, updates, figures)
        if self._bar is not None:
            # Until the first interval is over, what there is of it, to show early that training works.
            self._show_in_bar(self._bar, epoch, batches_done, updates, left, self._latest or interval.figures(now))

    def _use_of_time(self, seconds: float) -> dict[str, float]:
        """The share that ranks spent waiting, for data and for each other: the mean of all ranks, which ask together."""
        waited = self.ranks.waits.take()
        sums = self.ranks.sum(*(round(1e6 * waited[what]) for what in (DATA, RANKS)))
        shares = [min(1.0, total / 1e6 / max(seconds, 1e-9) / self.ranks.size) for total in sums]
        return {"data_wait": shares[0], **({"rank_wait": shares[1]} if self.ranks.talks else {})}

    def _updates_left(self, epoch: int, batches_done: int, updates: int) -> float | None:
        """Until whichever limit comes first; None where there is none."""
        optimization = self.optimization
        limits = [float(optimization.max_update - updates)] if optimization.max_update else []
        if optimization.max_epoch:
            batches = (optimization.max_epoch - epoch + 1) * self.num_batches - batches_done
            limits.append(batches / (optimization.update_freq[-1] * self.ranks.size))
        return min(limits, default=None)

    def _show_in_bar(self, bar: LiveBar, epoch: int, batches_done: int, updates: int, left: float | None,
                     figures: dict[str, Any]) -> None:
        """Updates to the end of the run; where no limit says when that is, batches to the end of the epoch."""
        shown = " ".join(f"{name}={format_figure(name, figures[name])}" for name in IN_BAR if name in figures)
        if left is None:
            bar.show(f"epoch {epoch:03d}", batches_done, self.num_batches, shown)
        else:
            bar.show(f"update (epoch {epoch:03d})", updates, round(updates + left), shown)

    def _show_interval(self, epoch: int, batches_done: int, updates: int, figures: dict[str, Any]) -> None:
        row = self.listeners.tell("interval", where="train", epoch=epoch, updates=updates, figures={
            "batch": batches_done, "num_batches": self.num_batches, **figures})
        if self.format == "json":
            self._print_json(row)
        elif self.format == "simple":
            shown = ", ".join(f"eta={clock(value)}" if name == "eta_s" else f"{name}={format_figure(name, value)}"
                              for name, value in figures.items())
            print(f"| epoch {epoch:03d}: {batches_done:>6} / {self.num_batches} {shown}", flush=True)

    def epoch_done(self, epoch: int, figures: dict[str, Any], updates: int) -> None:
        row = self.listeners.tell("epoch", where="epoch", epoch=epoch, updates=updates, figures=figures)
        self._show_summary(row, figures, "")

    def validated(self, split: str, epoch: int, figures: dict[str, Any], updates: int) -> None:
        row = self.listeners.tell("validation", where=split, epoch=epoch, updates=updates, figures=figures)
        self._show_summary(row, figures, f" | valid on '{split}' subset")

    def _show_summary(self, row: Row, figures: dict[str, Any], place: str) -> None:
        if self.format == "json":
            self._print_json(row)
        elif self.format != "none":
            shown = " | ".join(f"{name} {format_figure(name, value)}" for name, value in figures.items())
            print(f"| epoch {row['epoch']:03d}{place} | {shown} | num_updates {row['num_updates']}", flush=True)

    def saved(self, written: Written) -> None:
        self.listeners.tell("checkpoint", where="checkpoint", epoch=written.at.epoch, updates=written.at.updates,
                            files=written.names)

    def note(self, text: str) -> None:
        if not self.ranks.is_first:
            return
        if self.format == "json":
            self._print_json({"note": text})
        else:
            print(f"| {text}", flush=True)

    def warn(self, text: str) -> None:
        """What a person has to know, said at once and, since hours of lines may follow, again at the end."""
        self._warnings.append(text)
        self._warn(text)

    def repeat_warnings(self) -> None:
        for text in self._warnings:
            self._warn(text)

    def _warn(self, text: str) -> None:
        if not self.ranks.is_first:
            return
        if self.format == "json":
            self._print_json({"warning": text})
        console.warn(text)

    def skip_time(self, seconds: float) -> None:
        """Validation and saving do not count as training."""
        self.interval.started += seconds

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        for tracker in self._trackers:
            tracker.close()
        self._trackers = ()

    def _print_json(self, row: Row) -> None:
        print(json.dumps(row), flush=True)


def _chosen_format(config: LogConfig) -> str:
    chosen = {"tqdm": "rich"}.get(config.format or "", config.format)
    if chosen is None:
        chosen = "rich" if sys.stderr.isatty() or in_notebook() else "simple"
    return "simple" if chosen == "rich" and not config.has_bar else chosen

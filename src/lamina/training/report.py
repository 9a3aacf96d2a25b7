"""What a run tells while it works: a live bar, plain lines, JSON lines, TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from lamina import console
from lamina.config.train_options import LogConfig, OptimizationConfig
from lamina.distributed.ranks import Ranks
from lamina.parts.figures import known_figures
from lamina.training.scalars import Scalars
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
DECIMALS = {"wps": 0, "ups": 2, "wpb": 1, "bsz": 1, "gnorm": 3, "mem_gib": 2}


def format_figure(name: str, value: Any) -> str:
    name = name.removeprefix("best_")
    if name == "lr":
        return f"{value:.6g}"
    if known := known_figures().get(name):
        return known.figure.shown(value)
    return f"{value:.{DECIMALS[name]}f}" if name in DECIMALS else str(value)


class Reporter:
    """Collects what updates did and shows it every interval; a summary of an epoch and of a validation at once."""

    def __init__(self, config: LogConfig, ranks: Ranks, optimization: OptimizationConfig) -> None:
        self.config = config
        self.ranks = ranks
        self.optimization = optimization
        # Its figures are those of all ranks, so one tells them.
        self.format = _chosen_format(config) if ranks.is_first else "none"
        self.interval = Interval(time.perf_counter())
        self._scalars = Scalars(config.tensorboard_dir if ranks.is_first else None, self.note)
        self._bar: Any = None
        self._task: Any = None
        self._warnings: list[str] = []

    def begin_epoch(self, epoch: int, num_batches: int, batches_done: int) -> None:
        self.end_epoch()
        if self.format == "rich":
            self._bar = _new_bar()
            self._task = self._bar.add_task(f"epoch {epoch:03d}", total=num_batches, completed=batches_done, figures="")
            self._bar.start()
        self.num_batches = num_batches

    def end_epoch(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def updated(self, *, epoch: int, batches_done: int, updates: int, lr: float, loss: float, nll: float, grad_norm: float,
                num_tokens: int, num_sentences: int, loss_scale: float | None) -> None:
        interval = self.interval
        interval.loss += loss
        interval.nll += nll
        interval.num_tokens += num_tokens
        interval.num_sentences += num_sentences
        interval.num_updates += 1
        interval.grad_norm += grad_norm
        if self._bar is not None:
            self._bar.update(self._task, completed=batches_done)
        if updates % self.config.interval:
            return
        now = time.perf_counter()
        figures: dict[str, Any] = {**interval.figures(now), "num_updates": updates, "lr": lr,
                                   "mem_gib": gib_in_use(self.ranks.device)}
        if loss_scale is not None:
            figures["loss_scale"] = loss_scale
        left = self._updates_left(epoch, batches_done, updates)
        scalars = dict(figures)
        if left is not None:
            scalars["eta_s"] = left / figures["ups"]
            figures["eta"] = str(timedelta(seconds=round(scalars["eta_s"])))
        self.interval = Interval(now)
        self._show_interval(epoch, batches_done, figures)
        self._scalars.write("train", scalars, updates)

    def _updates_left(self, epoch: int, batches_done: int, updates: int) -> float | None:
        """Until whichever limit comes first; None where there is none."""
        optimization = self.optimization
        limits = [float(optimization.max_update - updates)] if optimization.max_update else []
        if optimization.max_epoch:
            batches = (optimization.max_epoch - epoch + 1) * self.num_batches - batches_done
            limits.append(batches / (optimization.update_freq[-1] * self.ranks.size))
        return min(limits, default=None)

    def _show_interval(self, epoch: int, batches_done: int, figures: dict[str, Any]) -> None:
        shown = ", ".join(f"{name}={format_figure(name, value)}" for name, value in figures.items())
        match self.format:
            case "rich":
                if self._bar is not None:
                    self._bar.update(self._task, figures=" ".join(
                        f"{name}={format_figure(name, figures[name])}" for name in ("loss", "ppl", "wps")))
            case "simple":
                print(f"| epoch {epoch:03d}: {batches_done:>6} / {self.num_batches} {shown}", flush=True)
            case "json":
                self._print_json({"epoch": epoch, "batch": batches_done, "num_batches": self.num_batches, **figures})

    def summary(self, epoch: int, figures: dict[str, Any], updates: int, where: str = "train") -> None:
        """The closing line of an epoch, or of a validation."""
        self._scalars.write(where, figures, updates)
        if self.format == "none":
            return
        if self.format == "json":
            self._print_json({"epoch": epoch, "where": where, "num_updates": updates, **figures})
            return
        place = "" if where == "train" else f" | valid on '{where}' subset"
        shown = " | ".join(f"{name} {format_figure(name, value)}" for name, value in figures.items())
        print(f"| epoch {epoch:03d}{place} | {shown} | num_updates {updates}", flush=True)

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
        self.end_epoch()
        self._scalars.close()

    def _print_json(self, row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)


def _chosen_format(config: LogConfig) -> str:
    chosen = {"tqdm": "rich"}.get(config.format or "", config.format)
    if chosen is None:
        chosen = "rich" if sys.stderr.isatty() else "simple"
    return "simple" if chosen == "rich" and not config.has_bar else chosen


def _new_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(), TimeRemainingColumn(),
                    TextColumn("{task.fields[figures]}"), console=Console(stderr=True), transient=True)

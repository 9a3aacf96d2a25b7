"""Reads what updates did, late enough that the device never waits for it, and notices divergence."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from lamina.config.train import PrecisionConfig
from lamina.errors import DivergenceError
from lamina.train.progress import Progress
from lamina.train.report import Reporter
from lamina.train.update import UpdateResult

# An overflow now and then is how the loss scale finds its level; this many in a row are no search any more.
MAX_SKIPPED_IN_A_ROW = 64


class _Pending(NamedTuple):
    result: UpdateResult
    update: int
    epoch: int
    batches_done: int
    lr: float


class Watch:
    """On a GPU an update is read when the next one has been handed over; on the CPU at once."""

    def __init__(self, progress: Progress, precision: PrecisionConfig, parameter_names: Sequence[str],
                 device: torch.device, dtype: torch.dtype, reporter: Reporter | None = None) -> None:
        self.progress = progress
        self.reporter = reporter
        self.parameter_names = parameter_names
        self.min_loss_scale = precision.min_loss_scale
        self.dtype = dtype
        self._lag = 1 if device.type == "cuda" else 0
        self._pending: deque[_Pending] = deque()
        self._num_skipped = 0

    def add(self, result: UpdateResult, lr: float) -> None:
        progress = self.progress
        self._pending.append(_Pending(result, progress.updates, progress.epoch, progress.batches_done, lr))
        while len(self._pending) > self._lag:
            self._read(self._pending.popleft())

    def flush(self) -> None:
        """Catch up, before anything is saved or summed up."""
        while self._pending:
            self._read(self._pending.popleft())

    def _read(self, item: _Pending) -> None:
        result = item.result
        loss, nll, norm, scale, took_step = result.numbers.tolist()
        if not took_step:
            self._check_overflow(item, scale)
            return
        self._num_skipped = 0
        progress = self.progress
        progress.epoch_loss += loss
        progress.epoch_nll += nll
        progress.epoch_tokens += result.num_tokens
        if self.reporter is not None:
            self.reporter.updated(epoch=item.epoch, batches_done=item.batches_done, updates=item.update, lr=item.lr,
                                  loss=loss, nll=nll, grad_norm=norm, num_tokens=result.num_tokens,
                                  num_sentences=result.num_sentences,
                                  loss_scale=scale if self.dtype == torch.float16 else None)

    def _check_overflow(self, item: _Pending, scale: float) -> None:
        """A step that was not taken left every weight as it was."""
        is_float16 = self.dtype == torch.float16
        self._num_skipped += 1
        if is_float16 and scale / 2 >= self.min_loss_scale and self._num_skipped < MAX_SKIPPED_IN_A_ROW:
            return
        norms = item.result.grad_norms.tolist()
        culprit = next((name for name, norm in zip(self.parameter_names, norms, strict=True) if not math.isfinite(norm)),
                       "all of them together")
        if not is_float16:
            what = "it is not finite"
        elif scale / 2 < self.min_loss_scale:
            what = f"the loss scale fell below --min-loss-scale {self.min_loss_scale}"
        else:
            what = f"{self._num_skipped} updates in a row were skipped"
        advice = "use --bf16, which needs no loss scale" if is_float16 else "lower --lr"
        raise DivergenceError(f"training diverged at update {item.update}: the gradient of {culprit} overflowed and {what}. "
                              f"The weights before it are kept, in the last checkpoint. Try: {advice}, lengthen "
                              "--warmup-updates or set --clip-norm 1; a deep Post-LN model needs --init-type admin.")

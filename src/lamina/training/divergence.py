"""Reads what updates did, late enough that the device never waits for it, and notices divergence."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lamina.checkpoint.finite import first_not_finite, is_finite
from lamina.config.train_options import PrecisionConfig
from lamina.distributed.ranks import Ranks
from lamina.distributed.weights import FlatWeights
from lamina.errors import DivergenceError
from lamina.training.progress import Progress
from lamina.training.report import Reporter
from lamina.training.update import UpdateResult

# An overflow now and then is how the loss scale finds its level; this many in a row are no search any more.
MAX_SKIPPED_IN_A_ROW = 64
# Without a loss scale there is nothing to search for: an odd batch may do it once, but not again and again.
MAX_BAD_IN_A_ROW = 10
BAD_GRADIENT = "the latest gradient was not finite"


class _Pending(NamedTuple):
    result: UpdateResult
    update: int
    epoch: int
    batches_done: int
    lr: float


class DivergenceWatch:
    """On a GPU an update is read when the next two have been handed over; on the CPU at once."""

    def __init__(self, progress: Progress, precision: PrecisionConfig, parameter_names: Sequence[str],
                 device: torch.device, dtype: torch.dtype, reporter: Reporter | None = None) -> None:
        self.progress = progress
        self.reporter = reporter
        self.parameter_names = parameter_names
        self.min_loss_scale = precision.min_loss_scale
        self.dtype = dtype
        self._lag = 2 if device.type == "cuda" else 0
        self._pending: deque[_Pending] = deque()
        self._num_skipped = 0  # in a row
        self._num_bad = 0  # of all
        self._is_validation_bad = False

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
        result.wait()
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

    @property
    def doubt(self) -> str:
        """Why the weights may be ruined, or nothing. A search for a loss scale explains a gradient that is not finite."""
        if self._num_skipped > 0 and self.dtype != torch.float16:
            return BAD_GRADIENT
        return "the latest validation loss was not finite" if self._is_validation_bad else ""

    def validated(self, figures: Mapping[str, float]) -> None:
        """What the first validation set says of the weights as they are."""
        self._is_validation_bad = not all(math.isfinite(figures[name]) for name in ("loss", "nll_loss") if name in figures)

    def check_weights(self, weights: FlatWeights, optimizer_state: Mapping[str, Tensor], ranks: Ranks) -> None:
        """All of them, before they replace what is on disk: weights that are not finite never recover."""
        named = zip(weights.names, weights.views(weights.master), strict=True)
        culprit = None if is_finite(weights.master) else first_not_finite(named)
        culprit = culprit or first_not_finite((f"optimizer state {name}", value) for name, value in optimizer_state.items())
        (num_bad,) = ranks.sum(int(culprit is not None))
        if num_bad:
            name = next(filter(None, ranks.gather([culprit or ""])))
            raise DivergenceError(f"training diverged: after update {self.progress.updates}, {name} holds values that are not "
                                  f"finite. Checkpoints from before are untouched. {self._advice()}")

    def check_end(self) -> None:
        """A run must not end on a state that would not be saved."""
        if self.doubt:
            is_gradient = self.doubt == BAD_GRADIENT
            what = f"with {self._num_skipped} updates whose gradient" if is_gradient else "on a state whose validation loss"
            raise DivergenceError(f"training ended {what} was not finite; checkpoints from before are untouched. "
                                  f"{self._advice()}")

    def _check_overflow(self, item: _Pending, scale: float) -> None:
        """A step that was not taken left every weight as it was."""
        is_float16 = self.dtype == torch.float16
        self._num_skipped += 1
        self._num_bad += 1
        is_scale_low = is_float16 and scale / 2 < self.min_loss_scale
        limit = MAX_SKIPPED_IN_A_ROW if is_float16 else MAX_BAD_IN_A_ROW
        is_over = is_scale_low or self._num_skipped >= limit
        if is_float16 and not is_over:
            return
        norms = item.result.grad_norms.tolist()
        culprit = next((name for name, norm in zip(self.parameter_names, norms, strict=True) if not math.isfinite(norm)),
                       "all of them together")
        if not is_over:
            if self.reporter is not None:
                self.reporter.note(f"warning: update {item.update} is skipped: the gradient of {culprit} is not finite "
                                   f"({self._num_bad} so far; {limit} in a row end the run)")
            return
        what = (f"the loss scale fell below --min-loss-scale {self.min_loss_scale}" if is_scale_low else
                f"{self._num_skipped} updates in a row were skipped")
        raise DivergenceError(f"training diverged at update {item.update}: the gradient of {culprit} overflowed and {what}. "
                              f"Checkpoints from before are untouched. {self._advice()}")

    def _advice(self) -> str:
        first = "use --bf16, which needs no loss scale" if self.dtype == torch.float16 else "lower --lr"
        return (f"Try: {first}, lengthen --warmup-updates or set --clip-norm 1; a deep Post-LN model needs --init-type admin.")

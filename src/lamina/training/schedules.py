"""The learning rate as a pure function of the number of finished updates.

A schedule holds no state, so resuming needs nothing but the count: `schedule(n)` is the rate of update n + 1. The
curves take plain numbers; `build_schedule` is the one place that reads the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from lamina.config import optim as options
from lamina.errors import ConfigError


class Schedule(Protocol):
    """The rate in force for the next update, once `updates_done` are finished; epochs count from 1."""

    def __call__(self, updates_done: int, epoch: int = 1) -> float: ...


def build_schedule(config: options.Schedule, *, lr: tuple[float, ...], min_lr: float, max_update: int) -> Schedule:
    """The schedule that `--lr-scheduler` and its flags describe; `max_update` 0 means that training has no set end."""
    match config:
        case options.Fixed() as fixed:
            return lambda updates_done, epoch=1: warm_up_from_zero(
                updates_done, anneal(epoch, lr, fixed.force_anneal, fixed.lr_shrink), fixed.warmup_updates)
        case options.InverseSqrt(warmup_updates=warmup):
            start, peak = _warmup_start(config, default=0.0), _only(lr, "inverse_sqrt")
            return lambda updates_done, epoch=1: inverse_sqrt(updates_done, start, peak, warmup)
        case options.Linear(warmup_updates=warmup):
            start, peak = _warmup_start(config, default=0.0), _only(lr, "linear")
            floor, end = max(min_lr, 0.0), _known_end(max_update, "linear")
            return lambda updates_done, epoch=1: linear(updates_done, start, peak, floor, warmup, end)
        case options.PolynomialDecay() as decay:
            return lambda updates_done, epoch=1: polynomial_decay(
                updates_done, anneal(epoch, lr), decay.end_learning_rate, decay.warmup_updates,
                decay.total_num_update, decay.power)
        case options.Poly(poly_pow=power):
            peak, floor, end = _only(lr, "poly"), max(min_lr, 0.0), _known_end(max_update, "poly")
            return lambda updates_done, epoch=1: polynomial_decay(updates_done, peak, floor, 0, end, power)
        case options.Cosine() as wave:
            low, high = _only(lr, "cosine"), wave.max_lr
            assert high is not None, "Cosine checks that it is given"
            start = _warmup_start(wave, default=low)
            if high <= low:
                raise ConfigError(f"--max-lr is {high} and --lr {low}; with --lr-scheduler cosine, --lr is the "
                                  "bottom of the curve and --max-lr its top. Swap or correct them.")
            period = wave.lr_period_updates
            if period <= 0:
                period = _known_end(max_update, "cosine without --lr-period-updates") - wave.warmup_updates
            if period <= 0:
                raise ConfigError(f"--warmup-updates is {wave.warmup_updates} and --max-update {max_update}, which "
                                  "leaves no update for the cosine. Lower the first, or raise the second.")
            return lambda updates_done, epoch=1: cosine(
                updates_done, start, low, high, wave.warmup_updates, period, wave.t_mult, wave.lr_shrink)
    raise AssertionError(f"no schedule for {type(config).__name__}")


def warm_up(updates_done: int, start: float, peak: float, warmup_updates: int) -> float:
    """The straight line from `start` to `peak`, which is reached after `warmup_updates` updates."""
    return start + updates_done * (peak - start) / warmup_updates


def warm_up_from_zero(updates_done: int, peak: float, warmup_updates: int) -> float:
    # Its very first rate is 0, as in fairseq: that update moves nothing but the optimizer's running means.
    return peak * updates_done / warmup_updates if updates_done < warmup_updates else peak


def anneal(epoch: int, rates: Sequence[float], force_anneal: int | None = None, shrink: float = 1.0) -> float:
    """The rate of an epoch from the `--lr` list; after `force_anneal` epochs it shrinks with each one."""
    if force_anneal is None or epoch <= force_anneal:
        return rates[min(epoch, len(rates)) - 1]
    return rates[-1] * shrink ** (epoch - force_anneal)


def inverse_sqrt(updates_done: int, start: float, peak: float, warmup_updates: int) -> float:
    """lr * sqrt(warmup / n) after warm-up (Vaswani et al. 2017, §5.3)."""
    if updates_done < warmup_updates:
        return warm_up(updates_done, start, peak, warmup_updates)
    # Deviates from fairseq, whose rate is 0 for ever without warm-up: ours decays from the first update on.
    return peak * math.sqrt(max(warmup_updates, 1) / max(updates_done, 1))


def linear(updates_done: int, start: float, peak: float, floor: float, warmup_updates: int, end: int) -> float:
    """Up to `peak` over warm-up, down to `floor` at update `end`, and never below 0."""
    if updates_done < warmup_updates:
        return warm_up(updates_done, start, peak, warmup_updates)
    # A trial run may end before its warm-up does; the line is then never walked, but must still exist.
    share_left = 1.0 - (updates_done - warmup_updates) / max(end - warmup_updates, 1)
    # Deviates from radam_fairseq, whose line goes on below zero after its end.
    return max(floor + (peak - floor) * share_left, 0.0)


def polynomial_decay(updates_done: int, peak: float, floor: float, warmup_updates: int, end: int,
                     power: float) -> float:
    """`peak` after warm-up, `floor` from update `end` on, a power of the share of updates left in between."""
    if updates_done < warmup_updates:
        return warm_up_from_zero(updates_done, peak, warmup_updates)
    share_left = max(1.0 - (updates_done - warmup_updates) / (end - warmup_updates), 0.0)
    return floor + (peak - floor) * share_left**power


def cosine(updates_done: int, start: float, low: float, high: float, warmup_updates: int, period: float,
           t_mult: float, shrink: float) -> float:
    """Half a cosine from `high` to `low`, again and again (SGDR, Loshchilov and Hutter 2017, eq. 5)."""
    if updates_done < warmup_updates:
        return warm_up(updates_done, start, high, warmup_updates)
    restarts, into_period = 0, float(updates_done - warmup_updates)
    if t_mult == 1.0:
        whole, into_period = divmod(into_period, period)
        restarts = int(whole)
    else:
        # Walked, not solved with a logarithm: rounding cannot put a restart one update late.
        while into_period >= period:
            restarts, into_period, period = restarts + 1, into_period - period, period * t_mult
    fall = 0.5 * (1.0 + math.cos(math.pi * into_period / period))
    return shrink**restarts * (low + (high - low) * fall)


def _warmup_start(config: options.WarmUpFrom, default: float) -> float:
    return default if config.warmup_init_lr < 0.0 else config.warmup_init_lr


def _only(lr: tuple[float, ...], name: str) -> float:
    if len(lr) != 1:
        raise ConfigError(f"--lr lists {len(lr)} rates, but --lr-scheduler {name} starts from exactly one. "
                          "Give one number, or use --lr-scheduler fixed for a rate per epoch.")
    return lr[0]


def _known_end(max_update: int, name: str) -> int:
    if max_update <= 0:
        raise ConfigError(f"--max-update is not set, but --lr-scheduler {name} decays until then. "
                          "Add --max-update with the number of updates you plan to train.")
    return max_update

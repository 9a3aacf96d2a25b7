"""How the learning rate moves: the kinds of --lr-scheduler, each with its options and its curve.

`schedule(n, epoch)` is the rate of update n + 1. Most curves hold no state, so that resuming needs nothing but the count; the
one that looks at validation keeps its state in the run's progress.
`--lr`, `--min-lr` and `--max-update` belong to training as a whole and come in as `Rates`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lamina.fields import check, flag
from lamina.parts.contracts import Curve, Rates, Schedule, ValidatedCurve
from lamina.registry import register

_WARMUP_HELP = ("raise the learning rate in a straight line over the first N updates; 4000 suits Post-LN models, "
                "deeper ones need more")
_SHRINK_HELP = ("factor on the learning rate at each annealed epoch (fixed), restart (cosine) or plateau "
                "(reduce_lr_on_plateau); 0.5 to 0.75 is gentle")
# As in torch: a rate that would fall by less stays.
LEAST_FALL = 1e-8


@dataclass(frozen=True, kw_only=True)
class WarmUp(Schedule):
    """Warm-up from 0."""

    warmup_updates: int = flag(0, _WARMUP_HELP, paper="Vaswani et al. 2017, §5.3")

    def __post_init__(self) -> None:
        check(self.warmup_updates >= 0,
              f"--warmup-updates is {self.warmup_updates}; it must be 0 or more, where 0 means no warm-up. Try 4000.")


@dataclass(frozen=True, kw_only=True)
class WarmUpFrom(WarmUp):
    """Warm-up from a chosen rate."""

    warmup_init_lr: float = flag(-1.0, "learning rate at which warm-up starts, 1e-7 in most recipes; a negative one "
                                 "means 0, and --lr with cosine", needs="warmup-updates")

    def start(self, default: float) -> float:
        return default if self.warmup_init_lr < 0.0 else self.warmup_init_lr


@register.schedule("fixed")
@dataclass(frozen=True, kw_only=True)
class Fixed(WarmUp):
    """Warm-up, and a rate for each epoch.

    Epoch e runs at the e-th number of --lr, the last one when the list is short.
    """

    force_anneal: int | None = flag(None, "after this many epochs multiply the learning rate by --lr-shrink once per "
                                    "epoch; pick the epoch at which validation loss stalls", aliases=("fa",))
    lr_shrink: float = flag(0.1, _SHRINK_HELP, needs="force-anneal")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.force_anneal is None or self.force_anneal >= 1,
              f"--force-anneal is {self.force_anneal}; it counts whole epochs at the full rate, so it must be 1 or "
              "more. Leave it out for no annealing.")
        _check_shrink(self.lr_shrink)

    def build(self, rates: Rates) -> Curve:
        return lambda updates_done, epoch=1: warm_up_from_zero(
            updates_done, anneal(epoch, rates.lr, self.force_anneal, self.lr_shrink), self.warmup_updates)


@register.schedule("inverse_sqrt")
@dataclass(frozen=True, kw_only=True)
class InverseSqrt(WarmUpFrom):
    """Inverse square root.

    Proportional to 1 / sqrt(update) after warm-up, and equal to --lr where the two meet (Vaswani et al. 2017, §5.3).
    """

    warmup_updates: int = flag(4000, _WARMUP_HELP, paper="Vaswani et al. 2017, §5.3")

    def build(self, rates: Rates) -> Curve:
        start, peak = self.start(0.0), rates.only(self)
        return lambda updates_done, epoch=1: inverse_sqrt(updates_done, start, peak, self.warmup_updates)


@register.schedule("linear")
@dataclass(frozen=True, kw_only=True)
class Linear(WarmUpFrom):
    """A straight line from --lr to --min-lr at --max-update.

    With warm-up, the alternative to the inverse square root in Admin's scripts (Admin, Liu et al. 2020).
    """

    uses_min_lr = True

    def build(self, rates: Rates) -> Curve:
        start, peak, floor, end = self.start(0.0), rates.only(self), max(rates.min_lr, 0.0), rates.known_end(self.name)
        return lambda updates_done, epoch=1: linear(updates_done, start, peak, floor, self.warmup_updates, end)


@register.schedule("polynomial_decay")
@dataclass(frozen=True, kw_only=True)
class PolynomialDecay(WarmUp):
    """Polynomial decay.

    From --lr after warm-up to --end-learning-rate at --total-num-update, and constant from there on
    (Devlin et al. 2019, §A.2 uses power 1).
    """

    total_num_update: int = flag(1_000_000, "the update at which decay ends; usually the value of --max-update",
                                 paper="Devlin et al. 2019, §A.2")
    power: float = flag(1.0, "1 decays in a straight line; a larger power falls faster at first")
    end_learning_rate: float = flag(0.0, "learning rate at the end of the decay; 0, or a hundredth of --lr")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.total_num_update > self.warmup_updates,
              f"--total-num-update is {self.total_num_update} and --warmup-updates {self.warmup_updates}; decay must "
              "end after warm-up does. Set --total-num-update to the value of --max-update.")
        _check_power("power", self.power)
        check(_is_finite_from_zero(self.end_learning_rate),
              f"--end-learning-rate is {self.end_learning_rate}; it must be a finite number, 0 or more. "
              "Leave it out to decay to 0.")

    def build(self, rates: Rates) -> Curve:
        return lambda updates_done, epoch=1: polynomial_decay(
            updates_done, anneal(epoch, rates.lr), self.end_learning_rate, self.warmup_updates, self.total_num_update,
            self.power)


@register.schedule("poly")
@dataclass(frozen=True, kw_only=True)
class Poly(Schedule):
    """A power of the updates left until --max-update, no warm-up."""

    poly_pow: float = flag(2.0, "exponent of the share of updates left; 1 is a straight line, 2 falls faster at first",
                           paper="You et al. 2017")

    def __post_init__(self) -> None:
        _check_power("poly-pow", self.poly_pow)

    uses_min_lr = True

    def build(self, rates: Rates) -> Curve:
        peak, floor, end = rates.only(self), max(rates.min_lr, 0.0), rates.known_end(self.name)
        return lambda updates_done, epoch=1: polynomial_decay(updates_done, peak, floor, 0, end, self.poly_pow)


@register.schedule("cosine")
@dataclass(frozen=True, kw_only=True)
class Cosine(WarmUpFrom):
    """Cosine with restarts.

    Each period falls from --max-lr to --lr along half a cosine, then the next one starts, --t-mult times as long and
    with both rates multiplied by --lr-shrink (Loshchilov and Hutter 2017, §3).
    """

    max_lr: float | None = flag(None, "the top of the cosine, which must be given; --lr is its bottom. 1.0 with nag, "
                                "0.0005 to 0.001 with adam", paper="Loshchilov and Hutter 2017, eq. 5")
    t_mult: float = flag(1.0, "how much longer each period is than the last; 2 is usual",
                         paper="Loshchilov and Hutter 2017, §3")
    lr_period_updates: int = flag(-1, "updates in the first period; -1 takes all updates after warm-up, so that the "
                                  "rate never restarts", paper="Loshchilov and Hutter 2017, §3")
    lr_shrink: float = flag(0.1, _SHRINK_HELP, paper="Loshchilov and Hutter 2017, §3")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.max_lr is not None and 0.0 < self.max_lr < math.inf,
              "--lr-scheduler cosine needs --max-lr, a number above --lr, at which the first period starts. "
              "Try --max-lr 0.001 with adam, --max-lr 1.0 with nag.")
        check(1.0 <= self.t_mult < math.inf,
              f"--t-mult is {self.t_mult}; it must be 1 or more, or periods shrink to nothing. Try 1 or 2.")
        check(self.t_mult == 1.0 or self.lr_period_updates > 0,
              f"--t-mult is {self.t_mult}, but without --lr-period-updates there is one period and nothing to grow. "
              "Add --lr-period-updates, or leave --t-mult out.")
        _check_shrink(self.lr_shrink)

    def build(self, rates: Rates) -> Curve:
        low, high = rates.only(self), self.max_lr
        assert high is not None, "checked above"
        start = self.start(low)
        check(high > low, f"--max-lr is {high} and --lr {low}; with --lr-scheduler cosine, --lr is the bottom of the curve and "
                          "--max-lr its top. Swap or correct them.")
        period = self.lr_period_updates
        if period <= 0:
            period = rates.known_end("cosine without --lr-period-updates") - self.warmup_updates
        check(period > 0, f"--warmup-updates is {self.warmup_updates} and --max-update {rates.max_update}, which leaves no "
                          "update for the cosine. Lower the first, or raise the second.")
        return lambda updates_done, epoch=1: cosine(
            updates_done, start, low, high, self.warmup_updates, period, self.t_mult, self.lr_shrink)


@register.schedule("reduce_lr_on_plateau")
@dataclass(frozen=True, kw_only=True)
class ReduceOnPlateau(WarmUpFrom):
    """--lr until validation gets no better, then --lr-shrink times that.

    Looks at --best-checkpoint-metric at the end of each epoch that is validated, once warm-up is over, as in fairseq.
    """

    lr_shrink: float = flag(0.1, _SHRINK_HELP)
    lr_threshold: float = flag(1e-4, "a score that is better by a smaller share of the best one is no improvement")
    lr_patience: int = flag(0, "validations without improvement that are borne before the learning rate falls")

    needs_validation = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_shrink(self.lr_shrink)
        check(0.0 <= self.lr_threshold < 1.0, f"--lr-threshold is {self.lr_threshold}; it must lie in [0, 1). Try 0.0001.")
        check(self.lr_patience >= 0, f"--lr-patience is {self.lr_patience}; it must be 0 or more.")

    def build(self, rates: Rates) -> Curve:
        return PlateauCurve(self, self.start(0.0), rates.only(self))


# -- the curves


class PlateauCurve(ValidatedCurve):
    """As torch's ReduceLROnPlateau with a relative threshold, which fairseq wraps."""

    def __init__(self, options: ReduceOnPlateau, start: float, peak: float) -> None:
        self.options = options
        self.start = start
        self.peak = peak
        self.state = {}

    def __call__(self, updates_done: int, epoch: int = 1) -> float:
        if updates_done < self.options.warmup_updates:
            return warm_up(updates_done, self.start, self.peak, self.options.warmup_updates)
        return self.state.get("rate", self.peak)

    def validated(self, score: float, updates_done: int, *, larger_is_better: bool) -> None:
        if self.options.warmup_updates > 0 and updates_done <= self.options.warmup_updates:
            return
        state, threshold = self.state, self.options.lr_threshold
        best = state.get("best", -math.inf if larger_is_better else math.inf)
        # Written as torch writes it, so that rounding decides alike.
        if score > best * (threshold + 1.0) if larger_is_better else score < best * (1.0 - threshold):
            state |= {"best": score, "stale": 0}
            return
        state["stale"] = state.get("stale", 0) + 1
        if state["stale"] > self.options.lr_patience:
            rate = state.get("rate", self.peak)
            if rate - rate * self.options.lr_shrink > LEAST_FALL:
                state["rate"] = rate * self.options.lr_shrink
            state["stale"] = 0


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
    # Deviates from radam_fairseq, whose line continues below zero after its end.
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


def _is_finite_from_zero(value: float) -> bool:
    return 0.0 <= value < math.inf


def _check_shrink(lr_shrink: float) -> None:
    check(0.0 < lr_shrink <= 1.0,
          f"--lr-shrink is {lr_shrink}; it must lie in (0, 1], where 1 keeps the rate. Try 0.5.")


def _check_power(name: str, power: float) -> None:
    check(0.0 < power < math.inf, f"--{name} is {power}; it must be a finite number above 0. Try 1 or 2.")

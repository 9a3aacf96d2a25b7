"""How weights move and how fast: the optimizers and the learning-rate schedules, with fairseq 0.9's flags.

`register.optimizer` and `register.schedule` map the names that people type to the dataclasses that hold their options.
`--lr`, `--min-lr` and `--max-update` belong to training as a whole and live with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lamina.fields import check, flag

_MOMENTUM_HELP = "share of the last update's velocity that carries over; 0.9 to 0.99 is usual, 0 turns it off"
_WARMUP_HELP = ("raise the learning rate in a straight line over the first N updates; 4000 suits Post-LN models, "
                "deeper ones need more")
_SHRINK_HELP = "factor on the learning rate at each annealed epoch (fixed) or restart (cosine); 0.5 to 0.75 is gentle"


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Optimizer: what all of them share."""

    weight_decay: float = flag(0.0, "pull every weight towards 0 by this share of the learning rate at each update; "
                               "0.0001 for small corpora, 0.01 for language models", aliases=("wd",),
                               paper="Loshchilov and Hutter 2019, Alg. 2")

    def __post_init__(self) -> None:
        check(_is_finite_from_zero(self.weight_decay),
              f"--weight-decay is {self.weight_decay}; it must be a finite number, 0 or more. "
              "Leave it out for no decay, or try 0.0001.")


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Optimizer: Adam and its relatives.

    Epsilon is added to the square root of the raw second moment, before bias correction, as in the "efficient" order
    at the end of Kingma and Ba (2015), §2; weight decay is decoupled.
    """

    betas: tuple[float, float] = flag((0.9, 0.999), "decay of the running mean of gradients and of their squares; "
                                      "'(0.9, 0.98)' is usual for Transformers", name="adam-betas",
                                      paper="Kingma and Ba 2015, Alg. 1")
    eps: float = flag(1e-8, "keeps the division stable where gradients vanish; 1e-8, or 1e-6 for half precision",
                      name="adam-eps", paper="Kingma and Ba 2015, Alg. 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(all(0.0 <= beta < 1.0 for beta in self.betas),
              f"--adam-betas is {self.betas}; both must lie in [0, 1). Try '(0.9, 0.98)'.")
        check(_is_finite_from_zero(self.eps) and self.eps > 0.0,
              f"--adam-eps is {self.eps}; it must be a finite number above 0, or a weight whose gradient stays 0 "
              "is divided by 0. Try 1e-8.")


@dataclass(frozen=True, kw_only=True)
class Adam2(Adam):
    """Optimizer: Adam under the name that Transformer-Clinic's scripts use."""


@dataclass(frozen=True, kw_only=True)
class RAdam(Adam):
    """Optimizer: rectified Adam.

    RAdam, Liu et al. (2020), Alg. 2: a step is scaled by how well the second moment is known by then, and left out
    while it is not known at all (the first five updates at beta2 = 0.98), when only weight decay acts.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # rho_inf = 2 / (1 - beta2) - 1 bounds rho_t from above, and no step is taken below rho_t = 5.
        check(self.betas[1] > 2 / 3,
              f"--adam-betas is {self.betas}; rectified Adam takes no step at all unless the second is above 2/3. "
              "Try '(0.9, 0.98)', or --optimizer adam.")


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Optimizer: Adam as torch.optim.AdamW computes it.

    Differs from `adam` in epsilon alone, which is added after bias correction (Loshchilov and Hutter 2019, Alg. 2).
    """


@dataclass(frozen=True, kw_only=True)
class Nag(Optimizer):
    """Optimizer: gradient descent with momentum.

    Nesterov's variant looks one velocity ahead (Sutskever et al. 2013, §2.1); weight decay is decoupled.
    """

    momentum: float = flag(0.99, f"{_MOMENTUM_HELP}",
                           paper="Sutskever et al. 2013, §2")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_momentum(self.momentum)


@dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer):
    """Optimizer: plain gradient descent.

    As torch.optim.SGD: weight decay is added to the gradient, so momentum carries it over.
    """

    momentum: float = flag(0.0, f"{_MOMENTUM_HELP}",
                           paper="Sutskever et al. 2013, §2")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_momentum(self.momentum)


register.optimizer: Mapping[str, type[Optimizer]] = {
    "adam": Adam, "radam": RAdam, "adamw": AdamW, "nag": Nag, "sgd": Sgd, "adam2": Adam2,
}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate: what all schedules share."""


@dataclass(frozen=True, kw_only=True)
class WarmUp(Schedule):
    """Learning rate: warm-up from 0."""

    warmup_updates: int = flag(0, _WARMUP_HELP, paper="Vaswani et al. 2017, §5.3")

    def __post_init__(self) -> None:
        check(self.warmup_updates >= 0,
              f"--warmup-updates is {self.warmup_updates}; it must be 0 or more, where 0 means no warm-up. Try 4000.")


@dataclass(frozen=True, kw_only=True)
class WarmUpFrom(WarmUp):
    """Learning rate: warm-up from a chosen rate."""

    warmup_init_lr: float = flag(-1.0, "learning rate at which warm-up starts, 1e-7 in most recipes; a negative one "
                                 "stands for 0, and for --lr with cosine", needs="warmup-updates")


@dataclass(frozen=True, kw_only=True)
class Fixed(WarmUp):
    """Learning rate: warm-up, and a rate for each epoch.

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


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(WarmUpFrom):
    """Learning rate: inverse square root.

    Proportional to 1 / sqrt(update) after warm-up, and equal to --lr where the two meet (Vaswani et al. 2017, §5.3).
    """

    warmup_updates: int = flag(4000, _WARMUP_HELP, paper="Vaswani et al. 2017, §5.3")


@dataclass(frozen=True, kw_only=True)
class Linear(WarmUpFrom):
    """Learning rate: a straight line from --lr to --min-lr at --max-update.

    With warm-up, the alternative to the inverse square root in Admin's scripts (Admin, Liu et al. 2020).
    """


@dataclass(frozen=True, kw_only=True)
class PolynomialDecay(WarmUp):
    """Learning rate: polynomial decay.

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


@dataclass(frozen=True, kw_only=True)
class Poly(Schedule):
    """Learning rate: a power of the updates left until --max-update, no warm-up."""

    poly_pow: float = flag(2.0, "exponent of the share of updates left; 1 is a straight line, 2 falls faster at first",
                           paper="You et al. 2017")

    def __post_init__(self) -> None:
        _check_power("poly-pow", self.poly_pow)


@dataclass(frozen=True, kw_only=True)
class Cosine(WarmUpFrom):
    """Learning rate: cosine with restarts.

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


register.schedule: Mapping[str, type[Schedule]] = {
    "fixed": Fixed, "inverse_sqrt": InverseSqrt, "linear": Linear, "polynomial_decay": PolynomialDecay,
    "poly": Poly, "cosine": Cosine,
}


def _is_finite_from_zero(value: float) -> bool:
    return 0.0 <= value < math.inf


def _check_momentum(momentum: float) -> None:
    check(0.0 <= momentum < 1.0,
          f"--momentum is {momentum}; it must lie in [0, 1), or the velocity grows without end. Try 0.9 or 0.99.")


def _check_shrink(lr_shrink: float) -> None:
    check(0.0 < lr_shrink <= 1.0,
          f"--lr-shrink is {lr_shrink}; it must lie in (0, 1], where 1 keeps the rate. Try 0.5.")


def _check_power(name: str, power: float) -> None:
    check(0.0 < power < math.inf, f"--{name} is {power}; it must be a finite number above 0. Try 1 or 2.")

"""How weights move: the rules of --optimizer, each with its options and its formula (training/optimizers.py walks the weights).

Nothing here waits for the device or branches on its data, so a step can be compiled and captured in a CUDA graph. Every factor
of an update that must vanish when `ok` is False is a 0-dim tensor with a neutral value (`unless`): the same kernels then leave
every number as it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lamina.fields import check, flag
from lamina.parts.contracts import MatrixRule, Optimizer
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from lamina.nn.parameter_kinds import Parameter

Factors = tuple[Any, ...]  # of numbers and 0-dim tensors: what the chunks of one step share
NO_DECAY = ("norms", "biases", "embeddings", "gates", "scales")  # kinds of nn/parameter_kinds.py
_MOMENTUM_HELP = "share of the last update's velocity that carries over; 0.9 to 0.99 is usual, 0 turns it off"


def unless(ok: Tensor | None, value: Tensor | float, neutral: float = 0.0) -> Tensor | float:
    """`value`, or where the step is off the number that makes its kernel change nothing."""
    if ok is None:
        return value
    import torch

    return torch.where(ok, value, neutral)


@dataclass(frozen=True, kw_only=True)
class FlatRule(Optimizer):
    """What the rules here share."""

    weight_decay: float = flag(0.0, "pull every weight towards 0 by this share of the learning rate at each update; "
                               "0.0001 for small corpora, 0.01 for language models", aliases=("wd",),
                               paper="Loshchilov and Hutter 2019, Alg. 2")
    no_decay: tuple[str, ...] = flag((), "parameters that --weight-decay leaves alone: those of norms, biases, embeddings (and "
                                         "learned positions), gates (and weights of layers in a fusion), scales of residuals",
                                     choices=NO_DECAY, metavar="KIND[,KIND..]", needs="weight-decay")

    def __post_init__(self) -> None:
        check(_is_finite_from_zero(self.weight_decay),
              f"--weight-decay is {self.weight_decay}; it must be a finite number, 0 or more. "
              "Leave it out for no decay, or try 0.0001.")

    def rule_for(self, parameter: Parameter) -> Optimizer | MatrixRule:
        is_spared = self.weight_decay > 0.0 and parameter.kind in self.no_decay
        return replace(self, weight_decay=0.0, no_decay=()) if is_spared else self


@register.optimizer("adam")
@dataclass(frozen=True, kw_only=True)
class Adam(FlatRule):
    """Adam and its relatives.

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

    buffers = ("exp_avg", "exp_avg_sq")

    def factors(self, step: Tensor, lr: Tensor, ok: Tensor | None) -> Factors:
        beta1, beta2 = self.betas
        # In float64: 1 - beta^t cancels badly in float32 while t is small.
        unbias1, unbias2 = 1.0 - beta1**step, 1.0 - beta2**step
        step_size = lr * unbias2.sqrt() / unbias1 * self.gain(step)
        return (unless(ok, 1.0 - beta1), unless(ok, 1.0 - beta2), self.epsilon(unbias2),
                unless(ok, step_size.float()), unless(ok, (lr * self.weight_decay).float()))

    def gain(self, step: Tensor) -> Tensor | float:
        return 1.0

    def epsilon(self, unbias2: Tensor) -> Tensor | float:
        return self.eps

    def update_(self, weights: Tensor, grad: Tensor, buffers: list[Tensor], factors: Factors, scratch: Tensor) -> None:
        """p -= lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps), after p -= lr * weight_decay * p."""
        import torch

        mean, mean_square = buffers
        weight1, weight2, eps, step_size, decay = factors
        mean.lerp_(grad, weight1)
        mean_square.lerp_(torch.mul(grad, grad, out=scratch), weight2)
        torch.sqrt(mean_square, out=scratch).add_(eps)
        torch.div(mean, scratch, out=scratch).mul_(step_size)
        if self.weight_decay:
            # Added to the update: a factor 1 - lr * weight_decay on the weight would be 1 in float32 too often.
            scratch.addcmul_(weights, decay)
        weights.sub_(scratch)


@register.optimizer("radam")
@dataclass(frozen=True, kw_only=True)
class RAdam(Adam):
    """Rectified Adam.

    RAdam, Liu et al. (2020), Alg. 2: a step is scaled by how well the second moment is known by then, and left out
    while it is not known at all (the first five updates at beta2 = 0.98), when only weight decay acts.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # rho_inf = 2 / (1 - beta2) - 1 bounds rho_t from above, and no step is taken below rho_t = 5.
        check(self.betas[1] > 2 / 3,
              f"--adam-betas is {self.betas}; rectified Adam takes no step at all unless the second is above 2/3. "
              "Try '(0.9, 0.98)', or --optimizer adam.")

    def gain(self, step: Tensor) -> Tensor | float:
        """The rectifier; below rho = 5 no step, only weight decay.

        Deviates from the paper, which takes plain momentum steps there and draws the line at 4: as the authors' code.
        """
        import torch

        beta2 = self.betas[1]
        power = beta2**step
        limit = 2.0 / (1.0 - beta2) - 1.0
        rho = limit - 2.0 * step * power / (1.0 - power)
        known = rho.clamp(min=5.0)  # where it is less the result is dropped, but must not be a NaN
        gain = ((known - 4.0) * (known - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * known)).sqrt()
        return torch.where(rho >= 5.0, gain, 0.0)


@register.optimizer("adamw")
@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam as torch.optim.AdamW computes it.

    Differs from `adam` in epsilon alone, which is added after bias correction (Loshchilov and Hutter 2019, Alg. 2).
    """

    def epsilon(self, unbias2: Tensor) -> Tensor | float:
        """m / (sqrt(v / (1 - b2^t)) + eps)."""
        return (self.eps * unbias2.sqrt()).float()


@register.optimizer("nag")
@dataclass(frozen=True, kw_only=True)
class Nag(FlatRule):
    """Gradient descent with momentum.

    Nesterov's variant looks one velocity ahead (Sutskever et al. 2013, §2.1); weight decay is decoupled.
    """

    momentum: float = flag(0.99, f"{_MOMENTUM_HELP}",
                           paper="Sutskever et al. 2013, §2")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_momentum(self.momentum)

    buffers = ("momentum_buffer",)

    def factors(self, step: Tensor, lr: Tensor, ok: Tensor | None) -> Factors:
        return unless(ok, lr.float()), unless(ok, self.momentum, neutral=1.0)

    def update_(self, weights: Tensor, grad: Tensor, buffers: list[Tensor], factors: Factors, scratch: Tensor) -> None:
        """v = momentum * v + g; p -= lr * (g + momentum * v).

        fairseq keeps -lr * v instead and rescales it whenever lr changes; in units of the gradient there is nothing to
        rescale.
        """
        import torch

        lr, momentum = factors
        velocity = buffers[0].mul_(momentum).add_(grad)
        torch.mul(velocity, self.momentum, out=scratch).add_(grad)
        if self.weight_decay:
            scratch.add_(weights, alpha=self.weight_decay)
        weights.sub_(scratch.mul_(lr))


@register.optimizer("sgd")
@dataclass(frozen=True, kw_only=True)
class Sgd(FlatRule):
    """Plain gradient descent.

    As torch.optim.SGD: weight decay is added to the gradient, so momentum carries it over.
    """

    momentum: float = flag(0.0, f"{_MOMENTUM_HELP}",
                           paper="Sutskever et al. 2013, §2")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_momentum(self.momentum)

    @property
    def buffers(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("momentum_buffer",) if self.momentum else ()

    def factors(self, step: Tensor, lr: Tensor, ok: Tensor | None) -> Factors:
        return unless(ok, lr.float()), unless(ok, self.momentum, neutral=1.0), unless(ok, self.weight_decay)

    def update_(self, weights: Tensor, grad: Tensor, buffers: list[Tensor], factors: Factors, scratch: Tensor) -> None:
        """v = momentum * v + (g + weight_decay * p); p -= lr * v."""
        import torch

        lr, momentum, decay = factors
        torch.mul(weights, decay, out=scratch).add_(grad)
        if buffers:
            scratch.copy_(buffers[0].mul_(momentum).add_(scratch))
        weights.sub_(scratch.mul_(lr))


@register.optimizer("adam2")
@dataclass(frozen=True, kw_only=True)
class Adam2(Adam):
    """Adam under the name that Transformer-Clinic's scripts use."""


def _is_finite_from_zero(value: float) -> bool:
    return 0.0 <= value < math.inf


def _check_momentum(momentum: float) -> None:
    check(0.0 <= momentum < 1.0,
          f"--momentum is {momentum}; it must lie in [0, 1), or the velocity grows without end. Try 0.9 or 0.99.")

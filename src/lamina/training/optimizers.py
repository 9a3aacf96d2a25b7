"""Optimizers over one flat float32 tensor that holds all weights.

However many parameters a model has, a step is the same handful of element-wise kernels. Nothing here waits for the
device or branches on its data, so a step can be compiled and captured in a CUDA graph: the learning rate may be a
tensor, the step count is one, and whether the step counts at all (`ok`) is decided on the device.

Every factor of an update that must vanish when `ok` is False is a 0-dim tensor with a neutral value, and the gradient
is replaced (not multiplied, NaN * 0 is NaN) by zeros: the same kernels then leave every number as it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from lamina.config import optim as options
from lamina.errors import CheckpointError

# Six tensors of this many floats (weights, gradient, two moments, two of scratch) are 24 MiB, which a server CPU's
# cache holds, so that only the first kernel of a step reads memory. Adam, 37M weights, 2 threads that sleep while they wait:
# 48 ms, 61 ms in pieces of half the size and 45 ms in pieces of twice; with threads that turn 35, 37 and 39 ms.
CPU_CHUNK = 2**20

Factor = Tensor | float
Factors = tuple[Any, ...]  # of Factor: what the chunks of one step share


class Optimizer(ABC):
    """The contract, and the walk over chunks; a subclass names its buffers and says what happens to one chunk."""

    def __init__(self, config: options.Optimizer, master: Tensor, buffers: tuple[str, ...] = ()) -> None:
        assert (master.dim(), master.dtype) == (1, torch.float32), "master is one flat float32 tensor"
        self.master = master.detach()
        self.step = torch.zeros((), dtype=torch.int64, device=master.device)
        self.buffers = {name: torch.zeros_like(self.master) for name in buffers}
        self.weight_decay = config.weight_decay

    @torch.no_grad()
    def step_(self, grad: Tensor, lr: Tensor | float, ok: Tensor | None = None) -> None:
        """One update in place. Where the 0-dim `ok` is False nothing changes: weights, moments and step count stay."""
        device = self.master.device
        # full() fills on the device: unlike a copy of a Python number, it does not wait for it.
        rate = (lr.to(device, torch.float64) if isinstance(lr, Tensor)
                else torch.full((), lr, dtype=torch.float64, device=device))
        factors = self._factors(rate, ok)
        size = min(CPU_CHUNK, self.master.numel()) if device.type == "cpu" else self.master.numel()
        # Two tensors, not rows of one: the compiler fuses writes to a tensor of their own, not those to a part.
        scratch, masked = (self.master.new_empty(size if needed else 0) for needed in (True, ok is not None))
        zero = scratch.new_zeros(())
        wholes = (self.master, grad, *self.buffers.values())
        for weights, gradient, *buffers in zip(*(whole.split(size) for whole in wholes), strict=True):
            length = weights.numel()
            if ok is not None:
                gradient = torch.where(ok, gradient, zero, out=masked[:length])
            self._update_(weights, gradient, buffers, factors, scratch[:length])
        self.step.add_(1 if ok is None else ok)

    @abstractmethod
    def _factors(self, lr: Tensor, ok: Tensor | None) -> Factors:
        """The numbers that all chunks share, as float32 or Python floats; `lr` is 0-dim float64."""

    @abstractmethod
    def _update_(self, weights: Tensor, grad: Tensor, buffers: list[Tensor], factors: Factors,
                 scratch: Tensor) -> None:
        """Move one chunk of the weights and of the buffers, in place; `scratch` is as long and free to use."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold to go on from here. Live tensors: copy them to keep them."""
        return {"step": self.step, **self.buffers}

    def load_state_(self, state: dict[str, Tensor]) -> None:
        own, remedy = self.state(), "Choose the --optimizer that wrote the checkpoint, or add --reset-optimizer."
        if state.keys() != own.keys():
            raise CheckpointError(f"the optimizer state holds {_listed(state)}, but this optimizer keeps "
                                  f"{_listed(own)}. {remedy}")
        for name, tensor in own.items():
            if state[name].shape != tensor.shape:
                raise CheckpointError(f"{name} of the optimizer state has shape {tuple(state[name].shape)}, but this "
                                      f"model needs {tuple(tensor.shape)}: the model has other weights than the one "
                                      "that was saved. Give the model options it was trained with, or add "
                                      "--reset-optimizer.")
        for name, tensor in own.items():
            tensor.copy_(state[name])


class Adam(Optimizer):
    """p -= lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps), after p -= lr * weight_decay * p.

    Kingma and Ba (2015), §2, last paragraph: epsilon stands outside the bias correction.
    """

    def __init__(self, config: options.Adam, master: Tensor) -> None:
        super().__init__(config, master, ("exp_avg", "exp_avg_sq"))
        self.betas, self.eps = config.betas, config.eps

    def _factors(self, lr: Tensor, ok: Tensor | None) -> Factors:
        beta1, beta2 = self.betas
        step = (self.step + 1).double()
        # In float64: 1 - beta^t cancels badly in float32 while t is small.
        unbias1, unbias2 = 1.0 - beta1**step, 1.0 - beta2**step
        step_size = lr * unbias2.sqrt() / unbias1 * self._gain(step)
        return (_unless(ok, 1.0 - beta1), _unless(ok, 1.0 - beta2), self._epsilon(unbias2),
                _unless(ok, step_size.float()), _unless(ok, (lr * self.weight_decay).float()))

    def _gain(self, step: Tensor) -> Factor:
        return 1.0

    def _epsilon(self, unbias2: Tensor) -> Factor:
        return self.eps

    def _update_(self, weights: Tensor, grad: Tensor, buffers: list[Tensor], factors: Factors,
                 scratch: Tensor) -> None:
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


class RAdam(Adam):
    """Adam times the rectifier of Liu et al. (2020), Alg. 2; below rho = 5 no step, only weight decay.

    Deviates from the paper, which takes plain momentum steps there and draws the line at 4: as the authors' code.
    """

    def _gain(self, step: Tensor) -> Factor:
        beta2 = self.betas[1]
        power = beta2**step
        limit = 2.0 / (1.0 - beta2) - 1.0
        rho = limit - 2.0 * step * power / (1.0 - power)
        known = rho.clamp(min=5.0)  # where it is less the result is dropped, but must not be a NaN
        gain = ((known - 4.0) * (known - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * known)).sqrt()
        return torch.where(rho >= 5.0, gain, 0.0)


class AdamW(Adam):
    """Epsilon inside the bias correction: m / (sqrt(v / (1 - b2^t)) + eps), as torch.optim.AdamW."""

    def _epsilon(self, unbias2: Tensor) -> Factor:
        return (self.eps * unbias2.sqrt()).float()


class Nag(Optimizer):
    """Nesterov momentum: v = momentum * v + g; p -= lr * (g + momentum * v) (Sutskever et al. 2013, §2.1).

    fairseq keeps -lr * v instead and rescales it whenever lr changes; in units of the gradient there is nothing to
    rescale. Decoupled weight decay.
    """

    def __init__(self, config: options.Nag, master: Tensor) -> None:
        super().__init__(config, master, ("momentum_buffer",))
        self.momentum = config.momentum

    def _factors(self, lr: Tensor, ok: Tensor | None) -> Factors:
        return _unless(ok, lr.float()), _unless(ok, self.momentum, neutral=1.0)

    def _update_(self, weights: Tensor, grad: Tensor, buffers: list[Tensor], factors: Factors,
                 scratch: Tensor) -> None:
        lr, momentum = factors
        velocity = buffers[0].mul_(momentum).add_(grad)
        torch.mul(velocity, self.momentum, out=scratch).add_(grad)
        if self.weight_decay:
            scratch.add_(weights, alpha=self.weight_decay)
        weights.sub_(scratch.mul_(lr))


class Sgd(Optimizer):
    """v = momentum * v + (g + weight_decay * p); p -= lr * v, as torch.optim.SGD."""

    def __init__(self, config: options.Sgd, master: Tensor) -> None:
        super().__init__(config, master, ("momentum_buffer",) if config.momentum else ())
        self.momentum = config.momentum

    def _factors(self, lr: Tensor, ok: Tensor | None) -> Factors:
        return (_unless(ok, lr.float()), _unless(ok, self.momentum, neutral=1.0), _unless(ok, self.weight_decay))

    def _update_(self, weights: Tensor, grad: Tensor, buffers: list[Tensor], factors: Factors,
                 scratch: Tensor) -> None:
        lr, momentum, decay = factors
        torch.mul(weights, decay, out=scratch).add_(grad)
        if buffers:
            scratch.copy_(buffers[0].mul_(momentum).add_(scratch))
        weights.sub_(scratch.mul_(lr))


def build_optimizer(config: options.Optimizer, master: Tensor) -> Optimizer:
    """The optimizer that `--optimizer` and its flags describe, over the flat float32 `master` weights."""
    return _CLASSES[type(config)](config, master)


_CLASSES: dict[type[options.Optimizer], type] = {
    options.Adam: Adam, options.Adam2: Adam, options.RAdam: RAdam, options.AdamW: AdamW, options.Nag: Nag,
    options.Sgd: Sgd,
}


def _unless(ok: Tensor | None, value: Factor, neutral: float = 0.0) -> Factor:
    """`value`, or where the step is off the number that makes its kernel change nothing."""
    return value if ok is None else torch.where(ok, value, neutral)


def _listed(state: dict[str, Tensor]) -> str:
    return ", ".join(sorted(state)) or "nothing"

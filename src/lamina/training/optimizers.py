"""Optimizers over one flat float32 tensor that holds all weights.

However many parameters a model has, a step is the same handful of element-wise kernels. Nothing here waits for the
device or branches on its data, so a step can be compiled and captured in a CUDA graph: the learning rate may be a
tensor, the step count is one, and whether the step counts at all (`ok`) is decided on the device. Where it does not, the
gradient is replaced (not multiplied, NaN * 0 is NaN) by zeros. The rules are parts (parts/update_rules.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.errors import CheckpointError
from lamina.parts.contracts import Optimizer as Rule

# Six tensors of this many floats (weights, gradient, two moments, two of scratch) are 24 MiB, which a server CPU's
# cache holds, so that only the first kernel of a step reads memory. Adam, 37M weights, 2 threads that sleep while they wait:
# 48 ms, 61 ms in pieces of half the size and 45 ms in pieces of twice; with threads that turn 35, 37 and 39 ms.
CPU_CHUNK = 2**20


class Optimizer:
    """The walk over chunks; the rule names its buffers and says what happens to one chunk."""

    def __init__(self, rule: Rule, master: Tensor) -> None:
        assert (master.dim(), master.dtype) == (1, torch.float32), "master is one flat float32 tensor"
        self.master = master.detach()
        self.step = torch.zeros((), dtype=torch.int64, device=master.device)
        self.buffers = {name: torch.zeros_like(self.master) for name in rule.buffers}
        self.rule = rule

    @torch.no_grad()
    def step_(self, grad: Tensor, lr: Tensor | float, ok: Tensor | None = None) -> None:
        """One update in place. Where the 0-dim `ok` is False nothing changes: weights, moments and step count stay."""
        device = self.master.device
        # full() fills on the device: unlike a copy of a Python number, it does not wait for it.
        rate = (lr.to(device, torch.float64) if isinstance(lr, Tensor)
                else torch.full((), lr, dtype=torch.float64, device=device))
        factors = self.rule.factors((self.step + 1).double(), rate, ok)
        size = min(CPU_CHUNK, self.master.numel()) if device.type == "cpu" else self.master.numel()
        # Two tensors, not rows of one: the compiler fuses writes to a tensor of their own, not those to a part.
        scratch, masked = (self.master.new_empty(size if needed else 0) for needed in (True, ok is not None))
        zero = scratch.new_zeros(())
        wholes = (self.master, grad, *self.buffers.values())
        for weights, gradient, *buffers in zip(*(whole.split(size) for whole in wholes), strict=True):
            length = weights.numel()
            if ok is not None:
                gradient = torch.where(ok, gradient, zero, out=masked[:length])
            self.rule.update_(weights, gradient, buffers, factors, scratch[:length])
        self.step.add_(1 if ok is None else ok)

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


def build_optimizer(rule: Rule, master: Tensor) -> Optimizer:
    """The optimizer that `--optimizer` and its flags describe, over the flat float32 `master` weights."""
    return Optimizer(rule, master)


def _listed(state: dict[str, Tensor]) -> str:
    return ", ".join(sorted(state)) or "nothing"

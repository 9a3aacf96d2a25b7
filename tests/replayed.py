"""Captured passes where there is no GPU: what is replayed is computed again, on the batch that was captured."""

from types import SimpleNamespace

import torch


class Rerunning:
    """Stands for the recorder."""

    is_on = True

    def __init__(self):
        self.num_captured = 0

    def warm_up(self, compute):
        compute()

    def capture(self, compute):
        self.num_captured += 1
        return SimpleNamespace(replay=compute)


def without_a_device(monkeypatch):
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)


def sums_and_gradients(updater, batch, replay):
    """Of a replayed pass, or of none an eager one, and of an eager one."""
    found = []
    for captured in (replay, None):
        updater.weights.forget_grad_()
        updater.sums.zero_()
        if captured is None:
            updater.forward_backward(batch)
            updater.weights.collect_grad_()
        else:
            captured()
        found.append((updater.sums.clone(), updater.weights.grad.clone()))
    return found

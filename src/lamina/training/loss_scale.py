"""The loss scale of float16 training, kept and moved on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.config.train_options import PrecisionConfig


class LossScale:
    """Halves when a gradient overflows, doubles after a window of updates without (Micikevicius et al. 2018, §3.2)."""

    def __init__(self, config: PrecisionConfig, device: torch.device, *, is_on: bool, default_window: int) -> None:
        self.is_on = is_on
        self.value = torch.tensor(config.fp16_init_scale if is_on else 1.0, device=device)
        self.good_updates = torch.zeros((), device=device)
        self.window = max(1, config.fp16_scale_window or default_window)
        self.floor = config.threshold_loss_scale or 0.0

    def update_(self, ok: Tensor) -> None:
        if not self.is_on:
            return
        good = torch.where(ok, self.good_updates + 1, 0.0)
        grows = good >= self.window
        grown = torch.where(grows, self.value * 2, self.value)
        self.value.copy_(torch.where(ok, grown, (self.value / 2).clamp(min=self.floor)))
        self.good_updates.copy_(torch.where(grows, 0.0, good))

    def state(self) -> dict[str, Tensor]:
        return {"value": self.value, "good_updates": self.good_updates}

    def load_state_(self, state: dict[str, Tensor]) -> None:
        self.value.copy_(state["value"])
        self.good_updates.copy_(state["good_updates"])

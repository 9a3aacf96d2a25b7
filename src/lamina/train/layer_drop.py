"""Which layers run in an update (LayerDrop, Fan et al. 2020)."""

from __future__ import annotations

import numpy as np

from lamina.config.model import ModelConfig, StackConfig
from lamina.nn.stack import Runs

# Sets these draws apart from others that --seed and a count decide, such as the order of the data.
STREAM = 1


class LayerDrop:
    """Draws by the seed and the number of the update alone.

    So every rank draws the same mask, a resumed run draws what one that never stopped would, and dropout, which draws
    from torch's generator, neither sees nor moves it. The mask stays on the host: it decides what is launched at all.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.rates = tuple(drop_rates(stack, config.layer_drop_schedule) for stack in (config.encoder, config.decoder))
        self.seed = seed

    def draw(self, update: int) -> Runs:
        generator = np.random.default_rng([self.seed, update, STREAM])
        # Both stacks draw even where one never drops, so that its rate does not change what the other drops.
        draws = [generator.random(len(rates)) for rates in self.rates]
        encoder, decoder = (tuple((draw >= rates).tolist()) if any(rates) else None
                            for draw, rates in zip(draws, self.rates, strict=True))
        return Runs(encoder, decoder)


def drop_rates(stack: StackConfig, schedule: str) -> tuple[float, ...]:
    """The probability of each layer to be left out; growing with depth as in stochastic depth (Huang et al. 2016, §3)."""
    if schedule == "constant":
        return (stack.layer_drop_p,) * stack.num_layers
    return tuple(stack.layer_drop_p * (index + 1) / stack.num_layers for index in range(stack.num_layers))

"""Which layers run in an update, or in each of its batches (LayerDrop, Fan et al. 2020).

That is how fairseq draws. Per default each sentence draws its own, when its batch is made: data/layer_subsets.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.config.model import ModelConfig
from lamina.nn.stack import ActiveLayers

# Sets these draws apart from others that --seed and a count decide, such as the order of the data.
STREAM = 1


class LayerDrop:
    """Draws by the seed, the number of the update and, where batches have draws of their own, the batch's place in it alone.

    So every rank knows all masks, a resumed run draws what one that never stopped would, several ranks what one would, and
    dropout, which draws from torch's generator, neither sees nor moves it. The masks stay on the host: they decide what is
    launched at all.
    """

    def __init__(self, config: ModelConfig, seed: int, *, is_by_batch: bool = False) -> None:
        self.is_by_batch = is_by_batch
        self.rates = config.layer_drop_rates
        self.seed = seed

    @property
    def is_on(self) -> bool:
        return any(map(any, self.rates))

    def draws(self, update: int, num_batches: int) -> list[ActiveLayers]:
        """One for all batches of the update, or one for each, on whatever rank."""
        return [self.draw(update, place) for place in range(num_batches)] if self.is_by_batch else [self.draw(update)]

    def draw(self, update: int, place: int = 0) -> ActiveLayers:
        # The first batch's is that of an update with one draw: --layerdrop-draws changes nothing where there is one batch.
        generator = np.random.default_rng([self.seed, update, STREAM, *([place] if place else [])])
        # Both stacks draw even where one never drops, so that its rate does not change what the other drops.
        draws = [generator.random(len(rates)) for rates in self.rates]
        encoder, decoder = (tuple((draw >= rates).tolist()) if any(rates) else None
                            for draw, rates in zip(draws, self.rates, strict=True))
        return ActiveLayers(encoder, decoder)


def run_in_any(draws: Sequence[ActiveLayers]) -> ActiveLayers:
    """The layers that run in one of the batches at least."""
    return ActiveLayers(*(None if any(own is None for own in stack) else tuple(map(any, zip(*stack, strict=True)))
                  for stack in zip(*draws, strict=True)))

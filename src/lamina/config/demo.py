"""What `lamina demo` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.fields import check, check_seed, flag


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Demo."""

    folder: str = flag("lamina-demo", "where text, data and checkpoints go; a second run goes on from what is there")
    max_update: int = flag(800, "updates to train each of the two models; the default takes about three minutes on two cores")
    num_pairs: int = flag(30000, "training pairs to make", name="train-pairs")
    num_samples: int = flag(10, "translations to show", name="samples")
    seed: int = flag(1, "fixes the corpus, the initial weights and the order of the data")

    def __post_init__(self) -> None:
        for name, value in (("max-update", self.max_update), ("train-pairs", self.num_pairs)):
            check(value >= 1, f"--{name} is {value}; it must be at least 1.")
        check_seed(self.seed)
        check(self.num_samples >= 0, f"--samples is {self.num_samples}; it must be 0 or more.")

"""`lamina train`: from a data folder to checkpoints."""

from __future__ import annotations

import sys

from lamina.config.train_options import TrainConfig
from lamina.fields import flatten
from lamina.training.start_training import start_training


def run(config: TrainConfig) -> None:
    if config.print_config:
        import yaml

        values = {name: value for name, value in flatten(config).items() if name not in ("print-config", "config", "user-dir")}
        yaml.safe_dump(values, sys.stdout, sort_keys=False, allow_unicode=True)
        return
    start_training(config)

"""`lamina train`: from a data folder to checkpoints."""

from __future__ import annotations

import sys

from lamina.config.train_options import TrainConfig
from lamina.fields import flatten
from lamina.training.start_training import start_training


def run(config: TrainConfig) -> None:
    if config.print_config:
        import yaml

        left_out = ("print-config", "plan", "plan-memory", "config", "user-dir")
        values = {name: value for name, value in flatten(config).items() if name not in left_out}
        yaml.safe_dump(values, sys.stdout, sort_keys=False, allow_unicode=True)
        return
    if config.plan:
        from lamina.training.run_plan import show_plan

        show_plan(config)
        return
    start_training(config)

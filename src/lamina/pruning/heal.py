"""Healing: the training run that a cut model goes through, with the whole one as its teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lamina.checkpoint.format import Checkpoint, load_checkpoint
from lamina.config.prune_options import SEQUENCES, PruneConfig
from lamina.config.train_options import TrainConfig
from lamina.errors import CheckpointError
from lamina.fields import build, flatten, leaves
from lamina.traits import CLASSES, PAIRS

# Of the run's learning rate: its peak is for weights that know nothing.
LR_SHARE = 0.5
WARM_UP_SHARE = 0.05  # of the updates
VALIDATIONS = 5
CUT_NAME = "cut.pt"
TEXT_NAME = "translated"  # a data folder


def heal_folder(output: Path) -> Path:
    """Beside the output, so that healing that was stopped is resumed by the same command."""
    return output.with_name(f"{output.stem}.heal")


def check_folder(folder: Path, cut: Checkpoint, kind: str) -> None:
    """What was begun there must be of the same layers and targets, or it would continue as if it were."""
    if not (folder / CUT_NAME).exists():
        return
    before = load_checkpoint(folder / CUT_NAME).weights
    if not all(name in before and torch.equal(weight, before[name]) for name, weight in cut.weights.items()):
        raise CheckpointError(f"{folder} holds what healing another model left. Remove it, or choose another --output.")
    if (folder / "checkpoint_last.pt").exists() and (folder / TEXT_NAME).exists() != (kind == SEQUENCES):
        raise CheckpointError(f"{folder} holds what healing with another --distill left. Remove it, or choose another "
                              "--output.")


def heal_config(config: PruneConfig, checkpoint: Checkpoint, cut: Checkpoint, folder: Path) -> TrainConfig:
    """The run that trained the whole model, for the layers that stay, and as long as was asked for."""
    assert config.data is not None, "the configuration asks for it"
    if checkpoint.kind.has(CLASSES) and config.heal.teacher_weight:
        raise CheckpointError(f"--heal learns from the whole model's distributions over words, and a model of --task "
                              f"{checkpoint.task} has classes. Add --distill-weight 0, to learn from the data alone.")
    data = Path(config.data)
    if config.heal.kind == SEQUENCES:
        if not checkpoint.kind.has(PAIRS):
            raise CheckpointError(f"--distill sequence trains on the whole model's translations, and a model of --task "
                                  f"{checkpoint.task} makes none. Leave it out.")
        data = folder / TEXT_NAME
    known = {leaf.name for leaf in leaves(TrainConfig)}
    run = {name: value for name, value in checkpoint.config.items() if name in known}
    run |= {name: value for name, value in flatten(cut.model_config()).items() if name in known}
    run = {name: value for name, value in run.items() if not _is_of(name, "lr-scheduler")}
    updates, lr = config.heal.updates, run.get("lr", [0.0])
    changed: dict[str, Any] = {
        "data": str(data), "save-dir": str(folder), "restore-file": "checkpoint_last.pt",
        "finetune-from-model": str(folder / CUT_NAME),
        "encoder-layers-to-keep": None, "decoder-layers-to-keep": None,
        "max-update": updates, "max-epoch": 0, "patience": -1, "stop-min-lr": -1.0, "min-lr": 0.0,
        "lr": [config.heal.lr or LR_SHARE * max(lr)], "lr-scheduler": "linear",
        "warmup-updates": max(1, round(WARM_UP_SHARE * updates)),
        "validate-interval-updates": max(1, updates // VALIDATIONS), "disable-validation": False, "save": True,
        "save-interval-updates": 0, "epoch-checkpoints": False, "last-checkpoints": True, "cpu": config.measure.cpu,
        "distill-from": config.checkpoint if config.heal.teacher_weight else None,
        **({"distill-weight": config.heal.teacher_weight} if config.heal.teacher_weight else {}),
        "config": None, "print-config": False, "plan": False, "plan-memory": None, **flatten(config.plug_ins),
    }
    if checkpoint.kind.has(PAIRS):
        changed |= dict(zip(("source-lang", "target-lang"), checkpoint.languages, strict=True))
    return build(TrainConfig, run | {name: value for name, value in changed.items() if name in known})


def _is_of(name: str, selector: str) -> bool:
    """Whether an option belongs to the choices of another, which is about to change."""
    homes = [leaf for leaf in leaves(TrainConfig) if leaf.name == name]
    return bool(homes) and all(any(own == selector for own, _ in leaf.chosen_by) for leaf in homes)

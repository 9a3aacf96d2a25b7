"""What `lamina average` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.fields import REQUIRED, check, flag


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Average."""

    inputs: tuple[str, ...] = flag(("checkpoints",), "checkpoints to average; or a training folder, of which --num-... "
                                   "says how many", is_list=True, metavar="PATH")
    output: str = flag(REQUIRED, "checkpoint to write", metavar="FILE")
    num_epochs: int | None = flag(None, "take this many of the folder's checkpointEPOCH.pt, the newest",
                                  name="num-epoch-checkpoints")
    num_updates: int | None = flag(None, "take this many of the folder's checkpoint_EPOCH_UPDATES.pt, the newest",
                                   name="num-update-checkpoints")
    upper_bound: int | None = flag(None, "leave out checkpoints of later epochs than this, or with "
                                   "--num-update-checkpoints of later updates", name="checkpoint-upper-bound")

    def __post_init__(self) -> None:
        for name, number in (("num-epoch-checkpoints", self.num_epochs), ("num-update-checkpoints", self.num_updates),
                             ("checkpoint-upper-bound", self.upper_bound)):
            check(number is None or number >= 1, f"--{name} is {number}; it must be at least 1.")
        check(None in (self.num_epochs, self.num_updates),
              "--num-epoch-checkpoints and --num-update-checkpoints exclude each other. Leave one of them out.")
        has_number = self.num_epochs is not None or self.num_updates is not None
        check(self.upper_bound is None or has_number,
              "--checkpoint-upper-bound has no effect without --num-epoch-checkpoints or --num-update-checkpoints.")
        check(not has_number or len(self.inputs) == 1,
              f"--inputs names {len(self.inputs)} paths, but --num-epoch-checkpoints and --num-update-checkpoints choose from "
              "one folder. Name that folder alone, or leave the number out.")

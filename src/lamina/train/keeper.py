"""Which checkpoints to write, and which old ones may go."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from lamina.checkpoint.format import Checkpoint, save_checkpoint
from lamina.config.train import SavingConfig
from lamina.errors import CheckpointError


class Keeper:
    """checkpoint_last.pt, checkpoint_best.pt, checkpointEPOCH.pt and checkpoint_EPOCH_UPDATES.pt in one folder."""

    def __init__(self, config: SavingConfig) -> None:
        self.config = config
        self.folder = Path(config.save_dir)

    def save(self, checkpoint: Checkpoint, *, epoch: int, updates: int, is_epoch_end: bool, is_best: bool) -> list[str]:
        """Write the state once, under every name that is due; the names written."""
        names = self.names_due(epoch=epoch, updates=updates, is_epoch_end=is_epoch_end, is_best=is_best)
        if not names:
            return []
        save_checkpoint(self.folder / names[0], checkpoint)
        for name in names[1:]:
            _publish(self.folder / names[0], self.folder / name)
        self._remove_old()
        return names

    def names_due(self, *, epoch: int, updates: int, is_epoch_end: bool, is_best: bool) -> list[str]:
        config = self.config
        if not config.is_on:
            return []
        names = []
        if is_epoch_end and config.has_epochs and epoch % config.interval == 0:
            names.append(f"checkpoint{epoch}.pt")
        if not is_epoch_end and config.interval_updates and updates % config.interval_updates == 0:
            names.append(f"checkpoint_{epoch}_{updates}.pt")
        if is_best:
            names.append("checkpoint_best.pt")
        if config.has_last:
            names.append("checkpoint_last.pt")
        return names

    def _remove_old(self) -> None:
        self._keep_newest(r"checkpoint_\d+_(\d+)\.pt", self.config.keep_interval_updates)
        self._keep_newest(r"checkpoint(\d+)\.pt", self.config.keep_last_epochs)

    def _keep_newest(self, pattern: str, number: int) -> None:
        if number < 0:
            return
        found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := re.fullmatch(pattern, path.name))]
        for _, path in sorted(found, reverse=True)[number:]:
            path.unlink(missing_ok=True)


def _publish(source: Path, name: Path) -> None:
    """Give a finished file a second name, atomically; without copying it where the file system has hard links."""
    part = name.with_name(f".{name.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
        os.replace(part, name)
    except OSError as error:
        raise CheckpointError(f"{name} could not be written: {error.strerror or error}. Free some space or choose another "
                              "--save-dir; earlier checkpoints are untouched.") from None
    finally:
        part.unlink(missing_ok=True)

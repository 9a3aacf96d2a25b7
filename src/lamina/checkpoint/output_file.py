"""Where a command may write a checkpoint."""

from __future__ import annotations

from pathlib import Path

from lamina.errors import ConfigError


def check_output(output: Path, inputs: list[Path]) -> None:
    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder; name a file, such as {output / 'model.pt'}.")
    # By name, not by inode: another link to an input may be replaced, and leaves that input whole.
    if _place(output) in map(_place, inputs):
        raise ConfigError(f"--output {output} is one of the inputs, and training could not continue from it any more. Choose "
                          "another name.")


def _place(path: Path) -> Path:
    return path.parent.resolve() / path.name

"""What became of each fairseq 0.9 option: the one table behind retired flags, the migration page and its test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Retired:
    """An option that is still accepted, and says in one line why it has no effect."""

    name: str
    commands: tuple[str, ...]
    takes: str  # flag, value or list
    reason: str
    aliases: tuple[str, ...] = ()


RETIRED: tuple[Retired, ...] = ()


def retired_for(command: str) -> list[Retired]:
    return [option for option in RETIRED if command in option.commands]

"""The `lamina` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lamina import console
from lamina.command_line import execute, guarded
from lamina.threads import settle_threads


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    console.settle_streams()
    settle_threads()
    return console.flushed(guarded(lambda: execute(words)))

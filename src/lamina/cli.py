"""The `lamina` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lamina import console
from lamina.bytecode import keep_bytecode
from lamina.command_line import execute, guarded
from lamina.garbage import leave_garbage
from lamina.threads import settle_threads


def run() -> int:
    """`main` as a process of its own."""
    try:
        return main()
    finally:
        leave_garbage()


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    console.settle_streams()
    settle_threads()
    keep_bytecode()
    return console.flushed(guarded(lambda: execute(words)))

"""Where a result comes from: versions, the command as it was typed, the commit of the folder it was typed in."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache

from lamina import __version__

# Enough for a large repository on a slow disk; a result without its commit is better than a run that waits.
GIT_SECONDS = 5
PACKAGES = ("torch", "numpy", "sentencepiece", "subword-nmt", "sacrebleu")

_words: Sequence[str] | None = None  # of the command that this process runs; None where Lamina is used from Python


def begin_command(words: Sequence[str]) -> None:
    global _words
    _words = tuple(words)


def current_command() -> Sequence[str]:
    """To be begun again in processes that this one starts."""
    return _words or ()


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # here: a command that only parses needs no such thing

    found = {"lamina": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # put on the path by hand, or not there
            continue
    return found


def origin() -> dict[str, str]:
    """What a checkpoint says of its making: `time`, and as far as they are known `command` and `commit`.

    Nothing in it names the person, the machine or a path that was not typed.
    """
    known = {"time": datetime.now(timezone.utc).isoformat(timespec="seconds"), "command": command_line(), "commit": commit()}
    return {name: value for name, value in known.items() if value}


def command_line() -> str:
    return "" if _words is None else shlex.join(("lamina", *_words))


@lru_cache(maxsize=1)
def commit() -> str:
    """Of the current folder's repository, with -dirty where files differ from it; nothing where there is none."""
    import subprocess

    try:
        done = subprocess.run(("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"), capture_output=True,
                              text=True, check=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()

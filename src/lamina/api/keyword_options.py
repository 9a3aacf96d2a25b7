"""Keyword arguments as a command's options: the same names, with underscores, the same checks, the same words of advice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeVar

from lamina.api.outputs import warn_in_python
from lamina.config.keep import SIDES, as_text
from lamina.config.parser import parse, resolve
from lamina.config.yaml_file import flag_words
from lamina.errors import ConfigError
from lamina.plug_ins import import_paths, load_installed

T = TypeVar("T")
_LAYERS = {f"{side}_layers_to_keep" for side in SIDES}


def import_parts(user_dir: str | Path | Sequence[str | Path], notice: Callable[[str], object] = warn_in_python) -> None:
    """Parts of installed packages, and of a person's own files."""
    load_installed(notice)
    missing = import_paths([user_dir] if isinstance(user_dir, (str, Path)) else user_dir, notice)
    if missing:
        raise ConfigError(f"user_dir {', '.join(missing)} does not exist.")


def given_by(command: str, cls: type, options: Mapping[str, object], positional: Iterable[str] = ()) -> dict[str, object]:
    """What keyword arguments say, by flat name."""
    values = {name: _plain(value) for name, value in options.items()}
    # As for `load` and `prune`: a number says how many layers stay, not which.
    values |= {name: as_text(value) for name, value in values.items() if name in _LAYERS and isinstance(value, int)}
    given, notices = parse(f"lamina {command}", cls, "", [*positional, *flag_words(values)])
    for notice in notices:
        warn_in_python(notice)
    return given


def config_of(command: str, cls: type[T], options: Mapping[str, object]) -> T:
    return resolve(cls, given_by(command, cls, options))


def _plain(value: object) -> object:
    if isinstance(value, PathLike):
        return str(value)
    return list(value) if isinstance(value, tuple) else value

"""What a person gave where text belongs: one, several, or a stream of them; and pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from lamina.errors import ConfigError


def one_text(given: object, what: str = "the text") -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{what} is a {type(given).__name__}; it must be one text, as a string.")
    return given


def texts_of(given: str | Iterable[str], what: str = "texts") -> list[str]:
    """One text or several, as a list."""
    if not isinstance(given, Iterable):
        raise ConfigError(f"{what} is a {type(given).__name__}; it must be text, one or a list of them.")
    lines = [given] if isinstance(given, str) else list(given)
    wrong = next((line for line in lines if not isinstance(line, str)), None)
    if wrong is not None:
        raise ConfigError(f"{what} must be text, one or a list of them; there is a {type(wrong).__name__} among them.")
    return lines


def many_texts(given: Iterable[str], what: str) -> Iterator[str]:
    """Of something that may never end."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ConfigError(f"{what} is a {type(given).__name__}; it must be something that gives texts, such as a list or a "
                          "file.")
    return iter(given)


def is_pair(given: object) -> bool:
    """Whether it is one source with its translation, and not a list of such pairs."""
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(side, str) for side in given)


def pairs_of(given: object) -> list[tuple[str, str]]:
    """One pair or several, as a list."""
    pairs = [given] if is_pair(given) else list(given) if isinstance(given, Iterable) else [given]
    for own in pairs:
        if not (isinstance(own, (tuple, list)) and is_pair(tuple(own))):
            raise ConfigError(f"pairs has {repr(own)[:60]}; expected a source and its translation as a tuple, or a list of "
                              "such pairs.")
    return cast("list[tuple[str, str]]", pairs)

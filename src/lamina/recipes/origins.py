"""Where the files of a corpus come from: an address, a corpus of recipes/data/build.py, or nowhere that is public."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina.errors import ConfigError

KEYS = ("url", "build", "own", "sha256", "published", "note")


@dataclass(frozen=True)
class Download:
    """One file; of several names that it may have, the first."""

    name: str
    url: str = ""
    build: str = ""  # the corpus' name for recipes/data/build.py, which checks what it downloads and what it builds
    own: str = ""  # what the user brings
    sha256: str = ""  # of a file that was compared with ours
    published: str = ""  # a checksum that others give, which was not compared
    note: str = ""

    @property
    def is_public(self) -> bool:
        return bool(self.url or self.build or self.own)

    def how(self, folder: Path | str = "FOLDER") -> str:
        """How to come by it, as an error or a list says it."""
        if self.build:
            return f"python recipes/data/build.py {self.build} --into {folder}"
        return self.own or self.url or f"not published: {self.note}"

    def checksum(self) -> str:
        if self.build:
            return "checked by build.py"
        if self.sha256:
            return f"SHA-256 {self.sha256}"
        return f"{self.published}, not verified here" if self.published else "not verified here" if self.url else ""


def read_downloads(values: Any) -> tuple[Download, ...]:
    if not isinstance(values, Mapping) or not all(isinstance(own, Mapping) for own in values.values()):
        raise ConfigError("downloads must be a mapping from files to where they come from: {a.tgz: {url: https://...}}.")
    found = []
    for name, own in values.items():
        if unknown := [key for key in own if key not in KEYS]:
            raise ConfigError(f"downloads: {name} has an unknown key {unknown[0]!r}. Known: {', '.join(KEYS)}.")
        download = Download(str(name), **{key: str(value) for key, value in own.items()})
        if not download.is_public and not download.note:
            raise ConfigError(f"downloads: {name} needs a url, a build, an own, or a note that says why there is none.")
        found.append(download)
    return tuple(found)


def origin(downloads: tuple[Download, ...], names: str) -> Download | None:
    """Of a file that a place names, alternatives (`a.tgz|b.tgz`) included."""
    return next((own for own in downloads if own.name in names.split("|")), None)


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def compared(name: str, digest: str, downloads: tuple[Download, ...]) -> str:
    """A line about a file that was read. One that differs is no error: it may be the same text, packed again."""
    own = origin(downloads, name)
    if own is None or not own.sha256:
        return f"{name}: SHA-256 {digest}"
    if own.sha256 == digest:
        return f"{name}: as in our runs (SHA-256 {digest})"
    return f"{name}: SHA-256 {digest}, in our runs {own.sha256}; unless it is the same text packed again, scores do not compare"

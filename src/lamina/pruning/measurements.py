"""Results that took a while, kept in a file from one to the next: a command that was stopped resumes where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lamina.errors import DataError
from lamina.files import read_json, whole_file

FORMAT = 1


class Measurements:
    """Numbers by name, for one thing that is measured; a file may hold those of several things."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        self._content = _read(path)
        self._results: dict[str, float] = self._content["series"].setdefault(key, {"about": about, "results": {}})["results"]
        self.num_known = len(self._results)
        self.num_made = 0

    def get(self, name: str, measure: Callable[[], float]) -> float:
        """What is known already, or measured now and written down at once."""
        if name not in self._results:
            self._results[name] = measure()
            self.num_made += 1
            with whole_file(self.path) as part:
                part.write_text(json.dumps(self._content, indent=1) + "\n", encoding="utf-8")
        return self._results[name]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
        if content["format"] == FORMAT and all("results" in series for series in content["series"].values()):
            return content
    except FileNotFoundError:
        return {"format": FORMAT, "series": {}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DataError(f"{path} should hold the measurements of an earlier run, and cannot be read as such. Remove it, or choose "
                    "another --output.")


def file_digest(paths: Iterable[Path]) -> str:
    """Of the files' contents, in order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()[:16]

"""Where the recipes that come with Lamina lie, so that a name is enough."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import lamina


def folders() -> list[Path]:
    """Beside the source tree, or where an installation puts data."""
    places = [Path(lamina.__file__).parents[2] / "recipes", Path(sysconfig.get_path("data")) / "share" / "lamina" / "recipes"]
    return [place for place in places if place.is_dir()]


def all_names() -> list[str]:
    return sorted({path.stem for folder in folders()[:1] for path in folder.glob("*.yaml")})


def all_corpora() -> list[str]:
    return sorted({path.stem for folder in folders() for path in (folder / "data").glob("*.yaml")})


def path_of(name: str) -> Path:
    """A file that exists is itself; the name of a packaged recipe stands for its file."""
    path = Path(name)
    return folders()[0] / f"{name}.yaml" if not path.exists() and name in all_names() else path

"""Where a recipe may reach: a file from a stranger reads and writes in the folders that the person named, and nowhere else."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from lamina.errors import ConfigError
from lamina.fields import Leaf, unique_leaves

ADVICE = "Add --trust-paths if you know who wrote it"
_METAVARS = ("FILE", "[FILE]", "FOLDER", "DIR", "PATH", "PREFIX", "PREFIX,..", "URL")
_NAMES = ("data", "checkpoint", "path", "input", "sys", "encoder-embed-path", "decoder-embed-path", "save-dir", "restore-file",
          "finetune-from-model", "like", "tensorboard-logdir", "corpus")


def is_path(leaf: Leaf) -> bool:
    """Whether an option names a file or a folder, or a place in the network."""
    return leaf.info.metavar in _METAVARS or leaf.name in _NAMES


def is_place_inside(place: str) -> bool:
    """Whether a place of a corpus (recipes/sources.py), all its alternatives included, stays below the downloads as written."""
    names = [name for part in place.split("!") for name in part.split("|")]
    return not any(name.startswith(("/", "~", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts for name in names)


def is_inside(path: Path, root: Path) -> bool:
    """Also where links lead. Those that lie in the root itself are the person's own, and may lead anywhere."""
    try:
        first = path.relative_to(root).parts[:1]
    except ValueError:
        first = ()
    if ".." in first:
        first = ()
    target = path.resolve()
    return any(target.is_relative_to(base) for base in (root.resolve(), *([(root / first[0]).resolve()] if first else [])))


def check_inside(name: str, cls: type, given: Mapping[str, Any], roots: Sequence[Path], trusted: Collection[str]) -> None:
    """The paths among the options that a command of a recipe gives; `trusted` are those that the person typed."""
    for leaf in unique_leaves(cls):
        if leaf.name not in given or leaf.name in trusted or not is_path(leaf):
            continue
        for text in _paths(given[leaf.name], roots):
            # --restore-file is looked for in --save-dir first.
            bases = [Path(), *([Path(given["save-dir"])] if leaf.name == "restore-file" and "save-dir" in given else [])]
            if not any(is_inside((base / text).absolute(), root.absolute()) for base in bases for root in roots):
                raise ConfigError(f"{name}: --{leaf.name} {text} leads out of --data, --out and --work, where a recipe may "
                                  f"read and write. {ADVICE}, or give the option in --train-flags.")


def _paths(value: Any, roots: Sequence[Path]) -> Iterator[str]:
    """One, several, or several with colons or commas between them; which the person's own folders may have in their names."""
    stand_ins = {f"\0{number}": str(root) for number, root in enumerate(roots)}
    for item in value if isinstance(value, (list, tuple)) else [value]:
        text = str(item)
        for stand_in, root in stand_ins.items():
            text = text.replace(root, stand_in) if len(root) > 1 else text
        for piece in text.replace(",", ":").split(":"):
            for stand_in, root in stand_ins.items():
                piece = piece.replace(stand_in, root)
            if piece and piece != "-":
                yield piece

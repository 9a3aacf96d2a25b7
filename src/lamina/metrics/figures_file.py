"""Figures for programs: one JSON object per file, what `--json` writes and recipes read.

    {"figures": {"bleu": 41.586, "chrf": 60.12}, "signatures": {"bleu": "nrefs:1|..."}, ...}

Names are those of the metrics' `figures`, values are not rounded. JSON knows neither NaN nor infinity: they are text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lamina.errors import DataError
from lamina.files import read_json, write_json
from lamina.parts.contracts import Score


def write_figures(path: str, figures: Mapping[str, float], **more: Any) -> None:
    """`more`: what else there is to say, by name."""
    write_json(Path(path), {"figures": {name: _plain(value) for name, value in figures.items()}, **more})


def write_scores(path: str, scores: Mapping[str, Score], **more: Any) -> None:
    """Of each metric, by name."""
    write_figures(path, {name: value for score in scores.values() for name, value in score.values.items()},
                  signatures={metric: score.signature for metric, score in scores.items()}, **more)


class Figures(NamedTuple):
    """What recipes read of such a file."""

    values: dict[str, float]
    compared: dict[str, dict[str, float]]  # by metric: a system against a baseline
    more: dict[str, float]  # numbers beside the figures, such as seconds


def read_figures(path: Path) -> Figures:
    try:
        content = read_json(path)
        values = {name: float(value) for name, value in content["figures"].items()}
        return Figures(values, {name: {key: float(found[key]) for key in ("difference", "p")}
                                for name, found in content.get("compared", {}).items()},
                       {name: float(value) for name, value in content.items() if type(value) in (int, float)})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise DataError(f"{path} should hold figures as --json writes them, and cannot be read as such. Remove it, and the "
                        "same command measures again.") from None


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)

"""Figures of what commands did: the files that they write, and lines of their logs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lamina.metrics.figures_file import read_figures
from lamina.parts.figures import LOSSES, known_figures


def score_figures(path: Path) -> dict[str, float]:
    """Of `lamina score --json` or `lamina eval-lm --json`: {"BLEU": 41.59, "chrF": 60.1}, {"ppl": 17.43, "word ppl": 30.2}.

    Rounded as they are printed; nothing where there is no such file yet.
    """
    if not path.exists():
        return {}
    found, known = read_figures(path).values, known_figures()
    figures = {known[name].figure.label: float(known[name].figure.shown(value)) for name, value in found.items()
               if name in known and known[name].metric}
    perplexities = {"ppl": "ppl", "word_ppl": "word ppl"}
    return figures | {label: float(LOSSES["ppl"].shown(found[name])) for name, label in perplexities.items() if name in found}


def comparison_figures(path: Path) -> dict[str, dict[str, float]]:
    """Of `lamina score --baseline --json`: {"bleu": {"difference": 0.51, "p": 0.0312}}."""
    return {name: {"difference": round(found["difference"], 2), "p": round(found["p"], 4)}
            for name, found in read_figures(path).compared.items()}


def decoding_speed(path: Path) -> float | None:
    """Sentences per second, of `lamina interactive --json` or `lamina generate --json`; nothing where there is no such file."""
    if not path.exists():
        return None
    more = read_figures(path).more
    return round(more["sentences"] / more["seconds"], 2) if {"sentences", "seconds"} <= more.keys() else None


def training_rows(log: Path) -> Iterator[dict[str, Any]]:
    """What `lamina train --log-format json` printed, of a log that may hold other lines too."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            row = json.loads(line)
        except ValueError:  # cut short by a kill
            continue
        if isinstance(row, dict):  # JSON has no NaN: what is not finite is null
            yield {name: math.nan if value is None else value for name, value in row.items()}


def training_figures(log: Path) -> dict[str, float]:
    """Of a training run: updates, losses in bits, target tokens a second, milliseconds per update, GiB."""
    rows = list(training_rows(log))
    intervals = [row for row in rows if "wps" in row]
    valid = [row["nll_loss"] for row in rows if row.get("where") == "valid" and "nll_loss" in row]
    figures: dict[str, float] = {}
    if intervals:
        figures |= {"updates": max(row["num_updates"] for row in intervals), "train loss": intervals[-1]["nll_loss"],
                    "tokens/s": statistics.median(row["wps"] for row in intervals)}
        if speeds := [row["ups"] for row in intervals if row.get("ups")]:
            figures["ms/update"] = 1000 / statistics.median(speeds)
        figures |= {"GiB": max(row.get("mem_gib", 0.0) for row in intervals)}
    summaries = [row["num_updates"] for row in rows if "where" in row]
    if summaries:
        figures["updates"] = max(summaries)
    finite = [loss for loss in valid if loss == loss]
    if finite:
        figures |= {"valid loss": valid[-1], "best valid loss": min(finite)}
    return {name: round(value, 4) for name, value in figures.items()}

"""Reads figures off what commands print."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# `BLEU4 = 41.59, 75.0/...`, `chrF2 = 60.1`, `ROUGE-1 = 38.12, ROUGE-2 = 12.90`, `M2 F0.5 = 99.04 (P=...`, `GLEU = 40.54`
SCORE = re.compile(r"(BLEU|chrF|TER|ROUGE-\w+|M2 F0\.5|GLEU|ERRANT F0\.5)\d* = ([\d.]+)")
PERPLEXITY = re.compile(r"Loss \(base 2\): ([\d.]+|nan|inf), Perplexity: ([\d.]+|nan|inf)")
COMPARED = re.compile(r"^compared: (\w+) .*\(([-+][\d.]+), p = ([\d.]+)\)$", re.MULTILINE)
SPEED = re.compile(r"\(([\d.]+) sentences/s")
NAMES = {"M2 F0.5": "M2", "ERRANT F0.5": "ERRANT"}


def score_figures(text: str) -> dict[str, float]:
    """Of `lamina score` or `lamina eval-lm`: {"BLEU": 41.59, "chrF": 60.1}, {"ppl": 17.43, "word ppl": 30.2}."""
    figures = {NAMES.get(name, name): float(value) for name, value in SCORE.findall(text)}
    for line in text.splitlines():
        if found := PERPLEXITY.search(line):
            figures["word ppl" if "by word" in line else "ppl"] = float(found[2])
    return figures


def comparison_figures(text: str) -> dict[str, dict[str, float]]:
    """Of `lamina score --baseline`: {"bleu": {"difference": 0.51, "p": 0.0312}}."""
    return {name: {"difference": float(difference), "p": float(p)} for name, difference, p in COMPARED.findall(text)}


def decoding_speed(log: str) -> float | None:
    """Sentences a second, where the log says."""
    found = SPEED.findall(log)
    return float(found[-1]) if found else None


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
        if isinstance(row, dict):
            yield row


def training_figures(log: Path) -> dict[str, float]:
    """Of a training run: updates, losses in bits, target tokens a second, GiB."""
    rows = list(training_rows(log))
    intervals = [row for row in rows if "wps" in row]
    valid = [row["nll_loss"] for row in rows if row.get("where") == "valid" and "nll_loss" in row]
    figures: dict[str, float] = {}
    if intervals:
        figures |= {"updates": max(row["num_updates"] for row in intervals), "train loss": intervals[-1]["nll_loss"],
                    "tokens/s": statistics.median(row["wps"] for row in intervals),
                    "GiB": max(row.get("mem_gib", 0.0) for row in intervals)}
    summaries = [row["num_updates"] for row in rows if "where" in row]
    if summaries:
        figures["updates"] = max(summaries)
    finite = [loss for loss in valid if loss == loss]
    if finite:
        figures |= {"valid loss": valid[-1], "best valid loss": min(finite)}
    return {name: round(value, 4) for name, value in figures.items()}

"""The results file: one JSON line for each model that was measured, and one for each comparison; and tables of them."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lamina.errors import DataError
from lamina.files import whole_file
from lamina.parts.figures import known_figures

FILE_NAME, TABLE_NAME = "results.jsonl", "results.md"
RUN, COMPARISON = "run", "comparison"
# A result that counts as one, and is not tried again.
SETTLED = ("done", "diverged", "stalled")
# Of which scores count.
MEASURED = ("done", "stalled", "stopped")
Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    rows: list[Row] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            if number == len(lines):  # the machine went away while it was written; what it says is done again
                continue
            raise DataError(f"{path}, line {number} is not a JSON line. Remove it, or name another folder.") from None
        if isinstance(row, dict) and row.get("kind") in (RUN, COMPARISON):
            rows.append(row)
    return rows


def key_of(row: Row) -> tuple[Any, ...]:
    """Rows with the same key are about the same thing; the last one counts."""
    names = ("kind", "recipe", "variant", "cut", "seed", "budget") + (("test",) if row["kind"] == COMPARISON else ())
    return tuple(row.get(name) for name in names)


def append_rows(path: Path, new: Iterable[Row]) -> list[Row]:
    """Add what is not there yet; the file is replaced as a whole, so that a cut cable leaves no half line."""
    rows = read_rows(path)
    there = {key_of(row): row for row in rows}
    added = [row for row in new if there.get(key_of(row)) != row]
    if added:
        with whole_file(path) as part:
            part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [*rows, *added]), encoding="utf-8")
    return [*rows, *added]


def latest(rows: Iterable[Row]) -> list[Row]:
    return list({key_of(row): row for row in rows}.values())


# -- tables


def render(rows: Sequence[Row]) -> str:
    """Markdown: a section for each recipe, for the person who ran them: with the commands' own --data."""
    recipes = dict.fromkeys(row["recipe"] for row in rows)
    return "\n".join(f"## {recipe}\n\n{section(recipe, rows)}" for recipe in recipes) or "No results yet.\n"


def section(recipe: str, rows: Sequence[Row], data: str | None = None) -> str:
    """A line for each variant and cut, means over the seeds; where they come from; comparisons."""
    own = [row for row in latest(rows) if row["recipe"] == recipe]
    runs = [row for row in own if row["kind"] == RUN]
    if not runs:
        return "Not run.\n"
    blocks = [_table(runs), _origins(runs, data)]
    if compared := [row for row in own if row["kind"] == COMPARISON]:
        blocks.append(_comparison_table(compared))
    return "\n".join(blocks)


SECONDS = "training, s"
# In the file, not in tables: the same for all, or told by another column.
UNSHOWN = ("updates", "valid loss")


def _table(rows: list[Row]) -> str:
    names = [name for name in dict.fromkeys([*(name for row in rows for name in row["figures"]), SECONDS])
             if name not in UNSHOWN]
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["variant"], row["cut"], row["budget"]), []).append(row)
    has_cuts = any(row["cut"] for row in rows)
    lines = [("variant", "layers", "seeds", "status", *names)]
    for (variant, cut, budget), own in groups.items():
        known = [_shown_figures(row) for row in own]
        figures = [spread([row[name] for row in known if name in row], decimals=0 if name == SECONDS else 2) for name in names]
        lines.append((variant + ("" if budget == 1 else f" ({budget:g}x)"), (cut or "all") if has_cuts else "",
                      ",".join(str(row["seed"]) for row in own), _statuses(own), *figures))
    # What no row has, such as cuts, would only make it wider.
    kept = [number for number in range(len(lines[0])) if any(line[number] for line in lines[1:])]
    return markdown([tuple(line[number] for number in kept) for line in lines])


def _shown_figures(row: Row) -> dict[str, float]:
    """Without times where several runs shared the machine."""
    figures = dict(row["figures"])
    if "train" in row.get("seconds", {}) and not row["cut"]:
        figures[SECONDS] = row["seconds"]["train"]
    return figures if row.get("jobs", 1) == 1 else {
        name: value for name, value in figures.items() if name != SECONDS and not name.endswith(("/s", "/update"))}


def _statuses(rows: list[Row]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return ", ".join(name if count == len(rows) else f"{count} {name}" for name, count in counts.items())


def _origins(rows: list[Row], data: str | None) -> str:
    # A run that crashed says nothing of it.
    hardware = ", ".join(dict.fromkeys(row["hardware"] for row in rows if row.get("hardware"))) or "unknown hardware"
    commits = ", ".join(dict.fromkeys((row.get("commit") or "unknown")[:12] for row in rows))
    commands = "\n".join(dict.fromkeys(wrapped(shared_command(row["command"], data)) for row in rows))
    alone = "" if all(row.get("jobs", 1) == 1 for row in rows) else " Runs that shared the machine have no times."
    return (f"{hardware}; commit {commits}; losses in bits per token, ± is the standard deviation over seeds.{alone}\n\n"
            f"```sh\n{commands}\n```\n")


# What depends on the machine and the day: they differ when a run is repeated.
OWN_OPTIONS = ("--out", "--work", "--stop-after", "--commit", "--workers", "--keep-checkpoints", "--jobs")
# What docs/ call the folder that holds the downloads, wherever it was.
PUBLISHED_DATA = "downloads"


def wrapped(line: str, columns: int = 88) -> str:
    """A command over several lines, broken ahead of options."""
    lines = [""]
    for word in re.split(r" (?=--?[a-z])", line):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > columns:
            lines.append("    " + word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return " \\\n".join(lines)


def shared_command(line: str, data: str | None = None) -> str:
    """A command as one would type it again, with `data` for --data, or what was typed."""
    kept: list[str] = []
    words = iter(shlex.split(line))
    for word in words:
        name, has_value, _ = word.partition("=")
        if name in OWN_OPTIONS or name == "--data":
            value = word.partition("=")[2] if has_value else next(words, "")
            kept += ["--data", data or value] if name == "--data" else []
        else:
            kept.append(word)
    return shlex.join(kept)


def _comparison_table(rows: list[Row]) -> str:
    """A line for each variant and cut, a column for each test and metric."""
    labels = {name: known.figure.label for name, known in known_figures().items()}
    groups: dict[tuple[str, str, str], dict[int, dict[str, str]]] = {}
    for row in rows:
        own = groups.setdefault((row["variant"], row["cut"] or "all", row["baseline"]), {}).setdefault(row["seed"], {})
        for metric, found in row["figures"].items():
            own[f"{row['test']} {labels.get(metric, metric)}"] = f"{found['difference']:+.2f} ({found['p']:.3f})"
    names = list(dict.fromkeys(name for seeds in groups.values() for cells in seeds.values() for name in cells))
    lines: list[tuple[str, ...]] = [("variant", "layers", "against", "seeds", *names)]
    for key, seeds in groups.items():
        lines.append((*key, ",".join(map(str, seeds)),
                      *(", ".join(cells.get(name, "-") for cells in seeds.values()) for name in names)))
    return markdown(lines) + ("\nDifferences by seed, with p in brackets: the chance of such a difference between equal "
                              "systems (paired bootstrap, sacreBLEU).\n")


def spread(values: Sequence[float], decimals: int = 2) -> str:
    """`41.59`, or `41.59 ± 0.12` of several."""
    if not values:
        return ""
    mean = statistics.fmean(values)
    places = 0 if abs(mean) >= 1000 else decimals
    shown = f"{mean:,.{places}f}"
    return shown if len(values) == 1 else f"{shown} ± {statistics.stdev(values):,.{places}f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)]
    return "\n".join(lines) + "\n"

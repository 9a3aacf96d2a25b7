"""The table of docs/performance.md that versions are compared by, from docs/performance.jsonl (benchmarks/headline.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROWS, PAGE = "performance.jsonl", "performance.md"
BEGIN, END = "<!-- figures of performance.jsonl, by `make docs` -->", "<!-- end of figures -->"
TABLE = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)


def speed_page(folder: Path) -> dict[str, str]:
    """File name -> content; nothing where there are no rows."""
    if not (folder / ROWS).exists():
        return {}
    page, rows = ((folder / name).read_text(encoding="utf-8") for name in (PAGE, ROWS))
    newest: dict[str, dict[str, Any]] = {}
    for line in rows.splitlines():
        row = json.loads(line)
        newest[row["figure"]] = row
    return {PAGE: TABLE.sub(lambda _: f"{BEGIN}\n{_tables(list(newest.values()))}\n{END}", page)}


def _tables(rows: Sequence[dict[str, Any]]) -> str:
    """One per machine and commit: what stands together was measured together."""
    blocks = []
    for machine, commit, date in dict.fromkeys((row["machine"], row["commit"], row["date"]) for row in rows):
        own = [row for row in rows if (row["machine"], row["commit"], row["date"]) == (machine, commit, date)]
        lines = [f"| {machine}, {date}, commit {commit} | median | lowest to highest | rounds |", "| --- | --- | --- | --- |"]
        for row in own:
            unit = row["unit"] if row["unit"] == "×" else f" {row['unit']}"
            cells = [row["what"], _shown(row["median"]) + unit, f"{_shown(row['lowest'])} to {_shown(row['highest'])}",
                     str(row["rounds"])]
            lines.append(f"| {' | '.join(cells)} |")
        commands = dict.fromkeys(row["command"] for row in own)
        blocks.append("\n".join([*lines, "", "```sh", *commands, "```"]))
    return "\n\n".join(blocks)


def _shown(value: float) -> str:
    """In three digits, as far as there are decimals."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

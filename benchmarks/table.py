"""Rows of figures as one aligned table, and as JSON, which also has the figures of every round (`rounds`).

    python benchmarks/table.py FILE.json ...     # shows again what benchmarks have written
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

# Of a row, for JSON alone: figure -> its value in each round, in their order.
ROUNDS = "rounds"


def machine() -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, threads: {torch.get_num_threads()}"
    return f"{device}; torch {torch.__version__}, Python {platform.python_version()}"


def show(rows: list[dict[str, Any]], path: str | None = None) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row if name != ROUNDS))
    cells = [names, *([_text(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, line in enumerate(cells):
        print("| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    if path:
        command = shlex.join(["python", *sys.argv])
        Path(path).write_text(json.dumps({"machine": machine(), "command": command, "rows": rows}, indent=1) + "\n")


def _text(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="what a benchmark wrote with --json")
    for file in parser.parse_args().files:
        written = json.loads(Path(file).read_text())
        print(f"{written['command']}\n{written['machine']}")
        show(written["rows"])


if __name__ == "__main__":
    main()

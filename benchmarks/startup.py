"""How long `lamina train` takes to its first update, and how much memory, by the size of the data folder.

    python benchmarks/startup.py --lines 10000,1000000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from made_up import write_folder
from table import machine, show


def measure(data: Path, lines: int, extra: list[str]) -> dict[str, Any]:
    """Seconds from typing the command to the end of the first update, and the largest memory of the process."""
    command = [sys.executable, "-m", "lamina", "train", str(data), "--arch", "tiny", "--max-tokens", "4096", "--lr", "0.001",
               "--max-update", "1", "--log-interval", "1", "--log-format", "json", "--no-save", "--disable-validation", "--cpu",
               *extra]
    started, first = time.perf_counter(), None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if first is None and json.loads(line).get("num_updates") == 1:
                first = time.perf_counter() - started
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert first is not None, "lamina train did not come to its first update"
    size = sum(file.stat().st_size for file in data.iterdir()) / 2**20
    return {"lines": lines, "folder MiB": size, "first update s": first, "peak RSS MiB": round(usage.ru_maxrss / 1024)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", default="10000,100000,1000000", help="sizes, by comma (default: 10000,100000,1000000)")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each, of which the fastest is shown (default: 2)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("extra", nargs="*", help="further options for train, after --")
    options = parser.parse_args()
    rows = []
    for lines in map(int, options.lines.split(",")):
        with tempfile.TemporaryDirectory() as temporary:
            data = write_folder(Path(temporary), lines)
            rows.append(min((measure(data, lines, options.extra) for _ in range(options.repeat)),
                            key=lambda row: row["first update s"]))
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

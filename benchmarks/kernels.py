"""Which kernels a GPU spends its time on (or operators a CPU), from a trace that `lamina train --profile FROM:TO` writes.

    lamina train DATA ... --profile 200:202
    python benchmarks/kernels.py checkpoints/profile-200-202-rank0.json --updates 3
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from table import show

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def rows_of(events: list[dict[str, Any]], updates: int, most: int) -> list[dict[str, Any]]:
    """The kernels that took longest, and a row for all of them; of operators that call others, all of their time."""
    own = [event for event in events if event.get("cat") in ON_GPU] or [event for event in events
                                                                       if event.get("cat") == "cpu_op"]
    seconds, calls = Counter[str](), Counter[str]()
    for event in own:
        seconds[event["name"]] += event["dur"]
        calls[event["name"]] += 1
    busy = sum(seconds.values())
    span = max(event["ts"] + event["dur"] for event in own) - min(event["ts"] for event in own)
    rows = [{"kernel": name[:100], "ms/update": time / 1000 / updates, "%": 100 * time / busy, "calls/update":
             calls[name] / updates, "us/call": time / calls[name]} for name, time in seconds.most_common(most)]
    return [{"kernel": f"all {len(seconds)} kinds, {span / 1000 / updates:.2f} ms from the first to the last",
             "ms/update": busy / 1000 / updates, "%": 100.0, "calls/update": len(own) / updates, "us/call": busy / len(own)},
            *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="what --profile wrote")
    parser.add_argument("--updates", type=int, default=1, help="of which the trace is (default: 1)")
    parser.add_argument("--most", type=int, default=25, help="kernels to show (default: 25)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    show(rows_of(json.loads(Path(options.trace).read_text())["traceEvents"], options.updates, options.most), options.json)


if __name__ == "__main__":
    main()

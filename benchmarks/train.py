"""How fast `lamina train` is: runs the command itself on a data folder and reads what it logs.

    python benchmarks/train.py --arch transformer_iwslt_de_en --max-tokens 4096,16384 --precision bf16,fp16
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from made_up import write_folder
from table import machine, show


def measure(data: str, arch: str, max_tokens: int, precision: str, updates: int, extra: list[str]) -> dict[str, Any]:
    """One run; the first half warms up, the second is the figure."""
    half = max(1, updates // 2)
    command = [sys.executable, "-m", "lamina", "train", data, "--arch", arch, "--max-tokens", str(max_tokens),
               "--share-all-embeddings", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1",
               "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.0005", "--max-update", str(2 * half),
               "--log-interval", str(half), "--log-format", "json", "--no-save", "--disable-validation",
               *([] if precision == "fp32" else [f"--{precision}"]), *extra]
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    wall = time.perf_counter() - started
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    padding = next(float(match[1]) for row in rows if (match := re.search(r"([\d.]+) % padding", row.get("note", ""))))
    figures = [row for row in rows if "wps" in row][-1]
    return {"arch": arch, "max-tokens": max_tokens, "precision": precision, "updates": 2 * half,
            "target tokens/s": round(figures["wps"]), "updates/s": figures["ups"], "padding %": padding,
            "peak GiB": figures["mem_gib"], "command s": wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="data folder (default: made-up captions, 29,000 pairs, 10k vocabulary)")
    parser.add_argument("--arch", default="tiny", help="presets, by comma (default: tiny)")
    parser.add_argument("--max-tokens", default="2048", help="batch sizes, by comma (default: 2048)")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16, fp16, by comma (default: fp32)")
    parser.add_argument("--updates", type=int, default=40, help="updates of each run, of which half warm up (default: 40)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("extra", nargs="*", help="further options for train, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = options.data or str(write_folder(Path(temporary)))
        rows = [measure(data, arch, int(max_tokens), precision, options.updates, options.extra)
                for arch in options.arch.split(",") for max_tokens in options.max_tokens.split(",")
                for precision in options.precision.split(",")]
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

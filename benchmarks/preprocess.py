"""How fast `lamina preprocess` is: makes a corpus of two sides, times the command itself, prints one table.

    python benchmarks/preprocess.py --lines 500000 --workers 1,2
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from table import machine, show

# As in a joint BPE vocabulary: most pieces short, some that go on in the next one, a share outside ASCII.
ENDINGS = ("", "", "@@", "ă", "ție", "ing", "")


def write_side(path: Path, num_lines: int, num_types: int, seed: int) -> int:
    """Lines of 1 to 49 pieces drawn by Zipf's law; returns how many pieces in all."""
    random = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlu"))
    pieces = np.array([f"{''.join(random.choice(letters, 2))}{number:x}{ENDINGS[number % len(ENDINGS)]}"
                       for number in range(num_types)], dtype=object)
    cumulative = np.cumsum(1.0 / np.arange(1, num_types + 1))
    total = 0
    with open(path, "w", encoding="utf-8") as file:
        for start in range(0, num_lines, 10_000):
            lengths = random.integers(1, 50, min(10_000, num_lines - start))
            drawn = np.searchsorted(cumulative, random.random(lengths.sum()) * cumulative[-1])
            words = pieces[np.minimum(drawn, num_types - 1)].tolist()
            ends = np.cumsum(lengths).tolist()
            file.writelines(" ".join(words[end - length:end]) + "\n"
                            for end, length in zip(ends, lengths.tolist(), strict=True))
            total += len(words)
    return total


def count_tokens(path: Path) -> int:
    with open(path, encoding="utf-8") as file:
        return sum(len(line.split()) for line in file)


def time_command(prefix: Path, folder: Path, workers: int, extra: list[str]) -> tuple[float, float, float]:
    """Seconds of the whole command by the clock and by its processors, and its largest process in MiB."""
    command = [sys.executable, "-m", "lamina", "preprocess", "--source-lang", "en", "--target-lang", "ro",
               "--trainpref", str(prefix), "--destdir", str(folder), "--joined-dictionary",
               "--workers", str(workers), *extra]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    # Memory is the largest so far; the runs read the same corpus, so that is no one else's.
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=500_000, help="lines of each side (default: 500000)")
    parser.add_argument("--types", type=int, default=32_000, help="different pieces (default: 32000)")
    parser.add_argument("--workers", default="1,2", help="process counts to try (default: 1,2)")
    parser.add_argument("--repeat", type=int, default=2, help="runs for each count, of which the fastest is shown")
    parser.add_argument("--corpus", help="PREFIX of existing PREFIX.en and PREFIX.ro instead of made-up text")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("extra", nargs="*", help="further options for preprocess, after --")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        prefix = Path(options.corpus or Path(temporary) / "train")
        if options.corpus:
            sides = [Path(f"{prefix}.{language}") for language in ("en", "ro")]
            tokens = sum(map(count_tokens, sides))
        else:
            tokens = sum(write_side(Path(f"{prefix}.{language}"), options.lines, options.types, seed)
                         for seed, language in enumerate(("en", "ro")))
        for workers in map(int, options.workers.split(",")):
            folder = Path(temporary) / f"data-{workers}"
            seconds, cpu, memory = min(time_command(prefix, folder, workers, options.extra)
                                       for _ in range(options.repeat))
            rows.append({"tokens": tokens, "workers": workers, "seconds": seconds, "CPU s": cpu,
                         "tokens/s": round(tokens / seconds), "peak RSS MiB": round(memory)})
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

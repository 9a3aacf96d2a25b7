"""The figures that one version of Lamina is compared with another by, each from its benchmark, three rounds of it.

    python benchmarks/headline.py cpu                              # with nothing else running
    python benchmarks/headline.py gpu --into docs/performance.jsonl
    python benchmarks/headline.py latency-1 train-cold             # some of them
    python benchmarks/headline.py --list

A figure is the median of its rounds, shown with the lowest and the highest; a ratio is taken round by round. A command that
several figures come from runs once. --into adds rows to a file; `make docs` puts the newest row of each figure that is in
docs/performance.jsonl on the page.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from table import ROUNDS, show

from lamina.provenance import commit

FOLDER = Path(__file__).parent
GPU, CPU = "gpu", "cpu"
IWSLT = "--arch transformer_iwslt_de_en"


@dataclass(frozen=True)
class Benchmark:
    """A command of this folder."""

    words: str
    extra: str = ""  # for the command that it measures
    num_threads: int = 0  # as many as there are if 0

    @property
    def environment(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(self.num_threads)} if self.num_threads else {}

    def spelled(self, rounds: int) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.environment.items()), f"python benchmarks/{self.words}",
                         f"--rounds {rounds}", *([f"-- {self.extra}"] if self.extra else [])])

    def run(self, rounds: int) -> dict[str, Any]:
        """What it writes with --json."""
        script, *flags = self.words.split()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rows.json")
            words = [sys.executable, str(FOLDER / script), *flags, "--rounds", str(rounds), "--json", str(path),
                     *(["--", *self.extra.split()] if self.extra else [])]
            done = subprocess.run(words, env={**os.environ, **self.environment}, stdout=subprocess.DEVNULL, check=False)
            if done.returncode:
                raise SystemExit(f"{self.spelled(rounds)} ended with {done.returncode}.")
            return json.loads(path.read_text())  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Figure:
    """What a benchmark says in one column of one row, or that over what it says in others: the best of them, round by round."""

    what: str
    device: str
    benchmark: Benchmark
    row: Mapping[str, Any]
    column: str
    unit: str
    over: tuple[Mapping[str, Any], ...] = ()

    def values(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        own = self._column(rows, self.row)
        if not self.over:
            return own
        return [value / max(others) for value, *others in
                zip(own, *(self._column(rows, other) for other in self.over), strict=True)]

    def _column(self, rows: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> list[float]:
        found = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
        if len(found) != 1 or self.column not in found[0].get(ROUNDS, {}):
            raise SystemExit(f"{self.benchmark.words}: {len(found)} rows have {dict(wanted)}, and one with rounds of "
                             f"{self.column!r} was expected.")
        return found[0][ROUNDS][self.column]


def _decoding(state: str, flags: str, beside: str) -> dict[str, Figure]:
    benchmark = Benchmark(f"cpu.py decode --sentences 96 --batch-size 16{flags}", num_threads=2)
    return {f"cpu-{kind}-{state}-{rival}": Figure(
        f"CPU search, {name}{beside}, speed over CTranslate2 {way}", CPU, benchmark, {"system": f"Lamina {kind}"},
        "sentences/s", "×", tuple({"system": f"CTranslate2 {one} {kind}"} for one in ways))
        for kind, name in (("fp32", "float32"), ("int8", "int8"))
        for rival, way, ways in (("threads", "with two threads in a batch", ("intra",)),
                                 ("better", "in the better of its ways", ("intra", "inter")))}


def _layer_drop(rate: float) -> Figure:
    return Figure(f"CPU update with LayerDrop {rate}, 12L-12L, time over none", CPU,
                  Benchmark("layerdrop.py --device cpu", num_threads=1), {"layerdrop": rate}, "ms/update", "×",
                  ({"layerdrop": 0.0},))


TRAIN = Benchmark(f"startup.py train {IWSLT} --cold")
LATENCY = Benchmark("decode.py --arch tiny --batch-size 1 --beam 1,5 --sentences 150")
FIGURES: dict[str, Figure] = {
    "generate": Figure("`lamina generate`, 1,000 sentences, command to exit", GPU,
                       Benchmark(f"startup.py generate {IWSLT} --sentences 1000"), {"command": "generate"}, "seconds", "s"),
    "search": Figure("search of 1,000 sentences in a new process, capture included", GPU,
                     Benchmark(f"decode.py {IWSLT} --batch-size 128 --beam 5 --sentences 1000 --cold"), {}, "cold",
                     "sentences/s"),
    "search-30000": Figure("search of 30,000 sentences, beam 5, 512 at a time", GPU,
                           Benchmark(f"decode.py {IWSLT} --batch-size 512 --beam 5 --sentences 30000"), {}, "sentences/s",
                           "sentences/s"),
    "latency-1": Figure("one sentence at a time, `tiny`, beam 1", GPU, LATENCY, {"beam": 1}, "sentences/s", "sentences/s"),
    "latency-5": Figure("the same, beam 5", GPU, LATENCY, {"beam": 5}, "sentences/s", "sentences/s"),
    "train-cold": Figure("`lamina train`, command to first update, nothing cached", GPU, TRAIN,
                         {"command": "train", "caches": "nothing cached"}, "seconds", "s"),
    "train-cached": Figure("the same, everything cached", GPU, TRAIN, {"command": "train", "caches": "cached"}, "seconds", "s"),
    "big": Figure("Transformer-big, 16,384 tokens per update", GPU,
                  Benchmark("train.py --arch transformer_vaswani_wmt_en_de_big --vocabulary 32000 --max-tokens 16384 "
                            "--together"), {}, "target tokens/s", "target tokens/s"),
    "memory": Figure("peak memory of `transformer_iwslt_de_en`, 16,384 tokens", GPU,
                     Benchmark(f"memory.py {IWSLT} --max-tokens 16384 --technique plain"), {}, "peak GiB", "GiB"),
    "fusion": Figure("update with SurfaceFusion (hard), 35,000 symbols, time over none", GPU,
                     Benchmark("train.py --arch transformer_wmt_en_de --max-tokens 4096 --vocabulary 35000 "
                               "--technique plain,fusion --together"), {"technique": "plain"}, "target tokens/s", "×",
                     ({"technique": "fusion"},)),
    "cpu-update": Figure("CPU update of 2,048 tokens, speed over `torch.nn.Transformer`", CPU,
                         Benchmark("cpu.py train", num_threads=2), {"system": "torch.nn.Transformer"}, "ms an update", "×",
                         ({"system": "Lamina"},)),
    **_decoding("quiet", "", ""),
    **_decoding("busy", " --beside 2", " beside two other jobs"),
    "cpu-layerdrop-0.2": _layer_drop(0.2),
    "cpu-layerdrop-0.5": _layer_drop(0.5),
    "cpu-train": Figure("`lamina train --cpu`, 10,000 pairs, command to first update", CPU,
                        Benchmark("startup.py train", extra="--cpu"), {"command": "train"}, "seconds", "s"),
}


def measured(names: Sequence[str], rounds: int, own_commit: str) -> Iterator[dict[str, Any]]:
    """A row per figure, command by command."""
    for benchmark in dict.fromkeys(FIGURES[name].benchmark for name in names):
        print(benchmark.spelled(rounds), file=sys.stderr)
        found = benchmark.run(rounds)
        for name, figure in FIGURES.items():
            if name in names and figure.benchmark == benchmark:
                values = [float(f"{value:.4g}") for value in figure.values(found["rows"])]
                yield {"figure": name, "what": figure.what, "unit": figure.unit, "median": statistics.median(values),
                       "lowest": min(values), "highest": max(values), ROUNDS: len(values), "machine": found["machine"],
                       "command": benchmark.spelled(rounds), "commit": own_commit,
                       "date": datetime.now(timezone.utc).date().isoformat()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{GPU}, {CPU}, or figures of --list (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--into", metavar="FILE", help="add the rows to this file, one as JSON on each line")
    parser.add_argument("--commit", help="what is measured, where there is no repository (default: that of this folder)")
    parser.add_argument("--list", action="store_true", help="show the figures and their commands, and measure nothing")
    options = parser.parse_args()
    names = [name for name, figure in FIGURES.items() if not options.names or {name, figure.device} & set(options.names)]
    if unknown := set(options.names) - {GPU, CPU, *FIGURES}:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join((GPU, CPU, *FIGURES))}")
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; it must be at least 1")
    if options.list:
        show([{"figure": name, "is": FIGURES[name].what, "command": FIGURES[name].benchmark.spelled(options.rounds)}
              for name in names])
        return
    rows = []
    for row in measured(names, options.rounds, options.commit or commit()[:12]):
        rows.append(row)
        if options.into:  # each as it comes: what is stopped keeps what it has
            with open(options.into, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    show([{name: row[name] for name in ("figure", "median", "lowest", "highest", "unit")} for row in rows])


if __name__ == "__main__":
    main()

"""What LayerDrop costs and saves: time per update and peak memory over those without it, in one run.

    python benchmarks/layerdrop.py                                             # 18L-18L on a GPU, 12L-12L on a CPU
    OMP_NUM_THREADS=1 python benchmarks/layerdrop.py --device cpu
    python benchmarks/layerdrop.py --max-tokens 4096 --rates 0,0.2 -- --layerdrop-draws batch

Runs of `lamina train` in one process, one for each rate, take turns of some updates each, so that what else the machine does
hits all alike; reading and drawing batches counts. Time is the clock's on a GPU, and the process's own on a CPU. Peak memory is
that of a run's first updates, above what was there before. Flags after -- go to all runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from in_process import WARM_UP, TrainingInTurns, told
from made_up import write_folder
from table import ROUNDS, machine, show

from lamina.threads import settle_threads

# Layers, width, batches and vocabulary where nothing else is asked for.
DEFAULTS = {"cuda": {"layers": 18, "width": 512, "max_tokens": "16384,4096", "vocabulary": 10_000, "rounds": 6, "turn": 10},
            "cpu": {"layers": 12, "width": 256, "max_tokens": "1024", "vocabulary": 4_096, "rounds": 8, "turn": 2}}
FLAGS = ("--arch transformer --share-all-embeddings --encoder-normalize-before --decoder-normalize-before --dropout 0.1 "
         "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --lr 1e-5 --clip-norm 1.0").split()


class Case(TrainingInTurns):
    """A run at one rate."""

    def __init__(self, data: str, rate: float, flags: list[str]) -> None:
        self.rate = rate
        drop = ["--encoder-layerdrop", str(rate), "--decoder-layerdrop", str(rate)] if rate else []
        super().__init__([data, "-s", "de", "-t", "en", *FLAGS, *drop, *flags])


def measure(data: str, options: argparse.Namespace, max_tokens: int) -> list[dict[str, Any]]:
    flags = [f"--{side}-{name}={value}" for side in ("encoder", "decoder") for name, value in (
        ("layers", options.layers), ("embed-dim", options.width), ("ffn-embed-dim", 4 * options.width),
        ("attention-heads", max(1, options.width // 64)))]
    flags += ["--max-tokens", str(max_tokens), *(["--cpu"] if options.device == "cpu" else []), *options.extra]
    cases = []
    for rate in options.rates:
        told(f"{max_tokens} tokens, LayerDrop {rate:g}: {WARM_UP} updates first, compiled and captured where there is a GPU")
        cases.append(Case(data, rate, flags))
        told(f"{max_tokens} tokens, LayerDrop {rate:g}: ready after {cases[-1].warm_up:.1f} s")
    for number in range(options.rounds):
        for case in cases:
            case.take_turn(options.turn)
        told(f"{max_tokens} tokens, turn {number + 1} of {options.rounds}, ms/update: "
             + ", ".join(f"LayerDrop {case.rate:g} {1000 * case.seconds[-1]:.1f}" for case in cases))
    rows: list[dict[str, Any]] = []
    first = cases[0]
    for case in cases:
        # Of turns that stand next to each other: what slows both leaves their ratio alone.
        ratio = statistics.median(own / other for own, other in zip(case.seconds, first.seconds, strict=True))
        rows.append({"max-tokens": max_tokens, "layerdrop": case.rate, "ms/update": 1000 * statistics.median(case.seconds),
                     "ratio": ratio, **({"peak GiB": case.peak} if options.device == "cuda" else {}),
                     "warm-up s": case.warm_up, ROUNDS: {"ms/update": [1000 * one for one in case.seconds]}})
    return rows


def main() -> None:
    is_cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if is_cuda else "cpu",
                        help="(default: cuda where there is a GPU)")
    for name, text in (("layers", "layers of the encoder, and of the decoder"), ("width", "width of the model"),
                       ("vocabulary", "symbols of the made-up data"), ("rounds", "turns of each run; the median counts"),
                       ("turn", "updates of a turn")):
        values = "/".join(str(own[name]) for own in DEFAULTS.values())
        parser.add_argument(f"--{name}", type=int, help=f"{text} (default: {values} on a GPU/CPU)")
    parser.add_argument("--max-tokens", help="tokens of an update on each side, by comma (default: 16384,4096/1024)")
    parser.add_argument("--rates", default="0,0.2,0.5", help="LayerDrop rates, by comma; the first is the measure (default: "
                                                             "0,0.2,0.5)")
    parser.add_argument("--pairs", type=int, default=29_000, help="sentence pairs of the made-up data (default: 29000)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("extra", nargs="*", help="further options for train, after --")
    options = parser.parse_args()
    if options.device == "cuda" and not is_cuda:
        parser.error("--device cuda: there is no GPU")
    for name, value in DEFAULTS[options.device].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.rates = [float(rate) for rate in options.rates.split(",")]
    settle_threads()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        told(f"writing {options.pairs} pairs of made-up data")
        data = str(write_folder(Path(temporary) / "data", options.pairs, options.vocabulary))
        for max_tokens in options.max_tokens.split(","):
            rows += measure(data, options, int(max_tokens))
    print(machine())
    print(f"{options.layers}L-{options.layers}L, width {options.width}, feed-forward {4 * options.width}, vocabulary "
          f"{options.vocabulary}, {options.rounds} turns of {options.turn} updates {' '.join(options.extra)}")
    show(rows, options.json)


if __name__ == "__main__":
    main()

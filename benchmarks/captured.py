"""What is captured, against the same run eager: time per update of each kind of model, in one process.

    python benchmarks/captured.py                                              # on a GPU
    python benchmarks/captured.py --cases masked,classes --max-tokens 16384
    python benchmarks/captured.py --layers 2 --width 64 --max-tokens 256       # on a CPU nothing is captured: does it run?

Both take turns of some updates each. Eager runs have --no-cuda-graphs and --no-pack, which is how all of them ran before they
could be captured. Flags after -- go to all runs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from in_process import TrainingInTurns, told
from made_up import write_folder, write_texts
from table import machine, show

from lamina.threads import settle_threads

PAIRS = ("pairs -s de -t en --arch transformer --share-all-embeddings --criterion label_smoothed_cross_entropy "
         "--label-smoothing 0.1")
MASKED = "texts --task masked_lm --arch roberta --tokens-per-sample 256 --sample-break-mode"
# By name: the folder, and how to train on it.
CASES = {
    "bf16": f"{PAIRS} --bf16",
    "fp32": f"{PAIRS} --fp32",
    "tf32": f"{PAIRS} --tf32",
    "recomputed": f"{PAIRS} --bf16 --checkpoint-activations",
    "adaptive": "texts --task language_modeling --arch transformer_lm --tokens-per-sample 256 --bf16 --criterion adaptive_loss "
                "--adaptive-softmax-cutoff 2000,5000",
    "sentences": "texts --task language_modeling --arch transformer_lm --tokens-per-sample 256 --sample-break-mode eos --bf16",
    "masked": f"{MASKED} eos --bf16",
    "masked-blocks": f"{MASKED} complete --bf16",
    "masked-fp32": f"{MASKED} eos --fp32",
    "classes": "texts/task --task sentence_prediction --arch roberta --max-positions 512 --num-classes 2 --bf16",
}
EAGER = ("--no-cuda-graphs", "--no-pack")


def command(name: str, folder: Path, options: argparse.Namespace) -> list[str]:
    data, *words = CASES[name].split()
    stacks = ["encoder", "decoder"] if data == "pairs" else ["decoder"] if "language_modeling" in words else ["encoder"]
    sizes = {"layers": options.layers, "embed-dim": options.width, "ffn-embed-dim": 4 * options.width,
             "attention-heads": max(1, options.width // 64)}
    return [str(folder / data), *words, *(f"--{side}-{size}={value}" for side in stacks for size, value in sizes.items()),
            "--lr", "1e-5", "--clip-norm", "1.0", "--max-tokens", str(options.max_tokens), *options.extra]


def measure(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    words = command(name, folder, options)
    runs = {"captured": TrainingInTurns(words), "eager": TrainingInTurns([*words, *EAGER])}
    for _ in range(options.rounds):
        for run in runs.values():
            run.take_turn(options.turn)
    row: dict[str, Any] = {"case": name}
    for how, run in runs.items():
        row[f"{how}, ms"] = 1000 * statistics.median(run.seconds)
        row[f"{how}, targets/s"] = round(sum(run.tokens) / sum(run.seconds))
    captured, eager = runs.values()
    row |= {"speed": row["captured, targets/s"] / row["eager, targets/s"], "captured, GiB": captured.peak,
            "eager, GiB": eager.peak, "warm-up s": captured.warm_up}
    told(", ".join(f"{key} {value:,.4g}" if isinstance(value, float | int) else str(value) for key, value in row.items()))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"by comma, of {', '.join(CASES)} (default: all)")
    for name, value, text in (("layers", 6, "layers of a stack"), ("width", 512, "width of the model"),
                              ("max-tokens", 4096, "tokens of an update"), ("lines", 20_000, "sentences of the made-up data"),
                              ("rounds", 3, "turns of each run; the median counts"), ("turn", 10, "updates of a turn")):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default: {value})")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("extra", nargs="*", help="further options for train, after --")
    options = parser.parse_args()
    names = options.cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"--cases {','.join(unknown)}: choose from {', '.join(CASES)}")
    settle_threads()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_folder(folder / "pairs", options.lines)
        write_texts(folder / "texts", options.lines)
        for name in names:
            rows.append(measure(name, folder, options))
            gc.collect()
    print(machine())
    print(f"{options.layers} layers of width {options.width}, {options.max_tokens} tokens, {options.rounds} turns of "
          f"{options.turn} updates {' '.join(options.extra)}")
    show(rows, options.json)


if __name__ == "__main__":
    main()

"""How fast `lamina generate` is, by batch size, beam, device and precision: runs the command itself and reads what it prints.

    python benchmarks/decode.py --arch transformer_iwslt_de_en --batch-size 32,128,512 --beam 1,5
    python benchmarks/decode.py --batch-size 1 --sentences 200                                           # latency
    python benchmarks/decode.py --arch transformer_iwslt_de_en --batch-size 128 --beam 5 --sentences 1000 --cold
    python benchmarks/decode.py --arch transformer_iwslt_de_en --batch-size 256,512 --beam 5 --sentences 30000
    python benchmarks/decode.py --checkpoint checkpoints/checkpoint_best.pt --data data-bin/iwslt --precision cpu,fp32,bf16,fp16

Loading is not counted; encoding, search and the way back to text are. `cold` is a process's first run, in which libraries
prepare themselves and all is captured; then a few rounds in one process: the best of them, and their spread. A model with
random weights seldom says </s> by itself, so without a checkpoint every translation is as long as its source.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from made_up import made_up_checkpoint, write_folder
from table import ROUNDS, machine, show

from lamina.checkpoint.format import save_checkpoint
from lamina.cli import main as run_lamina
from lamina.data.corpus import find_languages, load_dictionaries

RANDOM_LENGTHS = ("--max-len-a", "1", "--max-len-b", "0", "--min-len", "0")
PATTERN = re.compile(r"translated (\d+) sentences \((\d+) tokens\) in [\d.]+ s \(([\d.]+) sentences/s, ([\d.]+) tokens/s\)")


def generate(flags: list[str], *, is_cold: bool) -> tuple[int, float, float]:
    """Sentences, sentences a second and target tokens a second of one run."""
    if is_cold:
        done = subprocess.run([sys.executable, "-m", "lamina", "generate", *flags], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, check=False)
        code, said = done.returncode, done.stderr
    else:
        stderr = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(stderr):
            code = run_lamina(["generate", *flags])
        said = stderr.getvalue()
    found = PATTERN.search(said)
    if code or found is None:
        sys.exit(said)
    return int(found[1]), float(found[3]), float(found[4])


def measure(flags: list[str], rounds: int, *, has_cold: bool) -> dict[str, Any]:
    cold = [generate(flags, is_cold=True)[1] for _ in range(rounds if has_cold else 0)]
    figures = [generate(flags, is_cold=False) for _ in range(rounds + 1)][1:]  # the first warms up
    sentences, rate, tokens = max(figures, key=lambda figure: figure[1])
    return {"sentences": sentences, **({"cold": max(cold), "cold spread": spread(cold)} if cold else {}), "sentences/s": rate,
            "spread": spread([own for _, own, _ in figures]), "target tokens/s": round(tokens),
            ROUNDS: {"cold": cold, "sentences/s": [own for _, own, _ in figures]}}


def spread(rates: list[float]) -> str:
    return f"{min(rates):,.1f} to {max(rates):,.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="data folder (default: made-up captions, 10k vocabulary)")
    parser.add_argument("--gen-subset", default="test", help="split to translate (default: test)")
    parser.add_argument("--checkpoint", help="model to use (default: random weights of --arch)")
    parser.add_argument("--arch", default="tiny", help="presets, by comma (default: tiny)")
    parser.add_argument("--batch-size", default="1,32,128", help="sentences in a batch, by comma (default: 1,32,128)")
    parser.add_argument("--beam", default="1,5", help="beams, by comma (default: 1,5)")
    parser.add_argument("--precision", default="fp16" if torch.cuda.is_available() else "cpu",
                        help="fp32, bf16 and fp16 on a GPU, cpu for float32 on a processor, by comma")
    parser.add_argument("--sentences", type=int, default=256, help="how many made-up ones (default: 256)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts (default: 3)")
    parser.add_argument("--cold", action="store_true", help="also measure as many new processes, each in its first run")
    parser.add_argument("--flags", default="", help="more flags of `lamina generate`, in one text")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = Path(options.data or write_folder(folder / "data", 1000, num_test=options.sentences))
        dictionary = load_dictionaries(data, find_languages(data, options.gen_subset, None, None))[0]
        for arch in options.arch.split(","):
            path = options.checkpoint
            if path is None:
                path = str(folder / f"{arch}.pt")
                save_checkpoint(Path(path), made_up_checkpoint(arch, dictionary.to_text(), len(dictionary)))
            for precision in options.precision.split(","):
                for batch_size in options.batch_size.split(","):
                    for beam in options.beam.split(","):
                        flags = [str(data), "--path", path, "--gen-subset", options.gen_subset, f"--{precision}",
                                 "--batch-size", batch_size, "--beam", beam, *options.flags.split(),
                                 *(() if options.checkpoint else RANDOM_LENGTHS)]
                        label = {"model": options.checkpoint or arch, "precision": precision, "batch": int(batch_size),
                                 "beam": int(beam)}
                        rows.append(label | measure(flags, options.rounds, has_cold=options.cold))
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

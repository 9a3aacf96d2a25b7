"""How long commands take besides their work, and how much memory: from typing one to its first result.

    python benchmarks/startup.py train --lines 10000,1000000     # to the end of the first update
    python benchmarks/startup.py train --arch transformer_iwslt_de_en --cold
    python benchmarks/startup.py generate --sentences 1000       # to its exit; with a part that is the search

On a GPU, if there is one; `-- --cpu` stays on the CPU. With --cold, each round begins without what torch, Triton and Python
have compiled before, and a second run follows that finds it. Rows show the best round, and the slowest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from made_up import made_up_checkpoint, write_folder
from table import ROUNDS, machine, show

from lamina.checkpoint.format import save_checkpoint
from lamina.data.corpus import find_languages, load_dictionaries

# Empty folders here, and everything is compiled again; the last is for modules (bytecode.py).
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")
SEARCHED = re.compile(r"translated \d+ sentences \(\d+ tokens\) in ([\d.]+) s")
IMPORT = "import torch\nif torch.cuda.is_available(): torch.zeros(1, device='cuda')"


def first_update(flags: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Of `lamina train`: seconds to the end of the first update, and the largest memory of the process."""
    command = [sys.executable, "-m", "lamina", "train", *flags, "--max-update", "1", "--log-interval", "1", "--log-format",
               "json", "--no-save", "--disable-validation"]
    started, first = time.perf_counter(), None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if first is None and json.loads(line).get("num_updates") == 1:
                first = time.perf_counter() - started
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert first is not None, "lamina train did not come to its first update"
    return {"seconds": first, "peak RSS MiB": round(usage.ru_maxrss / 1024)}


def to_exit(flags: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Of `lamina generate`: seconds to its exit, and those of the search."""
    command = [sys.executable, "-m", "lamina", "generate", *flags, "--quiet"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    seconds, found = time.perf_counter() - started, SEARCHED.search(done.stderr)
    if done.returncode or found is None:
        sys.exit(done.stderr)
    return {"seconds": seconds, "search s": float(found[1])}


def import_torch(environment: Mapping[str, str]) -> dict[str, Any]:
    """The part that is Python's, torch's and the GPU's."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORT], check=True, env={**os.environ, **environment})
    return {"seconds": time.perf_counter() - started}


def rows_of(label: dict[str, Any], measure: Callable[[Mapping[str, str]], dict[str, Any]], rounds: int, *,
            is_cold: bool) -> list[dict[str, Any]]:
    """The best round and the slowest; of cold rounds too, where they are asked for."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            own = {name: str(Path(folder, name)) for name in CACHES} if is_cold else {}
            for state in ["nothing cached", "cached"] if is_cold else [""]:
                found.setdefault(state, []).append(measure(own))
    return [label | ({"caches": state} if state else {}) | min(own, key=lambda row: row["seconds"])
            | {"slowest": max(row["seconds"] for row in own), ROUNDS: {name: [row[name] for row in own] for name in own[0]}}
            for state, own in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="train", choices=("train", "generate"), help="(default: train)")
    parser.add_argument("--lines", default="10000", help="train: sizes of made-up data, by comma (default: 10000)")
    parser.add_argument("--sentences", type=int, default=1000, help="generate: how many to translate (default: 1000)")
    parser.add_argument("--arch", default="tiny", help="preset (default: tiny)")
    parser.add_argument("--checkpoint", help="generate: model to use, with its --data (default: random weights of --arch)")
    parser.add_argument("--data", help="data folder (default: made up)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--cold", action="store_true", help="begin without what torch, Triton and Python have compiled")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("extra", nargs="*", help="further options for the command, after --")
    options = parser.parse_intermixed_args()
    rows = rows_of({"command": "import torch"}, import_torch, options.rounds, is_cold=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for lines in map(int, options.lines.split(",") if options.what == "train" else ["1000"]):
            data = Path(options.data) if options.data else write_folder(folder / str(lines), lines, num_test=options.sentences)
            size = sum(file.stat().st_size for file in data.iterdir()) / 2**20
            if options.what == "train":
                label = {"command": "train", **({} if options.data else {"lines": lines}), "folder MiB": size}
                flags = [str(data), "--arch", options.arch, "--max-tokens", "4096", "--lr", "0.001", *options.extra]
                rows += rows_of(label, lambda own, flags=flags: first_update(flags, own), options.rounds, is_cold=options.cold)
                continue
            path, lengths = options.checkpoint, []
            if path is None:
                dictionary = load_dictionaries(data, find_languages(data, "test", None, None))[0]
                path = str(folder / "model.pt")
                save_checkpoint(Path(path), made_up_checkpoint(options.arch, dictionary.to_text(), len(dictionary)))
                lengths = ["--max-len-a", "1", "--max-len-b", "0", "--min-len", "0"]  # it seldom says </s> by itself
            flags = [str(data), "--path", path, "--beam", "5", "--batch-size", "128", *lengths, *options.extra]
            rows += rows_of({"command": "generate"}, lambda own, flags=flags: to_exit(flags, own), options.rounds,
                            is_cold=options.cold)
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

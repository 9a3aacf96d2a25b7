"""How much memory `lamina train` needs at its peak: of the GPU, or of the process where there is none.

    python benchmarks/memory.py --arch transformer_iwslt_de_en --max-tokens 4096,16384 --technique plain,recomputed,eager
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from runs import measure_all, new_parser, ratio
from table import machine, show


def main() -> None:
    options = new_parser(__doc__, technique="plain,recomputed", max_tokens="512,2048", seconds=1.0).parse_args()
    found = measure_all(options)
    first = options.technique[0]
    rows = [{**rounds.label(), "weights": rounds.best.weights, "peak GiB": rounds.best.peak_gib,
             f"memory, of {first}": ratio(lambda own: own.best.peak_gib, rounds, found, technique=first),
             "target tokens/s": rounds.speed()["target tokens/s"], **rounds.every_round()} for rounds in found]
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

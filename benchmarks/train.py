"""How fast `lamina train` is, and what a technique costs: presets, batch sizes, precisions and techniques.

    python benchmarks/train.py --arch transformer_iwslt_de_en --max-tokens 4096,16384 --precision bf16,fp16
    python benchmarks/train.py --arch transformer_wmt_en_de --vocabulary 10000,35000 --technique plain,fusion --rounds 2
    python benchmarks/train.py --arch transformer_iwslt_de_en --max-tokens 4096,16384 --technique plain,grouped,sharded,eager
    python benchmarks/train.py --arch transformer_iwslt_de_en --layers 18-18 --technique plain,layerdrop-0.2,layerdrop-0.5

It runs the command itself on a data folder and reads its log.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from runs import measure_all, new_parser, ratio
from table import machine, show


def main() -> None:
    options = new_parser(__doc__).parse_args()
    found = measure_all(options)
    first = options.technique[0]
    rows = [{**rounds.label(), **rounds.speed(),
             f"time, of {first}": ratio(lambda own: own.seconds_an_update, rounds, found, technique=first),
             **rounds.costs(), **rounds.every_round()} for rounds in found]
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

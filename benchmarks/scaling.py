"""How the speed of `lamina train` grows with the tokens of an update: where launches bound it, and where the GPU.

    python benchmarks/scaling.py --arch transformer_iwslt_de_en --max-tokens 1024,2048,4096,8192,16384,32768 --pairs 100000

An epoch's last batch is as short as the corpus leaves it: take enough --pairs for many batches an epoch.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from runs import measure_all, new_parser, ratio
from table import machine, show


def main() -> None:
    options = new_parser(__doc__, max_tokens="256,512,1024,2048", seconds=4.0).parse_args()
    found = measure_all(options)
    first = options.max_tokens[0]
    rows = [{**rounds.label(), **rounds.speed(),
             f"speed, of {first:,}": ratio(lambda own: own.best.tokens / own.best.seconds, rounds, found, max_tokens=first),
             **rounds.costs()} for rounds in found]
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

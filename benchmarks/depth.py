"""What depth costs `lamina train`: time, memory and warm-up from 6 to 100 layers a stack, with Admin, which such models need.

    python benchmarks/depth.py --arch transformer_iwslt_de_en --max-tokens 4096 --layers 6-6,12-12,18-18,60-12,100-100
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from runs import Case, measure_all, new_parser
from table import machine, show


def num_layers(case: Case) -> int:
    encoder, _, decoder = case.layers.partition("-")
    return int(encoder) + int(decoder or encoder)


def main() -> None:
    parser = new_parser(__doc__, technique="admin", max_tokens="512", layers="6-6,12-12,18-18")
    options = parser.parse_args()
    if "" in options.layers:
        parser.error("--layers must name depths, such as 6-6,18-18")
    found = measure_all(options)
    rows = [{**rounds.label(), "weights": rounds.best.weights, **rounds.speed(),
             "ms a layer": 1000 * rounds.seconds_an_update / num_layers(rounds.case), **rounds.costs()} for rounds in found]
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

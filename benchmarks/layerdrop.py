"""How much time an update takes with LayerDrop, as a share of the time without: one deep model, all rates in turns.

    python benchmarks/layerdrop.py
    python benchmarks/layerdrop.py --width 512 --max-tokens 8192 --vocabulary 32768 --precision bf16 --updates 40     # on a GPU
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from steps import as_training_takes_it, made_up_batch
from table import machine, show

from lamina.api import DTYPES
from lamina.config.model import DropoutConfig, EmbeddingConfig, ModelConfig, StackConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.data.batching import AnyBatch
from lamina.models.build import build_model
from lamina.training.layer_drop import LayerDrop
from lamina.training.update import Updater

SENTENCE_LENGTH = 32
WARM_UP = 3  # at each rate: on a GPU, layers are recorded when a shape comes again


def model_config(layers: int, width: int, rate: float) -> ModelConfig:
    """Pre-LN, feed-forward of four times the width, dropout as usual."""
    stack = StackConfig(num_layers=layers, model_dim=width, ffn_dim=4 * width, num_heads=max(1, width // 64), is_pre_norm=True,
                        layer_drop_p=rate)
    return ModelConfig(encoder=stack, decoder=stack, dropout=DropoutConfig(dropout_p=0.1),
                       embedding=EmbeddingConfig(share_all=True))


def timed_update(updater: Updater, batch: AnyBatch, number: int, drop: LayerDrop) -> tuple[float, float]:
    """Seconds, and the share of layers that ran."""
    device, runs = updater.weights.master.device, drop.draw(number)
    ran = [True if layers is None else layer for layers, rates in zip(runs, drop.rates, strict=True)
           for layer in (layers or [True] * len(rates))]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    updater.update([batch], 1e-4, number, [runs])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started, sum(ran) / len(ran)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="layers of the encoder, and of the decoder (default: 12)")
    parser.add_argument("--width", type=int, default=256, help="width of the model (default: 256)")
    parser.add_argument("--vocabulary", type=int, default=4096, help="symbols (default: 4096)")
    parser.add_argument("--max-tokens", type=int, default=1024, help="target tokens of an update (default: 1024)")
    parser.add_argument("--rates", default="0,0.2,0.5", help="LayerDrop rates, by comma; the first is the measure (default: "
                                                             "0,0.2,0.5)")
    parser.add_argument("--updates", type=int, default=30, help="updates at each rate, after 3 that warm up; a few draw more "
                                                               "or fewer layers than the rate says (default: 30)")
    parser.add_argument("--precision", default="fp32", choices=DTYPES, help="(default: fp32)")
    parser.add_argument("--cpu", action="store_true", help="stay on the processor even where there is a GPU")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")
    torch.manual_seed(1)
    config = model_config(options.layers, options.width, 0.0)
    model = build_model(config, options.vocabulary, options.vocabulary).to(device)
    updater = Updater(model, OptimizationConfig(), PrecisionConfig(fp16=options.precision == "fp16"), DTYPES[options.precision])
    padded = made_up_batch(options.vocabulary, options.max_tokens, device, SENTENCE_LENGTH)
    batch = as_training_takes_it(padded, options.precision)
    rates = [float(rate) for rate in options.rates.split(",")]
    drops = {rate: LayerDrop(model_config(options.layers, options.width, rate), seed=1) for rate in rates}
    for number in range(WARM_UP):
        for drop in drops.values():
            updater.update([batch], 1e-4, number, [drop.draw(number)])
    measured: dict[float, list[tuple[float, float]]] = {rate: [] for rate in rates}
    for number in range(options.updates):
        # In turns, so that what else the machine does hits all rates alike.
        for rate, drop in drops.items():
            measured[rate].append(timed_update(updater, batch, number, drop))
    rows: list[dict[str, Any]] = []
    for rate, results in measured.items():
        seconds, share = (statistics.mean(column) for column in zip(*results, strict=True))
        rows.append({"layerdrop": rate, "layers run": share, "ms/update": 1000 * seconds})
    rows = [row | {"ratio": row["ms/update"] / rows[0]["ms/update"]} for row in rows]
    print(machine())
    print(f"{options.layers}L-{options.layers}L, width {options.width}, feed-forward {4 * options.width}, vocabulary "
          f"{options.vocabulary}, {batch.num_target_tokens} target tokens an update, {options.precision}, "
          f"{options.updates} updates")
    show(rows, options.json)


if __name__ == "__main__":
    main()

"""What surface fusion costs: a training step and a decoding run, over the same model without it, in one run.

    python benchmarks/fusion.py --vocabulary 10000,35000 --max-tokens 2048
    python benchmarks/fusion.py --device cuda --precision bf16 --max-tokens 4096 --beam 5 --batch-size 128
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from steps import as_training_takes_it, made_up_batch, medians, seconds_each
from table import ROUNDS, machine, show

from lamina.api import DTYPES
from lamina.config.model import ModelConfig
from lamina.config.search_options import SearchConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.decode.search import Search
from lamina.models.build import build_model
from lamina.parts.contracts import Head
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.parts.encoder_fusion import TransparentFusion
from lamina.parts.surface_fusion import AttendedFusion, HardFusion, NoSurface, PostnormFusion, SoftFusion
from lamina.registry import register
from lamina.training.update import Updater

SURFACES: dict[str, Head] = {
    "plain": NoSurface(),
    "att hard": AttendedFusion(mode=HardFusion(gate=0.8)),  # the setting that its authors publish
    "att hard learned": AttendedFusion(),
    "att soft": AttendedFusion(mode=SoftFusion()),
    "att postnorm": AttendedFusion(mode=PostnormFusion()),
}
FUSIONS = {"transparent": TransparentFusion(reads_embedding=True),
           "fine-grained": TransparentFusion(is_fine_grained=True, reads_embedding=True)}


def models(options: argparse.Namespace, vocabulary_size: int) -> dict[str, torch.nn.Module]:
    base = register.arch[options.arch]()
    base = replace(base, embedding=replace(base.embedding, share_all=True), surface=NoSurface(),
                   dropout=replace(base.dropout, attention_p=0.1))
    configs: dict[str, ModelConfig] = {name: replace(base, surface=surface) for name, surface in SURFACES.items()}
    configs |= {name: replace(base, fusion=fusion) for name, fusion in FUSIONS.items()}
    torch.manual_seed(1)
    chosen = ["plain", *options.models.split(",")] if options.models else list(configs)
    return {name: build_model(configs[name], vocabulary_size, vocabulary_size) for name in chosen}


def train_times(options: argparse.Namespace, vocabulary_size: int) -> dict[str, list[float]]:
    device = torch.device(options.device)
    batch = as_training_takes_it(made_up_batch(vocabulary_size, options.max_tokens, device))
    optimization = OptimizationConfig(criterion=LabelSmoothedCrossEntropy(smoothing=0.1))
    updaters = {name: Updater(model.to(device), optimization, PrecisionConfig(), DTYPES[options.precision])
                for name, model in models(options, vocabulary_size).items()}
    return seconds_each({name: partial(updater.update, [batch], 1e-4, 1) for name, updater in updaters.items()}, options.rounds)


def decode_times(options: argparse.Namespace, vocabulary_size: int) -> dict[str, list[float]]:
    """Every translation is as long as its source: random weights seldom say </s> by themselves."""
    device = torch.device(options.device)
    source = made_up_batch(vocabulary_size, options.batch_size * 16, device).source
    config = SearchConfig(beam=options.beam, max_length_factor=1.0, max_length_offset=0, min_length=source.size(1) - 1)
    searches = {name: Search([model.to(device=device, dtype=DTYPES[options.precision]).eval()], config)
                for name, model in models(options, vocabulary_size).items()}
    return seconds_each({name: partial(search.run, source) for name, search in searches.items()}, options.rounds, warm_up=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="transformer_surface_fusion", help="preset that fusion is added to or taken from")
    parser.add_argument("--models", help=f"by comma, beside plain: {', '.join([*SURFACES, *FUSIONS][1:])} (default: all)")
    parser.add_argument("--only", choices=("train", "decode"), help="leave out the other")
    parser.add_argument("--vocabulary", default="10000,35000", help="sizes, by comma")
    parser.add_argument("--max-tokens", type=int, default=2048, help="tokens of a training step")
    parser.add_argument("--batch-size", type=int, default=32, help="sentences of a decoding run")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--precision", default="fp32", choices=list(DTYPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7, help="of which the median counts")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for vocabulary_size in map(int, options.vocabulary.split(",")):
        times = {what: measure(options, vocabulary_size) for what, measure in (("train", train_times), ("decode", decode_times))
                 if options.only in (None, what)}
        found = {what: medians(own) for what, own in times.items()}
        rows += [{"vocabulary": vocabulary_size, "model": name,
                  **{key: value for what, own in found.items() for key, value in
                     ((f"{what} ms", 1000 * own[name]), (f"{what}, of plain", own[name] / own["plain"]))},
                  ROUNDS: {f"{what} ms": [1000 * seconds for seconds in own[name]] for what, own in times.items()}}
                 for name in next(iter(times.values()))]
    print(f"{machine()}; {options.precision}, {options.max_tokens} tokens a step, beam {options.beam}, batch "
          f"{options.batch_size}")
    show(rows, options.json)


if __name__ == "__main__":
    main()

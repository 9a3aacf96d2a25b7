"""How fast translation is: one model, the test split of a data folder, by batch size and beam.

    python benchmarks/decode.py --arch transformer_iwslt_de_en --batch-size 1,32,128 --beam 1,5
    python benchmarks/decode.py --checkpoint checkpoints/checkpoint_best.pt --data data-bin/iwslt --precision fp32,bf16

A model with random weights seldom says </s> by itself, so without a checkpoint every translation is as long as its source.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from made_up import write_folder
from table import machine, show

from lamina.api import DTYPES
from lamina.checkpoint.format import load_checkpoint
from lamina.config.decode import SearchConfig
from lamina.config.fields import build, unique_leaves
from lamina.config.model import ModelConfig
from lamina.config.presets import preset_values
from lamina.data.corpus import find_languages, load_dictionaries, open_corpus
from lamina.decode.beam import Search
from lamina.decode.rows import search_rows
from lamina.models.build import build_model
from lamina.models.encoder_decoder import EncoderDecoder


def read_sources(data: str, split: str, limit: int) -> tuple[list[np.ndarray], int]:
    languages = find_languages(Path(data), split, None, None)
    source, target = load_dictionaries(Path(data), languages)
    corpus = open_corpus(Path(data), split, languages, (len(source), len(target)))
    return [corpus[index].source for index in range(min(limit, len(corpus)))], len(source)


def make_model(options: argparse.Namespace, arch: str, vocabulary_size: int) -> EncoderDecoder:
    if options.checkpoint:
        return load_checkpoint(options.checkpoint).build_model()
    torch.manual_seed(1)
    # Not tied: a fresh tied model repeats what it reads, and ends at once because it starts from </s>.
    values = preset_values(arch, {"share-all-embeddings": False, "share-decoder-input-output-embed": False})
    names = {leaf.name for leaf in unique_leaves(ModelConfig)}
    model_values = {name: value for name, value in values.items() if name in names}
    return build_model(build(ModelConfig, model_values), vocabulary_size, vocabulary_size)


def measure(model: EncoderDecoder, sources: list[np.ndarray], config: SearchConfig, batch_size: int) -> dict[str, Any]:
    device = next(model.parameters()).device
    search = Search([model], config)

    def run(rows: list[np.ndarray]) -> int:
        return sum(len(found.hypotheses[0].ids) for found in search_rows(search, rows, device=device, batch_size=batch_size))

    run(sources[:batch_size])  # warm up
    started = time.perf_counter()
    num_tokens = run(sources)
    seconds = time.perf_counter() - started
    return {"batch": batch_size, "beam": config.beam, "sentences": len(sources), "seconds": seconds,
            "sentences/s": len(sources) / seconds, "target tokens/s": round(num_tokens / seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="data folder (default: made-up captions, 10k vocabulary)")
    parser.add_argument("--gen-subset", default="test", help="split to translate (default: test)")
    parser.add_argument("--checkpoint", help="model to use (default: random weights of --arch)")
    parser.add_argument("--arch", default="tiny", help="presets, by comma (default: tiny)")
    parser.add_argument("--batch-size", default="1,32,128", help="sentences in a batch, by comma (default: 1,32,128)")
    parser.add_argument("--beam", default="1,5", help="beams, by comma (default: 1,5)")
    parser.add_argument("--precision", default="fp32", help=f"{', '.join(DTYPES)}, by comma (default: fp32)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sentences", type=int, default=256, help="how many to translate (default: 256)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    config = SearchConfig()
    if not options.checkpoint:
        config = SearchConfig(max_length_factor=1.0, max_length_offset=0, min_length=0)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        sources, size = read_sources(options.data or str(write_folder(Path(temporary), 1000)), options.gen_subset,
                                     options.sentences)
        for arch in options.arch.split(","):
            for precision in options.precision.split(","):
                model = make_model(options, arch, size).to(device=options.device, dtype=DTYPES[precision]).eval()
                for batch_size in map(int, options.batch_size.split(",")):
                    for beam in map(int, options.beam.split(",")):
                        label = {"model": options.checkpoint or arch, "precision": precision}
                        rows.append(label | measure(model, sources, replace(config, beam=beam), batch_size))
    print(machine())
    show(rows, options.json)


if __name__ == "__main__":
    main()

"""How fast Lamina is on a CPU, beside CTranslate2 and beside torch's own Transformer: both in one run, round by round.

    OMP_NUM_THREADS=2 taskset -c 0,1 python benchmarks/cpu.py decode
    OMP_NUM_THREADS=2 taskset -c 0,1 python benchmarks/cpu.py decode --beside 2
    OMP_NUM_THREADS=2 taskset -c 0,1 python benchmarks/cpu.py train

`decode` exports one model for CTranslate2 (pip install ctranslate2) and lets both translate the same sentences as `lamina
generate` does: in processes of one thread each. CTranslate2 runs both ways, with threads inside a batch (intra) and with
batches side by side (inter); each system may have the way and the batch size that suit it. `--beside N` has N other jobs
compute on the same cores meanwhile. Without --checkpoint, weights are random, and all translations of a batch are as long as
its longest source. `train` is one update of the same model: ours, and one of torch.nn.Transformer with torch's fused Adam.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from made_up import made_up_checkpoint, write_folder
from steps import made_up_batch, medians, seconds_each
from table import ROUNDS, machine, show

from lamina.api import DTYPES
from lamina.checkpoint.format import Checkpoint, load_checkpoint
from lamina.config.model import ModelConfig
from lamina.config.search_options import SearchConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.data.batching import Batch, length_batches
from lamina.data.corpus import find_languages, load_dictionaries, open_corpus
from lamina.decode.batched_search import search_rows
from lamina.decode.search import Search
from lamina.decode.search_workers import search_workers
from lamina.interop.ctranslate2 import write_ctranslate2
from lamina.models.build import PAD_ID, build_model
from lamina.nn.positions import sinusoid_table
from lamina.nn.prepacked import Int8Linear, Prepacked, PrepackedLinear, prepack_
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.registry import register
from lamina.text.vocabulary import EOS
from lamina.threads import settle_threads
from lamina.training.update import Updater

SMOOTHING = 0.1
PREPACKED = {"fp32": PrepackedLinear, "int8": Int8Linear}
COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}
# Two ways to use several threads.
INTRA, INTER = "CTranslate2 intra", "CTranslate2 inter"
PAUSE = 0.3  # seconds in which the threads of the one before stop looking for work


def read_sources(data: Path, split: str, number: int) -> tuple[list[np.ndarray], Any]:
    languages = find_languages(data, split, None, None)
    source, target = load_dictionaries(data, languages)
    corpus = open_corpus(data, split, languages, (len(source), len(target)))
    return [corpus[index].source for index in range(min(number, len(corpus)))], source


def ours(checkpoint: Checkpoint, kind: type[Prepacked] | None, sources: list[np.ndarray], beam: int, batch_size: int, *,
         is_fixed: bool) -> Callable[[], Any]:
    model = checkpoint.build_model().eval()
    if kind is not None:
        prepack_(model, kind)
    config = SearchConfig(beam=beam)
    if is_fixed:
        # As many steps as theirs, which end in any word; ours end in </s>.
        config = replace(config, uses_padded_width=True, max_length_factor=1.0, max_length_offset=-1)
    search = Search([model], config)

    def run() -> list[list[int]]:
        with search_workers([search], len(sources)) as workers:
            found = {own.index: own.hypotheses[0].ids for own in search_rows(search, sources, device="cpu",
                                                                            batch_size=batch_size, workers=workers)}
        return [found[index] for index in range(len(sources))]

    return run


def theirs(folder: Path, checkpoint: Checkpoint, compute_type: str, sources: list[np.ndarray], beam: int, batch_size: int, *,
           is_fixed: bool, num_side_by_side: int) -> Callable[[], Any]:
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=compute_type, inter_threads=num_side_by_side,
                                        intra_threads=torch.get_num_threads() // num_side_by_side)
    source_words, target_words = checkpoint.vocabularies()
    texts = [[source_words.symbols[token] for token in source[:-1]] for source in sources]
    batches = length_batches(sources, None, batch_size)

    def translated(indices: list[int]) -> list[tuple[int, list[int]]]:
        longest = max(len(sources[index]) for index in indices)
        limits = ({"min_decoding_length": longest, "max_decoding_length": longest} if is_fixed else
                  {"max_decoding_length": 200})
        results = translator.translate_batch([texts[index] for index in indices], beam_size=beam, **limits)
        return [(index, [target_words.id(word) for word in result.hypotheses[0]])
                for index, result in zip(indices, results, strict=True)]

    def run() -> list[list[int]]:
        with ThreadPoolExecutor(num_side_by_side) as threads:  # translate_batch gives the GIL away
            found = dict(pair for pairs in threads.map(translated, batches) for pair in pairs)
        return [found[index] for index in range(len(sources))]

    return run


def busy() -> None:
    """Another job on the same cores."""
    matrix = torch.ones(512, 512)
    torch.set_num_threads(1)
    while multiprocessing.parent_process().is_alive():  # type: ignore[union-attr]
        for _ in range(20):
            matrix @ matrix


@contextmanager
def beside(number: int) -> Iterator[None]:
    jobs = [multiprocessing.get_context("spawn").Process(target=busy, daemon=True) for _ in range(number)]
    for job in jobs:
        job.start()
    try:
        yield
    finally:
        for job in jobs:
            job.kill()


def worker(turns: Connection, system: str, checkpoint: Checkpoint, folder: Path, cases: list[tuple[str, int]],
           sources: list[np.ndarray], beam: int, is_fixed: bool) -> None:
    """One system's process: a turn for each case that it is asked for."""
    steps: dict[tuple[str, int], Callable[[], list[list[int]]]] = {}
    for kind, batch_size in cases:
        if system == "Lamina":
            steps[kind, batch_size] = ours(checkpoint, PREPACKED[kind], sources, beam, batch_size, is_fixed=is_fixed)
        else:
            number = torch.get_num_threads() if system == INTER else 1
            steps[kind, batch_size] = theirs(folder, checkpoint, COMPUTE_TYPES[kind], sources, beam, batch_size,
                                             is_fixed=is_fixed, num_side_by_side=number)
    while (case := turns.recv()) is not None:
        started = time.perf_counter()
        found = steps[case]()
        turns.send((time.perf_counter() - started, found))


def decode(options: argparse.Namespace) -> list[dict[str, Any]]:
    """In turns, in processes of their own: together they would have more threads than cores, and wait for them otherwise."""
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(options.data or write_folder(Path(temporary) / "data", 1000))
        sources, vocabulary = read_sources(data, options.gen_subset, options.sentences)
        checkpoint = (load_checkpoint(options.checkpoint) if options.checkpoint else
                      made_up_checkpoint(options.arch, vocabulary.to_text(), len(vocabulary)))
        folder, is_fixed = Path(temporary) / "exported", not options.checkpoint
        if is_fixed:
            checkpoint.weights["head.table.weight"][EOS] = 0.0  # never among the best: translations end at their longest
        folder.mkdir()
        write_ctranslate2(folder, checkpoint, print)
        cases = [(kind, batch_size) for batch_size in map(int, options.batch_size.split(",")) for kind in PREPACKED]
        settle_threads()  # as every command does
        context, turns = multiprocessing.get_context("spawn"), {}
        for system in ("Lamina", INTRA, INTER):
            turns[system], theirs_end = context.Pipe()
            # Not a daemon, which may have no processes of its own; it ends with the pipe.
            context.Process(target=worker, args=(theirs_end, system, checkpoint, folder, cases, sources, options.beam,
                                                 is_fixed)).start()
            theirs_end.close()  # so that a process that fails is not waited for
        times: dict[str, list[float]] = {}
        found: dict[str, list[list[int]]] = {}
        with beside(options.beside):
            for number in range(1 + options.rounds):
                for kind, batch_size in cases:
                    for system, turn in turns.items():
                        name = f"{system} {kind} {batch_size}"
                        time.sleep(PAUSE)
                        turn.send((kind, batch_size))
                        seconds, found[name] = turn.recv()
                        if number:  # the first round warms up
                            times.setdefault(name, []).append(seconds)
        for turn in turns.values():
            turn.send(None)
        return decode_rows(times, found, len(sources))


def decode_rows(times: dict[str, list[float]], found: dict[str, list[list[int]]], number: int) -> list[dict[str, Any]]:
    """Each system at each batch size, the median of the rounds; ratios are of the best of one over the best of the other."""
    seconds = medians(times)
    best: dict[str, float] = {}
    for name, own in seconds.items():
        kind = kind_of(name)
        best[kind] = min(best.get(kind, math.inf), own)
    first = next(iter(found.values()))
    rows = []
    for name, own in seconds.items():
        system, batch_size = name.rsplit(maxsplit=1)
        kind = kind_of(name)
        rival = kind.replace("Lamina", "CTranslate2")
        same = sum(ids[:-1] == other[: len(ids) - 1] for ids, other in zip(first, found[name], strict=True))
        rows.append({"system": system, "batch": int(batch_size), "seconds": own, "sentences/s": number / own,
                     "spread": f"{number / max(times[name]):.1f} to {number / min(times[name]):.1f}",
                     "found what the first did": f"{100 * same / number:.0f} %",
                     "best of ours / best of theirs": best[rival] / best[kind] if own == best[kind] and rival != kind else "",
                     ROUNDS: {"sentences/s": [number / one for one in times[name]]}})
    return rows


def kind_of(name: str) -> str:
    """System and precision of a case."""
    return f"{name.split()[0]} {name.split()[-2]}"


class TorchTransformer(nn.Module):
    """The same model from torch's modules: post-norm, one table for everything, sinusoids, dropout where we have it."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__()
        stack, dim = config.encoder, config.encoder.model_dim
        self.dim, self.dropout_p = dim, config.dropout.dropout_p
        self.table = nn.Embedding(vocabulary_size, dim, padding_idx=PAD_ID)
        nn.init.normal_(self.table.weight, std=dim**-0.5)
        self.register_buffer("positions", sinusoid_table(1024, dim)[2:])
        self.transformer = nn.Transformer(dim, stack.num_heads, stack.num_layers, config.decoder.num_layers, stack.ffn_dim,
                                          self.dropout_p, batch_first=True)
        # Theirs end in a norm of their own after post-norm layers, and drop attention weights and activations with one rate.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for part in self.transformer.modules():
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = config.dropout.attention_p
            elif isinstance(part, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                part.dropout.p = config.dropout.activation_p

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        is_pad, length = source.eq(PAD_ID), target_in.size(1)
        states = self.transformer(self.embed(source), self.embed(target_in), src_key_padding_mask=is_pad,
                                  memory_key_padding_mask=is_pad, tgt_is_causal=True,
                                  tgt_mask=nn.Transformer.generate_square_subsequent_mask(length))
        return F.linear(states, self.table.weight)

    def embed(self, ids: Tensor) -> Tensor:
        return F.dropout(self.table(ids) * math.sqrt(self.dim) + self.positions[: ids.size(1)], self.dropout_p, self.training)


def torch_update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, dtype: torch.dtype) -> float:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        scores = model(batch.source, batch.target_in)
    loss = F.cross_entropy(scores.float().flatten(0, 1), batch.target.flatten(), ignore_index=PAD_ID,
                           label_smoothing=SMOOTHING)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(options: argparse.Namespace) -> list[dict[str, Any]]:
    config = register.arch[options.arch]()
    config = replace(config, embedding=replace(config.embedding, share_all=True))
    batch = made_up_batch(options.vocabulary, options.max_tokens, torch.device("cpu"))
    rows = []
    for precision in options.precision.split(","):
        torch.manual_seed(1)
        optimization = OptimizationConfig(criterion=LabelSmoothedCrossEntropy(smoothing=SMOOTHING))
        updater = Updater(build_model(config, options.vocabulary, options.vocabulary), optimization, PrecisionConfig(),
                          DTYPES[precision])
        model = TorchTransformer(config, options.vocabulary)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
        steps = {"Lamina": partial(our_update, updater, batch),
                 "torch.nn.Transformer": partial(torch_update, model, optimizer, batch, DTYPES[precision])}
        times = seconds_each(steps, options.rounds, warm_up=2)
        seconds = medians(times)
        sizes = {name: sum(weight.numel() for weight in own.parameters())
                 for name, own in zip(steps, (updater.model, model), strict=True)}
        rows += [{"system": name, "precision": precision, "weights": sizes[name], "ms an update": 1000 * own,
                  "target tokens/s": round(batch.num_target_tokens / own),
                  "speed, of torch's": seconds["torch.nn.Transformer"] / own,
                  ROUNDS: {"ms an update": [1000 * one for one in times[name]]}} for name, own in seconds.items()]
    return rows


def our_update(updater: Updater, batch: Batch) -> list[float]:
    return updater.update([batch], 1e-4, 1).numbers.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decode", "train"))
    parser.add_argument("--arch", default="transformer_iwslt_de_en", help="preset (default: transformer_iwslt_de_en)")
    parser.add_argument("--data", help="decode: data folder (default: made-up captions, 10k vocabulary)")
    parser.add_argument("--gen-subset", default="test", help="decode: split to translate (default: test)")
    parser.add_argument("--checkpoint", help="decode: model to use (default: random weights of --arch)")
    parser.add_argument("--sentences", type=int, default=128, help="decode: how many to translate (default: 128)")
    parser.add_argument("--batch-size", default="16,32", help="decode: sentences in a batch, by comma (default: 16,32)")
    parser.add_argument("--beam", type=int, default=5, help="decode: (default: 5)")
    parser.add_argument("--beside", type=int, default=0, help="decode: other jobs that compute meanwhile (default: 0)")
    parser.add_argument("--max-tokens", type=int, default=2048, help="train: tokens of an update (default: 2048)")
    parser.add_argument("--precision", default="fp32", help="train: fp32, bf16, by comma; theirs by autocast (default: fp32)")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="train: symbols (default: 10000)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    rows = {"decode": decode, "train": train}[options.what](options)
    print(f"{machine()}; on {torch.get_num_threads()} threads of the CPU")
    show(rows, options.json)


if __name__ == "__main__":
    main()

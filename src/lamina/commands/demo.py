"""`lamina demo`: the whole way from text to translations, with the three techniques, on a corpus made on the spot."""

from __future__ import annotations

import json
import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamina.config.tool_options import DemoConfig
from lamina.demo_corpus.sentences import build_corpus, write_corpus
from lamina.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

MODEL_FLAGS = "--arch tiny --encoder-layers 4 --share-all-embeddings"
TECHNIQUES = ("--surfacefusion att --sf-gate 0.8 --sf-mode hard --init-type admin "
              "--encoder-layerdrop 0.3 --decoder-layerdrop 0.3")
TRAIN_FLAGS = ("--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' "
               "--lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 200 --clip-norm 1.0 --max-tokens 1024 "
               "--log-interval 100 --no-epoch-checkpoints --distributed-world-size 1")
HALF = "every:2"
PLAIN, FUSED = "plain", "checkpoints"


def run(config: DemoConfig) -> None:
    from lamina.command_line import execute, guarded

    folder = Path(config.folder)
    _claim(folder, {"train-pairs": config.num_pairs, "seed": config.seed})
    started = time.perf_counter()
    corpus = build_corpus(num_train=config.num_pairs, seed=config.seed)
    (folder / "text").mkdir(parents=True, exist_ok=True)
    write_corpus(corpus, folder / "text")
    print(f"| made {len(corpus.train)} English-Romanian pairs for training, {len(corpus.valid)} for validation and "
          f"{len(corpus.test)} for testing, none of them shared", flush=True)
    for about, command in _commands(config, folder):
        print(f"\n# {about}\n$ lamina {command}", flush=True)
        if code := guarded(partial(execute, shlex.split(command))):
            raise SystemExit(code)
    _show_translations(config, folder, [source for source, _ in corpus.test], [target for _, target in corpus.test])
    print(f"| {time.perf_counter() - started:.0f} s in all; now try")
    for about, command in _next_steps(folder):
        print(f"|   # {about}\n|   lamina {command}")


def _claim(folder: Path, settings: dict[str, int]) -> None:
    """A model continues training only on the corpus that it began with, so a folder belongs to one."""
    note = folder / "demo.json"
    if note.exists() and json.loads(note.read_text()) != settings:
        raise ConfigError(f"{folder} holds a demo with other settings ({note.read_text().strip()}). Remove it, or name another "
                          "folder with --folder.")
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(settings) + "\n")


def _commands(config: DemoConfig, folder: Path) -> list[tuple[str, str]]:
    """What a person would type, and why."""
    text, data, plain, fused = (shlex.quote(str(folder / name)) for name in ("text", "data", PLAIN, FUSED))
    training = f"{TRAIN_FLAGS} --seed {config.seed} --max-update {config.max_update}"
    return [
        ("subwords and ids", f"preprocess -s en -t ro --trainpref {text}/train --validpref {text}/valid --testpref {text}/test "
                             f"--destdir {data} --subword sentencepiece --vocab-size 2000 --joined-dictionary"),
        ("a plain Transformer, to compare with", f"train {data} {MODEL_FLAGS} {training} --save-dir {plain}"),
        ("the same with SurfaceFusion, Admin and LayerDrop",
         f"train {data} {MODEL_FLAGS} {TECHNIQUES} {training} --save-dir {fused}"),
    ]


def _next_steps(folder: Path) -> list[tuple[str, str]]:
    names = (Path(FUSED, "checkpoint_best.pt"), "data", "fusion", "small.pt")
    model, data, fusion, small = (shlex.quote(str(folder / name)) for name in names)
    return [
        ("translate lines of your own, such as: Our son speaks Latvian.", f"interactive --path {model}"),
        ("the same checkpoint with half of its layers", f"interactive --path {model} --encoder-layers-to-keep {HALF}"),
        ("what the decoder reads, as figures on a page", f"analyze fusion {model} {data} --out {fusion}"),
        ("let validation data choose the layers to keep", f"prune {model} {data} --search --encoder-layers 2 --output {small}"),
    ]


def _show_translations(config: DemoConfig, folder: Path, sources: list[str], references: list[str]) -> None:
    from lamina.api import load
    from lamina.metrics.bleu import corpus_bleu
    from lamina.tasks.translation import GREEDY

    def translate(name: str, **pruning: Any) -> tuple[Any, list[str], str]:
        translator = load(folder / name / "checkpoint_best.pt", **pruning)
        translator.translate(sources[:8], search=GREEDY)  # the first batch pays for what comes up once
        started = time.perf_counter()
        texts = [translation.text for translation in translator.translate(sources, search=GREEDY)]
        speed = len(texts) / (time.perf_counter() - started)
        return translator, texts, f"{corpus_bleu(texts, references):5.1f}   {speed:5.0f} sentences/s"

    _, _, plain = translate(PLAIN)
    translator, translations, whole = translate(FUSED)
    half, _, cut = translate(FUSED, encoder_layers_to_keep=HALF, decoder_layers_to_keep=HALF)
    depth, half_depth = (f"{len(model.encoder.layers)} + {len(model.decoder.layers)} layers"
                         for model in (translator.models[0], half.models[0]))
    rows = {f"plain, {depth}": plain, f"SurfaceFusion, Admin and LayerDrop, {depth}": whole,
            f"the same checkpoint, cut to {half_depth}": cut,
            "copying the source": f"{corpus_bleu(sources, references):5.1f}"}
    print("\n| test BLEU")
    for name, figures in rows.items():
        print(f"|   {name}: ".ljust(max(map(len, rows)) + 8) + figures)
    print(f"| Admin's omegas, {_omegas(translator.models[0])}\n")
    step = max(1, len(sources) // max(1, config.num_samples))
    for index in range(0, len(sources), step)[: config.num_samples]:
        mark = "=" if translations[index] == references[index] else "≠"
        print(f"  en  {sources[index]}\n  ro  {translations[index]}\n  {mark}   {references[index]}\n")


def _omegas(model: nn.Module) -> str:
    """What each sub-layer multiplies its shortcut by, from the bottom up."""
    def means(stack: str) -> str:
        own = [weight.mean().item() for name, weight in model.named_parameters() if name.startswith(stack) and "omega" in name]
        return " ".join(f"{mean:.2f}" for mean in own)

    return f"mean of each sub-layer from the bottom up: encoder {means('encoder.')}; decoder {means('decoder.')}"

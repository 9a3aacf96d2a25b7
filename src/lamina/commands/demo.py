"""`lamina demo`: the whole way from text to translations, on a corpus made on the spot."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

from lamina.config.demo import DemoConfig
from lamina.demo.corpus import build_corpus, write_corpus
from lamina.errors import ConfigError

MODEL_FLAGS = "--arch tiny --share-all-embeddings"
TRAIN_FLAGS = ("--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' "
               "--lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 200 --clip-norm 1.0 --max-tokens 1024 "
               "--log-interval 100 --no-epoch-checkpoints")


def run(config: DemoConfig) -> None:
    from lamina.cli import main

    folder = Path(config.folder)
    _claim(folder, {"train-pairs": config.num_pairs, "seed": config.seed})
    started = time.perf_counter()
    corpus = build_corpus(num_train=config.num_pairs, seed=config.seed)
    (folder / "text").mkdir(parents=True, exist_ok=True)
    write_corpus(corpus, folder / "text")
    print(f"| made {len(corpus.train)} English-Romanian pairs for training, {len(corpus.valid)} for validation and "
          f"{len(corpus.test)} for testing, none of them shared", flush=True)
    for command in _commands(config, folder):
        print(f"\n$ lamina {command}", flush=True)
        if main(shlex.split(command)):
            raise SystemExit(2)
    _show_translations(config, folder, [source for source, _ in corpus.test], [target for _, target in corpus.test])
    print(f"| {time.perf_counter() - started:.0f} s in all; the model is {folder / 'checkpoints' / 'checkpoint_best.pt'}")


def _claim(folder: Path, settings: dict[str, int]) -> None:
    """A model goes on training only on the corpus that it began with, so a folder belongs to one."""
    note = folder / "demo.json"
    if note.exists() and json.loads(note.read_text()) != settings:
        raise ConfigError(f"{folder} holds a demo with other settings ({note.read_text().strip()}). Remove it, or name another "
                          "folder with --folder.")
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(settings) + "\n")


def _commands(config: DemoConfig, folder: Path) -> list[str]:
    """What a person would type."""
    text, data, checkpoints = (shlex.quote(str(folder / name)) for name in ("text", "data", "checkpoints"))
    return [
        f"preprocess -s en -t ro --trainpref {text}/train --validpref {text}/valid --testpref {text}/test --destdir {data} "
        "--subword sentencepiece --vocab-size 2000 --joined-dictionary",
        f"train {data} {MODEL_FLAGS} {TRAIN_FLAGS} --save-dir {checkpoints} --seed {config.seed} "
        f"--max-update {config.max_update}",
    ]


def _show_translations(config: DemoConfig, folder: Path, sources: list[str], references: list[str]) -> None:
    from lamina.api import load
    from lamina.metrics.bleu import corpus_bleu

    translator = load(folder / "checkpoints" / "checkpoint_best.pt")
    translations = [translation.text for translation in translator.translate(sources, beam=1)]
    print(f"\n| test BLEU: {corpus_bleu(translations, references):.1f}   "
          f"(copying the source: {corpus_bleu(sources, references):.1f})\n")
    step = max(1, len(sources) // max(1, config.num_samples))
    for index in range(0, len(sources), step)[: config.num_samples]:
        mark = "=" if translations[index] == references[index] else "≠"
        print(f"  en  {sources[index]}\n  ro  {translations[index]}\n  {mark}   {references[index]}\n")

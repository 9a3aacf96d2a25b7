"""A made-up data folder with the lengths of image captions, and models for it: benchmarks need no corpus."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lamina.checkpoint.format import Checkpoint
from lamina.data.binary import BinaryWriter
from lamina.fields import flatten
from lamina.models.build import build_model
from lamina.registry import register
from lamina.text.subword import Whitespace, subword_to_dict
from lamina.text.vocabulary import EOS, FIRST_WORD_ID, Vocabulary


def write_folder(folder: Path, num_pairs: int = 29_000, vocabulary_size: int = 10_000, seed: int = 1,
                 num_test: int = 1_000) -> Path:
    """Pairs of about 14 tokens a side (Multi30k's mean with 10k BPE), ids by Zipf's law, one dictionary."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"w{number}" for number in range(vocabulary_size - FIRST_WORD_ID)]
    vocabulary = Vocabulary(words, [1] * len(words))
    for language in ("de", "en"):
        vocabulary.save(folder / f"dict.{language}.txt")
    random = np.random.default_rng(seed)
    for split, number in (("train", num_pairs), ("valid", min(1_000, num_pairs)), ("test", num_test)):
        lengths = np.clip(random.lognormal(mean=2.55, sigma=0.35, size=number), 4, 60)
        for language in ("de", "en"):
            own = np.clip(np.rint(lengths * random.normal(1.0, 0.12, number)), 3, 80).astype(int)
            with BinaryWriter(folder / f"{split}.de-en.{language}", vocabulary_size) as writer:
                for length in own.tolist():
                    ranks = random.zipf(1.3, length) % len(words)
                    writer.write(np.append(ranks + FIRST_WORD_ID, EOS))
    return folder


def write_texts(folder: Path, num_lines: int, vocabulary_size: int = 10_000, seed: int = 1, mean: float = 25.0) -> Path:
    """Sentences of lengths like those of running text, for language models; and under task/ with one of two labels each."""
    random = np.random.default_rng(seed)
    words = [f"w{number}" for number in range(vocabulary_size - FIRST_WORD_ID)]
    labels = Vocabulary(["no", "yes"], [1, 1])
    for part in (folder, folder / "task" / "input0"):
        part.mkdir(parents=True, exist_ok=True)
        Vocabulary(words, [1] * len(words)).save(part / "dict.txt")
    (folder / "task" / "label").mkdir(exist_ok=True)
    labels.save(folder / "task" / "label" / "dict.txt")
    for split, number in (("train", num_lines), ("valid", min(200, num_lines))):
        lengths = np.clip(random.gamma(4.0, mean / 4.0, number), 3, 120).astype(int)
        with (BinaryWriter(folder / split, vocabulary_size) as text,
              BinaryWriter(folder / "task" / "input0" / split, vocabulary_size) as inputs,
              BinaryWriter(folder / "task" / "label" / split, len(labels)) as answers):
            for length in lengths.tolist():
                ids = np.append(random.zipf(1.3, length) % len(words) + FIRST_WORD_ID, EOS)
                text.write(ids)
                inputs.write(ids)
                answers.write(np.array([FIRST_WORD_ID + random.integers(2), EOS]))
    return folder


def made_up_checkpoint(arch: str, dictionary: str, size: int) -> Checkpoint:
    torch.manual_seed(1)
    config = register.arch[arch]()
    # Not tied: a fresh tied model repeats what it reads, and ends at once because it starts from </s>.
    config = replace(config, embedding=replace(config.embedding, share_all=False, share_decoder=False))
    model, subword = build_model(config, size, size), subword_to_dict(Whitespace())
    return Checkpoint(config={"task": "translation", "arch": arch, **flatten(config)}, languages=("de", "en"),
                      dictionaries=(dictionary, dictionary), subwords=(subword, subword),
                      weights={name: weight.detach() for name, weight in model.named_parameters()})

"""A made-up data folder with the lengths of image captions, so that benchmarks need no corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lamina.data.binary import BinaryWriter
from lamina.text.vocabulary import EOS, FIRST_WORD_ID, Vocabulary


def write_folder(folder: Path, num_pairs: int = 29_000, vocabulary_size: int = 10_000, seed: int = 1) -> Path:
    """Pairs of about 14 tokens a side (Multi30k's mean with 10k BPE), ids by Zipf's law, one dictionary."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"w{number}" for number in range(vocabulary_size - FIRST_WORD_ID)]
    vocabulary = Vocabulary(words, [1] * len(words))
    for language in ("de", "en"):
        vocabulary.save(folder / f"dict.{language}.txt")
    random = np.random.default_rng(seed)
    for split, number in (("train", num_pairs), ("valid", min(1_000, num_pairs)), ("test", min(1_000, num_pairs))):
        lengths = np.clip(random.lognormal(mean=2.55, sigma=0.35, size=number), 4, 60)
        for language in ("de", "en"):
            own = np.clip(np.rint(lengths * random.normal(1.0, 0.12, number)), 3, 80).astype(int)
            with BinaryWriter(folder / f"{split}.de-en.{language}", vocabulary_size) as writer:
                for length in own.tolist():
                    ranks = random.zipf(1.3, length) % len(words)
                    writer.write(np.append(ranks + FIRST_WORD_ID, EOS))
    return folder

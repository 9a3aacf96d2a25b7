"""Raw text in, raw text out: a checkpoint with all that it carries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lamina.checkpoint.format import Checkpoint, load_checkpoint
from lamina.data.batching import pad_rows
from lamina.decode.greedy import translate_greedily
from lamina.text.vocabulary import EOS


class Translator:
    """The model of a checkpoint, with its dictionaries and subword models."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.model = checkpoint.build_model().to(self.device).eval()
        self.vocabularies = checkpoint.vocabularies()
        self.subwords = checkpoint.subword_models()

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Translator:
        return cls(load_checkpoint(path), device)

    def translate(self, lines: Sequence[str], max_sentences: int = 64) -> list[str]:
        """One translation a line, in order; lines of similar length are translated together."""
        sources = [self._ids(line) for line in lines]
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        results = [""] * len(sources)
        for start in range(0, len(order), max_sentences):
            indices = order[start : start + max_sentences]
            batch = torch.from_numpy(pad_rows([sources[index] for index in indices])).to(self.device)
            for index, ids in zip(indices, translate_greedily(self.model, batch), strict=True):
                results[index] = self.subwords[1].decode(self.vocabularies[1].decode(ids))
        return results

    def _ids(self, line: str) -> np.ndarray:
        ids = self.vocabularies[0].encode(self.subwords[0].encode(line))
        limit = self.model.max_source_positions
        return ids if len(ids) <= limit else np.append(ids[: limit - 1], EOS)

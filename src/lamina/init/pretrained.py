"""Embeddings from a text file of word vectors."""

from __future__ import annotations

from pathlib import Path

import torch

from lamina.errors import ConfigError, DataError
from lamina.nn.embedding import TokenTable
from lamina.text.vocabulary import Vocabulary


@torch.no_grad()
def fill_table_(table: TokenTable, path: Path, vocabulary: Vocabulary) -> None:
    dim = table.weight.size(1)
    num_found = 0
    try:
        with path.open(encoding="utf-8") as lines:
            header = next(lines, "").split()
            if len(header) != 2 or not all(word.isdigit() for word in header):
                raise DataError(f"{path}, line 1: expected `COUNT DIM`, as word2vec and fastText write it.")
            if int(header[1]) != dim:
                raise ConfigError(f"{path} has vectors of {header[1]} numbers, but the embeddings have {dim}. "
                                  "Set --encoder-embed-dim or --decoder-embed-dim to match.")
            for number, line in enumerate(lines, start=2):
                word, *values = line.rstrip("\n ").split(" ")
                if len(values) != dim:
                    raise DataError(f"{path}, line {number}: expected a word and {dim} numbers, found {len(values)}.")
                if word in vocabulary:
                    vector = torch.tensor([float(value) for value in values])
                    if not vector.isfinite().all():
                        raise DataError(f"{path}, line {number}: the vector of {word[:40]!r} holds values that are not finite.")
                    table.weight[vocabulary.id(word)] = vector
                    num_found += 1
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path} cannot be read as word vectors: {error}.") from None
    if not num_found:
        raise DataError(f"{path} has none of the {len(vocabulary)} symbols of the dictionary: is it of another language?")

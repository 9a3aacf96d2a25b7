"""Running text cut into blocks, read through memory maps: what language models train on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lamina.data.batching import TokenBatch, pad_rows
from lamina.data.binary import BinaryReader
from lamina.data.data_folder import check_finished
from lamina.data.flat_texts import FlatTokens, end_to_end, flat_row
from lamina.errors import DataError
from lamina.text.vocabulary import EOS, PAD

# Of a document that ends: an empty line, which is </s> alone.
SEPARATOR_SIZE = 1


class TokenBlocks:
    """Blocks of one text after the other by index; a text is all sentences of one file, end to end."""

    unit = "blocks"

    def __init__(self, texts: Sequence[BinaryReader], vocabulary_size: int, name: str, *, block_size: int,
                 break_mode: str) -> None:
        self.name = name
        self._texts = texts
        self._vocabulary_size = vocabulary_size
        cuts = [cut_blocks(text.sizes, block_size, break_mode) for text in texts]
        self._text_of = np.repeat(np.arange(len(texts)), [len(ends) for _, ends in cuts])
        self._starts = np.concatenate([starts for starts, _ in cuts])
        self._sizes = np.concatenate([ends - starts for starts, ends in cuts])
        if not len(self._starts):
            raise DataError(f"{name} holds no text. Check the file that was given to `lamina preprocess`.")

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> np.ndarray:
        """The ids of a block."""
        return self._tokens(index, self._starts[index], self._starts[index] + self._sizes[index])

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        return {"target": self._sizes}

    @property
    def lengths(self) -> np.ndarray:
        return self._sizes

    def batch(self, indices: Sequence[int], draw: tuple[int, int] = (0, 0)) -> TokenBatch:
        return self.batch_in_context(indices, [0] * len(indices))

    def batch_in_context(self, indices: Sequence[int], context_sizes: Sequence[int]) -> TokenBatch:
        """Each block after up to so many tokens of the text before it, which are read and not predicted.

        A block's first token is predicted from the one before it, whichever block that is in; a text's first, from </s>.
        """
        inputs, targets = self._inputs_and_targets(indices, context_sizes)
        target = pad_rows(targets)
        return TokenBatch(
            tokens=torch.from_numpy(pad_rows(inputs)),
            target=torch.from_numpy(target),
            num_target_tokens=int(self._sizes[list(indices)].sum()),
            indices=tuple(indices),
            target_on_host=target,
        )

    def flat_batch(self, indices: Sequence[int], draw: tuple[int, int] = (0, 0)) -> FlatTokens:
        inputs, targets = self._inputs_and_targets(indices, [0] * len(indices))
        target = np.concatenate(targets)[None].astype(np.int64)
        return FlatTokens(**flat_row(end_to_end(inputs)), indices=tuple(indices), target=torch.from_numpy(target),
                          num_target_tokens=target.size, target_on_host=target)

    def _inputs_and_targets(self, indices: Sequence[int],
                            context_sizes: Sequence[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        inputs, targets = [], []
        for index, context in zip(indices, context_sizes, strict=True):
            start, size = int(self._starts[index]), int(self._sizes[index])
            first = max(start - context, 0)
            tokens = self._tokens(index, max(first - 1, 0), start + size)
            inputs.append(tokens[:-1] if first > 0 else np.concatenate([[EOS], tokens[:-1]]))
            targets.append(np.concatenate([np.full(start - first, PAD), tokens[len(tokens) - size:]]))
        return inputs, targets

    def _tokens(self, index: int, start: int, end: int) -> np.ndarray:
        ids = self._texts[self._text_of[index]].tokens[start:end]
        if int(ids.max()) >= self._vocabulary_size or int(ids.min()) < 0:
            raise DataError(f"block {index} of {self.name} holds ids that its dictionary of {self._vocabulary_size} symbols "
                            "does not have: the dictionary belongs to other data. Run `lamina preprocess` again.")
        return ids


def cut_blocks(sizes: np.ndarray, block_size: int, break_mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Where blocks start and end, in tokens, given the sizes of the text's sentences.

    none: so many tokens each, whatever they are. complete: as many whole sentences as fit, at least one. complete_doc:
    likewise, and a block ends where its document does, at an empty line, which is left out. eos: a sentence each.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    match break_mode:
        case "none":
            total = int(ends[-1]) if len(ends) else 0
            cuts = np.arange(0, total, block_size)
            return cuts, np.minimum(cuts + block_size, total)
        case "eos":
            return starts, ends
        case "complete" | "complete_doc":
            # For each sentence, as if a block began there: the first sentence that is no longer in it.
            following = np.maximum(np.searchsorted(ends, starts + block_size, side="right"), np.arange(1, len(sizes) + 1))
            is_separator = sizes == SEPARATOR_SIZE if break_mode == "complete_doc" else np.zeros(len(sizes), dtype=bool)
            following = np.minimum(following, _next_place(is_separator))
            firsts = _follow(following, is_separator)
            return starts[firsts], ends[following[firsts] - 1]
    raise AssertionError(break_mode)


def _next_place(is_here: np.ndarray) -> np.ndarray:
    """For each place, the first one after it where `is_here`; the number of places where there is none."""
    places = np.where(is_here, np.arange(len(is_here)), len(is_here))
    places = np.append(places[1:], len(is_here))
    return np.minimum.accumulate(places[::-1])[::-1]


def _follow(following: np.ndarray, is_skipped: np.ndarray) -> np.ndarray:
    """From the first place on, each one's follower; those to skip are stepped over. One step a block, not a sentence."""
    steps, skipped = following.tolist(), is_skipped.tolist()
    firsts, place = [], 0
    while place < len(steps):
        if skipped[place]:
            place += 1
        else:
            firsts.append(place)
            place = steps[place]
    return np.array(firsts, dtype=np.int64)


def open_blocks(folder: Path, split: str, language: str | None, vocabulary_size: int, *, block_size: int, break_mode: str,
                adds_numbered: bool = False, upsample_primary: int = 1) -> TokenBlocks:
    """A split of a folder with one side; with `adds_numbered`, SPLIT1, SPLIT2, ... beside it are appended."""
    check_finished(folder)
    texts = [BinaryReader(text_prefix(folder, split, language))] * upsample_primary
    number = 1
    while adds_numbered and Path(f"{text_prefix(folder, f'{split}{number}', language)}.idx").exists():
        texts.append(BinaryReader(text_prefix(folder, f"{split}{number}", language)))
        number += 1
    return TokenBlocks(texts, vocabulary_size, f"{folder}/{split}", block_size=block_size, break_mode=break_mode)


def text_prefix(folder: Path, split: str, language: str | None) -> Path:
    """SPLIT, or SPLIT.LANG-None.LANG where --only-source was given a language."""
    return folder / (f"{split}.{language}-None.{language}" if language else split)


def find_language(folder: Path, split: str) -> str | None:
    """The language in the file names of a folder with one side; None where they have none."""
    if not folder.is_dir():
        raise DataError(f"there is no data folder {folder}. Make one with `lamina preprocess --only-source --destdir {folder} "
                        "...`.")
    if (folder / f"{split}.idx").exists():
        return None
    found = sorted({path.name.removeprefix(f"{split}.").split("-None.")[0] for path in folder.glob(f"{split}.*-None.*.idx")})
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{folder} has the split {split!r} in several languages ({', '.join(found)}); a language model reads "
                        "one. Preprocess it into a folder of its own.")
    pairs = sorted(path.name for path in folder.glob(f"{split}.*-*.*.idx"))
    hint = (f"{pairs[0]} is one side of a pair: preprocess it with --only-source." if pairs else
            "Check the folder, or preprocess that split with --only-source.")
    raise DataError(f"{folder} has no text {split!r}: {split}.idx is missing. {hint}")

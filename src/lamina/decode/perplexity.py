"""How well a language model predicts a text: block by block, by token and by word."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch

from lamina.config.joining import joiner_of
from lamina.data.batching import batch_by_size
from lamina.data.blocks import TokenBlocks
from lamina.decode.scoring import token_log_probs
from lamina.models.decoder_only import DecoderOnly
from lamina.text.vocabulary import FIRST_WORD_ID, PAD, Vocabulary

# Blocks that are sorted by length together: enough to fill batches, few enough to hand them out in order without holding many.
WINDOW = 4096


class ScoredBlock(NamedTuple):
    """Natural logarithms of a block's tokens' probabilities."""

    number: int  # of the block in its corpus
    ids: np.ndarray
    scores: np.ndarray


def score_blocks(models: Sequence[DecoderOnly], corpus: TokenBlocks, indices: Sequence[int], *, device: torch.device,
                 context: int, max_length: int, max_tokens: int | None, batch_size: int | None,
                 softmax_batch: int | None = None) -> Iterator[ScoredBlock]:
    """The blocks in order. Each is read after up to `context` tokens of the text before it, `max_length` tokens in all."""
    sizes = corpus.lengths
    # A block longer than the rest takes from its context.
    contexts = np.clip(max_length - sizes, 0, context)
    lengths = sizes + contexts
    for start in range(0, len(indices), WINDOW):
        window = np.asarray(indices[start : start + WINDOW])
        order = window[np.argsort(-lengths[window], kind="stable")].tolist()
        limit = None if max_tokens is None else max(max_tokens, int(lengths[window].max()))
        found: dict[int, ScoredBlock] = {}
        for batch_indices in batch_by_size(order, lengths, max_tokens=limit, max_sentences=batch_size):
            batch = corpus.batch_in_context(batch_indices, contexts[batch_indices].tolist()).to(device)
            scores = token_log_probs(models, batch.inputs, batch.target, softmax_batch).cpu().numpy()
            targets = batch.target_on_host
            assert targets is not None, "blocks keep their targets on the host"
            for index, ids, own in zip(batch_indices, targets, scores, strict=True):
                counts = ids != PAD
                found[index] = ScoredBlock(index, ids[counts], own[counts])
        for index in window.tolist():
            yield found[index]


class PieceMarks(Protocol):
    """How pieces make words: a SubwordLibrary, or a mark that somebody names."""

    def begins_word(self, piece: str) -> bool: ...

    def continues(self, piece: str) -> bool: ...

    def spell(self, pieces: Sequence[str]) -> str: ...


class NamedMarks:
    """The rule that --remove-bpe names, or a mark at the end of pieces that continue, such as '@@ '."""

    def __init__(self, name: str) -> None:
        self.rule = joiner_of(name)

    def begins_word(self, piece: str) -> bool:
        return self.rule.is_at_end or not self.rule.is_space or piece.startswith(self.rule.mark)

    def continues(self, piece: str) -> bool:
        is_by_end = self.rule.joins and (self.rule.is_at_end or not self.rule.is_space)
        return is_by_end and piece.endswith(self.rule.mark) != self.rule.is_at_end

    def spell(self, pieces: Sequence[str]) -> str:
        if self.rule.is_space:
            return "".join(pieces).replace(self.rule.mark, "")
        return "".join(piece.removesuffix(self.rule.mark) for piece in pieces)


def marks_named(name: str) -> PieceMarks:
    return NamedMarks(name)


class WordMarks:
    """Which pieces make a word."""

    def __init__(self, vocabulary: Vocabulary, marks: PieceMarks) -> None:
        self.symbols = vocabulary.symbols
        self.marks = marks
        words = vocabulary.symbols[FIRST_WORD_ID:]
        # A special symbol is a word of its own.
        self.begins = np.array([True] * FIRST_WORD_ID + [marks.begins_word(word) for word in words])
        self.continues = np.array([False] * FIRST_WORD_ID + [marks.continues(word) for word in words])
        self.is_by_beginning = not self.begins.all()

    def num_words(self, ids: np.ndarray) -> int:
        """Words that end in these ids, or begin there: a word that is cut in two by a block counts once."""
        return int((self.begins[ids] if self.is_by_beginning else ~self.continues[ids]).sum())

    def ends(self, ids: np.ndarray) -> np.ndarray:
        """True at the last piece of each word; what a block cuts off ends there."""
        ends = np.append(self.begins[ids[1:]], True) & ~self.continues[ids]
        ends[-1:] = True
        return ends

    def spell(self, ids: Sequence[int]) -> str:
        return self.marks.spell([self.symbols[token] for token in ids])


class ScoredWord(NamedTuple):
    text: str
    score: float
    num_pieces: int


def words_of(block: ScoredBlock, marks: WordMarks) -> list[ScoredWord]:
    ends = np.flatnonzero(marks.ends(block.ids)) + 1
    starts = np.append(0, ends[:-1])
    return [ScoredWord(marks.spell(block.ids[start:end].tolist()), float(block.scores[start:end].sum()), int(end - start))
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


@dataclass
class WordStat:
    """A word over the whole text, and the words after it."""

    text: str
    has_pieces: bool
    count: int = 0
    total: float = 0.0
    next_total: float = 0.0
    num_next: int = 0

    def line(self) -> str:
        return f"{self.text}\t{self.count}\t{self.total}\t{self.has_pieces}\t{self.next_total}\t{self.num_next}"


@dataclass
class Tally:
    """Sums over a text."""

    marks: WordMarks
    total: float = 0.0  # natural logarithm
    num_tokens: int = 0
    num_words: int = 0
    stats: dict[str, WordStat] = field(default_factory=dict)

    def add(self, block: ScoredBlock) -> None:
        self.total += float(block.scores.sum(dtype=np.float64))
        self.num_tokens += len(block.ids)
        self.num_words += self.marks.num_words(block.ids)

    def add_words(self, words: Sequence[ScoredWord]) -> None:
        for place, word in enumerate(words):
            stat = self.stats.setdefault(word.text, WordStat(word.text, word.num_pieces > 1))
            stat.count += 1
            stat.total += word.score
            if place + 1 < len(words):
                stat.next_total += words[place + 1].score
                stat.num_next += 1


def perplexity_of(total: float, count: int) -> tuple[float, float]:
    """The loss in bits, and the perplexity, from a sum of log-probabilities."""
    bits = -total / max(count, 1) / math.log(2)
    return bits, 2**bits if bits < 1000 else math.inf


def perplexity_line(total: float, count: int) -> str:
    """To the letter: people's scripts read it."""
    bits, perplexity = perplexity_of(total, count)
    return f"Loss (base 2): {bits:.4f}, Perplexity: {perplexity:.2f}"

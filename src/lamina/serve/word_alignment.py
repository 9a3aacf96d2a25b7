"""From pieces that look at pieces to words that look at words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def words_of(pieces: Sequence[str], join: Callable[[list[str]], str]) -> list[int]:
    """For each piece the number of its word; `join` makes text of pieces, and white space separates words."""
    counts = [len(join(list(pieces[:end])).split()) for end in range(1, len(pieces) + 1)]
    return [max(count - 1, 0) for count in counts]


def align_words(pairs: Iterable[tuple[int, int]], source_words: Sequence[int], target_words: Sequence[int]) -> list[list[int]]:
    """For each target word the source words that its pieces looked at, ascending. pairs: (source piece, target piece)"""
    found: list[set[int]] = [set() for _ in range(max(target_words, default=-1) + 1)]
    for source, target in pairs:
        if source < len(source_words) and target < len(target_words):
            found[target_words[target]].add(source_words[source])
    return [sorted(own) for own in found]

"""Translations of sentences put together to translations of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lamina.api.outputs import Translation
from lamina.serve.exchange import TextHypothesis
from lamina.serve.word_alignment import align_words, words_of
from lamina.text.sentence_splitter import Segment

# Languages that put no white space between sentences.
_UNSPACED = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "yue", "wuu"})


@dataclass(frozen=True)
class Sentence:
    """A sentence of a text and what became of it."""

    segment: Segment
    translation: Translation | None  # None: there was nothing to translate
    depth: dict[str, int]
    is_shallow: bool = False  # a cascade kept its first, shallow translation
    is_cut: bool = False


class Assembler:
    def __init__(self, join_source: Callable[[list[str]], str], join_target: Callable[[list[str]], str],
                 source_pieces: Callable[[str], list[str]], target_language: str) -> None:
        self.join_source, self.join_target, self.source_pieces = join_source, join_target, source_pieces
        self.gap = "" if target_language.lower().replace("_", "-").split("-")[0] in _UNSPACED else " "

    def hypotheses(self, sentences: Sequence[Sentence], *, with_alignment: bool) -> list[TextHypothesis]:
        """The n best of a text: its k-th translation has each sentence's k-th, or the best of a sentence that has fewer."""
        number = max((1 + len(own.translation.alternatives) for own in sentences if own.translation is not None), default=1)
        return [self._hypothesis(sentences, rank, with_alignment=with_alignment) for rank in range(number)]

    def _hypothesis(self, sentences: Sequence[Sentence], rank: int, *, with_alignment: bool) -> TextHypothesis:
        source = target = ""
        alignment: list[list[int]] = []
        total, num_tokens = 0.0, 0
        for own in sentences:
            found = _ranked(own.translation, rank)
            if target and found is not None and found.text and not target[-1].isspace() and not own.segment.before:
                target += self.gap
            source, target = source + own.segment.before, target + own.segment.before
            if found is not None:
                total, num_tokens = total + found.score * len(found.ids), num_tokens + len(found.ids)
                if with_alignment:
                    _put(alignment, self._aligned(own.segment.text, found), _next_word(source), _next_word(target))
            source += own.segment.text + own.segment.after
            target += ("" if found is None else found.text) + own.segment.after
        return TextHypothesis(
            text=target, score=total / num_tokens if num_tokens else 0.0, alignment=alignment if with_alignment else None,
            depth=max((own.depth for own in sentences), key=lambda depth: sum(depth.values())), num_tokens=num_tokens,
            num_sentences=len(sentences), num_shallow=sum(own.is_shallow for own in sentences),
            is_cut=any(own.is_cut for own in sentences))

    def _aligned(self, text: str, found: Translation) -> list[list[int]]:
        last = len(text.split()) - 1
        source_words = [min(word, last) for word in words_of(self.source_pieces(text), self.join_source)]
        return align_words(found.alignment or [], source_words, words_of(found.tokens, self.join_target))


def _ranked(translation: Translation | None, rank: int) -> Translation | None:
    if translation is None or not 0 < rank <= len(translation.alternatives):
        return translation
    return translation.alternatives[rank - 1]


def _next_word(text: str) -> int:
    """The number of the word that begins, or continues, behind this text."""
    return len(text.split()) - (1 if text and not text[-1].isspace() else 0)


def _put(alignment: list[list[int]], own: list[list[int]], source_start: int, target_start: int) -> None:
    """Add a sentence's words, whose numbers are its own, to a text's."""
    alignment.extend([] for _ in range(target_start + len(own) - len(alignment)))
    for word, sources in enumerate(own, start=target_start):
        alignment[word] = sorted({*alignment[word], *(source_start + source for source in sources)})

"""MaxMatch (M2): the edits of a corrected sentence against those of annotators (Dahlmeier and Ng 2012).

A system's edits are not given, they are read off its sentence: of all the ways to cut the way from the source to the
hypothesis into edits, the one that agrees best with the annotator counts.

1. The lattice: vertices (i, j) say that i words of the source and j of the hypothesis are done; arcs keep, replace, delete or
   insert one word, and lie on a shortest path. A replacement costs 1 or 2, as in the task's own scorer: either's paths count.
2. Neighbouring arcs may be merged into one edit, which may contain at most `max_unchanged` words that are kept.
3. The best way has the most edits that are an annotator's, then the fewest arcs outside of them, then the fewest edits.
4. Of several annotators, each sentence takes the one with which the F score of all sentences so far is the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lamina.errors import DataError

MAX_UNCHANGED = 2
BETA = 0.5
NO_EDIT = "noop"
NO_TEXT = "-NONE-"

Words = tuple[str, ...]
Vertex = tuple[int, int]
# vertex -> (the next one, whether the arc keeps a word)
Lattice = dict[Vertex, list[tuple[Vertex, bool]]]


class Edit(NamedTuple):
    """Words start to end of the source become one of the corrections."""

    start: int
    end: int
    corrections: frozenset[Words]


@dataclass(frozen=True)
class Annotated:
    """A sentence and each annotator's edits; without annotators, it is right as it stands."""

    source: Words
    annotators: tuple[tuple[Edit, ...], ...]


class Counts(NamedTuple):
    correct: int = 0
    proposed: int = 0
    gold: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(one + more for one, more in zip(self, other, strict=True)))

    @property
    def precision(self) -> float:
        return self.correct / self.proposed if self.proposed else 1.0

    @property
    def recall(self) -> float:
        return self.correct / self.gold if self.gold else 1.0

    def f(self, beta: float) -> float:
        """0 where nothing is right; 1 where there was nothing to do and nothing was done."""
        weighted = beta**2 * self.gold + self.proposed
        return (1 + beta**2) * self.correct / weighted if weighted else 1.0


@dataclass(frozen=True)
class M2Score:
    """Precision, recall and F in per cent, and the counts that they are made of."""

    counts: Counts
    signature: str
    name: str = "M2"

    @property
    def score(self) -> float:
        return 100 * self.counts.f(BETA)

    @property
    def text(self) -> str:
        counts = self.counts
        return (f"{self.name} F{BETA} = {self.score:.2f} (P={100 * counts.precision:.2f}, R={100 * counts.recall:.2f}, "
                f"correct={counts.correct}, proposed={counts.proposed}, gold={counts.gold})")


class MaxMatch:
    """Hypotheses, one for each annotated sentence, in tokens as the sources are."""

    def __init__(self, sentences: Sequence[Annotated], max_unchanged: int = MAX_UNCHANGED) -> None:
        self.sentences = sentences
        self.max_unchanged = max_unchanged

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]] = ()) -> M2Score:
        """`references` have no say: the annotators' edits are the reference."""
        sums = Counts()
        for sentence, hypothesis in zip(self.sentences, hypotheses, strict=True):
            words = tuple(hypothesis.split())
            lattice = edit_lattice(sentence.source, words)
            end = len(sentence.source), len(words)
            sums = best_sums(sums, [count_matches(lattice, words, end, edits, self.max_unchanged)
                                    for edits in sentence.annotators or ((),)])
        num_annotators = max((len(sentence.annotators) for sentence in self.sentences), default=0)
        return M2Score(sums, f"annotators:{num_annotators}|beta:{BETA}|unchanged:{self.max_unchanged}|tok:none")


def best_sums(sums: Counts, candidates: Sequence[Counts]) -> Counts:
    """The sums so far with the counts of one annotator added, the one that makes them best.

    Of equal scores, the one with more right edits, then fewer others: the order of annotators decides nothing.
    """
    return max((sums.plus(counts) for counts in candidates),
               key=lambda one: (one.f(BETA), one.correct, -one.proposed - BETA**2 * one.gold))


# -- the lattice


def edit_lattice(source: Words, hypothesis: Words) -> Lattice:
    """All arcs on a shortest path from (0, 0) to the end, whether a replacement costs 1 or 2."""
    lattice: Lattice = {}
    for replacing in (1, 2):
        for vertex, arcs in _shortest_paths(source, hypothesis, replacing).items():
            known = lattice.setdefault(vertex, [])
            known += [arc for arc in arcs if arc not in known]
    return lattice


def _shortest_paths(source: Words, hypothesis: Words, replacing: int) -> Lattice:
    rows, columns = len(source) + 1, len(hypothesis) + 1
    distance = [[0] * columns for _ in range(rows)]
    for i in range(rows):
        for j in range(columns):
            if i or j:
                distance[i][j] = min(distance[before[0]][before[1]] + cost
                                     for before, cost, _ in _arcs_into((i, j), source, hypothesis, replacing))
    lattice: Lattice = {}
    reached, waiting = {(rows - 1, columns - 1)}, [(rows - 1, columns - 1)]
    while waiting:  # from the end, so that no arc leads nowhere
        vertex = waiting.pop()
        for before, cost, keeps in _arcs_into(vertex, source, hypothesis, replacing):
            if distance[before[0]][before[1]] + cost == distance[vertex[0]][vertex[1]]:
                lattice.setdefault(before, []).append((vertex, keeps))
                if before not in reached:
                    reached.add(before)
                    waiting.append(before)
    return lattice


def _arcs_into(vertex: Vertex, source: Words, hypothesis: Words, replacing: int) -> Iterator[tuple[Vertex, int, bool]]:
    i, j = vertex
    if i and j:
        keeps = source[i - 1] == hypothesis[j - 1]
        yield (i - 1, j - 1), 0 if keeps else replacing, keeps
    if i:
        yield (i - 1, j), 1, False
    if j:
        yield (i, j - 1), 1, False


# -- the best way through it


class _Way(NamedTuple):
    """How one got to a vertex; the smaller, the better."""

    missed: int  # less the number of edits that are an annotator's
    arcs: int  # outside of those
    edits: int  # outside of those


class _State(NamedTuple):
    """What the way behind has to do with the way ahead."""

    unchanged: int | None  # words kept within the edit that is open; None without one
    used: frozenset[int]  # insertions of the annotator at this very place that are matched: each can be but once


def count_matches(lattice: Lattice, hypothesis: Words, end: Vertex, gold: Sequence[Edit],
                  max_unchanged: int = MAX_UNCHANGED) -> Counts:
    """The counts of the best way with regard to one annotator."""
    ways: dict[Vertex, dict[_State, _Way]] = {(0, 0): {_State(None, frozenset()): _Way(0, 0, 0)}}

    def offer(vertex: Vertex, state: _State, way: _Way) -> None:
        known = ways.setdefault(vertex, {})
        if state not in known or way < known[state]:
            known[state] = way

    # An arc leads to a larger vertex, so that all ways to one are known when its turn comes.
    for vertex in sorted({*lattice, end}):
        states = ways.get(vertex, {})
        for state, way in list(states.items()):
            offer(vertex, state._replace(unchanged=None), way)  # an edit may end anywhere
        jumps = [(number, edit, target) for number, edit in enumerate(gold) if edit.start == vertex[0]
                 for target in _ends(lattice, hypothesis, vertex, edit, max_unchanged)]
        for state, way in states.items():
            for target, keeps in lattice.get(vertex, ()):
                used = state.used if target[0] == vertex[0] else frozenset()
                if keeps and state.unchanged is None:
                    offer(target, _State(None, used), way._replace(arcs=way.arcs + 1))
                elif keeps and state.unchanged is not None and state.unchanged < max_unchanged:
                    offer(target, _State(state.unchanged + 1, used), way._replace(arcs=way.arcs + 1))
                elif not keeps:
                    opens = state.unchanged is None
                    offer(target, _State(0 if state.unchanged is None else state.unchanged, used),
                          _Way(way.missed, way.arcs + 1, way.edits + opens))
            for number, edit, target in jumps:
                if state.unchanged is None and number not in state.used:
                    used = state.used | {number} if edit.start == edit.end else frozenset()
                    offer(target, _State(None, used), way._replace(missed=way.missed - 1))
    best = min(ways[end].values())
    return Counts(correct=-best.missed, proposed=best.edits - best.missed, gold=len(gold))


def _ends(lattice: Lattice, hypothesis: Words, start: Vertex, edit: Edit, max_unchanged: int) -> list[Vertex]:
    """Where one gets from `start` by making this edit: it changes something and keeps no more words than allowed."""
    lengths = {len(words) for words in edit.corrections if hypothesis[start[1] : start[1] + len(words)] == words}
    if not lengths:
        return []
    limit = (edit.end, start[1] + max(lengths))
    found: dict[tuple[Vertex, bool], int] = {(start, False): 0}  # (vertex, whether something is changed) -> words kept
    waiting = [(start, False)]
    while waiting:
        vertex, is_changed = waiting.pop()
        for target, keeps in lattice.get(vertex, ()):
            kept, place = found[vertex, is_changed] + keeps, (target, is_changed or not keeps)
            is_inside = target[0] <= limit[0] and target[1] <= limit[1]
            if is_inside and kept <= max_unchanged and kept < found.get(place, max_unchanged + 1):
                found[place] = kept
                waiting.append(place)
    return [target for length in sorted(lengths) if ((target := (edit.end, start[1] + length)), True) in found]


# -- the file


def read_m2(lines: Sequence[str], name: str) -> list[Annotated]:
    """A file of `S words` lines, each followed by `A start end|||type|||correction||another|||...|||annotator` lines."""
    sources: list[Words] = []
    edits: list[dict[int, list[Edit]]] = []
    for number, line in enumerate(lines, start=1):
        kind, _, rest = line.partition(" ")
        if kind == "S":
            sources.append(tuple(rest.split()))
            edits.append({})
        elif kind == "A" and sources:
            annotator, edit = _read_edit(rest, len(sources[-1]), f"{name}, line {number}")
            own = edits[-1].setdefault(annotator, [])
            if edit is not None:
                own.append(edit)
        elif line.strip():
            raise DataError(f"{name}, line {number}: {line[:40]!r} is not of an M2 file, where a line `S WORDS` and any number "
                            "of lines `A START END|||TYPE|||CORRECTION|||REQUIRED|||-NONE-|||ANNOTATOR` make a sentence.")
    if not sources:
        raise DataError(f"{name} holds no sentence; an M2 file has lines that begin with S.")
    return [Annotated(source, tuple(tuple(own) for _, own in sorted(annotators.items())))
            for source, annotators in zip(sources, edits, strict=True)]


def _read_edit(text: str, num_words: int, where: str) -> tuple[int, Edit | None]:
    """The annotator's number and the edit; None for `noop`, which says that the sentence is right as it stands."""
    fields = text.split("|||")
    try:
        span, kind, corrections, annotator = fields[0].split(), fields[1], fields[2], int(fields[5])
        start, end = map(int, span)
    except (ValueError, IndexError):
        raise DataError(f"{where}: {text[:40]!r} is no edit; expected START END|||TYPE|||CORRECTION|||REQUIRED|||-NONE-|||"
                        "ANNOTATOR, with whole numbers for START, END and ANNOTATOR.") from None
    if kind == NO_EDIT or start < 0:
        return annotator, None
    if not start <= end <= num_words:
        raise DataError(f"{where}: the edit goes from word {start} to {end}, but the sentence has {num_words} words.")
    texts = ["" if one == NO_TEXT else one for one in corrections.split("||")]
    return annotator, Edit(start, end, frozenset(tuple(text.split()) for text in texts))

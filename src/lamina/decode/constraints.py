"""Phrases that a translation must contain, placed where the model likes them best.

A sentence's phrases are an automaton over tokens: it reads a hypothesis and knows how much of the phrases is in it. The beam
is shared out by how many of these tokens hypotheses have met, their bank, so that a hypothesis without any and one with all
of them need not compete (Post and Vilar 2018; slots are filled in turns over the banks, as in Hu et al. 2019). A hypothesis
may not end before it holds all phrases, and when only as much room is left as they need, nothing else may be said.
"""

# B sentences, K beams, M candidates, V vocabulary

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.decode.candidates import Candidates, most_likely
from lamina.errors import DataError
from lamina.text.vocabulary import EOS, FIRST_WORD_ID, PAD

Ids = tuple[int, ...]
# How often each phrase is met, the phrase that is being read (or NONE) and how many of its tokens have been.
Reading = tuple[Ids, int, int]
# All readings of a hypothesis that may still turn out best: "a a a b" holds "a a b", but not from its first "a" on.
Progress = frozenset[Reading]
NONE = -1


@dataclass(frozen=True)
class Moves:
    """Where a hypothesis stands, and where each next token takes it."""

    num_met: int  # tokens
    is_complete: bool
    followers: dict[int, Progress]  # of the tokens that continue a phrase or begin one
    otherwise: Progress  # of any other token

    def after(self, token: int) -> Progress:
        return self.followers.get(token, self.otherwise)


class Phrases:
    """The phrases of one sentence: contiguous, not overlapping, in the given order or in any.

    A hypothesis may be read in several ways: with "a" and "a b" wanted, the "a" of "a b a" is better taken for the second.
    All readings are followed at once, less those that another one is sure to equal, so that nothing is missed.
    """

    def __init__(self, phrases: Sequence[Sequence[int]], *, is_ordered: bool) -> None:
        for phrase in phrases:
            if not phrase or min(phrase) < FIRST_WORD_ID:
                raise DataError(f"the constraint {list(phrase)} is empty or holds a special symbol; it must be made of words.")
        wanted = [tuple(phrase) for phrase in phrases]
        # Where the order is free, two phrases that are the same are one that is wanted twice.
        counts = dict.fromkeys(wanted, 1) if is_ordered else Counter(wanted)
        self.phrases = wanted if is_ordered else list(counts)
        self.counts: Ids = tuple(1 if is_ordered else counts[phrase] for phrase in self.phrases)
        self.is_ordered = is_ordered
        self.num_tokens = sum(map(len, wanted))
        self.start: Progress = frozenset([((0,) * len(self.phrases), NONE, 0)])
        self._moves: dict[Progress, Moves] = {}

    def moves(self, progress: Progress) -> Moves:
        if progress not in self._moves:
            num_met = max(sum(number * len(phrase) for number, phrase in zip(met, self.phrases, strict=True)) + place
                          for met, _, place in progress)
            followers = {self.phrases[phrase][place]: frozenset[Reading]()
                         for reading in progress for phrase, place in self._open(reading)}
            for token in followers:
                followers[token] = self._after(progress, token)
            self._moves[progress] = Moves(num_met, num_met == self.num_tokens, followers, self._after(progress, None))
        return self._moves[progress]

    def read(self, tokens: Sequence[int]) -> Progress:
        progress = self.start
        for token in tokens:
            progress = self.moves(progress).after(token)
        return progress

    def _open(self, reading: Reading) -> list[tuple[int, int]]:
        """The phrases, each with a place in it, whose token there may be the next to count."""
        met, phrase, place = reading
        if phrase != NONE:
            return [(phrase, place)]
        unmet = [(number, 0) for number, times in enumerate(met) if times < self.counts[number]]
        return unmet[:1] if self.is_ordered else unmet

    def _after(self, progress: Progress, token: int | None) -> Progress:
        # A token may always belong to no phrase.
        readings = {reading for reading in progress if reading[1] == NONE}
        for reading in progress:
            for phrase, place in self._open(reading):
                if self.phrases[phrase][place] == token:
                    is_whole = place + 1 == len(self.phrases[phrase])
                    readings.add((_plus(reading[0], phrase), NONE, 0) if is_whole else (reading[0], phrase, place + 1))
        return frozenset(one for one in readings if not any(_is_sure(other, one) for other in readings))


def _plus(met: Ids, phrase: int) -> Ids:
    return (*met[:phrase], met[phrase] + 1, *met[phrase + 1 :])


def _is_sure(one: Reading, other: Reading) -> bool:
    """Whether the first reading, another one, does as well as the second whatever follows."""
    if one[1] == NONE:
        reached = other[0] if other[1] == NONE else _plus(other[0], other[1])
        return one != other and _covers(one[0], reached)
    return one != other and one[1:] == other[1:] and _covers(one[0], other[0])


def _covers(one: Ids, other: Ids) -> bool:
    return all(more >= less for more, less in zip(one, other, strict=True))


@dataclass
class ConstrainedRow:
    """A sentence with phrases, while it is searched."""

    phrases: Phrases
    beams: list[Progress | None]  # None: nothing continues here
    limit: int  # of tokens, </s> not counted
    step: int = 0  # tokens that each beam has
    is_late: bool = False  # the model wanted to end while phrases were missing

    def moves(self) -> list[tuple[int, Moves]]:
        return [(beam, self.phrases.moves(progress)) for beam, progress in enumerate(self.beams) if progress is not None]


def constrained(phrases: Sequence[Sequence[int]], prefix: Sequence[int], limit: int, *, num_beams: int, is_ordered: bool,
                max_length: int) -> ConstrainedRow:
    """A sentence before its first step: its longest length is raised to what prefix and phrases need."""
    automaton, begun = Phrases(phrases, is_ordered=is_ordered), [int(token) for token in prefix]
    moves = automaton.moves(automaton.read(begun))
    if EOS in begun and not moves.is_complete:
        raise DataError("a sentence must begin with a whole translation, </s> included, that lacks its constraints. Leave out "
                        "the one or the other.")
    shortest = len(begun) + automaton.num_tokens - moves.num_met
    if shortest > max_length:
        raise DataError(f"the constraints of a sentence have {automaton.num_tokens} tokens and need a translation of "
                        f"{shortest}, but the model's positions end at {max_length}. Leave some of them out.")
    return ConstrainedRow(automaton, [automaton.start, *[None] * (num_beams - 1)], max(shortest, limit))


class Constraints:
    """The phrases of the sentences in hand and how far their beams are with them; those without phrases are not in it."""

    def __init__(self, num_beams: int) -> None:
        self.num_beams = num_beams
        self.rows: dict[int, ConstrainedRow] = {}  # by slot

    def put_(self, slot: int, row: ConstrainedRow | None) -> None:
        """Another sentence takes the slot; None: it has no phrases, or the slot stays empty."""
        self.rows.pop(slot, None)
        if row is not None:
            self.rows[slot] = row

    def followers(self, log_probs: Tensor) -> Tensor:
        """Places, in the flat log_probs (B, K, V), of the tokens that continue phrases."""
        return self._places(log_probs, [(place, beam, token) for place, row in self.rows.items()
                                        for beam, moves in row.moves() for token in moves.followers])

    def restrict_(self, log_probs: Tensor) -> None:
        """No end before all phrases are met, and nothing else when only they still fit. log_probs: (B, K, V)"""
        if not self.rows:
            return
        best = log_probs[torch.tensor(list(self.rows), device=log_probs.device)].argmax(dim=2).tolist()
        endless, narrow, allowed = [], [], []
        for (place, row), tokens in zip(self.rows.items(), best, strict=True):
            fewest = row.phrases.num_tokens - (row.limit - row.step - 1)  # tokens met after this one, or the rest will not fit
            for beam, moves in row.moves():
                if not moves.is_complete:
                    endless.append((place, beam, EOS))
                    row.is_late |= tokens[beam] == EOS
                if row.phrases.moves(moves.otherwise).num_met < fewest:
                    narrow.append(place * self.num_beams + beam)
                    allowed += [(place, beam, token) for token, progress in moves.followers.items()
                                if row.phrases.moves(progress).num_met >= fewest]
        flat = log_probs.view(-1)
        flat[self._places(log_probs, endless)] = -torch.inf
        if narrow:
            places = self._places(log_probs, allowed)
            scores = flat[places]
            log_probs.view(-1, log_probs.size(2))[torch.tensor(narrow, device=log_probs.device)] = -torch.inf
            flat[places] = scores

    def candidates(self, log_probs: Tensor, scores: Tensor) -> Candidates:
        """The best continuations of any beam; for sentences with phrases, as many of each bank."""
        found = most_likely(log_probs, scores)
        if not self.rows:
            return found
        totals = log_probs.add_(scores[:, :, None])
        places = torch.tensor(list(self.rows), device=totals.device)
        usual = [part[places].tolist() for part in found]
        own_scores, own_tokens = (part.tolist() for part in totals[places].max(dim=2))
        followers = totals.view(-1)[self.followers(totals)].tolist()
        position = 0
        chosen: list[list[tuple[float, int, int]]] = []
        for index, row in enumerate(self.rows.values()):
            # Besides the best of all: each beam's best, and whatever continues a phrase (Post and Vilar 2018, §3).
            pool = dict(zip(zip(usual[2][index], usual[1][index], strict=True), usual[0][index], strict=True))
            pool |= {(beam, token): score for beam, (token, score) in
                     enumerate(zip(own_tokens[index], own_scores[index], strict=True))}
            for beam, moves in row.moves():
                for token in moves.followers:
                    pool[beam, token] = followers[position]
                    position += 1
            chosen.append(self._in_turns(row, pool, found.scores.size(1)))
        for part, values in zip(found, zip(*([list(column) for column in zip(*own, strict=True)] for own in chosen),
                                           strict=True), strict=True):
            part[places] = torch.tensor(values, dtype=part.dtype, device=part.device)
        return found

    def _in_turns(self, row: ConstrainedRow, pool: dict[tuple[int, int], float], number: int) -> list[tuple[float, int, int]]:
        """(score, token, beam) of the candidates, `number` of them: the best of each bank, then each one's second, ..

        Deviates from Hu et al. 2019, where the bank that has met most comes first in each turn: if there are more banks than
        beams, that says all phrases at once, wherever they belong. Here the likelier candidate comes first, and the bank
        that has met most only once the model has wanted to end; with phrases it would never say by itself, it else continues
        to the longest length.
        """
        moves = dict(row.moves())
        ranks: Counter[int] = Counter()
        order = []
        for (beam, token), score in sorted(pool.items(), key=lambda item: (-item[1], item[0])):
            if score > -torch.inf:
                now = moves[beam]
                bank = now.num_met if token == EOS else row.phrases.moves(now.after(token)).num_met
                order.append((ranks[bank], bank, (score, token, beam)))
                ranks[bank] += 1
        first = max(ranks, default=0) if row.is_late else None
        # Candidates lie by score, and sorting leaves equals as they are.
        order.sort(key=lambda entry: (entry[0], entry[1] != first, -entry[2][0]))
        best = [candidate for _, _, candidate in order[:number]]
        return best + [(-torch.inf, PAD, 0)] * (number - len(best))

    def advance_(self, beams: Candidates, going_on: Collection[int]) -> None:
        """These beams, (B, K) of each part, are next; of sentences that are done no more is asked."""
        going_on = set(going_on)
        self.rows = {place: row for place, row in self.rows.items() if place in going_on}
        if not self.rows:
            return
        places = torch.tensor(list(self.rows), device=beams.scores.device)
        for row, *own in zip(self.rows.values(), *(part[places].tolist() for part in beams), strict=True):
            moves = dict(row.moves())
            row.step += 1
            row.beams = [moves[parent].after(token) if score > -torch.inf else None
                         for score, token, parent in zip(*own, strict=True)]

    def select_(self, kept: Sequence[int]) -> None:
        self.rows = {place: self.rows[old] for place, old in enumerate(kept) if old in self.rows}

    def _places(self, log_probs: Tensor, entries: Sequence[tuple[int, int, int]]) -> Tensor:
        vocab = log_probs.size(2)
        return torch.tensor([(place * self.num_beams + beam) * vocab + token for place, beam, token in entries],
                            dtype=torch.long, device=log_probs.device)

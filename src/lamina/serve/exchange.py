"""What goes into a serving engine and what comes out; plain data, which any protocol can be built on."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lamina.errors import LaminaError

# Upper bounds of latency, in seconds, as a Prometheus histogram has them.
LATENCY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class QueueFullError(LaminaError):
    """Too many sentences are waiting; `retry_after` says in how many seconds to ask again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ClosedError(LaminaError):
    """The engine is being closed and takes nothing new."""


class WorkerLostError(LaminaError):
    """What was translating has been killed, by the system or by somebody; it may work in a moment."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Texts to translate, all in the same way."""

    texts: Sequence[str]
    depth: object = None  # full, half, auto, "6-3" or {"encoder": 6, "decoder": 3}: config/chosen_depth.py
    options: Mapping[str, object] = field(default_factory=dict)  # of `lamina generate`, flags with underscores: {"beam": 4}
    constraints: Sequence[Sequence[str]] | None = None  # for each text, phrases that its translation contains
    with_alignment: bool = False
    splits: bool = True  # cut texts into sentences (text/sentence_splitter.py); if not, each text is one input of the model
    seed: int | None = None  # with a sentence's place in the request it decides what sampling draws
    client: str = ""  # whose turn it is: clients are served in rotation


@dataclass(frozen=True, kw_only=True)
class TextHypothesis:
    """A translation of a whole text, its sentences put together again with the white space between them."""

    text: str
    score: float  # of one sentence, what `generate` prints, as a natural logarithm; of several, their mean weighted by tokens
    alignment: list[list[int]] | None = None  # for each target word (split at white space), the source words it looked at
    depth: Mapping[str, int]  # layers of each stack that ran; of several sentences, of the deepest
    num_tokens: int = 0  # of the target, </s> included
    num_sentences: int = 1
    num_shallow: int = 0  # sentences of a cascade whose first, shallow translation was kept
    is_cut: bool = False  # a sentence was longer than the model's positions, and its end was left out


@dataclass(frozen=True, kw_only=True)
class Answer:
    """For each text its n best translations, the best first."""

    results: list[list[TextHypothesis]]
    seconds: float  # from `submit` to here
    waited: float  # of them, before the first sentence was begun


@dataclass
class Histogram:
    """Counts of seconds by LATENCY_BOUNDS; the last one has no bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def number(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """What an engine has done so far, and what it is doing; sentences unless the name says otherwise."""

    queue: int
    running: int
    requests: int  # accepted
    requests_done: int
    requests_refused: int  # the queue was full
    requests_cancelled: int
    requests_failed: int
    tokens: int  # of the target
    sentences: Mapping[str, int]  # finished, by the depth that answered, such as "6-3"
    cascade_kept: int  # sentences of depth auto whose shallow translation was kept
    cascade_repeated: int  # and those that the whole model translated again
    workers_lost: int  # processes that were killed, and replaced
    latencies: Mapping[str, Histogram]  # of requests, from `submit` to the answer, by the depth asked for ("6-3" or "auto")

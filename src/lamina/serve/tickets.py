"""Requests that were accepted, their sentences, and what is remembered of requests like them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from lamina.api.outputs import Translation
from lamina.nn.stack import ActiveLayers
from lamina.serve.exchange import Answer, Request
from lamina.serve.lanes import Wanted
from lamina.text.sentence_splitter import Segment

T = TypeVar("T")
KNOWN = 256  # kinds of requests that are remembered; clients may invent any number


class Chosen(NamedTuple):
    """What a depth means."""

    active: ActiveLayers  # to begin with
    counts: dict[str, int]  # of them, in each stack
    name: str


class Known(Generic[T]):
    """What was worked out for requests like this one. For several threads."""

    def __init__(self) -> None:
        self._values: dict[str, T] = {}

    def of(self, asked: object, work_out: Callable[[], T]) -> T:
        key = repr(asked)
        found = self._values.get(key)
        if found is None:
            found = work_out()
            if len(self._values) >= KNOWN:
                self._values = {}
            self._values[key] = found
        return found


@dataclass(eq=False)
class Job:
    """A sentence of a request."""

    ticket: Ticket
    place: tuple[int, int]  # the text, and the sentence in it
    wanted: Wanted
    is_cut: bool
    is_shallow: bool = False  # a cascade asks the whole model again unless it is sure
    counts: dict[str, int] = field(default_factory=dict)  # layers of each stack that ran


@dataclass(eq=False)
class Ticket:
    """A request that was accepted."""

    request: Request
    segments: list[list[Segment]]
    depth_name: str
    submitted: float
    future: Future[Answer] = field(default_factory=Future)
    started: float | None = None
    num_left: int = 0
    is_over: bool = False
    found: dict[tuple[int, int], tuple[Job, Translation]] = field(default_factory=dict)

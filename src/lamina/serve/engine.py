"""One loaded model, one worker thread, many clients.

`submit` checks a request, cuts its texts into sentences and turns them into ids, in the caller's thread. The worker thread
takes sentences from the queue, one client after the other, into the slots of searches: one search per depth and set of options,
whose steps it interleaves. An answer is what `lamina generate` would give for the same sentences and options, whoever else is
being served.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lamina.api import Translator
from lamina.api.outputs import Translation, fitted, search_config
from lamina.config.search_options import SearchConfig
from lamina.decode.active_depth import layer_counts
from lamina.decode.backtrace import Hypothesis
from lamina.decode.batched_search import search_rows
from lamina.decode.search import Search
from lamina.errors import ConfigError, DataError
from lamina.nn.stack import ActiveLayers
from lamina.serve.assembly import Assembler, Sentence
from lamina.serve.exchange import Answer, ClosedError, EngineStats, Histogram, QueueFullError, Request, TextHypothesis
from lamina.text.sentence_splitter import Segment, split_sentences

# What is waited for at most when nothing happens: `close` is noticed at once in any case.
IDLE_SECONDS = 1.0


@dataclass(eq=False)
class Job:
    """A sentence of a request."""

    ticket: Ticket
    place: tuple[int, int]  # the text, and the sentence in it
    number: int  # of the sentence in the request
    text: str
    ids: np.ndarray
    phrases: list[list[int]]
    is_cut: bool
    active: ActiveLayers
    is_retried: bool = False  # a cascade was not sure of its first translation


@dataclass(eq=False)
class Ticket:
    """A request that was accepted."""

    request: Request
    config: SearchConfig
    active: ActiveLayers
    segments: list[list[Segment]]
    future: Future[Answer]
    submitted: float
    started: float | None = None
    num_left: int = 0
    found: dict[tuple[int, int], tuple[Job, Translation]] = field(default_factory=dict)


class Engine:
    """Translates for many clients at once; every method may be called by any thread."""

    def __init__(self, model: Translator, *, slots: int = 64, defaults: Mapping[str, object] | None = None,
                 queue_limit: int = 1024, clock: Callable[[], float] = time.monotonic) -> None:
        """`slots`: sentences that are translated at the same time; `defaults`: options of `lamina generate`, by flag with
        underscores, for requests that do not give them; `queue_limit`: sentences that may wait."""
        if slots < 1 or queue_limit < 1:
            raise ConfigError(f"slots is {slots} and queue_limit {queue_limit}; both must be at least 1.")
        self.model = model
        self.num_slots = slots
        self.queue_limit = queue_limit
        self.defaults = dict(defaults or {})
        self.search_options({})  # a default that makes no sense is told now
        self._assembler = Assembler(model.subwords[0].decode, model.join_target, model.subwords[0].encode, model.languages[1])
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()  # by client, whose turn it is first
        self._num_waiting = 0
        self._num_running = 0
        self._counts: Counter[str] = Counter()
        self._by_depth: Counter[str] = Counter()
        self._latencies: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._is_closing = False
        self._worker = threading.Thread(target=self._work, name="lamina-engine", daemon=True)
        self._worker.start()

    @property
    def num_layers(self) -> dict[str, int]:
        """Of each stack of the model: the depths that can be asked for."""
        return self._layer_counts(ActiveLayers())

    def search_options(self, options: Mapping[str, object]) -> SearchConfig:
        """A request's options on top of the defaults; a ConfigError says what is wrong with them."""
        config = search_config(**{**self.defaults, **options})
        if config.uses_padded_width:
            raise ConfigError("--max-len-from-padded-width makes results depend on the batch, and here nobody knows who "
                              "shares it. Leave it out.")
        return config

    def submit(self, request: Request) -> Future[Answer]:
        """Queue a request. The future's `cancel` frees what the request holds.

        Raises ConfigError or DataError for a request that makes no sense, QueueFullError, or ClosedError.
        """
        ticket, jobs = self._prepared(request)
        with self._changed:
            if self._is_closing:
                raise ClosedError("the engine is being closed and takes no more requests.")
            if jobs and self._num_waiting and self._num_waiting + len(jobs) > self.queue_limit:
                self._counts["refused"] += 1
                raise QueueFullError(f"{self._num_waiting} sentences are waiting, and at most {self.queue_limit} may. Try "
                                     "again later.", self._expected_wait())
            self._counts["requests"] += 1
            if not jobs:
                self._finish(ticket)
                return ticket.future
            self._waiting.setdefault(request.client, deque()).extend(jobs)
            self._num_waiting += len(jobs)
            self._changed.notify_all()
        ticket.future.add_done_callback(self._notice_cancelled)
        return ticket.future

    def close(self, grace: float = 10.0) -> None:
        """Take nothing new, finish what was accepted, and end; after `grace` seconds what is left is cancelled."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._worker.join(grace)
        if self._worker.is_alive():
            with self._changed:
                self._is_abandoned = True
                self._changed.notify_all()
            self._worker.join(grace)

    def stats(self) -> EngineStats:
        with self._changed:
            return EngineStats(queue=self._num_waiting, running=self._num_running, requests=self._counts["requests"],
                               requests_done=self._counts["done"], requests_refused=self._counts["refused"],
                               requests_cancelled=self._counts["cancelled"], requests_failed=self._counts["failed"],
                               tokens=self._counts["tokens"], sentences=dict(self._by_depth),
                               latencies=deepcopy(dict(self._latencies)))

    # -- before the queue, in the caller's thread

    def _prepared(self, request: Request) -> tuple[Ticket, list[Job]]:
        config = self.search_options(request.options)
        texts = list(request.texts)
        if any(not isinstance(text, str) for text in texts):
            raise ConfigError("texts must be a list of strings.")
        if request.constraints is not None:
            if len(request.constraints) != len(texts):
                raise ConfigError(f"there are {len(texts)} texts, but {len(request.constraints)} lists of constraints. Give "
                                  "each text one; an empty list asks for nothing.")
            config = replace(config, constraint_order=config.constraint_order or "ordered")
        active = self.model.active_layers(request.depth)
        language = self.model.languages[0]
        segments = [split_sentences(text, language) if request.splits else [Segment("", text, "")] for text in texts]
        ticket = Ticket(request, config, active, segments, Future(), self._clock())
        jobs = self._jobs(ticket)
        ticket.num_left = len(jobs)
        return ticket, jobs

    def _jobs(self, ticket: Ticket) -> list[Job]:
        jobs, number = [], 0
        for place, own in enumerate(ticket.segments):
            wanted = self._phrases(ticket.request, place, len(own))
            for position, segment in enumerate(own):
                said: list[str] = []
                whole = self.model.encode_source(segment.text)
                ids = fitted(whole, self.model.max_source_positions, 0, "truncate", said.append)
                assert ids is not None
                if len(ids) > 1 or wanted:  # an empty text has an empty translation
                    jobs.append(Job(ticket, (place, position), number, segment.text, ids, wanted, bool(said), ticket.active))
                number += 1
        return jobs

    def _phrases(self, request: Request, place: int, num_sentences: int) -> list[list[int]]:
        phrases = list(request.constraints[place]) if request.constraints is not None else []
        if phrases and num_sentences > 1:
            raise ConfigError(f"text {place + 1} has constraints and {num_sentences} sentences, and nothing says which of them "
                              "they are for. Send one sentence per text, or do not split texts.")
        return self.model.phrase_ids([phrases], 1, place)[0] if phrases else []

    def _expected_wait(self) -> float:
        """Seconds until the queue should have room: the mean time of a sentence so far, for a tenth of the queue."""
        known = [histogram for histogram in self._latencies.values() if histogram.number]
        mean = sum(own.total for own in known) / sum(own.number for own in known) if known else 1.0
        return float(min(60, max(1, round(mean))))

    # -- the worker thread

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._num_waiting and not self._is_closing:
                    self._changed.wait(IDLE_SECONDS)
                if not self._num_waiting:
                    return
                jobs = self._take(self.num_slots)
                self._num_running = len(jobs)
            lanes: dict[tuple[Any, ...], list[Job]] = {}
            for job in jobs:
                request = job.ticket.request
                lanes.setdefault((job.active, repr(job.ticket.config), request.with_alignment, request.seed), []).append(job)
            for own in lanes.values():
                try:
                    self._run(own)
                except Exception as error:
                    for job in own:
                        self._fail(job.ticket, error)

    def _take(self, number: int) -> list[Job]:
        """Sentences, one of each client in turn."""
        taken: list[Job] = []
        while self._waiting and len(taken) < number:
            client, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            self._num_waiting -= 1
            if jobs:
                self._waiting[client] = jobs  # behind the others
            if not job.ticket.future.cancelled():
                taken.append(job)
                job.ticket.started = job.ticket.started or self._clock()
        return taken

    def _run(self, jobs: list[Job]) -> None:
        ticket = jobs[0].ticket
        search = Search(self.model.models, ticket.config, jobs[0].active, vocabulary=self.model.vocabularies[1])
        with self.model._turn():
            found = list(search_rows(search, [job.ids for job in jobs], device=self.model.device, batch_size=len(jobs),
                                     seed=ticket.request.seed, numbers=[job.number for job in jobs],
                                     with_attention=ticket.request.with_alignment,
                                     constraints=[job.phrases for job in jobs]))
        for own in found:
            self._found(jobs[own.index], own.hypotheses)

    def _found(self, job: Job, hypotheses: list[Hypothesis]) -> None:
        ticket = job.ticket
        if hypotheses[0].is_lost:
            self._fail(ticket, DataError("the model computed no numbers for a sentence. If it computes in half precision, its "
                                         "values may be too large there."))
            return
        ticket.found[job.place] = job, self.model.translation(hypotheses, job.ids.tolist())
        with self._changed:
            self._num_running -= 1
            self._by_depth[_depth_name(self._layer_counts(job.active))] += 1
            self._counts["tokens"] += len(hypotheses[0].ids)
            ticket.num_left -= 1
            if not ticket.num_left:
                self._finish(ticket)

    def _finish(self, ticket: Ticket) -> None:
        now = self._clock()
        answer = Answer(results=[self._assembled(ticket, place) for place in range(len(ticket.segments))],
                        seconds=now - ticket.submitted, waited=(ticket.started or now) - ticket.submitted)
        if ticket.future.set_running_or_notify_cancel():
            self._counts["done"] += 1
            self._latencies[_depth_name(self._layer_counts(ticket.active))].add(answer.seconds)
            ticket.future.set_result(answer)

    def _fail(self, ticket: Ticket, error: BaseException) -> None:
        try:
            if ticket.future.set_running_or_notify_cancel():
                ticket.future.set_exception(error)
                self._counts["failed"] += 1
        except InvalidStateError:
            return  # another sentence of it failed before

    def _notice_cancelled(self, future: Future[Answer]) -> None:
        if future.cancelled():
            with self._changed:
                self._counts["cancelled"] += 1
                self._changed.notify_all()

    def _assembled(self, ticket: Ticket, place: int) -> list[TextHypothesis]:
        sentences = []
        for position, segment in enumerate(ticket.segments[place]):
            job, translation = ticket.found.get((place, position), (None, None))
            counts = self._layer_counts(ticket.active if job is None else job.active)
            sentences.append(Sentence(segment, translation, counts, is_cut=job is not None and job.is_cut))
        return self._assembler.hypotheses(sentences, with_alignment=ticket.request.with_alignment)

    def _layer_counts(self, active: ActiveLayers) -> dict[str, int]:
        return layer_counts(active, self.model.models[0])


def _depth_name(counts: Mapping[str, int]) -> str:
    return "-".join(str(number) for number in counts.values())

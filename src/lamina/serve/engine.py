"""One loaded model, one worker thread, many clients.

`submit` checks a request, cuts its texts into sentences and turns them into ids, in the caller's thread. The worker thread
takes sentences from the queue, one client after the other, as slots fall free, and runs the steps of all searches
(serve/lanes.py), or has them run in other processes (serve/lane_workers.py). An answer is what `lamina generate` would give for
the same sentences and options, whatever else is served.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import replace
from functools import partial

from lamina.api import Translator
from lamina.api.outputs import fitted, search_config
from lamina.config.chosen_depth import AUTO, DepthText, parse_depth
from lamina.config.search_options import SearchConfig
from lamina.decode.active_depth import layer_counts
from lamina.decode.backtrace import Hypothesis
from lamina.decode.cascade import Cascade
from lamina.errors import ConfigError, DataError, LaminaError
from lamina.nn.stack import ALL_LAYERS
from lamina.serve.assembly import Assembler, Sentence
from lamina.serve.exchange import Answer, ClosedError, EngineStats, Histogram, QueueFullError, Request, TextHypothesis
from lamina.serve.lane_workers import LaneWorkers
from lamina.serve.lanes import LaneError, Lanes, Wanted
from lamina.serve.tickets import Chosen, Job, Known, Ticket
from lamina.text.sentence_splitter import Segment, split_sentences

# Options that name files: the process that starts the engine may give them, a client may not.
FILE_OPTIONS = frozenset({"forbidden_words"})
LONGEST_WAIT = 60.0  # seconds that a client is told to wait at most when the queue is full


class Engine:
    """Translates for many clients at once; every method may be called by any thread."""

    def __init__(self, model: Translator, *, slots: int = 64, defaults: Mapping[str, object] | None = None,
                 queue_limit: int = 1024, cascade: Cascade | None = None, depth: DepthText = None,
                 seed: int = 1, remove_bpe: str | None = None, lanes: Lanes | LaneWorkers | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to wait for requests.

        Arguments:
            slots: sentences that are translated at the same time.
            defaults: options of `lamina generate`, flags with underscores, for requests that do not give them.
            queue_limit: sentences that may wait for a slot.
            cascade: what the depth "auto" does, as `lamina calibrate` found it for this very model.
            depth: of requests that name none.
            seed: of requests that name none, for sampling.
            remove_bpe: joins pieces at a mark such as "@@ ", where the checkpoint carries no subword model of its own.
            lanes: what searches, with as many slots; if left out, the worker thread itself.
        """
        if slots < 1 or queue_limit < 1:
            raise ConfigError(f"slots is {slots} and queue_limit {queue_limit}; both must be at least 1.")
        self.model = model
        self.num_slots = slots
        self.queue_limit = queue_limit
        self.defaults = dict(defaults or {})
        self.num_layers = layer_counts(ALL_LAYERS, model.models[0])  # of each stack: the depths that can be asked for
        self._configs: Known[SearchConfig] = Known()
        self._depths: Known[Chosen] = Known()
        self._config_of(self.defaults)  # a default that makes no sense is told now
        self.cascade, self.default_depth = cascade, depth
        if cascade is not None:
            cascade.check(model.digest)
            self._shallow = model.active_layers(cascade.chosen_depth)
        self._chosen(depth)
        self.seed, self.remove_bpe = seed, remove_bpe
        self.join_target = partial(model.join_target, remove_bpe=remove_bpe)
        self._assembler = Assembler(model.subwords[0].decode, self.join_target, model.subwords[0].encode, model.languages[1])
        self._clock = clock
        self._changed = threading.Condition()
        # Under the lock:
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()  # by client, whose turn it is first
        self._num_waiting = 0
        self._num_running = 0
        self._unwanted: set[Ticket] = set()  # cancelled, or failed
        self._counts: Counter[str] = Counter()
        self._by_depth: Counter[str] = Counter()
        self._latencies: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._is_closing = self._is_abandoned = False
        # Of the worker alone:
        self._lanes = Lanes(model, slots) if lanes is None else lanes
        self._worker = threading.Thread(target=self._work, name="lamina-engine", daemon=True)
        self._worker.start()

    @property
    def is_alive(self) -> bool:
        """Whether it answers: it is not closed, and nothing has ended its thread."""
        return self._worker.is_alive() and not self._is_closing and self._lanes.is_alive

    def search_options(self, options: Mapping[str, object]) -> SearchConfig:
        """A request's options on top of the defaults; a ConfigError says what is wrong with them."""
        for name in options:
            if name.replace("-", "_") in FILE_OPTIONS:
                raise ConfigError(f"{name} names a file, and only the server's own command line may. Leave it out.")
        return self._configs.of(sorted(options.items()), lambda: self._config_of({**self.defaults, **options}))

    def _config_of(self, options: Mapping[str, object]) -> SearchConfig:
        config = search_config(**options)
        if config.uses_padded_width:
            raise ConfigError("--max-len-from-padded-width makes results depend on the batch, which other "
                              "requests share. Leave it out.")
        return config

    def submit(self, request: Request) -> Future[Answer]:
        """Queue a request. The future's `cancel` frees what the request holds.

        Raises ConfigError or DataError for a request that makes no sense, QueueFullError, or ClosedError. A sentence that turns
        out to be impossible gives the future a LaminaError.
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
            if jobs:
                self._waiting.setdefault(request.client, deque()).extend(jobs)
                self._num_waiting += len(jobs)
                self._tell_worker()
        ticket.future.add_done_callback(lambda future: self._forget(ticket, "cancelled") if future.cancelled() else None)
        if not jobs:
            self._finish(ticket)
        return ticket.future

    def close(self, grace: float = 10.0) -> None:
        """Take nothing new, finish what was accepted, and end; after `grace` seconds the rest fails with ClosedError."""
        with self._changed:
            self._is_closing = True
            self._tell_worker()
        self._worker.join(grace)
        with self._changed:
            self._is_abandoned = True
            self._tell_worker()
        self._worker.join()

    def _tell_worker(self) -> None:
        """Under the lock: something has changed."""
        self._changed.notify_all()
        self._lanes.wake()

    def stats(self) -> EngineStats:
        with self._changed:
            counts = self._counts
            return EngineStats(queue=self._num_waiting, running=self._num_running, requests=counts["requests"],
                               requests_done=counts["done"], requests_refused=counts["refused"],
                               requests_cancelled=counts["cancelled"], requests_failed=counts["failed"],
                               tokens=counts["tokens"], sentences=dict(self._by_depth), cascade_kept=counts["kept"],
                               cascade_repeated=counts["repeated"], workers_lost=self._lanes.num_lost,
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
        chosen = self._chosen(self.default_depth if request.depth is None else request.depth)
        language = self.model.languages[0]
        segments = [split_sentences(text, language) if request.splits else [Segment("", text, "")] for text in texts]
        ticket = Ticket(request, segments, chosen.name, self._clock())
        jobs = self._jobs(ticket, config, chosen)
        ticket.num_left = len(jobs)
        return ticket, jobs

    def _chosen(self, depth: object) -> Chosen:
        return self._depths.of(depth, lambda: self._choose(depth))

    def _choose(self, depth: object) -> Chosen:
        if parse_depth(depth) is not None:
            active = self.model.active_layers(depth)
            counts = layer_counts(active, self.model.models[0])
            return Chosen(active, counts, _depth_name(counts))
        if self.cascade is None:
            raise ConfigError("the depth auto needs a cascade: choose a threshold with `lamina calibrate`, and start the "
                              "server with --cascade FILE.")
        return Chosen(self._shallow, layer_counts(self._shallow, self.model.models[0]), AUTO)

    def _jobs(self, ticket: Ticket, config: SearchConfig, chosen: Chosen) -> list[Job]:
        jobs, number, request = [], 0, ticket.request
        seed = self.seed if request.seed is None else request.seed
        for place, own in enumerate(ticket.segments):
            phrases = self._phrases(request, place, len(own))
            for position, segment in enumerate(own):
                said: list[str] = []
                whole = self.model.encode_source(segment.text)
                ids = fitted(whole, self.model.max_source_positions, 0, "truncate", said.append)
                assert ids is not None
                if len(ids) > 1 or phrases:  # an empty text has an empty translation
                    wanted = Wanted(None, ids, config, chosen.active, (seed, number), phrases, request.with_alignment)
                    wanted.key = Job(ticket, (place, position), wanted, bool(said), ticket.depth_name == AUTO, chosen.counts)
                    jobs.append(wanted.key)
                number += 1
        return jobs

    def _phrases(self, request: Request, place: int, num_sentences: int) -> list[list[int]]:
        phrases = list(request.constraints[place]) if request.constraints is not None else []
        if phrases and num_sentences > 1:
            raise ConfigError(f"text {place + 1} has constraints and {num_sentences} sentences, and nothing says which of them "
                              "they are for. Send one sentence per text, or do not split texts.")
        return self.model.phrase_ids([phrases], 1, place)[0] if phrases else []

    def _expected_wait(self) -> float:
        """Seconds after which a client may ask again: about the mean time of a request."""
        known = [histogram for histogram in self._latencies.values() if histogram.number]
        mean = sum(own.total for own in known) / sum(own.number for own in known) if known else 1.0
        return min(LONGEST_WAIT, max(1.0, mean))

    # -- the worker thread

    def _work(self) -> None:
        try:
            while self._next_jobs():
                self._step()
        finally:
            # In any case no request is left waiting.
            with self._changed:
                self._is_closing = True
                left = {job.ticket for jobs in self._waiting.values() for job in jobs}
            left |= {wanted.key.ticket for wanted in self._lanes.running}
            for ticket in left:
                self._fail(ticket, ClosedError("the engine was closed before this was done."))
            self._lanes.close()

    def _step(self) -> None:
        try:
            with self.model._turn():
                for job, hypotheses in self._lanes.step():
                    try:
                        self._found(job, hypotheses)
                    except Exception as error:
                        self._fail(job.ticket, error)
        except LaneError as error:
            for job in error.keys:
                self._fail(job.ticket, error.__cause__ or error)

    def _next_jobs(self) -> bool:
        """Sentences go from the queue to free slots, and those that were cancelled leave; whether there is work to do."""
        while True:
            with self._changed:
                if self._unwanted:
                    self._lanes.drop(lambda job: job.ticket in self._unwanted)
                    self._unwanted.clear()
                jobs = self._take(self.num_slots - self._lanes.num_running)
                self._num_running = self._lanes.num_running + len(jobs)
                if self._is_abandoned:
                    return False
                if not self._num_running:
                    if self._is_closing:
                        return False
                    self._changed.wait()
                    continue
            for job in jobs:
                try:
                    self._lanes.add(job.wanted)
                except Exception as error:
                    self._fail(job.ticket, error)
            if self._lanes.num_running:
                return True

    def _take(self, number: int) -> list[Job]:
        """Sentences, one of each client in turn."""
        taken: list[Job] = []
        while self._waiting and len(taken) < number:
            client, jobs = self._waiting.popitem(last=False)
            taken.append(jobs.popleft())
            if jobs:
                self._waiting[client] = jobs  # behind the others
        self._num_waiting -= len(taken)
        for job in taken:
            job.ticket.started = job.ticket.started or self._clock()
        return taken

    def _found(self, job: Job, hypotheses: list[Hypothesis]) -> None:
        ticket, best = job.ticket, hypotheses[0]
        if ticket.future.done():
            return  # cancelled, or failed, a moment ago
        if job.is_shallow and self.cascade is not None and not self.cascade.keeps(hypotheses):
            # The slot is the sentence's until it is done.
            job.is_shallow, job.counts = False, self.num_layers
            job.wanted = replace(job.wanted, active=ALL_LAYERS)
            self._lanes.add(job.wanted)
            return
        if best.is_lost:
            self._fail(ticket, DataError("the model's scores for a sentence are NaN or infinite. In half precision, its values "
                                         "may be too large."))
            return
        ticket.found[job.place] = job, self.model.translation(hypotheses, job.wanted.ids.tolist(), self.remove_bpe)
        ticket.num_left -= 1
        with self._changed:
            self._num_running -= 1
            self._by_depth[_depth_name(job.counts)] += 1
            self._counts["tokens"] += len(best.ids)
            if ticket.depth_name == AUTO:
                self._counts["kept" if job.is_shallow else "repeated"] += 1
        if not ticket.num_left:
            self._finish(ticket)

    def _finish(self, ticket: Ticket) -> None:
        now = self._clock()
        answer = Answer(results=[self._assembled(ticket, place) for place in range(len(ticket.segments))],
                        seconds=now - ticket.submitted, waited=(ticket.started or now) - ticket.submitted)
        if not self._claim(ticket):
            return
        with self._changed:
            self._counts["done"] += 1
            self._latencies[ticket.depth_name].add(answer.seconds)
        ticket.future.set_result(answer)

    def _fail(self, ticket: Ticket, error: BaseException) -> None:
        if not self._claim(ticket):
            return
        self._forget(ticket, "failed")
        if not isinstance(error, LaminaError):
            traceback.print_exception(error)
        ticket.future.set_exception(error)

    def _claim(self, ticket: Ticket) -> bool:
        """Whether the future is still to be set; from now on it can no longer be cancelled."""
        if ticket.is_over:
            return False
        ticket.is_over = True
        return ticket.future.set_running_or_notify_cancel()

    def _forget(self, ticket: Ticket, why: str) -> None:
        """The client no longer waits for the rest of this request."""
        with self._changed:
            self._counts[why] += 1
            self._unwanted.add(ticket)
            jobs = self._waiting.get(ticket.request.client)
            if jobs is not None:
                left = deque(job for job in jobs if job.ticket is not ticket)
                self._num_waiting -= len(jobs) - len(left)
                if left:
                    self._waiting[ticket.request.client] = left
                else:
                    del self._waiting[ticket.request.client]
            self._tell_worker()

    # -- from sentences to texts

    def _assembled(self, ticket: Ticket, place: int) -> list[TextHypothesis]:
        sentences = []
        for position, segment in enumerate(ticket.segments[place]):
            job, translation = ticket.found.get((place, position), (None, None))
            sentences.append(Sentence(segment, translation, self.num_layers if job is None else job.counts,
                                      is_shallow=job is not None and job.is_shallow, is_cut=job is not None and job.is_cut))
        return self._assembler.hypotheses(sentences, with_alignment=ticket.request.with_alignment)


def _depth_name(counts: Mapping[str, int]) -> str:
    return "-".join(str(number) for number in counts.values())

"""Language models behind a queue: one worker thread writes several texts at once, a token of each in turn."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lamina.api import LanguageModel
from lamina.api.outputs import search_config
from lamina.config.search_options import SearchConfig
from lamina.decode.scoring import score_rows
from lamina.decode.search import Search
from lamina.decode.token_stream import stream_ids
from lamina.errors import DataError
from lamina.serve.exchange import ClosedError, QueueFullError
from lamina.text.vocabulary import EOS

RETRY_SECONDS = 2.0
STOP, LENGTH = "stop", "length"  # why a text ends: </s> or a stop sequence; the limit


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A text to be continued."""

    text: str
    max_tokens: int
    options: Mapping[str, object] = field(default_factory=dict)  # of `lamina generate`, flags with underscores
    stops: Sequence[str] = ()  # the text ends before the first of these
    seed: Sequence[int] = (1, 0)
    with_scores: bool = False
    client: str = ""


@dataclass(frozen=True)
class Part:
    """What came next; the last one says why the text ends, or what went wrong."""

    text: str = ""
    reason: str | None = None
    num_prompt: int = 0
    num_tokens: int = 0  # so far
    tokens: list[str] | None = None  # of the last part: all pieces, where scores were asked for
    scores: list[float] | None = None
    error: BaseException | None = None

    @property
    def is_last(self) -> bool:
        return self.reason is not None or self.error is not None


@dataclass(eq=False)
class Writing:
    """A prompt that was accepted; `tell` is called by the worker's thread."""

    prompt: Prompt
    ids: np.ndarray
    config: SearchConfig
    limit: int  # tokens that it may have
    tell: Callable[[Part], None]
    is_cancelled: bool = False
    parts: Iterator[Part] | None = None

    def cancel(self) -> None:
        self.is_cancelled = True


class Writer:
    """One language model; every method may be called by any thread."""

    def __init__(self, model: LanguageModel, *, slots: int = 16, defaults: Mapping[str, object] | None = None,
                 queue_limit: int = 1024) -> None:
        self.model, self.slots, self.queue_limit = model, slots, queue_limit
        self.defaults = {name: value for name, value in (defaults or {}).items() if name not in ("beam", "nbest")}
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[Writing]] = OrderedDict()  # by client, whose turn it is first
        self._num_waiting = self._num_active = 0
        self._is_closing = self._is_abandoned = False
        self._worker = threading.Thread(target=self._work, name="lamina-writer", daemon=True)
        self._worker.start()

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    def submit(self, prompt: Prompt, tell: Callable[[Part], None]) -> Writing:
        """`tell` hears each part of the text, in the worker's thread. Raises ConfigError, DataError, QueueFullError or
        ClosedError."""
        writing = self._prepared(prompt, tell)
        with self._changed:
            if self._is_closing:
                raise ClosedError("the model is being closed and takes no more prompts.")
            if self._num_waiting >= self.queue_limit:
                raise QueueFullError(f"{self._num_waiting} prompts are waiting already.", RETRY_SECONDS)
            self._waiting.setdefault(prompt.client, deque()).append(writing)
            self._num_waiting += 1
            self._changed.notify()
        return writing

    def _prepared(self, prompt: Prompt, tell: Callable[[Part], None]) -> Writing:
        ids = self.model.token_ids(prompt.text)[:-1]
        room = self.model.max_positions - 1 - len(ids)
        if room < 1:
            raise DataError(f"the prompt has {len(ids)} tokens, and the model has {self.model.max_positions} positions: "
                            "nothing can follow. Shorten it.")
        limit = min(prompt.max_tokens, room)
        config = search_config(**{**self.defaults, **prompt.options, "beam": 1, "max_len_a": 0.0, "max_len_b": limit})
        return Writing(prompt, ids, config, limit, tell)

    def close(self, grace: float = 10.0) -> None:
        """Take nothing new, finish what was accepted; what is left after `grace` seconds is dropped."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._worker.join(grace)
        self._is_abandoned = True
        self._worker.join(1.0)

    # -- the worker's thread

    def _work(self) -> None:
        active: deque[Writing] = deque()
        while True:
            with self._changed:
                while not active and not self._num_waiting and not self._is_closing:
                    self._changed.wait()
                if self._is_closing and not active and not self._num_waiting:
                    return
                while self._num_waiting and len(active) < self.slots:
                    active.append(self._next())
            for writing in list(active):
                if self._is_abandoned:
                    writing.cancel()
                if not self._goes_on(writing):
                    active.remove(writing)
            self._num_active = len(active)

    def _next(self) -> Writing:
        client, queue = self._waiting.popitem(last=False)
        writing = queue.popleft()
        self._num_waiting -= 1
        if queue:
            self._waiting[client] = queue  # behind the others
        return writing

    def _goes_on(self, writing: Writing) -> bool:
        """One token further. Whether there is more to come."""
        if writing.is_cancelled:
            return False
        try:
            if writing.parts is None:
                writing.parts = self._parts(writing)
            with self.model._turn():
                part = next(writing.parts)
        except Exception as error:  # the client that waits for the text hears of it
            part = Part(error=error)
        if part.text or part.is_last:
            writing.tell(part)
        return not part.is_last

    def _parts(self, writing: Writing) -> Iterator[Part]:
        """A part for each token, whose text may be empty: only whole words are given away, the last may still grow."""
        prompt, written = writing.prompt, Written(self._text(writing.ids.tolist()), writing.prompt.stops)
        own: list[int] = []
        search = Search(self.model.models, writing.config, vocabulary=self.model.vocabulary)
        for token in stream_ids(search, np.append(writing.ids, EOS), writing.ids, prompt.seed, self.model.device):
            own.append(token)
            text = written.more(self._text([*writing.ids.tolist(), *own]), is_end=False)
            if written.is_stopped:
                break
            yield Part(text, num_prompt=len(writing.ids), num_tokens=len(own))
        rest = "" if written.is_stopped else written.more(self._text([*writing.ids.tolist(), *own]), is_end=True)
        reason = STOP if written.is_stopped or len(own) < writing.limit else LENGTH
        tokens, scores = self._scored(writing.ids, own) if prompt.with_scores else (None, None)
        yield Part(text + rest if written.is_stopped else rest, reason, len(writing.ids), len(own), tokens, scores)

    def _text(self, ids: list[int]) -> str:
        return self.model.subword.decode(self.model.vocabulary.decode(ids))

    def _scored(self, prompt: np.ndarray, own: list[int]) -> tuple[list[str], list[float]]:
        row = np.array([*prompt.tolist(), *own, EOS])
        (_, scores), = score_rows(self.model.models, [(row,)], device=self.model.device)
        return [self.model.vocabulary.symbols[token] for token in own], scores[len(prompt) : len(prompt) + len(own)]


class Written:
    """A text that grows behind a prompt: what of it is settled, and whether a stop sequence has come up."""

    def __init__(self, prompt: str, stops: Sequence[str]) -> None:
        self.prompt, self.stops = prompt, [stop for stop in stops if stop]
        self.told = 0  # characters of the text behind the prompt
        self.is_stopped = False
        self.kept_back = max(map(len, self.stops), default=1) - 1  # they may begin a stop sequence

    def more(self, whole: str, *, is_end: bool) -> str:
        """What can be told now."""
        text = whole[len(self.prompt) :] if whole.startswith(self.prompt) else whole
        ends = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if ends:
            self.is_stopped = True
            known = text[: min(ends)]
        elif is_end:
            known = text
        else:
            # A word is over when the next one begins: white space in front of it is not told before it.
            known = text[: max(0, len(text) - self.kept_back)]
            known = known[: max(known.rfind(" "), known.rfind("\n"), 0)]
        new = known[self.told :]
        self.told = max(self.told, len(known))
        return new

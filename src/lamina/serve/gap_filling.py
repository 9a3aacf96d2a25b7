"""Masked language models behind a queue: one pass for a text, one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from lamina.api import Filling, MaskedLanguageModel, Prediction
from lamina.serve.exchange import ClosedError, QueueFullError

T = TypeVar("T")
RETRY_SECONDS = 2.0


class GapFiller:
    """One masked model or classifier; every method may be called by any thread."""

    def __init__(self, model: MaskedLanguageModel, *, queue_limit: int = 1024) -> None:
        self.model, self.queue_limit = model, queue_limit
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lamina-filler")
        self._lock = threading.Lock()
        self._num_waiting = 0

    def fill(self, texts: list[str], topk: int) -> Future[list[list[Filling]]]:
        return self._submitted(lambda: self.model.fill_mask(texts, topk=topk))

    def classify(self, head: str, texts: list[str]) -> Future[list[Prediction]]:
        return self._submitted(lambda: self.model.predict_all(head, texts))

    def _submitted(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._num_waiting >= self.queue_limit:
                raise QueueFullError(f"{self._num_waiting} texts are waiting already.", RETRY_SECONDS)
            self._num_waiting += 1
        try:
            future = self._pool.submit(work)
        except RuntimeError:
            raise ClosedError("the model is being closed and takes no more texts.") from None
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Future[T]) -> None:
        with self._lock:
            self._num_waiting -= 1

    def close(self, grace: float = 0.0) -> None:
        self._pool.shutdown(wait=grace > 0, cancel_futures=True)

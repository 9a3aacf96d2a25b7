"""A run of `lamina train` that starts beside others, is stopped once it is warm, and continues when it is its turn.

Starting takes half a minute, mostly of one core, and a turn a few seconds of the GPU: so many runs are measured in little more
time than one. All hold their memory meanwhile.
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from runs import Case, Log, RunError, start, why_it_ended

SETTLED = 1.0  # seconds after the first line, in which shapes that are seen later are captured


class Waiting:
    def __init__(self, data: str, case: Case, extra: Sequence[str]) -> None:
        self.case = case
        self.error: RunError | None = None
        self._log = Log()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._started = time.perf_counter()
        self._process = start(data, case, extra, self._errors)
        self._is_warm = threading.Event()  # `join` is for the end: one that is interrupted holds the thread for ended
        self._thread = threading.Thread(target=self._warm_up)
        self._thread.start()

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._thread.join()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def wait_until_warm(self) -> None:
        self._is_warm.wait()

    def turn(self, seconds: float) -> Log:
        """So many seconds of it, once all are warm. Where the run ends before, `error` says why."""
        log, is_first = replace(self._log, updates=0, tokens=0.0, seconds=0.0), True
        if self.error is not None:
            return log
        self._process.send_signal(signal.SIGCONT)
        for row in self._rows():
            log.read(row, time.perf_counter() - self._started)
            if is_first and "wps" in row:
                log.updates, log.tokens, log.seconds = 0, 0.0, 0.0  # the pause was in it
                is_first = False
            if log.seconds >= seconds:
                self._process.send_signal(signal.SIGSTOP)
                self._log = log
                return log
        self._note_end()
        return log

    def _warm_up(self) -> None:
        try:
            for row in self._rows():
                self._log.read(row, time.perf_counter() - self._started)
                if self._log.seconds >= SETTLED:
                    self._process.send_signal(signal.SIGSTOP)
                    return
            self._note_end()
        finally:
            self._is_warm.set()

    def _rows(self) -> Iterator[dict[str, Any]]:
        for line in self._process.stdout or ():
            if line.startswith("{"):
                yield json.loads(line)

    def _note_end(self) -> None:
        self._process.wait()
        self.error = RunError(why_it_ended(self._process, self._errors))

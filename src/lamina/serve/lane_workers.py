"""The lanes of an engine in processes of one thread each, which share the weights: `Lanes` for several cores.

The kernels of a search are short, so that threads would mostly wait for each other (decode/search_workers.py). A process that
does nothing else, the keeper, has the model and forks the workers: at first, and again whenever one of them dies. A process
with threads, as a server is, could not do that safely.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import torch

from lamina import console
from lamina.api import Translator
from lamina.config.search_options import SearchConfig
from lamina.decode.backtrace import Hypothesis
from lamina.nn.stack import ActiveLayers
from lamina.serve.exchange import WorkerLostError
from lamina.serve.lanes import LaneError, Lanes, Wanted

# A worker that has sentences of the same depth and options gets the next one, unless it has so many more than another.
SAME_LANE = 4
# A sentence whose worker died is given to another one; if that dies too, the sentence is taken for the reason.
TRIES = 2
RESTART_SECONDS = 1.0  # without a new worker, after one that has lived for less than that
END_SECONDS = 5.0  # that a process has to end when it is told to
START = b"s"


def lane_workers(model: Translator, num_slots: int) -> LaneWorkers | None:
    """One worker for each thread that torch would use; None where one thread is enough, or where nothing can be forked.

    Before this process has threads of its own.
    """
    count = min(torch.get_num_threads(), num_slots)
    if model.device.type != "cpu" or sys.platform != "linux" or count < 2:
        return None
    return LaneWorkers(model, num_slots, count)


@dataclass(eq=False)
class Worker:
    """A process, as its parent sees it."""

    pipe: Connection
    pid: int
    started: float = field(default_factory=time.monotonic)
    running: dict[int, Wanted] = field(default_factory=dict)
    lanes: Counter[tuple[SearchConfig, ActiveLayers]] = field(default_factory=Counter)  # sentences of each that run

    def add(self, number: int, wanted: Wanted) -> None:
        self.running[number] = wanted
        self.lanes[wanted.config, wanted.active] += 1
        self.send("add", replace(wanted, key=number))

    def send(self, *message: Any) -> None:
        self.pipe.send_bytes(pickle.dumps(message))

    def done(self, number: int) -> Wanted | None:
        """None: it was dropped meanwhile."""
        wanted = self.running.pop(number, None)
        if wanted is not None:
            lane = (wanted.config, wanted.active)
            self.lanes[lane] -= 1
            if not self.lanes[lane]:
                del self.lanes[lane]
        return wanted


class LaneWorkers:
    """`Lanes`, each sentence in one of several processes. Not for several threads, but for `wake`."""

    def __init__(self, model: Translator, num_slots: int, count: int) -> None:
        self.count = count
        self.num_lost = 0  # workers that died
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_writer.setblocking(False)
        self._tries: Counter[Wanted] = Counter()  # workers that died over a sentence
        self._failed: list[tuple[Wanted, BaseException]] = []
        self._number = 0
        self._rests_until = 0.0
        self._keeper, theirs = socket.socketpair()
        self._keeper_pid = _forked(lambda: _keep(theirs, model, -(-num_slots // count)), self._keeper, self._wake_reader,
                                   self._wake_writer)
        theirs.close()
        self.workers: list[Worker] = []
        self._fill()

    # -- as Lanes

    @property
    def is_alive(self) -> bool:
        return bool(self.workers)

    @property
    def running(self) -> list[Wanted]:
        return [wanted for worker in self.workers for wanted in worker.running.values()] + [own for own, _ in self._failed]

    @property
    def num_running(self) -> int:
        return sum(len(worker.running) for worker in self.workers) + len(self._failed)

    def add(self, wanted: Wanted) -> None:
        lane = (wanted.config, wanted.active)
        while True:
            self._fill()
            if not self.workers:
                raise WorkerLostError("the processes that translate have ended.")
            worker = min(self.workers, key=lambda own: len(own.running) - SAME_LANE * (lane in own.lanes))
            self._number += 1
            try:
                worker.add(self._number, wanted)
                return
            except OSError:  # it has died
                worker.done(self._number)
                self._bury(worker)

    def drop(self, is_unwanted: Callable[[Any], bool]) -> None:
        """Forget the sentences with such keys."""
        for worker in self.workers:
            unwanted = [number for number, wanted in worker.running.items() if is_unwanted(wanted.key)]
            for number in unwanted:
                self._tries.pop(worker.running[number], None)
                worker.done(number)
            if unwanted:
                with suppress(OSError):  # `step` will see that it has died
                    worker.send("drop", unwanted)
        self._failed = [(wanted, error) for wanted, error in self._failed if not is_unwanted(wanted.key)]

    def step(self) -> Iterator[tuple[Any, list[Hypothesis]]]:
        """Wait until a worker has found something, or for `wake`: the keys that are finished, and what was found."""
        self._fill()
        by_pipe = {worker.pipe: worker for worker in self.workers}
        if not self._failed:
            for ready in wait([*by_pipe, self._wake_reader], None if len(self.workers) == self.count else RESTART_SECONDS):
                if isinstance(ready, Connection):
                    yield from self._heard(by_pipe[ready])
                else:
                    self._wake_reader.recv(65536)
        if self._failed:
            wanted, error = self._failed.pop()
            raise LaneError([wanted.key]) from error

    def wake(self) -> None:
        """From any thread: there is something to add, or to drop."""
        with suppress(OSError):  # enough has been written already, or it is closed
            self._wake_writer.send(b".")

    def close(self) -> None:
        """The processes end; nothing is lost with them."""
        for worker in self.workers:
            worker.pipe.close()
        self.workers.clear()
        for end in (self._keeper, self._wake_reader, self._wake_writer):
            end.close()
        _await_end(self._keeper_pid)

    # -- inside

    def _heard(self, worker: Worker) -> Iterator[tuple[Any, list[Hypothesis]]]:
        try:
            found, failed = pickle.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            self._bury(worker)
            return
        for numbers, error in failed:
            self._failed += [(wanted, error) for number in numbers if (wanted := worker.done(number)) is not None]
        for number, hypotheses in found:
            wanted = worker.done(number)
            if wanted is not None:
                self._tries.pop(wanted, None)
                yield wanted.key, hypotheses

    def _bury(self, worker: Worker) -> None:
        """It has died: others do what it had to do."""
        self.workers.remove(worker)
        worker.pipe.close()
        self.num_lost += 1
        console.warn(f"a process that translates (pid {worker.pid}) was killed, perhaps because memory ran out; another one is "
                     "started.")
        if time.monotonic() < worker.started + RESTART_SECONDS:
            self._rests_until = time.monotonic() + RESTART_SECONDS
        for wanted in worker.running.values():
            self._tries[wanted] += 1
            try:
                if self._tries[wanted] == TRIES:
                    raise WorkerLostError("the process that translated this was killed, and so was the next one.")
                self.add(wanted)
            except WorkerLostError as error:
                del self._tries[wanted]
                self._failed.append((wanted, error))
        self._fill()  # now, even if there is nothing to do: whether it is alive decides on whether it is asked

    def _fill(self) -> None:
        """As many workers as there should be, or at least one, unless the keeper has died too."""
        while len(self.workers) < self.count:
            rest = self._rests_until - time.monotonic()
            if rest > 0 and self.workers:
                return
            time.sleep(max(0.0, rest))
            try:
                self._keeper.sendall(START)
                told, (end, *_), _, _ = socket.recv_fds(self._keeper, 32, 1)
            except (OSError, ValueError):
                return
            self.workers.append(Worker(Connection(end), int(told)))


# -- in the other processes

def _forked(run: Callable[[], None], *theirs: socket.socket) -> int:
    """The id of a copy of this process that does this and ends; it closes what is the parent's."""
    with warnings.catch_warnings():
        # Threads that wait for kernels are no danger: a worker makes its own.
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for own in theirs:
            own.close()
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _await_end(pid: int) -> None:
    end = time.monotonic() + END_SECONDS
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _keep(control: socket.socket, model: Translator, num_slots: int) -> None:
    """Fork a worker whenever the parent asks for one, until it ends."""
    # Signals reach all of a group: the parent answers them, and hangs up on us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead leave nothing behind
    gc.freeze()  # what is shared is not to be copied by being looked at
    while control.recv(1) == START:
        ours, theirs = socket.socketpair()
        pid = _forked(lambda pipe=theirs: _work(Connection(pipe.detach()), Lanes(model, num_slots)), control, ours)  # type: ignore[misc]
        theirs.close()
        socket.send_fds(control, [str(pid).encode()], [ours.fileno()])
        ours.close()


def _work(pipe: Connection, lanes: Lanes) -> None:
    torch.set_num_threads(1)
    asked: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    Thread(target=_listen, args=(pipe, asked), daemon=True).start()
    while True:
        failed: list[tuple[list[int], BaseException]] = []
        found = []
        with suppress(Empty):
            while True:
                what, given = asked.get(block=not lanes.num_running and not failed)
                if what == "drop":
                    unwanted = set(given)
                    lanes.drop(unwanted.__contains__)
                    continue
                try:
                    lanes.add(given)
                except Exception as error:
                    failed.append(([given.key], _portable(error)))
        if lanes.num_running:
            try:
                found = list(lanes.step())
            except LaneError as error:
                traceback.print_exception(error.__cause__)
                failed.append((list(error.keys), _portable(error.__cause__ or error)))
        if found or failed:
            pipe.send_bytes(pickle.dumps((found, failed)))


def _listen(pipe: Connection, asked: SimpleQueue[tuple[Any, ...]]) -> None:
    """Always, so that the parent never waits until a step is over; it ends when the parent hangs up."""
    try:
        while True:
            asked.put(pickle.loads(pipe.recv_bytes()))
    except (EOFError, OSError):
        os._exit(0)


def _portable(error: BaseException) -> BaseException:
    """As it travels to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error

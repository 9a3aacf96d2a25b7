"""Where a process stands among others, and how `lamina train` starts one for each GPU."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import timedelta
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from lamina import console, provenance
from lamina.config.ranks_options import GLOO, RanksConfig
from lamina.distributed.heartbeat import beating, silent_ranks
from lamina.distributed.meeting import agree_on_attempt
from lamina.distributed.ranks import ALONE, Ranks
from lamina.distributed.signals import SAVES, SECONDS_OF_ONE_WISH, STOPS, blocked, is_kept_ignored, unblock
from lamina.errors import AlreadyToldError, ConfigError, RankError, StopSignal
from lamina.plug_ins import Carried

# Signals that nobody inside a process sends or answers; one that was killed so may live longer the next time.
KILLED = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
MAX_RESTARTS = 3
# How long ranks may take to finish an update and write a checkpoint to a slow disk when they are told to stop.
SECONDS_TO_SAVE = 600
SECONDS_BETWEEN_LOOKS = 0.5
# Set to 1, one process alone is a group of one, and sends its gradients to itself: what tests and benchmarks measure.
ALWAYS_A_GROUP = "LAMINA_ALWAYS_A_GROUP"
# Slurm jobs that share a machine should not meet on one port.
FIRST_SLURM_PORT, NUM_SLURM_PORTS = 15000, 20000


class Place(NamedTuple):
    """A process among those of a run."""

    rank: int
    size: int
    local: int  # among those of its machine
    init_method: str = "env://"


def find_place(config: RanksConfig, environ: Mapping[str, str]) -> Place:
    """As the launcher says in the environment, or the flags; alone if neither does."""
    # Slurm puts a task's number into every shell of a job; how many tasks a step has, only into what srun started.
    slurm_size = _number(environ, "SLURM_STEP_NUM_TASKS", 1)
    if config.init_method is not None:
        # Started by hand, one command a machine, which may have started one process for each of its GPUs.
        local = _number(environ, "LOCAL_RANK", 0)
        return Place(config.rank + local, config.world_size or 1, config.device or local, config.init_method)
    if "RANK" in environ and "WORLD_SIZE" in environ:  # torchrun
        rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
        if rank >= size:
            raise ConfigError(f"RANK is {rank} and WORLD_SIZE {size} in the environment; ranks count from 0 and end before the "
                              "size. Start with torchrun, which sets both.")
        return Place(rank, size, _number(environ, "LOCAL_RANK", config.device or 0))
    if slurm_size > 1:
        host = first_host(environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", "localhost")))
        port = config.port if config.port > 0 else FIRST_SLURM_PORT + _number(environ, "SLURM_JOB_ID") % NUM_SLURM_PORTS
        return Place(_number(environ, "SLURM_PROCID"), slurm_size, _number(environ, "SLURM_LOCALID"), f"tcp://{host}:{port}")
    return Place(0, 1, config.device or 0)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """What a launcher put into the environment."""
    value = environ.get(name, "" if default is None else str(default))
    if not (value.isascii() and value.isdecimal() and len(value) <= 18):
        raise ConfigError(f"{name} is {value!r} in the environment; it must be a whole number from 0 on, as launchers set it. "
                          "Set it right, or unset it.")
    return int(value)


def first_host(nodes: str) -> str:
    """Of a list as Slurm writes it: `node[07-09,12],other3` begins with node07."""
    match = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    if match is None:
        raise ConfigError(f"Slurm's list of machines is {nodes!r}, which has no first one. Start with torchrun instead.")
    return match[1] + (match[2] or "")


def own_gpu(place: Place, environ: Mapping[str, str], num_gpus: int, backend: str = "nccl") -> int:
    """Of those that this process sees. Slurm's --gpus-per-task shows each task its own alone, as number 0."""
    if backend == GLOO:
        return place.local % num_gpus
    if num_gpus == 1 and "SLURM_LOCALID" in environ:
        return 0
    if place.local >= num_gpus:
        raise ConfigError(f"rank {place.rank} would use GPU {place.local} of its machine, counted from 0, which shows "
                          f"{num_gpus}. Start one process per GPU, and no more.")
    return place.local


def num_to_start(config: RanksConfig, environ: Mapping[str, str], num_gpus: int) -> int:
    """How many processes this one should start and wait for; 1: none, it is the run itself."""
    if "RANK" in environ or _number(environ, "SLURM_STEP_NUM_TASKS", 1) > 1 or not config.starts_itself:
        return 1
    if config.init_method is not None:
        return max(1, min(num_gpus, (config.world_size or 1) - config.rank))
    wanted = config.world_size or max(1, num_gpus)
    if num_gpus and wanted > num_gpus and config.backend != GLOO:
        raise ConfigError(f"--distributed-world-size is {wanted}, but this machine shows {num_gpus} "
                          f"{'GPU' if num_gpus == 1 else 'GPUs'}. Leave it out and multiply --update-freq for the same "
                          "effective batch, or start on several machines with torchrun.")
    return wanted


def start_ranks(number: int, command: Callable[[Any], None], config: Any, *, max_restarts: int = MAX_RESTARTS) -> None:
    """One process each, through torchrun's launcher; returns when all are done, and ends all when one fails.

    When one was killed, by the machine or a person, all are started again: they resume from the last checkpoint.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # As torchrun does: threads of all processes together should not outnumber the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The failed rank has said what was wrong; the launcher's report on it would only bury that.
    logging.disable(logging.ERROR)
    # torchrun's own handlers would not tell a copy of a signal from a second wish; and it would wait for half a minute only.
    ours: dict[str, Any] = {"signals_to_handle": "SIGQUIT", "shutdown_timeout": SECONDS_TO_SAVE}
    known = {item.name for item in fields(LaunchConfig)}  # older ones lack some of them
    settings = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=number, run_id="lamina", rdzv_backend="c10d",
                            rdzv_endpoint="localhost:0", max_restarts=0, start_method="spawn", monitor_interval=0.5,
                            **{name: value for name, value in ours.items() if name in known})
    try:
        with handing_on_signals():
            try:
                elastic_launch(settings, run_rank)(command, Carried(config), provenance.current_command())
            except (Stopped, SignalException) as stop:  # handed on to the ranks, which have saved
                end_ranks(stop.sigval)
                raise AlreadyToldError(128 + stop.sigval) from None
    except Stopped as stop:  # before there were any
        raise AlreadyToldError(128 + stop.sigval) from None
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}  # a signal is a negative number
        killed = sorted(rank for rank, code in codes.items() if -code in KILLED)
        if killed and max_restarts > 0:
            console.notice(f"rank {killed[0]} was killed by {signal.Signals(-codes[killed[0]]).name}: starting all again from "
                           f"the last checkpoint ({max_restarts} {'time' if max_restarts == 1 else 'times'} at most)")
            return start_ranks(number, command, config, max_restarts=max_restarts - 1)
        worst = min(codes.values())
        raise AlreadyToldError(128 - worst if worst < 0 else 2 if 2 in codes.values() else worst) from None
    finally:
        logging.disable(logging.NOTSET)


class Stopped(BaseException):
    """A signal, on its way through torchrun's launcher.

    Not one of its own kind, after which it leaves the thread that keeps its meeting place alive, and that may abort the process
    when Python ends.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.sigval = signal.Signals(number)


@contextmanager
def handing_on_signals() -> Iterator[None]:
    """Inside, signals are passed on to the ranks: the first to stop ends the launch, a later one kills.

    Those that can wait are blocked in the main thread, and so in the ranks that it starts until they can answer them; a thread
    of its own hears them for the launcher.
    """
    if threading.current_thread() is not threading.main_thread():  # where Python hears no signals
        yield
        return
    heard: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        unblock(signal.SIGINT)  # from now on it may interrupt what the main thread waits for
        now = time.monotonic()
        if not heard:
            heard.append(now)
            signal_ranks(signal.Signals(number))  # torchrun's launcher would call each of them SIGTERM
            raise Stopped(number)
        if now - heard[0] >= SECONDS_OF_ONE_WISH:
            signal_ranks(signal.SIGKILL)

    too_early: list[signal.Signals] = []

    def save(number: int, frame: FrameType | None) -> None:
        if not signal_ranks(signal.Signals(number)):
            too_early.append(signal.Signals(number))

    # torchrun's launcher takes SIGQUIT and does not give it back.
    former = {number: signal.getsignal(number) for number in (*STOPS, *SAVES, signal.SIGQUIT)}
    over = threading.Event()

    def hear() -> None:
        unblock(signal.SIGINT, *SAVES)
        while not over.wait(SECONDS_BETWEEN_LOOKS):
            if too_early and signal_ranks(too_early[-1]):
                too_early.clear()

    hearing = threading.Thread(target=hear, name="signals", daemon=True)
    resource_tracker.ensure_running()  # it would unblock SIGINT when the first rank starts it
    try:
        for number in STOPS:
            if not is_kept_ignored(number):
                signal.signal(number, stop)
        for number in SAVES:
            signal.signal(number, save)
        with blocked(signal.SIGINT, *SAVES):
            hearing.start()
            yield
    finally:
        over.set()
        if hearing.is_alive():
            hearing.join()
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def signal_ranks(number: signal.Signals) -> bool:
    """Whether there are any."""
    ranks = multiprocessing.active_children()
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.kill(rank.pid or 0, number)
    return bool(ranks)


def end_ranks(number: signal.Signals) -> None:
    """Those that torchrun's launcher had not got to know yet when the signal came."""
    signal_ranks(number)
    for child in multiprocessing.active_children():
        child.join(SECONDS_TO_SAVE)
        child.kill()


def run_rank(command: Callable[[Any], None], config: Carried, words: Sequence[str]) -> None:
    """What a process started by `start_ranks` does."""
    from lamina.command_line import guarded

    def begin() -> None:
        unblock(signal.SIGINT)  # it waited while there was nobody to answer it in one line
        command(config.config)

    provenance.begin_command(words)
    code = guarded(begin)
    if code:
        raise SystemExit(code)


@contextmanager
def joined(config: RanksConfig, *, is_on_gpu: bool) -> Iterator[Ranks]:
    """The ranks of this run, from the first meeting to the last good-bye."""
    place = find_place(config, os.environ)
    device = torch.device("cpu")
    if is_on_gpu:
        device = torch.device("cuda", own_gpu(place, os.environ, torch.cuda.device_count(), config.backend))
        torch.cuda.set_device(device)
    if place.size == 1:
        if os.environ.get(ALWAYS_A_GROUP) != "1":
            yield Ranks(device=device) if is_on_gpu else ALONE
            return
        place = place._replace(init_method="tcp://localhost:0")
    ranks = _meet(place, device, timedelta(minutes=config.timeout), config.backend)
    with beating(ranks.store, ranks.rank):
        yield from _shared(ranks)


def _shared(ranks: Ranks) -> Iterator[Ranks]:
    """One run has one error: that of the rank that was the first to fail."""
    try:
        yield ranks
    except (StopSignal, AlreadyToldError):  # all of them, after the same update
        dist.destroy_process_group()
        raise
    except Exception as error:
        if not ranks.is_first_to_fail():
            # Another rank tells why; this one only noticed that it was gone.
            ranks.wait_until_told()
            raise AlreadyToldError from None
        try:
            if isinstance(error, dist.DistError) or (type(error) is RuntimeError and "gloo" in str(error)):
                silent = ", ".join(map(str, silent_ranks(ranks.store, ranks.rank, ranks.size)))
                which = f"rank {silent}" if silent else "another rank"
                raise RankError(f"rank {ranks.rank} lost contact with {which}, which was killed, is stopped or cannot be "
                                "reached. Checkpoints written so far are whole: the same command resumes from them.") from error
            raise
        finally:
            ranks.note_told()
    dist.destroy_process_group()


def _meet(place: Place, device: torch.device, patience: timedelta, backend: str) -> Ranks:
    # Numbers that hosts know travel between hosts (gloo), so that no device is asked for them.
    backend = f"cpu:gloo,cuda:{backend}" if device.type == "cuda" else GLOO
    try:
        store, rank, size = next(dist.rendezvous(place.init_method, place.rank, place.size, timeout=patience))
        store = dist.PrefixStore(agree_on_attempt(dist.PrefixStore("lamina", store), rank, size, patience), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    except (dist.DistError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RankError(f"rank {place.rank} of {place.size} did not find the others at {place.init_method}: {reason}. All must "
                        "be started with the same address and number.") from None
    return Ranks(rank, size, device, is_group=True, store=dist.PrefixStore("lamina", store))

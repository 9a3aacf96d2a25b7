"""Where a process stands among others, and how `lamina train` starts one for each GPU."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from lamina import console, provenance
from lamina.config.ranks_options import RanksConfig
from lamina.distributed.ranks import ALONE, Ranks
from lamina.errors import AlreadyToldError, ConfigError, RankError

# A rank that waits this long for another gives up: longer than writing a checkpoint to a slow disk can take.
PATIENCE = timedelta(minutes=30)
# Signals that nobody inside a process sends or answers; one that was killed so may live longer the next time.
KILLED = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
MAX_RESTARTS = 3
# Slurm jobs that share a machine should not meet on one port.
FIRST_SLURM_PORT, NUM_SLURM_PORTS = 15000, 20000


class Place(NamedTuple):
    """A process among those of a run."""

    rank: int
    size: int
    local: int  # among those of its machine
    init_method: str = "env://"


def find_place(config: RanksConfig, environ: Mapping[str, str]) -> Place:
    """As the launcher says in the environment, or the flags; alone if nobody says anything."""
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


def own_gpu(place: Place, environ: Mapping[str, str], num_gpus: int) -> int:
    """Of those that this process sees. Slurm's --gpus-per-task shows each task its own alone, as number 0."""
    if num_gpus == 1 and "SLURM_LOCALID" in environ:
        return 0
    if place.local >= num_gpus:
        raise ConfigError(f"rank {place.rank} would use GPU {place.local} of its machine, counted from 0, which shows "
                          f"{num_gpus}. Start one process a GPU, and no more.")
    return place.local


def num_to_start(config: RanksConfig, environ: Mapping[str, str], num_gpus: int) -> int:
    """How many processes this one should start and wait for; 1: none, it is the run itself."""
    if "RANK" in environ or _number(environ, "SLURM_STEP_NUM_TASKS", 1) > 1 or not config.starts_itself:
        return 1
    if config.init_method is not None:
        return max(1, min(num_gpus, (config.world_size or 1) - config.rank))
    wanted = config.world_size or max(1, num_gpus)
    if num_gpus and wanted > num_gpus:
        raise ConfigError(f"--distributed-world-size is {wanted}, but this machine shows {num_gpus} "
                          f"{'GPU' if num_gpus == 1 else 'GPUs'}. Leave it out and multiply --update-freq for the same "
                          "effective batch, or start on several machines with torchrun.")
    return wanted


def start_ranks(number: int, command: Callable[[Any], None], config: Any, *, max_restarts: int = MAX_RESTARTS) -> None:
    """One process each, through torchrun's launcher; returns when all are done, and ends all when one fails.

    When one was killed, by the machine or a person, all are started again: they go on from the last checkpoint.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    settings = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=number, run_id="lamina", rdzv_backend="c10d",
                            rdzv_endpoint="localhost:0", max_restarts=0, start_method="spawn", monitor_interval=0.5)
    # As torchrun does: threads of all processes together should not outnumber the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The failed rank has said what was wrong; the launcher's report on it would only bury that.
    logging.disable(logging.ERROR)
    # The launcher hears these from now on and does not give them back.
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)}
    try:
        elastic_launch(settings, run_rank)(command, config, provenance.current_command())
    except SignalException as stop:  # handed on to the ranks, which have saved
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
        for number, handler in former.items():
            signal.signal(number, handler)


def run_rank(command: Callable[[Any], None], config: Any, words: Sequence[str]) -> None:
    """What a process started by `start_ranks` does."""
    from lamina.cli import guarded

    provenance.begin_command(words)
    code = guarded(lambda: command(config))
    if code:
        raise SystemExit(code)


@contextmanager
def joined(config: RanksConfig, *, is_on_gpu: bool) -> Iterator[Ranks]:
    """The ranks of this run, from the first meeting to the last good-bye."""
    place = find_place(config, os.environ)
    device = torch.device("cpu")
    if is_on_gpu:
        device = torch.device("cuda", own_gpu(place, os.environ, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    if place.size == 1:
        yield Ranks(device=device) if is_on_gpu else ALONE
        return
    ranks = _meet(place, device)
    try:
        yield ranks
    except Exception as error:
        if not ranks.is_first_to_fail():
            # Another rank has told why; this one only noticed that it was gone.
            raise AlreadyToldError from None
        if isinstance(error, dist.DistError) or (type(error) is RuntimeError and "gloo" in str(error)):
            raise RankError(f"rank {place.rank} lost contact with another rank, which was killed or cannot be reached. "
                            "Checkpoints written so far are whole: the same command goes on from them.") from error
        raise
    dist.destroy_process_group()


def _meet(place: Place, device: torch.device) -> Ranks:
    # Numbers that hosts know travel between hosts (gloo), so that no device is asked for them.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        store, rank, size = next(dist.rendezvous(place.init_method, place.rank, place.size, timeout=PATIENCE))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    except (dist.DistError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RankError(f"rank {place.rank} of {place.size} did not find the others at {place.init_method}: {reason}. All must "
                        "be started with the same address and number.") from None
    return Ranks(rank, size, device, dist.PrefixStore("lamina", store))

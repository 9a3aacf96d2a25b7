"""How many threads a command computes with on a processor, and how they wait for each other.

Read by the libraries under torch when they are loaded, so it is said before: by the environment, where that says nothing yet.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

# Threads that wait for the others sleep. By themselves they keep their cores for milliseconds, and beside another job, with
# thousands of short turns a second, two of them are many times slower than one; in training it gains little or nothing.
WAITING = "PASSIVE"
# Turns of decoding are so short that waking up takes as long as they do. Where no other job is in sight, threads look for work
# this many times before they sleep: 8-bit decoding with two threads is twice as fast by it.
LOOKS = "10000"
# Of ten seconds, the percentage in which something that could have run had to wait for a core.
CROWDED = 5.0


def settle_threads(environ: MutableMapping[str, str] = os.environ, *, takes_short_turns: bool = False) -> None:
    """What a person has set stays. Cores and affinity are seen by torch; the share of them that a container has is not."""
    if "GOMP_SPINCOUNT" not in environ and "OMP_WAIT_POLICY" not in environ:  # two ways to say it
        if takes_short_turns and not is_crowded():
            environ["GOMP_SPINCOUNT"] = LOOKS
        else:
            environ["OMP_WAIT_POLICY"] = WAITING
    limit = container_limit()
    if limit is not None and limit < num_cores():
        environ.setdefault("OMP_NUM_THREADS", str(limit))


def is_crowded(pressure: Path = Path("/proc/pressure/cpu")) -> bool:
    """Whether jobs wait for cores now, as Linux tells it; where nobody tells it, they may."""
    try:
        return float(pressure.read_text().split("avg10=")[1].split()[0]) > CROWDED
    except (OSError, IndexError, ValueError):
        return True


def num_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def container_limit(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Whole cores that the control groups of this process grant it, at least one; None: no limit."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return None  # another system than Linux
    shares: list[float] = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if not controllers:  # version 2: all controllers in one tree
            shares += _shares(root, path)
        elif "cpu" in controllers.split(","):
            shares += _shares(root / "cpu", path)
    return max(1, math.floor(min(shares))) if shares else None


def _shares(root: Path, path: str) -> Iterator[float]:
    """Of a group and all above it; in a container, its own group may be the root that it sees."""
    folder = root / path.strip("/")
    for place in (folder, *folder.parents):
        if place.is_relative_to(root):
            quota, period = _quota(place)
            if quota > 0 and period > 0:
                yield quota / period


def _quota(folder: Path) -> tuple[int, int]:
    """Microseconds of computing in so many of the clock; 0 or less: as many as it likes."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
            return (0 if quota == "max" else int(quota)), int(period)
        return int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return 0, 0

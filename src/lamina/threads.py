"""How many threads a command computes with on a CPU, and how they wait for each other: one policy, whatever the machine does.

- As many threads as torch chooses, but no more than the cores that the container grants.
- Threads that wait sleep (OMP_WAIT_POLICY=PASSIVE). Threads that spin keep their cores for milliseconds; beside another job,
  with thousands of short steps a second, two of them are many times slower than one.
- What the environment says already stays: OMP_NUM_THREADS, OMP_WAIT_POLICY, GOMP_SPINCOUNT.

The libraries under torch read this when they are loaded, so it is set first, in the environment.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

WAIT_POLICY = "PASSIVE"


def settle_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Cores and affinity are seen by torch; the share of them that a container has is not."""
    if "GOMP_SPINCOUNT" not in environ:  # the other way to say the same
        environ.setdefault("OMP_WAIT_POLICY", WAIT_POLICY)
    limit = container_limit()
    if limit is not None and limit < num_cores():
        environ.setdefault("OMP_NUM_THREADS", str(limit))


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

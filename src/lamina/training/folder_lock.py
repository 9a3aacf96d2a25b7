"""One run at a time in a folder, so that the checkpoints in it are those of one model.

The system's lock on a file ends with the process that holds it, however that ends, also on a network file system whose server
knows locks. Where there are none, or none between machines, a holder shows that it lives by touching the file.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from lamina import console, provenance
from lamina.errors import CheckpointError
from lamina.files import is_running

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".lamina-lock"
SECONDS_BETWEEN_SIGNS = 10.0
# Without a sign for so long, a holder on another machine is taken for dead: two signs late, and half a one.
SECONDS_OF_SILENCE = 25.0


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Inside, no other run can use the folder; an error that says who does if one is there already."""
    path = folder / LOCK_NAME
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _take(path)
    except OSError:  # nothing can be written there: what that means for the run is told where it begins to save
        handle = None
    if handle is None:
        yield
        return
    over = threading.Event()
    threading.Thread(target=_show_signs, args=(path, over), name="lock", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with suppress(OSError):
            path.unlink()
        os.close(handle)
        if is_new:
            with suppress(OSError):  # something was saved
                folder.rmdir()


def _take(path: Path) -> int:
    while True:
        handle, is_ours = _open(path)
        try:
            is_locked = _lock(handle)
            holder = _read(handle)
            if not _is_there(path, handle):  # its last holder has removed it since: others would lock a new one
                os.close(handle)
                continue
            if holder and _may_live(holder, path, is_locked=is_locked):
                raise _in_use(path, holder, is_locked=is_locked)
            if not is_ours:
                path.unlink()
                os.close(handle)
                continue
            _write(handle)
        except BlockingIOError:
            error = _in_use(path, _read(handle), is_locked=True)
            os.close(handle)
            raise error from None
        except BaseException:
            os.close(handle)
            raise
        return handle


def _open(path: Path) -> tuple[int, bool]:
    """And whether it can be written: one that another person's run has left can be locked and removed only."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666), True
    except PermissionError:
        return os.open(path, os.O_RDONLY), False


def _is_there(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _lock(handle: int) -> bool:
    """Whether the file system knows locks; BlockingIOError where somebody else has it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _may_live(holder: dict[str, Any], path: Path, *, is_locked: bool) -> bool:
    """Of one that did not remove its file."""
    if holder["host"] == socket.gethostname():
        return not is_locked and is_running(holder["process"])
    console.notice(f"{path.parent} bears the mark of process {holder['process']} on {holder['host']}: watching it for "
                   f"{SECONDS_OF_SILENCE:g} s for signs of life")
    before = _last_sign(path)
    until = time.monotonic() + SECONDS_OF_SILENCE
    while time.monotonic() < until:
        time.sleep(min(1.0, SECONDS_OF_SILENCE))
        if _last_sign(path) != before:
            return True
    return False


def _last_sign(path: Path) -> int:
    """Opened again each time: a network file system then asks its server."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return 0


def _show_signs(path: Path, over: threading.Event) -> None:
    while not over.wait(SECONDS_BETWEEN_SIGNS):
        with suppress(OSError):
            os.utime(path)


def _read(handle: int) -> dict[str, Any]:
    """Who holds it, as far as that can be read."""
    try:
        found = json.loads(os.pread(handle, 65536, 0))
        return {"host": str(found["host"]), "process": int(found["process"]), "since": str(found["since"]),
                "command": str(found["command"])}
    except (ValueError, TypeError, KeyError):
        return {}


def _write(handle: int) -> None:
    holder = {"host": socket.gethostname(), "process": os.getpid(), "since": datetime.now().isoformat(" ", "seconds"),
              "command": provenance.command_line()}
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(holder).encode(), 0)


def _in_use(path: Path, holder: dict[str, Any], *, is_locked: bool) -> CheckpointError:
    who = "another run"
    if holder:
        command = f" ({holder['command']})" if holder["command"] else ""
        who = f"process {holder['process']} on {holder['host']} since {holder['since']}{command}"
    gone = "" if is_locked else f" If that process is gone, remove {path}."
    return CheckpointError(f"{path.parent} is in use by {who}. Two runs there would mix their checkpoints: wait for it, or "
                           f"choose another --save-dir.{gone}")

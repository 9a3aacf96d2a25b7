"""A server on this machine, in a process of its own, and clients that cost little."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

TIMEOUT = 120.0  # seconds that a client waits
STARTED = re.compile(r"serving on http://(.+):(\d+);")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process and of those that it has started."""
    return sum(int(value) for own in family(pid) for value in read(own, "stat").rpartition(")")[2].split()[11:13]) / TICKS


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        children = [int(child) for thread in threads for child in read(pid, f"task/{thread}/children").split()]
    except FileNotFoundError:  # a system that does not tell, or a process that has ended
        return [pid]
    return [pid, *(own for child in children for own in family(child))]


def read(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", encoding="utf-8") as file:
        return file.read()


class Server:
    """`lamina serve`, on a free port of the loopback interface."""

    def __init__(self, words: Sequence[str]) -> None:
        command = [sys.executable, "-m", "lamina", "serve", *words, "--host", "127.0.0.1", "--port", "0", "--no-page"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            said.append(line)
            if found := STARTED.search(line):
                self.host, self.port = found[1], int(found[2])
                return
        sys.exit("".join(said))

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def resident_mib(self) -> float:
        """Of all its processes; what they share counts once."""
        pids = family(self.process.pid)
        if len(pids) == 1:
            return int(read(pids[0], "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        own = (re.search(r"^Pss:\s+(\d+) kB", read(pid, "smaps_rollup"), re.MULTILINE) for pid in pids)
        return sum(int(found[1]) for found in own if found) / 1024

    def num_files(self) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in family(self.process.pid))

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> int:
        """Its exit status, after SIGTERM."""
        if self.is_alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


class Connection:
    """One that is kept open from request to request."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def send(self, path: str, body: bytes, *, kind: str = "application/json") -> None:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.server.host, self.server.port)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def answer(self) -> tuple[int, Any]:
        assert self.reader is not None
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", head)
        body = await self.reader.readexactly(int(length[1]) if length else 0)
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), json.loads(body) if body else None

    async def ask(self, path: str, values: Any) -> tuple[int, Any]:
        async def asked() -> tuple[int, Any]:
            await self.send(path, json.dumps(values).encode())
            return await self.answer()

        was_open = self.writer is not None
        try:
            return await asyncio.wait_for(asked(), TIMEOUT)
        except (ConnectionError, asyncio.IncompleteReadError):
            # One that rested for long may be closed from the other side just now; that is no answer to this request.
            if not was_open:
                raise
            self.close()
            return await asyncio.wait_for(asked(), TIMEOUT)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

"""A server from its first connection to its last: signals, draining, and connections that never say what they want."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lamina.errors import ConfigError
from lamina.serve.service import Service

HEAD_SECONDS = 20.0  # that a client has to say what it wants
KEEP_ALIVE_SECONDS = 75
MAX_HEAD = 32 * 1024
LAST_SECONDS = 1.0  # of the grace, to tell those whose time is over
BUSY = (b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Type: application/json\r\nContent-Length: 61\r\n"
        b'Connection: close\r\n\r\n{"error": "the server is busy: it has too many connections."}')


def listening_socket(host: str, port: int) -> socket.socket:
    """Bound, not yet listening: a port that is taken is told before models are loaded."""
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        own = socket.socket(family, kind)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} of {host} is taken. Stop what listens there, or choose another --port.") from None
        raise ConfigError(f"cannot listen on --host {host} --port {port}: {error.strerror or error}.") from None
    return own


def raise_file_limit(wanted: int) -> int:
    """How many connections this process may hold: each takes a file descriptor, of which systems grant few at first."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = wanted + 128
        if soft != resource.RLIM_INFINITY and soft < needed:
            limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return min(wanted, max(16, limit - 128))
    return wanted


class Server(uvicorn.Server):
    """Stops taking connections when it is told to, and lets those it has finish."""

    def __init__(self, app: Starlette, service: Service, *, grace: float, max_connections: int,
                 trusted_proxies: Sequence[str] = (), started: Callable[[Server], object] = lambda server: None) -> None:
        limit = raise_file_limit(max_connections)

        class Protocol(PatientProtocol):
            max_connections = limit

        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        super().__init__(uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", http=Protocol, loop="auto",
            server_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=grace,  # type: ignore[arg-type]
            proxy_headers=bool(trusted_proxies), forwarded_allow_ips=list(trusted_proxies) or None))
        self.service, self.grace = service, grace
        self.stopped_at: float | None = None
        self.tell_started = started
        service.num_connections = lambda: len(self.server_state.connections)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.tell_started(self)

    def stop(self) -> None:
        """From any thread."""
        self.service.is_stopping = True
        self.stopped_at = self.stopped_at or time.monotonic()
        self.should_exit = True

    @property
    def grace_left(self) -> float:
        return self.grace if self.stopped_at is None else max(0.0, self.stopped_at + self.grace - time.monotonic())

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal is how a server is stopped: the exit status is 0. A second Ctrl-C does not wait."""
        def handle(number: int, frame: FrameType | None) -> None:
            if self.should_exit and number == signal.SIGINT:
                self.force_exit = True
            self.stop()

        before = {}
        with suppress(ValueError):  # not the main thread: what started it stops it
            before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        late = loop.call_later(max(0.0, self.grace_left - LAST_SECONDS), self.service.given_up.set)
        self.config.timeout_graceful_shutdown = self.grace_left  # type: ignore[assignment]
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()


class PatientProtocol(HttpToolsProtocol):
    """One connection. It has a limited time and room to say what it wants, and there is a limited number of them."""

    max_connections: int

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_in_head = False
        self._head_size = 0  # of what has arrived of a head that is not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.write(BUSY)
            transport.close()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_idle = self.timeout_keep_alive_task is not None
        requests = self.cycle
        super().data_received(data)
        self._head_size = self._head_size + len(data) if self._is_in_head else 0
        if self._head_size > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of this request is too large.")
            return
        if self.cycle is not requests:
            self._stop_timer()  # it has said it
        elif was_idle:
            self._await_head()  # the next request has begun

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def run_server(app: Starlette, service: Service, own: socket.socket, *, grace: float, max_connections: int,
               trusted_proxies: Sequence[str] = (), started: Callable[[Server], object] = lambda server: None) -> None:
    """Until a signal, or `stop`. Then no connection comes in any more, and models finish what they have begun."""
    server = Server(app, service, grace=grace, max_connections=max_connections, trusted_proxies=trusted_proxies,
                    started=started)
    try:
        server.run(sockets=[own])
    finally:
        service.is_stopping = True
        for worker in service.workers:
            worker.close(server.grace_left if server.stopped_at is not None else 0.0)

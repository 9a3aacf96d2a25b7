"""What all endpoints share: models, limits, keys, counters, and how an answer of a worker thread is waited for."""

from __future__ import annotations

import asyncio
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lamina import console
from lamina.config.serve_options import ServiceLimits
from lamina.errors import ConfigError, DataError
from lamina.serve.api_keys import ApiKeys, key_in
from lamina.serve.bodies import Fields, parse_body, read_body
from lamina.serve.counters import Counters
from lamina.serve.exchange import Answer, ClosedError, QueueFullError, WorkerLostError
from lamina.serve.gap_filling import GapFiller
from lamina.serve.problems import ClientGoneError, RequestError, busy, interrupted, stopping
from lamina.serve.translating import Pair
from lamina.serve.writing import Writer

T = TypeVar("T")
Shape = Callable[[str, int], dict[str, Any]]  # an error's text and status, as an API writes it
GONE = 499  # what servers log if the client has left; it is not sent


@dataclass
class Service:
    pairs: list[Pair] = field(default_factory=list)
    writers: dict[str, Writer] = field(default_factory=dict)
    fillers: dict[str, GapFiller] = field(default_factory=dict)
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    keys: ApiKeys = field(default_factory=ApiKeys)
    logs_requests: bool = False
    counters: Counters = field(default_factory=Counters)
    is_stopping: bool = False
    given_up: asyncio.Event = field(default_factory=asyncio.Event)  # the grace is over
    num_connections: Callable[[], int] = lambda: 0
    _over: asyncio.Future[Any] | None = None

    @property
    def workers(self) -> list[Any]:
        """Whatever has a thread and a `close`."""
        return [*(pair.engine for pair in self.pairs), *self.writers.values(), *self.fillers.values()]

    # -- requests

    async def fields(self, request: Request) -> Fields:
        body = await read_body(request, self.limits.max_body)
        return parse_body(request.headers.get("content-type", ""), body)

    def client(self, request: Request, key: str | None = None, *, status: int = 403) -> str:
        """Who asks, for taking turns: by key, or by address. `key`: the one in the body, where an API has it there."""
        if self.keys.are_needed:
            number = self.keys.number_of(key_in(request.headers) or key)
            if number is None:
                raise RequestError(status, "a key is needed, and the one given is missing or wrong.")
            return f"key {number}"
        return request.client.host if request.client is not None else ""

    async def wait(self, request: Request, future: Future[T]) -> T:
        """The result; a client that leaves, or takes too long, frees what the work holds."""
        result = asyncio.wrap_future(future)
        gone = asyncio.ensure_future(_until_gone(request))
        over = self._over = self._over or asyncio.ensure_future(self.given_up.wait())  # one for all
        try:
            waited: set[asyncio.Future[Any]] = {result, gone, over}
            await asyncio.wait(waited, timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                if result.cancelled():
                    raise stopping()
                return result.result()
            if over.done():
                raise stopping()
            if gone.done():
                raise ClientGoneError
            raise RequestError(503, f"this took longer than {self.limits.timeout:g} seconds and was given up. Send less text "
                                    "at a time, or try again later.", retry_after=10)
        finally:
            result.cancel()
            gone.cancel()

    def translated(self, client: str, texts: Sequence[str], answer: Answer) -> None:
        """Count what was done for a client."""
        key = client if self.keys.are_needed else ""
        self.counters.characters[key] += sum(map(len, texts))
        self.counters.add_tokens(sum(results[0].num_tokens for results in answer.results))

    def characters(self, client: str) -> int:
        """Translated since the start: for this client's key, or for all where there are no keys."""
        return self.counters.characters[client if self.keys.are_needed else ""]

    # -- answers

    def endpoint(self, api: str, shape: Shape, run: Callable[[Request], Awaitable[Response]],
                 ) -> Callable[[Request], Awaitable[Response]]:
        """What goes wrong becomes an answer in the API's shape; what happened is counted."""

        async def answer(request: Request) -> Response:
            started = time.perf_counter()
            response = await self._answered(shape, run, request)
            seconds = time.perf_counter() - started
            self.counters.answered(api, response.status_code, seconds)
            if self.logs_requests:
                console.notice(f"{request.method} {request.url.path} {response.status_code} {1000 * seconds:.0f} ms")
            return response

        return answer

    async def _run(self, run: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        try:
            if self.is_stopping:
                raise stopping()
            return await run(request)
        except QueueFullError as full:
            raise busy(full.retry_after) from None
        except ClosedError:
            raise stopping() from None
        except WorkerLostError:
            raise interrupted() from None

    async def _answered(self, shape: Shape, run: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        try:
            return await self._run(run, request)
        except RequestError as problem:
            return JSONResponse(shape(problem.message, problem.status), problem.status, headers=problem.headers)
        except ClientGoneError:
            return Response(status_code=GONE)
        except (ConfigError, DataError) as error:
            return JSONResponse(shape(str(error), 400), 400)
        except Exception:  # whatever it says of files and lines is for our own log
            number = secrets.token_hex(4)
            console.tell(f"error {number}: {traceback.format_exc()}")
            return JSONResponse(shape(f"this went wrong inside the server, which logged it as error {number}.", 500), 500)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def plain_error(message: str, status: int) -> dict[str, Any]:
    """LibreTranslate's form, and that of whatever is ours."""
    return {"error": message}

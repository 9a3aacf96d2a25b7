"""What is wrong with a request, or with us, in the words that its sender gets to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lamina.suggestions import suggestion

RETRY_SECONDS = 2  # what clients that find the queue full are told to wait


class RequestError(Exception):
    """Becomes an answer: its status, one line of text, and after how many seconds to try again, where that may help."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None, closes: bool = False,
                 headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after
        self.closes = closes  # the connection: what follows on it was not read
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)
        if closes:
            self.headers["Connection"] = "close"


class ClientGoneError(Exception):
    """The client has left."""


def busy(seconds: float = RETRY_SECONDS) -> RequestError:
    wait = max(1, round(seconds))
    return RequestError(503, f"the server is busy: its queue is full. Try again in {wait} s.", retry_after=wait)


def stopping() -> RequestError:
    return RequestError(503, "the server is stopping. Try again in a moment.", retry_after=RETRY_SECONDS, closes=True)


def interrupted() -> RequestError:
    return RequestError(503, "a process that translated this was killed. Try again in a moment.", retry_after=RETRY_SECONDS)


def refuse_unknown(given: Collection[str], known: Collection[str], refused: Mapping[str, str]) -> None:
    """A field that we do not serve is an answer to another question: it is named, never left out in silence."""
    for name in given:
        if name in refused:
            raise RequestError(400, f"{name} is not supported: {refused[name]}. Leave it out.")
        if name not in known:
            hint = suggestion(name, known).replace("--", "")
            raise RequestError(400, f"there is no field {name[:60]!r}.{hint}")

"""The body of a request: read up to a limit, as JSON or as a form, and its fields one by one, each checked."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn
from urllib.parse import parse_qsl

import anyio
from starlette.requests import ClientDisconnect, Request

from lamina.serve.problems import ClientGoneError, RequestError

MAX_FIELDS = 2000
# Of a body that is too large, so much is read and thrown away: a client that still writes would not read our answer.
MAX_DISCARDED = 64 * 2**20
DISCARD_SECONDS = 5.0
READ_SECONDS = 20.0
SWITCHES = {"1": True, "true": True, "0": False, "false": False}

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit  # a tenth of what anyio's takes
else:
    @asynccontextmanager
    async def time_limit(seconds: float) -> AsyncIterator[None]:
        with anyio.fail_after(seconds):
            yield


async def read_body(request: Request, limit: int) -> bytes:
    """Never holds more than the limit."""
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > limit:
        await _refuse_size(request, limit)
    kept = bytearray()
    try:
        async with time_limit(READ_SECONDS):
            async for chunk in request.stream():
                kept += chunk
                if len(kept) > limit:
                    kept.clear()
                    await _refuse_size(request, limit)
    except TimeoutError:
        raise RequestError(408, f"the body did not arrive within {READ_SECONDS:.0f} seconds.", closes=True) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(kept)


async def _refuse_size(request: Request, limit: int) -> NoReturn:
    discarded = 0
    try:
        async with time_limit(DISCARD_SECONDS):
            async for chunk in request.stream():
                discarded += len(chunk)
                if discarded > MAX_DISCARDED:
                    break
    except (TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: the caller's loop has begun to read it
        pass
    raise RequestError(413, f"the body is larger than {limit // 1024} KiB. Send less at a time.", closes=True)


class Fields:
    """The fields of a body. Each getter answers None where the field is absent, or null, and checks it otherwise."""

    def __init__(self, values: Mapping[str, Any], *, is_form: bool) -> None:
        self.values = values
        self.is_form = is_form

    @property
    def given(self) -> list[str]:
        return [name for name, value in self.values.items() if value is not None]

    def _last(self, name: str) -> Any:
        value = self.values.get(name)
        return value[-1] if self.is_form and value is not None else value

    def text(self, name: str) -> str | None:
        value = self._last(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise RequestError(400, f"{name} must be text.")
        return self.whole_text(name, value)

    def texts(self, name: str) -> list[str] | None:
        """One text or a list of them, as a list."""
        value = self.values.get(name)
        if value is None:
            return None
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise RequestError(400, f"{name} must be text, or a list of texts.")
        return [self.whole_text(name, item) for item in items]

    def is_one(self, name: str) -> bool:
        """Whether a text stands there, and no list."""
        value = self.values.get(name)
        return len(value) == 1 if self.is_form and value is not None else isinstance(value, str)

    @staticmethod
    def whole_text(name: str, text: str) -> str:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise RequestError(400, f"{name} holds half of a surrogate pair, which is no text.") from None
        return text

    def switch(self, name: str) -> bool | None:
        value = self._last(name)
        if isinstance(value, str) and self.is_form:
            value = SWITCHES.get(value.lower(), value)
        if value is not None and not isinstance(value, bool):
            raise RequestError(400, f"{name} must be true or false.")
        return value

    def whole(self, name: str, lowest: int, highest: int, why: str = "") -> int | None:
        """A whole number within bounds."""
        value = self.number(name)
        if value is None:
            return None
        if not float(value).is_integer() or not lowest <= value <= highest:
            raise RequestError(400, f"{name} must be a whole number from {lowest} to {highest}{why}.")
        return int(value)

    def number(self, name: str, lowest: float = -math.inf, highest: float = math.inf) -> float | None:
        value = self._last(name)
        if isinstance(value, str) and self.is_form:
            try:
                value = float(value)
            except ValueError:
                value = math.nan
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300 or not math.isfinite(value):
            raise RequestError(400, f"{name} must be a number.")
        if not lowest <= value <= highest:
            raise RequestError(400, f"{name} must be a number from {lowest:g} to {highest:g}.")
        return value

    def structure(self, name: str) -> Any:
        """Anything: of a form, the JSON in it, or its text where that is none."""
        value = self._last(name)
        if isinstance(value, str) and self.is_form:
            try:
                return _json(value)
            except RequestError:
                return value
        return value

    def one_of(self, name: str, choices: Collection[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in choices:
            raise RequestError(400, f"{name} must be one of {', '.join(choices)}.")
        return value


def parse_body(content_type: str, body: bytes) -> Fields:
    """JSON where the header says so, a form otherwise, as curl -d and urllib send it."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError(400, "the body is not UTF-8.") from None
    if kind == "application/json" or (not kind and text.lstrip().startswith("{")):
        values = _json(text) if text.strip() else {}
        if not isinstance(values, dict):
            raise RequestError(400, "the body must be a JSON object.")
        return Fields(values, is_form=False)
    if kind in ("application/x-www-form-urlencoded", ""):
        try:
            pairs = parse_qsl(text, keep_blank_values=True, encoding="utf-8", errors="strict", max_num_fields=MAX_FIELDS)
        except ValueError:
            raise RequestError(400, f"the form is not UTF-8, or has more than {MAX_FIELDS} fields.") from None
        form: dict[str, list[str]] = {}
        for name, value in pairs:
            form.setdefault(name, []).append(value)
        return Fields(form, is_form=True)
    raise RequestError(415, "the body must be application/json or application/x-www-form-urlencoded.")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is not JSON.") from None

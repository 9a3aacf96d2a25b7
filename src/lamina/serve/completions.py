"""OpenAI's API for completions, as its official client uses it: language models write behind a prompt."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lamina.serve.bodies import Fields
from lamina.serve.own_fields import checked_texts
from lamina.serve.problems import ClientGoneError, RequestError, refuse_unknown, stopping
from lamina.serve.service import Service
from lamina.serve.writing import Part, Prompt, Writer, Writing

DEFAULT_MAX_TOKENS = 16  # as the API documents it
MAX_STOPS, MAX_STOP_CHARS = 4, 200
MAX_CHOICES = 16
KNOWN = ("model", "prompt", "max_tokens", "temperature", "top_p", "n", "stream", "stream_options", "stop", "seed", "echo",
         "user", "logprobs", "best_of", "presence_penalty", "frequency_penalty", "logit_bias", "suffix")
_NO_PENALTY = "tokens are not penalized for coming up again"
# Fields that change what is written, and the values at which they do nothing.
NEUTRAL = {"presence_penalty": (0, _NO_PENALTY), "frequency_penalty": (0, _NO_PENALTY),
           "logit_bias": ({}, "scores are not shifted"),
           "suffix": ("", "language models here write from left to right")}


def openai_error(message: str, status: int) -> dict[str, Any]:
    kind = "authentication_error" if status == 401 else "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def completion_routes(service: Service) -> list[Route]:
    async def models(request: Request) -> Response:
        service.client(request, status=401)
        return JSONResponse({"object": "list", "data": [_model(name) for name in service.writers]})

    async def model(request: Request) -> Response:
        service.client(request, status=401)
        name, _ = _chosen(service, request.path_params["name"])
        return JSONResponse(_model(name))

    async def completions(request: Request) -> Response:
        client = service.client(request, status=401)
        fields = await service.fields(request)
        _check_fields(fields)
        name, writer = _chosen(service, fields.text("model"))
        wanted = _prompts(service, fields, client)
        is_streamed = fields.switch("stream") or False
        with_usage = _with_usage(fields, is_streamed=is_streamed)
        answer = Answering(service, request, writer, wanted, {
            "id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()), "model": name})
        if is_streamed:
            answer.begin()
            return StreamingResponse(answer.events(echo=bool(fields.switch("echo")), with_usage=with_usage),
                                     media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        answer.begin()
        return JSONResponse(await answer.whole(echo=bool(fields.switch("echo"))))

    def route(path: str, run: Any, *methods: str) -> Route:
        return Route(f"/v1/{path}", service.endpoint("openai", openai_error, run), methods=list(methods))

    return [route("completions", completions, "POST"), route("models", models, "GET"),
            route("models/{name}", model, "GET")]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "lamina"}


def _chosen(service: Service, name: str | None) -> tuple[str, Writer]:
    if not service.writers:
        raise RequestError(404, "this server has no language model.")
    if name is None:
        raise RequestError(400, f"model is missing: one of {', '.join(service.writers)}.")
    if name not in service.writers:
        raise RequestError(404, f"there is no model {name[:60]!r}; there are {', '.join(service.writers)}.")
    return name, service.writers[name]


def _check_fields(fields: Fields) -> None:
    refuse_unknown(fields.given, KNOWN, {})
    for name, (neutral, why) in NEUTRAL.items():
        if fields.values.get(name) not in (None, neutral):
            raise RequestError(400, f"{name} is not supported: {why}. Leave it out.")
    number, best_of = fields.whole("n", 1, MAX_CHOICES) or 1, fields.whole("best_of", 1, MAX_CHOICES)
    if best_of not in (None, number):
        raise RequestError(400, "best_of is not supported: all that is written is returned. Leave it out.")
    if fields.values.get("logprobs") is not None and fields.whole("logprobs", 0, 5) != 0:
        raise RequestError(400, "logprobs is supported for the chosen tokens alone. Write 0, or leave it out.")


def _with_usage(fields: Fields, *, is_streamed: bool) -> bool:
    options = fields.structure("stream_options")
    if options is None:
        return False
    if not is_streamed or not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
        raise RequestError(400, 'stream_options goes with stream, and may be {"include_usage": true}.')
    return bool(options.get("include_usage"))


def _prompts(service: Service, fields: Fields, client: str) -> list[Prompt]:
    """One for each choice of the answer."""
    given = fields.values.get("prompt")
    if isinstance(given, list) and not all(isinstance(item, str) for item in given):
        raise RequestError(400, "prompt must be text, or a list of texts: numbers of tokens are not supported.")
    limits = service.limits
    texts = checked_texts("prompt", fields.texts("prompt"), max_texts=limits.max_texts, max_chars=limits.max_chars)
    if not texts:
        raise RequestError(400, "prompt is an empty list.")
    number = fields.whole("n", 1, MAX_CHOICES) or 1
    if number * len(texts) > service.limits.max_texts:
        raise RequestError(413, f"{number * len(texts)} texts are asked for; this server writes {limits.max_texts} at a "
                                "time.")
    seed = fields.whole("seed", -(2**63), 2**63 - 1)
    first = secrets.randbelow(2**31) if seed is None else abs(seed) % 2**31
    most = limits.max_new_tokens
    max_tokens = fields.whole("max_tokens", 1, most, ", this server's --max-new-tokens") or min(DEFAULT_MAX_TOKENS, most)
    options, stops = _sampling(fields), _stops(fields)
    return [Prompt(text=text, max_tokens=max_tokens, options=options, stops=stops, seed=(first, index * number + choice),
                   with_scores=fields.values.get("logprobs") is not None, client=client)
            for index, text in enumerate(texts) for choice in range(number)]


def _sampling(fields: Fields) -> dict[str, object]:
    temperature, top_p = fields.number("temperature", 0, 2), fields.number("top_p", 0, 1)
    if temperature == 0:
        return {"sampling": False, "temperature": 1.0}
    options: dict[str, object] = {"sampling": True}
    if temperature is not None:
        options["temperature"] = float(temperature)
    if top_p is not None and top_p < 1:
        options["sampling_topp"] = max(float(top_p), 1e-6)
    return options


def _stops(fields: Fields) -> list[str]:
    stops = fields.texts("stop") or []
    if len(stops) > MAX_STOPS or any(not 0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise RequestError(400, f"stop must be up to {MAX_STOPS} texts of 1 to {MAX_STOP_CHARS} characters.")
    return stops


class Answering:
    """The choices of one answer, written side by side."""

    def __init__(self, service: Service, request: Request, writer: Writer, prompts: list[Prompt], head: dict[str, Any]) -> None:
        self.service, self.request, self.writer, self.prompts, self.head = service, request, writer, prompts, head
        self.queue: asyncio.Queue[tuple[int, Part]] = asyncio.Queue()
        self.writings: list[Writing] = []
        self.last: dict[int, Part] = {}

    def begin(self) -> None:
        """What is wrong with a prompt comes up here, before an answer has begun."""
        loop = asyncio.get_running_loop()
        self.deadline = loop.time() + self.service.limits.timeout

        def teller(index: int) -> Any:
            def tell(part: Part) -> None:
                try:
                    loop.call_soon_threadsafe(self.queue.put_nowait, (index, part))
                except RuntimeError:  # the loop is closed: the server has stopped
                    self.writings[index].cancel()

            return tell

        try:
            for index, prompt in enumerate(self.prompts):
                self.writings.append(self.writer.submit(prompt, teller(index)))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        for writing in self.writings:
            writing.cancel()

    async def parts(self, *, watches: bool) -> AsyncIterator[tuple[int, Part]]:
        """Until each choice has had its last. `watches`: look whether the client is still there; a stream's sender does."""
        gone = asyncio.ensure_future(self._until_gone()) if watches else None
        over = asyncio.ensure_future(self.service.given_up.wait())
        try:
            while len(self.last) < len(self.prompts):
                following = asyncio.ensure_future(self.queue.get())
                waited = {following, over} | ({gone} if gone else set())
                left = self.deadline - asyncio.get_running_loop().time()
                await asyncio.wait(waited, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    if gone is not None and gone.done():
                        raise ClientGoneError
                    if over.done():
                        raise stopping()
                    raise RequestError(503, f"this took longer than {self.service.limits.timeout:g} seconds and was given "
                                            "up. Ask for fewer tokens, or try again later.", retry_after=10)
                index, part = following.result()
                if part.error is not None:
                    raise part.error
                if part.is_last:
                    self.last[index] = part
                yield index, part
        finally:
            self.cancel()
            over.cancel()
            if gone is not None:
                gone.cancel()
            self._count()

    async def _until_gone(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    def _count(self) -> None:
        number = sum(part.num_tokens for part in self.last.values())
        self.service.counters.tokens[self.head["model"]] += number
        self.service.counters.add_tokens(number)

    def usage(self) -> dict[str, int]:
        read = sum(part.num_prompt for part in self.last.values())
        written = sum(part.num_tokens for part in self.last.values())
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    async def whole(self, *, echo: bool) -> dict[str, Any]:
        texts = [prompt.text if echo else "" for prompt in self.prompts]
        async for index, part in self.parts(watches=True):
            texts[index] += part.text
        choices = [_choice(index, text, self.last[index]) for index, text in enumerate(texts)]
        return {**self.head, "choices": choices, "usage": self.usage()}

    async def events(self, *, echo: bool, with_usage: bool) -> AsyncIterator[str]:
        usage = {"usage": None} if with_usage else {}
        try:
            for index, prompt in enumerate(self.prompts if echo else ()):
                yield _event({**self.head, "choices": [_choice(index, prompt.text, Part())], **usage})
            async for index, part in self.parts(watches=False):
                yield _event({**self.head, "choices": [_choice(index, part.text, part)], **usage})
            if with_usage:
                yield _event({**self.head, "choices": [], "usage": self.usage()})
        except RequestError as problem:
            yield _event(openai_error(problem.message, problem.status))
        except Exception:
            yield _event(openai_error("this went wrong inside the server.", 500))
            raise
        finally:
            self.cancel()
        yield "data: [DONE]\n\n"


def _choice(index: int, text: str, part: Part) -> dict[str, Any]:
    logprobs = None
    if part.tokens is not None and part.scores is not None:
        logprobs = {"tokens": part.tokens, "token_logprobs": part.scores, "top_logprobs": None, "text_offset": None}
    return {"index": index, "text": text, "finish_reason": part.reason, "logprobs": logprobs}


def _event(values: dict[str, Any]) -> str:
    return f"data: {json.dumps(values, ensure_ascii=False)}\n\n"

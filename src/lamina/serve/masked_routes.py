"""Endpoints of our own for masked language models and classifiers, which no published API has."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lamina.serve.gap_filling import GapFiller
from lamina.serve.own_fields import checked_texts
from lamina.serve.problems import RequestError, refuse_unknown
from lamina.serve.service import Service, plain_error

MAX_FILLINGS = 100


def masked_routes(service: Service) -> list[Route]:
    def route(path: str, run: Any) -> Route:
        return Route(path, service.endpoint("masked", plain_error, run), methods=["POST"])

    def texts_in(fields: Any) -> tuple[bool, list[str]]:
        texts = checked_texts("text", fields.texts("text"), max_texts=service.limits.max_texts,
                              max_chars=service.limits.max_chars)
        return fields.is_one("text"), texts

    async def fill(request: Request) -> Response:
        fields = await service.fields(request)
        service.client(request, fields.text("api_key"))
        refuse_unknown(fields.given, ("text", "topk", "model", "api_key"), {})
        filler = _chosen(service.fillers, fields.text("model"))
        is_one, texts = texts_in(fields)
        found = await service.wait(request, filler.fill(texts, fields.whole("topk", 1, MAX_FILLINGS) or 5))
        fillings = [[vars(filling) for filling in own] for own in found]
        return JSONResponse({"fillings": fillings[0] if is_one else fillings})

    async def classify(request: Request) -> Response:
        fields = await service.fields(request)
        service.client(request, fields.text("api_key"))
        refuse_unknown(fields.given, ("text", "head", "model", "api_key"), {})
        filler = _chosen(service.fillers, fields.text("model"))
        heads = filler.model.heads
        if not heads:
            raise RequestError(400, "this model fills gaps and has no sentence head: ask /fill-mask.")
        head = fields.one_of("head", heads) or heads[0]
        is_one, texts = texts_in(fields)
        found = [vars(own) for own in await service.wait(request, filler.classify(head, texts))]
        return JSONResponse({"predictions": found[0] if is_one else found})

    return [route("/fill-mask", fill), route("/classify", classify)]


def _chosen(fillers: dict[str, GapFiller], name: str | None) -> GapFiller:
    if not fillers:
        raise RequestError(404, "this server has no masked language model.")
    if name is None and len(fillers) == 1:
        return next(iter(fillers.values()))
    if name is None or name not in fillers:
        raise RequestError(400, f"model must be one of {', '.join(fillers)}.")
    return fillers[name]

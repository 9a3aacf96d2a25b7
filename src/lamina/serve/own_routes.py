"""What is ours: the page and what it asks for, and what watches a server asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lamina import __version__
from lamina.analysis.fusion_weights import mixes_hard
from lamina.config.chosen_depth import parse_depth
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.heads import HardMix, SurfaceHead
from lamina.serve.counters import prometheus_text
from lamina.serve.language_names import name_of
from lamina.serve.own_fields import checked_texts, own_fields
from lamina.serve.problems import refuse_unknown
from lamina.serve.service import Service, plain_error
from lamina.serve.translating import Pair, find_pair, submitted
from lamina.serve.word_alignment import words_of
from lamina.text.sentence_splitter import split_sentences

KINDS = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
         "svg": "image/svg+xml"}
MOST_DEPTHS = 12  # stops of the page's slider


def own_routes(service: Service, *, has_page: bool) -> list[Route]:
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def ready(request: Request) -> Response:
        if service.is_stopping:
            return JSONResponse({"status": "stopping"}, 503, headers={"Retry-After": "2"})
        return JSONResponse({"status": "ready"})

    async def metrics(request: Request) -> Response:
        service.client(request)
        stats = {pair.name: pair.engine.stats() for pair in service.pairs}
        text = prometheus_text(service.counters, stats, service.num_connections())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(request: Request) -> Response:
        pairs = [described_pair(pair) for pair in service.pairs]
        masked = [{"name": name, "heads": filler.model.heads} for name, filler in service.fillers.items()]
        return JSONResponse({"translation": pairs, "language": list(service.writers), "masked": masked,
                             "limits": {"chars": service.limits.max_chars, "beam": service.limits.max_beam,
                                        "new_tokens": service.limits.max_new_tokens, "seconds": service.limits.timeout},
                             "needs_key": service.keys.are_needed, "version": __version__})

    async def inspect(request: Request) -> Response:
        client = service.client(request)
        fields = await service.fields(request)
        refuse_unknown(fields.given, ("text", "source", "target", "beam"), {})
        text, = checked_texts("text", fields.texts("text"), max_texts=1, max_chars=service.limits.max_chars)
        pair, _ = find_pair(service.pairs, fields.text("source"), fields.text("target") or "")
        own = own_fields(fields, num_texts=1, max_beam=service.limits.max_beam)
        if not mixes_hard(pair.translator.models[0]) or len(pair.translator.models) > 1:
            return JSONResponse({"words": None})
        sentences = [segment.text for segment in split_sentences(text, pair.source) if segment.text.strip()]
        if not sentences:
            return JSONResponse({"words": []})
        answer = await service.wait(request, await submitted(pair, sentences, own, client, splits=False))
        pairs = list(zip(sentences, [results[0].text for results in answer.results], strict=True))
        return JSONResponse({"words": await anyio.to_thread.run_sync(surface_shares, pair, pairs)})

    def route(path: str, run: Any, *methods: str, api: str = "page") -> Route:
        return Route(path, service.endpoint(api, plain_error, run), methods=list(methods))

    routes = [Route("/health", health, methods=["GET"]), Route("/ready", ready, methods=["GET"]),
              route("/metrics", metrics, "GET", api="metrics"), route("/models", models, "GET"),
              route("/inspect", inspect, "POST")]
    return routes + (page_routes() if has_page else [])


def depth_stops(layers: Mapping[str, int]) -> list[dict[str, Any]]:
    """Depths from the least to all layers, both stacks in proportion, and which layers run then."""
    number = min(max(layers.values()), MOST_DEPTHS)
    counts = [{side: max(1, round(own * stop / number)) for side, own in layers.items()} for stop in range(1, number + 1)]
    stops: list[dict[str, Any]] = []
    for count in counts:
        depth = parse_depth(count)
        assert depth is not None
        stop = {**count, **{f"{side}_layers": depth.layers(side, own) for side, own in layers.items()}}
        if stop not in stops:
            stops.append(stop)
    return stops


def described_pair(pair: Pair) -> dict[str, Any]:
    """What the page shows of a model: its languages and shape, nothing of its files."""
    translator, layers = pair.translator, dict(pair.engine.num_layers)
    fusion = None if len(translator.models) > 1 else translator.fusion_weights()
    return {"source": pair.source, "target": pair.target, "source_name": name_of(pair.source),
            "target_name": name_of(pair.target), "layers": layers, "depths": depth_stops(layers),
            "parameters": translator.num_parameters, "beam": pair.engine.search_options({}).beam,
            "has_layerdrop": pair.has_layerdrop, "has_cascade": pair.engine.cascade is not None,
            "fusion": None if fusion is None else {"columns": fusion.columns, "shares": fusion.shares.round(4).tolist()},
            "surface": described_surface(translator.models)}


def described_surface(models: Sequence[EncoderDecoder]) -> dict[str, Any] | None:
    """What the softmax reads of the source, and its share of the scores: fixed, learned for each word, or None."""
    head = models[0].head
    if len(models) > 1 or not isinstance(head, SurfaceHead):
        return None
    gate = head.mix.gate if isinstance(head.mix, HardMix) else None
    return {"reads": head.in_words(), "share": 1.0 - gate if gate else None, "is_per_word": mixes_hard(models[0]) and not gate}


def surface_shares(pair: Pair, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """For each word of translations, the weight of the source surface in its scores: the mean of its pieces."""
    translator, found = pair.translator, []
    for source, target in pairs:
        ids = translator.encode_target(target).tolist()
        if len(ids) < 2:
            continue
        values = translator.gates([(source, target)]).values.tolist()
        words = words_of(translator.vocabularies[1].decode(ids), pair.engine.join_target)
        for number, text in enumerate(target.split()):
            own = [1.0 - value for value, word in zip(values, words, strict=False) if word == number]
            found.append({"text": text, "surface": sum(own) / len(own) if own else None})
    return found


def page_routes() -> list[Route]:
    """Read once; a browser that has a file asks whether it is still the same."""
    folder = resources.files("lamina.serve").joinpath("page")
    files = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name.rpartition(".")[2] in KINDS}

    async def page_file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        content = files.get(name)
        if content is None:
            return JSONResponse(plain_error("there is no such page.", 404), 404)
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:20]}"', "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=KINDS[name.rpartition(".")[2]], headers=headers)

    return [Route("/", page_file, methods=["GET"]), Route("/page/{name}", page_file, methods=["GET"])]

"""LibreTranslate's API, as its published clients use it, with our own fields."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lamina.serve.language_names import name_of
from lamina.serve.own_fields import OWN_FIELDS, checked_texts, own_fields
from lamina.serve.problems import RequestError, refuse_unknown
from lamina.serve.service import Service, plain_error
from lamina.serve.translating import depth_of, described, find_pair, sources_of, submitted, targets_of

KNOWN = ("q", "source", "target", "format", "alternatives", "api_key", "secret", *OWN_FIELDS)
REFUSED = {"file": "documents are not translated here"}


def libretranslate_routes(service: Service) -> list[Route]:
    def route(path: str, run: Any, *methods: str) -> Route:
        return Route(path, service.endpoint("libretranslate", plain_error, run), methods=list(methods))

    async def translate(request: Request) -> Response:
        fields = await service.fields(request)
        client = service.client(request, fields.text("api_key"))
        refuse_unknown(fields.given, KNOWN, REFUSED)
        if (form := fields.one_of("format", ("text", "html"))) == "html":
            raise RequestError(400, f"format {form} is not supported: models translate plain text. Write format: text, or "
                                    "leave it out.")
        is_one = fields.is_one("q")
        texts = checked_texts("q", fields.texts("q"), max_texts=service.limits.max_texts, max_chars=service.limits.max_chars)
        target = fields.text("target")
        if not target:
            raise RequestError(400, f"target is missing: one of {', '.join(targets_of(service.pairs))}.")
        pair, is_assumed = find_pair(service.pairs, fields.text("source"), target)
        own = own_fields(fields, num_texts=len(texts), max_beam=service.limits.max_beam)
        number = fields.whole("alternatives", 0, service.limits.max_beam - 1) or 0
        answer = await service.wait(request, await submitted(pair, texts, own, client, nbest=number + 1 if number else None))
        service.translated(client, texts, answer)

        def of_all(values: list[Any]) -> Any:
            return values[0] if is_one else values

        found: dict[str, Any] = {"translatedText": of_all([own_results[0].text for own_results in answer.results])}
        if is_assumed:
            detected = {"language": pair.source, "confidence": 0.0}
            found["detectedLanguage"] = of_all([detected for _ in texts])
        if number:
            found["alternatives"] = of_all([[other.text for other in results[1 : number + 1]] for results in answer.results])
        if own.wants_hypotheses:
            found["hypotheses"] = of_all([[described(hypothesis, own) for hypothesis in results] for results in answer.results])
        if own.depth is not None or own.wants_hypotheses:
            found |= {"depth": depth_of([results[0] for results in answer.results]), "seconds": answer.seconds,
                      "waited": answer.waited, "tokens": sum(results[0].num_tokens for results in answer.results)}
        if any(results[0].is_cut for results in answer.results):
            found["warning"] = "a sentence was longer than the model's positions, and its end was left out."
        return JSONResponse(found)

    async def detect(request: Request) -> Response:
        fields = await service.fields(request)
        service.client(request, fields.text("api_key"))
        refuse_unknown(fields.given, ("q", "api_key", "secret"), {})
        checked_texts("q", fields.texts("q"), max_texts=1, max_chars=service.limits.max_chars)
        known = sources_of(service.pairs)
        if len(known) != 1:
            raise RequestError(501, f"languages are not detected here: models read {', '.join(known) or 'none'}. Say which it "
                                    "is.")
        # The only language that is read here; nothing was measured, so there is no confidence.
        return JSONResponse([{"language": known[0], "confidence": 0.0}])

    async def languages(request: Request) -> Response:
        service.client(request, (await service.fields(request)).text("api_key"))
        return JSONResponse([{"code": code, "name": name_of(code), "targets": targets_of(service.pairs, code)}
                             for code in sources_of(service.pairs)])

    return [route("/translate", translate, "POST"), route("/detect", detect, "POST"), route("/languages", languages, "GET")]

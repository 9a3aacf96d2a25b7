"""DeepL's API, as its official client uses it, with our own fields."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lamina.serve.bodies import Fields
from lamina.serve.language_names import base, name_of, normalised
from lamina.serve.own_fields import OWN_FIELDS, checked_texts, own_fields
from lamina.serve.problems import RequestError, refuse_unknown
from lamina.serve.service import Service
from lamina.serve.translating import depth_of, described, find_pair, sources_of, submitted, targets_of

NO_LIMIT = 10**12  # what the API says where there is none
# Targets that its client insists on naming with a country.
VARIANTS = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}
SPLITTING = ("0", "1", "nonewlines")
KNOWN = ("text", "source_lang", "target_lang", "split_sentences", "preserve_formatting", "formality", "show_billed_characters",
         *OWN_FIELDS)
_TAGS = "models translate plain text, and tags would be taken for words"
_NO_GLOSSARY = "there are no glossaries; the field `constraints` asks for phrases"
_NO_CONTROL = "these models have no such control"
REFUSED = {
    "glossary_id": _NO_GLOSSARY, "glossary_ids": _NO_GLOSSARY, "tag_handling": _TAGS, "tag_handling_version": _TAGS,
    "outline_detection": _TAGS,
    "non_splitting_tags": _TAGS, "splitting_tags": _TAGS, "ignore_tags": _TAGS,
    "context": "these models see one sentence at a time", "model_type": "the field `depth` chooses between speed and quality",
    "style_id": _NO_CONTROL, "custom_instructions": _NO_CONTROL, "translation_memory_id": "there are no translation memories",
    "translation_memory_threshold": "there are no translation memories",
    "auth_key": "send the key in the header Authorization: DeepL-Auth-Key",
}


def deepl_error(message: str, status: int) -> dict[str, Any]:
    return {"message": message}


def language_code(code: str) -> str:
    """As sources are written: EN, of a variant too."""
    return base(code).upper()


def target_codes(code: str) -> tuple[str, ...]:
    return VARIANTS.get(normalised(code), (normalised(code).upper(),))


def deepl_routes(service: Service) -> list[Route]:
    def route(path: str, run: Any, *methods: str) -> Route:
        return Route(f"/v2/{path}", service.endpoint("deepl", deepl_error, run), methods=list(methods))

    async def translate(request: Request) -> Response:
        client = service.client(request)
        fields = await service.fields(request)
        refuse_unknown(fields.given, KNOWN, REFUSED)
        texts = checked_texts("text", fields.texts("text"), max_texts=service.limits.max_texts,
                              max_chars=service.limits.max_chars)
        target = fields.text("target_lang")
        if not target:
            codes = [code for own in targets_of(service.pairs) for code in target_codes(own)]
            raise RequestError(400, f"target_lang is missing: one of {', '.join(codes)}.")
        pair, _ = find_pair(service.pairs, fields.text("source_lang"), target)
        _check_formality(fields)
        fields.switch("show_billed_characters"), fields.switch("preserve_formatting")
        splits = _splitting(fields) != "0"
        own = own_fields(fields, num_texts=len(texts), max_beam=service.limits.max_beam)
        answer = await service.wait(request, await submitted(pair, texts, own, client, splits=splits))
        service.translated(client, texts, answer)
        found = []
        for text, results in zip(texts, answer.results, strict=True):
            one: dict[str, Any] = {"detected_source_language": language_code(pair.source), "text": results[0].text,
                                   "billed_characters": len(text)}
            if own.wants_hypotheses:
                one["hypotheses"] = [described(hypothesis, own) for hypothesis in results]
            if own.depth is not None:
                one["depth"] = depth_of(results[:1])
            if results[0].is_cut:
                one["warning"] = "a sentence was longer than the model's positions, and its end was left out."
            found.append(one)
        return JSONResponse({"translations": found})

    async def languages(request: Request) -> Response:
        service.client(request)
        fields = await service.fields(request)
        kind = request.query_params.get("type") or fields.text("type") or "source"
        if kind not in ("source", "target"):
            raise RequestError(400, "type must be source or target.")
        if kind == "source":
            codes = [(language_code(code), name_of(base(code))) for code in sources_of(service.pairs)]
            return JSONResponse([{"language": code, "name": name} for code, name in dict.fromkeys(codes)])
        targets = [code for own in targets_of(service.pairs) for code in target_codes(own)]
        return JSONResponse([{"language": code, "name": name_of(code), "supports_formality": False}
                             for code in dict.fromkeys(targets)])

    async def usage(request: Request) -> Response:
        client = service.client(request)
        return JSONResponse({"character_count": service.characters(client), "character_limit": NO_LIMIT})

    return [route("translate", translate, "POST"), route("languages", languages, "GET", "POST"),
            route("usage", usage, "GET", "POST")]


def _check_formality(fields: Fields) -> None:
    wanted = fields.text("formality")
    # prefer_more asks for it where it can be had.
    if wanted not in (None, "default", "prefer_more", "prefer_less"):
        raise RequestError(400, f"formality is not supported: {_NO_CONTROL}. Leave it out.")


def _splitting(fields: Fields) -> str:
    value = fields.structure("split_sentences")
    text = {None: "1", True: "1", False: "0"}.get(value, str(value)) if not isinstance(value, (dict, list)) else ""
    if text not in SPLITTING:
        raise RequestError(400, "split_sentences must be 0, 1 or nonewlines.")
    if text == "nonewlines":
        raise RequestError(400, "split_sentences nonewlines is not supported: a new line always ends a sentence here. Leave it "
                                "out.")
    return text

"""A loaded model becomes part of a service: its name, its worker, and a first run that pays for what comes up once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lamina.api import LanguageModel, MaskedLanguageModel, Translator
from lamina.api.loaded_model import LoadedModel
from lamina.decode.cascade import Cascade
from lamina.errors import ConfigError
from lamina.serve.engine import Engine
from lamina.serve.exchange import Request
from lamina.serve.gap_filling import GapFiller
from lamina.serve.service import Service
from lamina.serve.translating import Pair
from lamina.serve.writing import Writer

WARM_UP_SECONDS = 120.0


def opened(service: Service, name: str | None, model: LoadedModel, *, slots: int, defaults: Mapping[str, object],  # type: ignore[type-arg]
           queue_limit: int, cascade: Cascade | None = None, **translates: Any) -> str:
    """Puts the model behind the service; returns a line about it.

    `name`: as the command line calls it, en-de or lm. `translates`: what else an engine can be told.
    """
    if isinstance(model, Translator):
        source, target = _languages(name, model)
        if any((pair.source, pair.target) == (source, target) for pair in service.pairs):
            raise ConfigError(f"two models translate {source}-{target}. Leave one out, or give it other languages: "
                              f"en-de=FILE. For an ensemble, join their paths with a colon.")
        engine = Engine(model, slots=slots, defaults=defaults, queue_limit=queue_limit, cascade=cascade, **translates)
        engine.submit(Request(texts=["."])).result(WARM_UP_SECONDS)
        service.pairs.append(Pair(source, target, engine))
        return f"{source}-{target}: {model!r}{'' if cascade is None else ', with a cascade'}"
    if isinstance(model, LanguageModel):
        own = _free(name or model.language, service.writers, "language model")
        service.writers[own] = Writer(model, defaults=defaults, queue_limit=queue_limit)
        return f"{own}: {model!r}, writes"
    if isinstance(model, MaskedLanguageModel):
        own = _free(name or model.languages[0], service.fillers, "masked model")
        service.fillers[own] = GapFiller(model, queue_limit=queue_limit)
        return f"{own}: {model!r}, {'classifies' if model.heads else 'fills gaps'}"
    raise ConfigError(f"a {type(model).__name__} cannot be served: models that translate, write or fill gaps can.")


def _languages(name: str | None, model: Translator) -> tuple[str, str]:
    if name is None:
        source, target = model.languages
        return source, target
    source, dash, target = name.partition("-")
    if not (dash and source and target):
        raise ConfigError(f"{name}= is in front of a translation model; write its languages there, such as en-de=FILE.")
    return source, target


def _free(name: str, taken: Mapping[str, object], what: str) -> str:
    if name in taken:
        raise ConfigError(f"two {what}s are called {name}. Give one another name: name=FILE.")
    return name

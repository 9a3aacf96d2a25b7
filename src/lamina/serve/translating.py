"""The pairs of languages that are served, and how a request finds its engine."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import anyio

from lamina.api import Translator
from lamina.serve.engine import Engine
from lamina.serve.exchange import Answer, TextHypothesis
from lamina.serve.exchange import Request as Work
from lamina.serve.language_names import found_among, name_of
from lamina.serve.own_fields import OwnFields
from lamina.serve.problems import RequestError

# To cut, split and number so many characters takes about a millisecond: more is done beside the event loop.
CHARS_AT_ONCE = 1000


@dataclass(frozen=True)
class Pair:
    source: str
    target: str
    engine: Engine

    @property
    def name(self) -> str:
        return f"{self.source}-{self.target}"

    @property
    def has_layerdrop(self) -> bool:
        """Whether the model has learned to do without layers."""
        return self.translator.has_layerdrop

    @property
    def translator(self) -> Translator:
        return self.engine.model


def sources_of(pairs: Sequence[Pair], target: str | None = None) -> list[str]:
    return list(dict.fromkeys(pair.source for pair in pairs if target in (None, pair.target)))


def targets_of(pairs: Sequence[Pair], source: str | None = None) -> list[str]:
    return list(dict.fromkeys(pair.target for pair in pairs if source in (None, pair.source)))


def find_pair(pairs: Sequence[Pair], source: str | None, target: str) -> tuple[Pair, bool]:
    """The pair, and whether its source was assumed, as the only one there is. `source` None or auto: it was not given."""
    to = found_among(target, targets_of(pairs))
    if to is None:
        raise RequestError(400, f"no model translates into {target[:30]!r}; there are {_listed(targets_of(pairs))}.")
    if source is None or source.lower() == "auto":
        known = sources_of(pairs, to)
        if len(known) > 1:
            raise RequestError(400, f"say which language the text is in, of {_listed(known)}: this server does not detect "
                                    "languages.")
        return next(pair for pair in pairs if pair.target == to), True
    own = found_among(source, sources_of(pairs, to))
    if own is None:
        raise RequestError(400, f"no model translates from {source[:30]!r} into {to}; there are "
                           f"{', '.join(pair.name for pair in pairs)}.")
    return next(pair for pair in pairs if (pair.source, pair.target) == (own, to)), False


def _listed(codes: Sequence[str]) -> str:
    return ", ".join(f"{code} ({name_of(code)})" if name_of(code) != code else code for code in codes) or "none"


async def submitted(pair: Pair, texts: Sequence[str], own: OwnFields, client: str, *, nbest: int | None = None,
                    splits: bool = True) -> Future[Answer]:
    """`nbest`: as an API has it, for its own word for alternatives; a beam that is too small grows."""
    options: dict[str, object] = {}
    number = max(own.nbest or 0, nbest or 0)
    if number:
        options["nbest"] = number
    if own.beam is not None:
        options["beam"] = own.beam
    elif number:
        options["beam"] = max(number, pair.engine.search_options({}).beam)
    work = Work(texts=texts, depth=own.depth, options=options, constraints=own.constraints,
                with_alignment=own.with_alignment, client=client, splits=splits and own.constraints is None)
    if sum(map(len, texts)) <= CHARS_AT_ONCE:
        return pair.engine.submit(work)
    return await anyio.to_thread.run_sync(pair.engine.submit, work)


def described(hypothesis: TextHypothesis, own: OwnFields) -> dict[str, object]:
    """A hypothesis, as our own fields ask for it."""
    found: dict[str, object] = {"text": hypothesis.text}
    if own.with_scores:
        found["score"] = hypothesis.score
    if own.with_alignment:
        found["alignment"] = hypothesis.alignment
    return found


def depth_of(best: Sequence[TextHypothesis]) -> dict[str, object]:
    """The deepest that any of the texts needed; of a cascade, also how many sentences needed no more than its first depth."""
    deepest = max((dict(own.depth) for own in best), key=lambda depth: sum(depth.values()), default={})
    shallow = sum(own.num_shallow for own in best)
    told = {"shallow_sentences": shallow, "sentences": sum(own.num_sentences for own in best)} if shallow else {}
    return {**deepest, **told}

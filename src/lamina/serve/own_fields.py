"""The fields that are ours, in LibreTranslate's and in DeepL's API: depth, beam, nbest, constraints, scores, alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lamina.config.chosen_depth import parse_depth
from lamina.serve.bodies import Fields
from lamina.serve.problems import RequestError

OWN_FIELDS = ("depth", "beam", "nbest", "constraints", "scores", "alignment")
MAX_PHRASES = 16  # of a text
MAX_DEPTH_CHARS = 1000


@dataclass(frozen=True)
class OwnFields:
    depth: object = None  # None: as the server was told
    beam: int | None = None
    nbest: int | None = None
    constraints: tuple[tuple[str, ...], ...] | None = None  # for each text
    with_scores: bool = False
    with_alignment: bool = False

    @property
    def wants_hypotheses(self) -> bool:
        """Whether the answer is to list what was found, besides the best text."""
        return self.nbest is not None or self.with_scores or self.with_alignment


def own_fields(fields: Fields, *, num_texts: int, max_beam: int) -> OwnFields:
    why = ", this server's --max-beam"
    beam, nbest = fields.whole("beam", 1, max_beam, why), fields.whole("nbest", 1, max_beam, why)
    if beam is not None and nbest is not None and nbest > beam:
        raise RequestError(400, f"nbest is {nbest}, and beam {beam}: of so many hypotheses there are no {nbest} best.")
    return OwnFields(depth=_depth(fields), beam=beam, nbest=nbest, constraints=_constraints(fields, num_texts),
                     with_scores=bool(fields.switch("scores")), with_alignment=bool(fields.switch("alignment")))


def _depth(fields: Fields) -> object:
    value = fields.structure("depth")
    if len(str(value)) > MAX_DEPTH_CHARS:
        raise RequestError(400, "depth is too long a list.")
    if value is not None:
        parse_depth(value)
    return value


def _constraints(fields: Fields, num_texts: int) -> tuple[tuple[str, ...], ...] | None:
    """A phrase or a list of them for the only text, or a list of lists, one for each."""
    value: Any = fields.structure("constraints")
    if value is None:
        return None
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = [value] if num_texts == 1 else None
    if (not isinstance(value, list) or len(value) != num_texts
            or not all(isinstance(own, list) and all(isinstance(phrase, str) for phrase in own) for own in value)):
        raise RequestError(400, "constraints must be a list of phrases; for several texts a list of such lists, one for each.")
    if any(len(own) > MAX_PHRASES for own in value):
        raise RequestError(400, f"constraints has more than {MAX_PHRASES} phrases for a text.")
    return tuple(tuple(Fields.whole_text("constraints", phrase) for phrase in own) for own in value)


def checked_texts(name: str, texts: Sequence[str] | None, *, max_texts: int, max_chars: int) -> list[str]:
    """There are some, and not too many or too long."""
    if texts is None:
        raise RequestError(400, f"{name} is missing: the text to work on, or a list of texts.")
    if len(texts) > max_texts:
        raise RequestError(413, f"{name} has {len(texts)} texts; this server takes {max_texts} at a time.")
    total = sum(map(len, texts))
    if total > max_chars:
        raise RequestError(413, f"{name} has {total} characters; this server takes {max_chars} at a time.")
    return list(texts)

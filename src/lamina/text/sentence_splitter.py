"""A text cut into sentences that put together are the text again, character by character.

Kept simple on purpose. A line ends a sentence. Within a line, a sentence ends after `.`, `!`, `?` or `…`, with closing quotes
and brackets, where white space follows and then a capital letter, a digit, or a letter of a script without capitals; quotes and
brackets may open before it. It does not end after one letter and a full stop (initials), nor after an abbreviation of the
language that a name or a number usually follows, nor after a number with a full stop where the language writes ordinals so. The
full stops and question marks of Chinese, Japanese, Hindi, Arabic and Urdu always end a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# Words that a full stop follows inside a sentence, by language.
_COMMON = "no nr vs etc e.g i.e cf al ca approx dept est fig figs inc ltd co corp vol pp ed eds st"
ABBREVIATIONS: dict[str, frozenset[str]] = {
    language: frozenset(f"{_COMMON} {words}".split()) for language, words in {
        "en": "mr mrs ms dr prof sr jr messrs gen sen rep gov capt col lt sgt rev hon "
              "jan feb mar apr jun jul aug sep sept oct nov dec "
              "a.m p.m u.s u.k mt",
        "de": "hr fr dr prof bzw z.b d.h u.a usw evtl ggf inkl zzgl str tel abs art bd ing dipl "
              "jan feb mär apr jun jul aug sep sept okt nov dez o.ä s.o s.u v.a z.t u.u nat med phil",
        "fr": "m mm mme mmes mlle mlles dr pr me art av bd chap env éd ex ibid janv févr avr juil sept oct nov déc p.ex c.-à-d",
        "es": "sr sra sres srta dr dra prof ud uds av avda art cap ej pág págs núm tel p.ej ee.uu",
        "it": "sig sigg sig.ra dott dott.ssa prof prof.ssa ing avv art cap pag pagg ecc es tel",
        "pt": "sr sra srs dr dra prof profa av art cap pág págs ex tel exmo exma",
        "nl": "dhr mevr mw dr drs prof ir ing mr blz bijv d.w.z enz o.a t.a.v m.b.t art nr tel",
        "ro": "dl dna d-na d-l dr prof ing str art pag ex nr tel alin lit",
        "cs": "p pí dr mgr ing prof doc např tzv tzn str čl odst atd apod tel",
        "pl": "p pan dr mgr inż prof ul np tzw tzn str art ust itd itp tel",
        "ru": "г гг ул д стр рис см напр т.е т.д т.п и.о руб коп тыс млн млрд",
    }.items()}
# `am 3. Oktober`: a number and a full stop are an ordinal.
_WRITES_ORDINALS = frozenset("de cs da nb no nn fi hu sk sl hr sr et lv pl is tr".split())
_CLOSING = re.escape("\"'”’»)]}›」』）】")
_OPENING = re.escape("\"'“‘«([{‹¿¡„‚「『（【-–—")
_END = re.compile(rf"(?P<mark>[.!?…]+[{_CLOSING}]*)(?=\s)|(?P<always>[。！？｡।॥؟۔]+[{_CLOSING}]*)")
_NEXT = re.compile(rf"\s+[{_OPENING}]*(\S)")
_LAST_WORD = re.compile(r"(\S+)$")


class Segment(NamedTuple):
    """A sentence of a text, and the white space around it; `text` is empty where there is nothing else."""

    before: str
    text: str
    after: str


def split_sentences(text: str, language: str | None = None) -> list[Segment]:
    """The sentences in order: joined, with the white space around them, they are the text."""
    segments: list[Segment] = []
    for line in text.splitlines(keepends=True):
        start = 0
        for end in (*_ends(line, language or ""), len(line)):
            segment = _segment(line[start:end])
            if segment.text or not segments:
                segments.append(segment)
            else:
                segments[-1] = segments[-1]._replace(after=segments[-1].after + line[start:end])
            start = end
    return segments or [Segment("", "", "")]


def _segment(part: str) -> Segment:
    text = part.strip()
    if not text:
        return Segment(part, "", "")
    start = part.index(text)
    return Segment(part[:start], text, part[start + len(text) :])


def _ends(line: str, language: str) -> Iterator[int]:
    """Places where a sentence of a line ends, the last one's left out."""
    code = re.split("[-_]", language.lower())[0]
    abbreviations = ABBREVIATIONS.get(code, frozenset(_COMMON.split()))
    for match in _END.finditer(line):
        following = _NEXT.match(line, match.end())
        if match["always"]:
            if line[match.end() :].strip():
                yield match.end()
        elif following is not None and _may_begin(following[1]) and not (
                match["mark"] == "." and _continues(line[: match.start()], abbreviations, code in _WRITES_ORDINALS)):
            yield match.end()


def _may_begin(letter: str) -> bool:
    """Not a small letter, and no mark in the middle of a sentence."""
    return letter.isupper() or letter.isdecimal() or (letter.isalpha() and not letter.islower())


def _continues(before: str, abbreviations: frozenset[str], writes_ordinals: bool) -> bool:
    """Whether the full stop after this belongs to the word before it."""
    found = _LAST_WORD.search(before)
    if found is None:
        return False
    word = found[1].lstrip("\"'“‘«([{‹„‚").lower()
    is_initial = len(word) == 1 and word.isalpha()
    return is_initial or word in abbreviations or (writes_ordinals and word.isdecimal() and len(word) <= 2)

"""What a file of recipes/data/ says: which downloads make a corpus, how they are cleaned, preprocessed and scored."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lamina.config.yaml_file import read_mapping
from lamina.errors import ConfigError
from lamina.files import is_plain_name
from lamina.recipes.confine import ADVICE, is_place_inside
from lamina.recipes.origins import Download, read_downloads
from lamina.suggestions import suggestion

TEXT = "txt"  # the ending of a text with one side


@dataclass(frozen=True)
class Cleaning:
    """What is done to every line, and which training pairs are left out. Lengths are in words, after tokenization."""

    normalize: bool = False  # Moses' punctuation
    tokenize: bool = False  # Moses, by the language's name
    lowercase: bool = False
    max_length: int = 0  # of either side; 0: no limit
    max_ratio: float = 0.0  # of the longer side to the shorter one; 0: no limit
    deduplicate: bool = False  # leave out a training pair that has come before

    @property
    def changes_lines(self) -> bool:
        return self.normalize or self.tokenize or self.lowercase


@dataclass(frozen=True)
class TestSet:
    """Sources and what they are compared with."""

    __test__ = False  # pytest would take it for one of its own

    name: str
    source: tuple[str, ...]  # places, one after the other
    references: tuple[tuple[str, ...], ...] = ()  # likewise, for each reference
    m2: str = ""
    score: dict[str, Any] = field(default_factory=dict)  # flags of `lamina score`, over the corpus' own


# Of a pair of languages; `prepare` writes its reference too.
VALIDATION = TestSet("valid", source=(), references=((),))


@dataclass(frozen=True)
class Dataset:
    name: str
    about: str
    languages: tuple[str, ...]  # source and target; one or none for a text with one side
    train: tuple[str, ...]
    valid: tuple[str, ...]
    tests: tuple[TestSet, ...]
    valid_every: int = 0  # every Nth training pair is held out for validation instead
    cleaning: Cleaning = Cleaning()
    has_bpe_marks: bool = False  # `@@ ` in the text as it comes
    preprocess: dict[str, Any] = field(default_factory=dict)  # flags of `lamina preprocess`
    score: dict[str, Any] = field(default_factory=dict)  # flags of `lamina score`
    downloads: tuple[Download, ...] = ()  # where files come from
    call: str = ""  # what `lamina recipe prepare` is told: its name, or the path of its file

    @property
    def endings(self) -> tuple[str, ...]:
        return self.languages or (TEXT,)

    @property
    def digest(self) -> str:
        """Two corpora with the same digest are the same text; notes on them do not count."""
        settings = {name: value for name, value in asdict(self).items() if name not in ("about", "downloads", "call")}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def places(self) -> list[str]:
        tests = [place for test in self.tests for places in (test.source, *test.references, (test.m2,)) for place in places]
        return [place for place in (*self.train, *self.valid, *tests) if place]

    @property
    def files(self) -> dict[str, str]:
        """What to download, in the order of the file: names, `a.tgz|b.tgz` for alternatives, and a place inside of each."""
        found: dict[str, str] = {}
        for place in self.places:
            found.setdefault(place.partition("!")[0] if "!" in place else place.partition("/")[0], place)
        return found

    @property
    def archives(self) -> list[str]:
        return [name.replace("|", " or ") for name in self.files]


def check_places(dataset: Dataset) -> None:
    """All of them below the folder of downloads."""
    for place in dataset.places:
        if not is_place_inside(place):
            raise ConfigError(f"corpus {dataset.name}: {place} leads out of --data, the folder that it may read. {ADVICE}.")


KEYS = ("about", "downloads", "languages", "train", "valid", "tests", "clean", "bpe", "preprocess", "score")


def read_dataset(path: Path) -> Dataset:
    try:
        dataset = _dataset(path.stem, read_mapping(path, "`key: value` lines, such as `languages: [en, de]`"))
    except ConfigError as error:
        raise ConfigError(f"corpus {path}: {error}") from None
    return replace(dataset, call=str(path))


def _dataset(name: str, values: dict[str, Any]) -> Dataset:
    check_keys(values, KEYS)
    languages = _words(values, "languages")
    if len(languages) > 2 or not all(map(is_plain_name, languages)):
        raise ConfigError("languages must be a source and a target, such as [en, de], or one or none for a text with one side.")
    valid, every = values.get("valid", []), 0
    if isinstance(valid, dict):
        check_keys(valid, ("every",))
        number, valid = valid.get("every"), []
        if isinstance(number, int) and number >= 2:
            every = number
        else:
            raise ConfigError("valid: every must be a whole number from 2 on: each such training pair is held out.")
    if not values.get("train") or not (valid or every):
        raise ConfigError("train and valid are needed: places of text, or for valid {every: N}.")
    tests = values.get("tests") or {}
    if not isinstance(tests, dict):
        raise ConfigError("tests must be a mapping from names to places.")
    return Dataset(
        name=name, about=str(values.get("about", "")), languages=languages, train=_words(values, "train"),
        valid=_words({"valid": valid}, "valid"), valid_every=every, has_bpe_marks=bool(values.get("bpe", False)),
        tests=tuple(_test(str(test), place, languages) for test, place in tests.items()),
        downloads=read_downloads(values.get("downloads") or {}),
        cleaning=_cleaning(values.get("clean") or {}), preprocess=_mapping(values, "preprocess"),
        score=_mapping(values, "score"))


def _test(name: str, value: Any, languages: tuple[str, ...]) -> TestSet:
    if not is_plain_name(name) or name in ("train", "valid"):
        raise ConfigError(f"a test cannot be called {name!r}: its name becomes part of file names.")
    if isinstance(value, (str, list)):
        places = _words({name: value}, name)
        sides = [tuple(filled(place, languages, side) for place in places) for side in range(max(1, len(languages)))]
        return TestSet(name, sides[0], tuple(sides[1:]))
    if not isinstance(value, dict) or "source" not in value:
        raise ConfigError(f"test {name} must be a place with {{lang}} in it, or several, or have source, and references or m2.")
    check_keys(value, ("source", "references", "m2", "score"))
    test = TestSet(name, _words(value, "source"), tuple((place,) for place in _words(value, "references")),
                   str(value.get("m2", "")), _mapping(value, "score"))
    if not test.references and not test.m2:
        raise ConfigError(f"test {name} has nothing to compare with: give references or m2.")
    return test


def _cleaning(values: Any) -> Cleaning:
    if not isinstance(values, dict):
        raise ConfigError("clean must be a mapping, such as {tokenize: true, max-length: 175}.")
    plain = {str(key).replace("-", "_"): value for key, value in values.items()}
    check_keys(plain, [item.name for item in fields(Cleaning)])
    for item in fields(Cleaning):
        value, kind = plain.get(item.name, item.default), type(item.default)
        if not isinstance(value, (bool if kind is bool else (int, float))) or (kind is not bool and isinstance(value, bool)):
            raise ConfigError(f"clean: {item.name.replace('_', '-')} is {value!r}; it must be "
                              f"{'true or false' if kind is bool else 'a number'}.")
    return Cleaning(**plain)


def filled(place: str, languages: tuple[str, ...], side: int) -> str:
    """`{lang}` and, as in the names of WMT's test sets, `{side}`: src or ref."""
    return place.replace("{lang}", languages[side] if languages else "").replace("{side}", ("src", "ref")[side])


def check_keys(values: dict[str, Any], known: Any, what: str = "") -> None:
    for key in values:
        if key not in known:
            hint = suggestion(str(key), known).replace("--", "")
            raise ConfigError(f"{what}unknown key {str(key)!r}.{hint} Known: {', '.join(known)}.")


def _words(values: dict[str, Any], key: str) -> tuple[str, ...]:
    value = values.get(key) or []
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{key} must be text, or a list of it.")
    return tuple(items)


def _mapping(values: dict[str, Any], key: str) -> dict[str, Any]:
    value = values.get(key) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{key} must be a mapping from flags to values.")
    return value

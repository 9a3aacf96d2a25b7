"""What a file of recipes/ says: one experiment, its variants, and what is measured. docs/recipes.md explains every key."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from lamina.config.metric_options import metrics_that
from lamina.config.packaged_recipes import all_corpora, all_names, folders
from lamina.config.yaml_file import read_mapping
from lamina.errors import ConfigError
from lamina.files import is_plain_name
from lamina.parts.contracts import EDITS
from lamina.recipes.dataset import VALIDATION, Dataset, TestSet, check_keys, read_dataset
from lamina.registry import TasksWith
from lamina.suggestions import suggestion
from lamina.traits import DECODER_ONLY

KEYS = ("about", "published", "data", "seeds", "tiers", "baseline", "train", "average", "model", "decode", "cuts", "analyze",
        "variants", "grid", "measure", "stalled-above", "title", "labels", "against")
MEASURES = ON_TESTS, ON_VALID, ON_LOSS = ("tests", "valid", "loss")
VARIANT_KEYS = ("about", "train", "cuts", "analyze", "decode")
# What --budget scales: everything that counts updates.
COUNTS_OF_UPDATES = ("heal", "max-update", "warmup-updates", "validate-interval-updates", "save-interval-updates",
                     "lr-period-updates", "total-num-update")


@dataclass(frozen=True)
class Cut:
    """The trained model with some of its layers: named, or the best that a search on validation data finds; healed or not."""

    name: str
    keep: dict[str, Any] = field(default_factory=dict)  # --encoder-layers-to-keep, --decoder-layers-to-keep
    search: dict[str, Any] = field(default_factory=dict)  # flags of `lamina prune --search`
    heal: dict[str, Any] = field(default_factory=dict)  # flags of `lamina prune --heal`: what is cut is trained further


WHOLE = Cut("")


@dataclass(frozen=True)
class Variant:
    name: str
    about: str
    train: dict[str, Any]  # all flags of `lamina train`
    cuts: tuple[Cut, ...]
    decode: dict[str, Any]  # flags of `lamina interactive`, or of `lamina eval-lm`
    analyze: dict[str, dict[str, Any]]  # kind of analysis -> flags


@dataclass(frozen=True)
class FigureWords:
    """What people read in figures instead of names: of variants, or of the parts of a grid's names."""

    title: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    is_against_seconds: bool = False  # of training, where speed is the question

    def label(self, name: str) -> str:
        return self.labels.get(name) or ", ".join(self.labels.get(part, part) for part in grid_parts(name))


def grid_parts(name: str) -> list[str]:
    """The choices that a grid's name is made of; `lr1e-4` has a dash of its own."""
    return re.split(r"(?<!\de)-", name)


@dataclass(frozen=True)
class Recipe:
    name: str
    about: str
    published: str
    data: Dataset
    seeds: tuple[int, ...]
    tiers: dict[int, tuple[tuple[str, int], ...]]  # tier -> (variant, seed)
    baseline: str
    average: dict[str, Any]  # flags of `lamina average`; none: no averaging
    model: str  # the checkpoint that is measured where nothing is averaged
    variants: dict[str, Variant]
    measure: str  # test sets are decoded; or validation text, where settings are chosen; or the training's own losses are all
    figure: FigureWords
    stalled_above: float  # bits a token at the last validation, from which on a run has learned nothing or lost it again

    @property
    def is_language_model(self) -> bool:
        return next(iter(self.variants.values())).train.get("task") in TasksWith(DECODER_ONLY)

    @property
    def tests(self) -> tuple[TestSet, ...]:
        """What is translated and scored."""
        sets = {ON_TESTS: self.data.tests, ON_VALID: (VALIDATION,)}
        return () if self.is_language_model else sets.get(self.measure, ())

    @property
    def splits(self) -> tuple[str, ...]:
        """What a language model reads."""
        sets = {ON_TESTS: (VALIDATION.name, "test"), ON_VALID: (VALIDATION.name,)}
        return sets.get(self.measure, ()) if self.is_language_model else ()

    def runs(self, tier: int | None = None) -> list[tuple[str, int]]:
        """Variant and seed of every run, a seed after the other, so that early results compare."""
        if tier is None:
            return [(name, seed) for seed in self.seeds for name in self.variants]
        return list(self.tiers.get(tier, ()))


def find_recipe(name: str) -> Recipe:
    """By name, or by the path of a file of one's own; its corpus is one of ours, or lies in data/ beside it."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return read_recipe(Path(name))
    known = all_names()
    if name not in known:
        hint = suggestion(name, known).replace("--", "")
        raise ConfigError(f"there is no recipe {name!r}.{hint} `lamina recipe list` shows them; a file of your own is named by "
                          "its path.")
    return read_recipe(folders()[0] / f"{name}.yaml")


def find_dataset(name: str, beside: Path | None = None) -> Dataset:
    places = [folder / "data" / f"{name}.yaml" for folder in ([beside] if beside else []) + folders()]
    found = next((place for place in places if place.is_file()), None) if is_plain_name(name) else None
    if found is None:
        known = all_corpora()
        hint = suggestion(name, known).replace("--", "")
        raise ConfigError(f"there is no corpus {name!r}.{hint} Known: {', '.join(known)}.")
    dataset = read_dataset(found)
    return replace(dataset, call=name) if found.parent.parent in folders() else dataset


def read_recipe(path: Path) -> Recipe:
    try:
        return _recipe(path, read_mapping(path, "the sections of a recipe, such as `data:` and `train:`"))
    except ConfigError as error:
        raise ConfigError(f"recipe {path}: {error}") from None


def _recipe(path: Path, values: dict[str, Any]) -> Recipe:
    check_keys(values, KEYS)
    if not isinstance(values.get("data"), str):
        raise ConfigError("data must name a corpus of recipes/data, such as multi30k_bpe.")
    variants = {variant.name: variant for variant in _variants(values)}
    seeds = _seeds(values.get("seeds", [1]))
    baseline = str(values.get("baseline", ""))
    if baseline and baseline not in variants:
        raise ConfigError(f"baseline {baseline!r} is none of the variants: {', '.join(variants)}.")
    measure = values.get("measure", ON_TESTS)
    if measure not in MEASURES:
        raise ConfigError(f"measure is {measure!r}; it must be one of {', '.join(MEASURES)}.")
    data = find_dataset(values["data"], path.parent)
    if measure == ON_VALID and metric_names(data.score) & set(metrics_that(need=EDITS)):
        raise ConfigError(f"measure is valid, and corpus {data.name} is scored by edits (M2), which its "
                          "validation text lacks. Take loss.")
    stalled = values.get("stalled-above", math.inf)
    if isinstance(stalled, bool) or not isinstance(stalled, (int, float)):
        raise ConfigError(f"stalled-above is {stalled!r}; it must be a number of bits.")
    if not is_plain_name(values.get("model", "checkpoint_best.pt")) or not is_plain_name(path.stem):
        raise ConfigError(f"model is {values.get('model')!r} and the recipe's file {path.name}; both must be plain names.")
    against = values.get("against", "")
    if against not in ("", "seconds"):
        raise ConfigError(f"against is {against!r}; it can be `seconds`, for figures whose axis is the time of training.")
    labels = {str(name): str(label) for name, label in _section(values, "labels").items()}
    return Recipe(
        name=path.stem, about=" ".join(str(values.get("about", "")).split()), published=str(values.get("published", "")),
        data=data, seeds=seeds, tiers=_tiers(values.get("tiers") or {}, variants, seeds),
        baseline=baseline, average=_section(values, "average"), model=str(values.get("model", "checkpoint_best.pt")),
        figure=FigureWords(str(values.get("title", "")), labels, bool(against)), variants=variants,
        measure=measure, stalled_above=float(stalled))


def metric_names(flags: Mapping[str, Any]) -> set[str]:
    named = flags.get("metric", "bleu")
    return set(map(str, named)) if isinstance(named, list) else set(str(named).split(","))


def _variants(values: dict[str, Any]) -> Iterator[Variant]:
    """Those that are written out, and those of a grid: one for each way to take a choice from every axis."""
    common = _section(values, "train")
    named = {str(name): own or {} for name, own in _section(values, "variants").items()}
    axes = values.get("grid") or []
    if not isinstance(axes, list) or not all(isinstance(axis, dict) for axis in axes):
        raise ConfigError("grid must be a list of axes, each a mapping from a choice's name to its flags.")
    for choices in product(*(axis.items() for axis in axes)) if axes else ():
        name = "-".join(str(choice) for choice, _ in choices)
        flags: dict[str, Any] = {}
        for choice, own in choices:
            if own is not None and not isinstance(own, dict):
                raise ConfigError(f"grid: {choice} must be a mapping from flags to values.")
            flags |= own or {}
        named.setdefault(name, {"train": flags})
    for name, own in (named or {"default": {}}).items():
        if not is_plain_name(name) or not isinstance(own, dict):
            raise ConfigError(f"variant {name!r} must have a name that can be a file's, and be a mapping.")
        check_keys(own, VARIANT_KEYS, f"variant {name}: ")
        yield Variant(
            name=name, about=" ".join(str(own.get("about", "")).split()),
            train=_dashed(common) | _dashed(_section(own, "train")),
            cuts=(WHOLE, *_cuts(own["cuts"] if "cuts" in own else values.get("cuts"))),
            decode=_section(values, "decode") | _section(own, "decode"),
            analyze=_analyses(own["analyze"] if "analyze" in own else values.get("analyze")))


def _dashed(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Under one spelling each, so that a variant's value takes the place of the common one."""
    return {str(name).replace("_", "-"): value for name, value in flags.items()}


def _cuts(values: Any) -> Iterator[Cut]:
    for name, own in _section({"cuts": values}, "cuts").items():
        if not is_plain_name(str(name)) or not isinstance(own, dict):
            raise ConfigError(f"cut {name!r} must have a name that can be a file's, and be a mapping from flags to values.")
        search, heal = _section(own, "search"), _section(own, "heal")
        keep = {key: value for key, value in own.items() if key not in ("search", "heal")}
        check_keys(keep, ("encoder-layers-to-keep", "decoder-layers-to-keep"), f"cut {name}: ")
        if bool(search) == bool(keep):
            raise ConfigError(f"cut {name} needs the layers to keep, or `search`, and not both.")
        if heal and not heal.get("heal"):
            raise ConfigError(f"cut {name} heals for how many updates? Write heal: {{heal: 600}}.")
        yield Cut(str(name), keep, search, heal)


def _analyses(values: Any) -> dict[str, dict[str, Any]]:
    found = _section({"analyze": values}, "analyze")
    check_keys(found, ("fusion", "depth"), "analyze: ")
    return {kind: _section(found, kind) for kind in found}


def _tiers(values: Any, variants: Mapping[str, Variant], seeds: tuple[int, ...]) -> dict[int, tuple[tuple[str, int], ...]]:
    """{1: {variants: [a, b], seeds: [1]}}; a tier without variants is all that no tier before it has."""
    if not isinstance(values, dict) or not all(isinstance(tier, int) for tier in values):
        raise ConfigError("tiers must be a mapping from numbers to {variants: [..], seeds: [..]}.")
    tiers: dict[int, tuple[tuple[str, int], ...]] = {}
    for tier, own in sorted(values.items()):
        own = own or {}
        if not isinstance(own, dict):
            raise ConfigError(f"tier {tier} must be {{variants: [..], seeds: [..]}}.")
        check_keys(own, ("variants", "seeds"), f"tier {tier}: ")
        names = own.get("variants", list(variants))
        unknown = [name for name in names if name not in variants] if isinstance(names, list) else [names]
        if unknown:
            raise ConfigError(f"tier {tier} names {unknown[0]!r}, which is none of the variants: {', '.join(variants)}.")
        before = {run for runs in tiers.values() for run in runs}
        tiers[tier] = tuple((name, seed) for seed in _seeds(own.get("seeds", list(seeds))) for name in names
                            if (name, seed) not in before)
    return tiers


def _seeds(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not values or not all(isinstance(seed, int) and seed >= 0 for seed in values):
        raise ConfigError("seeds must be a list of whole numbers, such as [1, 2, 3].")
    return tuple(values)


def _section(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = values.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{key} must be a mapping.")
    return value


def scaled(flags: Mapping[str, Any], budget: float) -> dict[str, Any]:
    """Flags of training with every count of updates multiplied by the budget."""
    def scale(name: str, value: Any) -> Any:
        is_count = name in COUNTS_OF_UPDATES and isinstance(value, (int, float)) and value > 0
        return max(1, round(value * budget)) if is_count else value

    return {name: scale(name, value) for name, value in flags.items()}

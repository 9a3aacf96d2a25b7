"""Dataclass fields that know their flag.

Default, type, help and check of an option live on its field and nowhere else. A configuration is nested in code and
flat outside: `flatten` gives {"encoder-layers": 6, ...}, the form of a recipe, of a checkpoint and of `--print-config`,
and `build` turns such a mapping back into the nested dataclasses. Four kinds of field:

    flag(default, help)                one option
    part(Class, prefix="encoder-")     a nested dataclass whose options carry the prefix
    variant("optimizer", help, kinds)  one of several dataclasses, chosen by an option of its own
    every(kinds)                       all of several dataclasses, each with its options

`kinds` is a table of registry.py (or any mapping), so parts added later have flags like all others. Flags and parts that
mean something for some tasks only name the trait that those tasks have: `wants=("source",)`.
"""

from __future__ import annotations

import ast
import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar

from lamina.errors import ConfigError
from lamina.registry import register, version
from lamina.suggestions import suggestion

T = TypeVar("T")


class UnknownPartError(ConfigError):
    """A name that is none of an option's choices; perhaps a part that was not registered."""

    def __init__(self, option: str, name: object, known: Iterable[str], *, is_list: bool = False) -> None:
        several = ", or several of them separated by commas" if is_list else ""
        super().__init__(f"--{option} is {name!r}; it must be one of {', '.join(known)}{several}.")
        self.option, self.name = option, name


REQUIRED: Any = MISSING
LARGEST_NUMBER = 2**31 - 1  # beyond it, libraries overflow one by one; no count of ours comes near
NO_VALUE: Any = object()


@dataclass(frozen=True)
class FlagInfo:
    """What the field's metadata holds besides its default and type."""

    help: str
    name: str | None = None
    aliases: tuple[str, ...] = ()
    choices: Collection[str] | None = None  # of a list: of each item
    paper: str = ""  # where a reader can check, "Admin §4.3"
    needs: tuple[str, ...] = ()  # flags without which this one does nothing; "!x": with which it does nothing
    wants: tuple[str, ...] = ()  # traits of a task, any of which makes it do something; none: it does with all tasks
    metavar: str | None = None
    bare_value: Any = NO_VALUE  # what `--flag` alone means, where a value is optional
    form: str = ""  # of such a value where there are no choices: a regular expression that tells it from the next word
    positional: bool = False
    off_aliases: tuple[str, ...] = ()  # of a switch: other names that turn it off, besides --no-NAME
    is_list: bool = False  # a tuple written as several words, --inputs a b c, so that an item may hold a comma
    repeats: bool = False  # a tuple whose flag may be given several times: all of them count
    chooses: bool = False  # given, it chooses the part that it belongs to, where nothing else does


@dataclass(frozen=True)
class PartInfo:
    cls: type
    prefix: str
    wants: tuple[str, ...] = ()  # as a flag's, for all flags inside that do not say it themselves


@dataclass(frozen=True)
class VariantInfo:
    name: str
    help: str
    kinds: Mapping[str, Any]
    default: str  # "": the first of the kinds
    paper: str = ""
    aliases: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()  # as a flag's
    needs: tuple[str, ...] = ()  # likewise
    # Flags without a value that choose a kind, as published command lines do; where several are given, the last here wins.
    switches: Mapping[str, Switch] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class EveryInfo:
    kinds: Mapping[str, Any]
    wants: tuple[str, ...] = ()


class Switch(NamedTuple):
    kind: str
    help: str
    paper: str = ""


def flag(default: Any, help: str, *, needs: str | Iterable[str] = (), **info: Any) -> Any:
    """One option. `needs` names the flags (flat, without dashes in front) that must be set for it to have an effect."""
    needs = (needs,) if isinstance(needs, str) else tuple(needs)
    return field(default=default, metadata={"info": FlagInfo(help=help, needs=needs, **info)})


def part(cls: type, prefix: str = "", wants: tuple[str, ...] = ()) -> Any:
    default: Any = {"default_factory": cls} if _has_defaults(cls) else {}
    return field(metadata={"info": PartInfo(cls, prefix, wants)}, **default)


def _has_defaults(cls: type) -> bool:
    return not any(item.default is MISSING and item.default_factory is MISSING for item in fields(cls))


def variant(name: str, help: str, kinds: Mapping[str, Any], *, default: str, **info: Any) -> Any:
    # Looked up when it is needed: a table may not be filled yet while classes are made.
    return field(default_factory=lambda: kinds[default or next(iter(kinds))](),
                 metadata={"info": VariantInfo(name, help, kinds, default, **info)})


def every(kinds: Mapping[str, Any], wants: tuple[str, ...] = ()) -> Any:
    return field(default_factory=lambda: tuple(kind() for kind in kinds.values()),
                 metadata={"info": EveryInfo(kinds, wants)})


@dataclass(frozen=True)
class Leaf:
    """One flat option of a configuration class, and when it is there."""

    name: str
    type: Any
    default: Any
    info: FlagInfo
    group: str
    chosen_by: tuple[tuple[str, str], ...] = ()  # (("optimizer", "adam"),): part of the configuration only then
    wants: tuple[str, ...] = ()  # part of the configuration always, but read in tasks with one of these traits only
    sets: tuple[str, str] | None = None  # a switch: the variant and the kind that it chooses

    @property
    def is_bool(self) -> bool:
        """Also one that may be left to the run: `bool | None`."""
        return self.type in (bool, bool | None)

    @property
    def spelling(self) -> str:
        return self.name if self.info.positional else f"--{self.name}"

    @property
    def tasks(self) -> tuple[str, ...]:
        """Values of --task with which it does something; none: all of them."""
        return tuple(name for name, kind in register.task.items() if kind.traits & set(self.wants)) if self.wants else ()


def leaves(cls: type) -> tuple[Leaf, ...]:
    """Every option of a configuration class; one that several variants share comes once for each of them."""
    return _known_leaves(cls, version())


@cache
def _known_leaves(cls: type, version: int) -> tuple[Leaf, ...]:
    found = tuple(_leaves(cls, "", (), ()))
    _check_names(cls, found)
    return found


def _check_names(cls: type, found: tuple[Leaf, ...]) -> None:
    """Parts of one kind may share an option, since only one of them is chosen; an option of two kinds would mean two things."""
    homes: dict[str, Leaf] = {}
    for leaf in found:
        first = homes.setdefault(leaf.name, leaf)
        owners = [home.chosen_by[-1:] for home in (first, leaf)]
        if first is not leaf and not (owners[0] and owners[1] and owners[0][0][0] == owners[1][0][0]):
            own = next((owner[0] for owner in reversed(owners) if owner), None)
            raise ConfigError(f"--{leaf.name} is declared twice in {cls.__name__}"
                              f"{f', once by --{own[0]} {own[1]}' if own else ''}: an option has one meaning. Choose another "
                              "name for the newer one.")


def _leaves(cls: type, prefix: str, chosen_by: tuple[tuple[str, str], ...], wants: tuple[str, ...]) -> Iterator[Leaf]:
    hints = _type_hints(cls)
    group = getattr(cls, "topic", "") or (cls.__doc__ or cls.__name__).strip().splitlines()[0].rstrip(".")
    for item in fields(cls):
        info = item.metadata["info"]
        match info:
            case PartInfo():
                yield from _leaves(info.cls, prefix + info.prefix, chosen_by, info.wants or wants)
            case VariantInfo():
                default = info.default or next(iter(info.kinds))
                topic = getattr(info.kinds[default], "topic", "") or group
                selector = FlagInfo(info.help, choices=tuple(info.kinds), paper=info.paper, needs=info.needs,
                                    aliases=tuple(prefix + alias for alias in info.aliases))
                yield Leaf(prefix + info.name, str, default, selector, topic, chosen_by, info.wants or wants)
                for name, switch in info.switches.items():
                    yield Leaf(prefix + name, bool, False, FlagInfo(switch.help, paper=switch.paper, needs=info.needs), topic,
                               chosen_by, info.wants or wants, sets=(prefix + info.name, switch.kind))
                for kind, kind_cls in info.kinds.items():
                    yield from _leaves(kind_cls, prefix, (*chosen_by, (prefix + info.name, kind)), info.wants or wants)
            case EveryInfo():
                for kind_cls in info.kinds.values():
                    yield from _leaves(kind_cls, prefix, chosen_by, info.wants or wants)
            case FlagInfo():
                yield Leaf(prefix + flag_name(item), hints[item.name], item.default, info, group, chosen_by,
                           info.wants or wants)


@cache
def _type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def flag_name(item: dataclasses.Field) -> str:
    return item.metadata["info"].name or item.name.replace("_", "-")


def flat_names(cls: type) -> dict[str, str]:
    """{"num_layers": "num-layers"}: the fields that are options of their own, those of `every` part among them."""
    names: dict[str, str] = {}
    for item in fields(cls):
        match item.metadata["info"]:
            case EveryInfo(kinds=kinds):
                for kind in kinds.values():
                    names = flat_names(kind) | names
            case FlagInfo():
                names[item.name] = flag_name(item)
    return names


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """The flat form of a configuration: plain values only, tuples as lists."""
    flat: dict[str, Any] = {}
    for item in fields(config):
        info, value = item.metadata["info"], getattr(config, item.name)
        match info:
            case PartInfo():
                flat |= flatten(value, prefix + info.prefix)
            case VariantInfo():
                flat[prefix + info.name] = next(kind for kind, cls in info.kinds.items() if cls is type(value))
                flat |= flatten(value, prefix)
            case EveryInfo():
                for own in value:
                    flat |= flatten(own, prefix)
            case FlagInfo():
                flat[prefix + flag_name(item)] = list(value) if isinstance(value, tuple) else value
    return flat


def build(cls: type[T], values: Mapping[str, Any], explicit: Collection[str] = ()) -> T:
    """The configuration that flat `values` describe; what they leave out takes its default.

    `explicit` names the values that a person gave: one that is not at its default and has no effect in this
    combination is an error, since it silently would not do what its author expects.
    """
    used: set[str] = set()
    values = with_switches_applied(cls, values, explicit)  # type: ignore[arg-type]
    config = _build(cls, values, "", used)
    known = {leaf.name for leaf in leaves(cls)}  # type: ignore[arg-type]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r}.{suggestion(unknown[0], known)}")
    flat = flatten(config)
    switches = {leaf.name: leaf.sets[0] for leaf in unique_leaves(cls) if leaf.sets}  # type: ignore[arg-type]
    for name in (switches.get(name, name) for name in explicit):
        if name in values:
            _check_effect(cls, name, values, flat, is_used=name in used)
    return config


def with_switches_applied(cls: type, values: Mapping[str, Any], explicit: Collection[str] = ()) -> dict[str, Any]:
    """{"transparent-attention": True} as {"fusion": "transparent"}; the switches themselves are gone then.

    {"lora-rank": 8} also chooses {"adapter": "lora"}.
    """
    switches = [leaf for leaf in unique_leaves(cls) if leaf.sets]
    rest = {name: value for name, value in values.items() if name not in {leaf.name for leaf in switches}}
    for leaf in switches:
        assert leaf.sets
        selector, kind = leaf.sets
        if leaf.name in values and coerce(bool, values[leaf.name], leaf.name):
            if selector in explicit and values.get(selector) != kind:
                raise ConfigError(f"--{leaf.name} means --{selector} {kind}, but --{selector} is {values.get(selector)!r}. "
                                  "Leave one of them out.")
            rest[selector] = kind
    given = set(explicit) or rest.keys()  # what a preset fills in was not chosen by anybody
    for leaf in unique_leaves(cls):
        if leaf.info.chooses and leaf.name in given:
            rest |= {selector: kind for selector, kind in leaf.chosen_by if selector not in given}
    return rest


def _build(cls: type[T], values: Mapping[str, Any], prefix: str, used: set[str]) -> T:
    hints = _type_hints(cls)  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for item in fields(cls):  # type: ignore[arg-type]
        info = item.metadata["info"]
        match info:
            case PartInfo():
                arguments[item.name] = _build(info.cls, values, prefix + info.prefix, used)
            case VariantInfo():
                name = prefix + info.name
                used.add(name)
                kind = values.get(name, info.default or next(iter(info.kinds)))
                if not isinstance(kind, str) or kind not in info.kinds:
                    raise UnknownPartError(name, kind, info.kinds)
                arguments[item.name] = _build(info.kinds[kind], values, prefix, used)
            case EveryInfo():
                arguments[item.name] = tuple(_build(own, values, prefix, used) for own in info.kinds.values())
            case FlagInfo():
                name = prefix + flag_name(item)
                used.add(name)
                if name in values:
                    arguments[item.name] = coerce(hints[item.name], values[name], name, info.choices)
                elif item.default is MISSING:
                    spelling = name.upper() if info.positional else f"--{name}"
                    raise ConfigError(f"{spelling} is missing: {info.help}.")
    return cls(**arguments)


def _check_effect(cls: type, name: str, values: Mapping[str, Any], flat: dict[str, Any], *, is_used: bool) -> None:
    homes = [leaf for leaf in leaves(cls) if leaf.name == name]
    given = coerce(homes[0].type, values[name], name, homes[0].info.choices)
    if given == homes[0].default:
        return
    if not is_used:
        owners = {selector: [] for leaf in homes for selector, _ in leaf.chosen_by}  # type: dict[str, list[str]]
        for leaf in homes:
            for selector, kind in leaf.chosen_by:
                if kind not in owners[selector]:
                    owners[selector].append(kind)
        selector, kinds = next((s, k) for s, k in owners.items() if flat.get(s) not in k)
        switch = next((leaf.name for leaf in leaves(cls) if leaf.sets == (selector, kinds[0])), None)
        if switch is not None:
            raise ConfigError(f"--{name} has no effect without --{switch}. Add --{switch}, or leave --{name} out.")
        raise ConfigError(f"--{name} has no effect with --{selector} {flat.get(selector)}; it belongs to "
                          f"--{selector} {' or '.join(kinds)}. Leave it out, or choose one of those.")
    home = next(leaf for leaf in homes if all(flat.get(s) == k for s, k in leaf.chosen_by))
    if home.wants and (flat.get("task") or home.tasks[0]) not in home.tasks:
        raise ConfigError(f"--{name} has no effect with --task {flat['task']}; it belongs to --task "
                          f"{' or '.join(home.tasks)}. Leave it out.")
    # What would be off in any case may be switched off.
    for need in home.info.needs if given is not False else ():
        wanted, absent = need.lstrip("!"), need.startswith("!")
        if bool(flat.get(wanted)) == absent:
            how = f"has no effect together with --{wanted}" if absent else f"has no effect without --{wanted}"
            raise ConfigError(f"--{name} {how}. Leave one of them out." if absent else
                              f"--{name} {how}. Add --{wanted}, or leave --{name} out.")


def coerce(kind: Any, value: Any, name: str, choices: Collection[str] | None = None) -> Any:
    """`value`, a flag's text or a recipe's YAML value, as the field's type."""
    try:
        result = _coerce(kind, value)
    except (ValueError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError):
        raise ConfigError(f"--{name} is {value!r}; it must be {describe(kind)}.") from None
    items = result if isinstance(result, tuple) else (result,)
    for item in items:
        if isinstance(item, int) and abs(item) > LARGEST_NUMBER:
            raise ConfigError(f"--{name} is {_short(value)}; a whole number must lie below 2^31.")
        if choices is not None and item is not None and item not in choices:
            raise UnknownPartError(name, item, choices, is_list=isinstance(result, tuple))
    return result


def _coerce(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _coerce(next(choice for choice in arguments if choice is not type(None)), value)
    if origin is tuple:
        if isinstance(value, str):
            text = value.strip()
            value = ast.literal_eval(text) if text[:1] in ("(", "[") else [piece for piece in text.split(",") if piece]
        items = value if isinstance(value, (list, tuple)) else [value]
        if arguments[-1] is not Ellipsis and len(items) != len(arguments):
            raise ValueError
        return tuple(_coerce(arguments[0], item) for item in items)
    if kind is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if isinstance(value, bool):
            return value
        raise ValueError
    if isinstance(value, bool) or (kind is str and not isinstance(value, str)) or value is None:
        raise ValueError
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return kind(value)


def _short(value: Any) -> str:
    try:
        text = str(value)
    except ValueError:  # Python does not print thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."


def describe(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return describe(next(choice for choice in arguments if choice is not type(None)))
    if origin is tuple:
        number = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"{number}{_PLURALS[arguments[0]]} separated by commas"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]


_PLURALS = {int: "whole numbers", float: "numbers", str: "words"}


def unique_leaves(cls: type) -> list[Leaf]:
    """Each flat option once, in order: the rows of --help and of the docs."""
    seen: dict[str, Leaf] = {}
    for leaf in leaves(cls):
        seen.setdefault(leaf.name, leaf)
    return list(seen.values())


def default_text(cls: type, leaf: Leaf) -> str:
    """The default as one types it; where it depends on the variant, which one has which."""
    kinds: dict[str, list[str]] = {}
    for home in leaves(cls):
        if home.name == leaf.name:
            kinds.setdefault(_shown_default(home), []).extend(kind for _, kind in home.chosen_by)
    if len(kinds) == 1:
        return _shown_default(leaf)
    return "; ".join(f"{shown or 'none'} ({', '.join(owners)})" for shown, owners in kinds.items())


def _shown_default(leaf: Leaf) -> str:
    if leaf.default is MISSING:
        return "required"
    if leaf.default is None or leaf.default == ():
        return ""
    if leaf.is_bool:
        return "on" if leaf.default else "off"
    return ",".join(map(str, leaf.default)) if isinstance(leaf.default, tuple) else str(leaf.default)


def with_positive_names(values: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """{"no-save": True} as {"save": False}, for options that are switched off by name."""
    switches = {off: leaf.name for leaf in unique_leaves(cls) if leaf.is_bool
                for off in (f"no-{leaf.name}", *leaf.info.off_aliases)}
    return {switches.get(name, name): not coerce(bool, value, name) if name in switches else value
            for name, value in values.items()}


def check_seed(seed: int) -> None:
    check(0 <= seed <= LARGEST_NUMBER, f"--seed is {seed}; it must be a whole number from 0 to 2^31 - 1.")


def check(holds: bool, message: str) -> None:
    """For __post_init__: one line instead of an if and a raise."""
    if not holds:
        raise ConfigError(message)

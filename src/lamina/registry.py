"""Names -> parts: one table per kind of part, filled by one decorator each.

    from lamina import register
    from lamina.parts import Residual

    @register.residual("keel")
    @dataclass(frozen=True, kw_only=True)
    class Keel(Residual): ...

Built-in parts, a person's own (`--user-dir`) and those of installed packages (entry points of the group `lamina.parts`) come
in through the same decorators. A table is a mapping from names to classes, so a configuration's field may hold one as its
choices: flags, --help, recipe keys, the checkpoint's JSON and the docs follow from it. parts/contracts.py says what a part of
each kind answers.

Nothing here imports torch; a part's file imports it inside methods only, so that --help answers at once.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from lamina.errors import ConfigError
from lamina.traits import PAIRS

T = TypeVar("T")

# Their import registers what Lamina brings along. By name: what stands in them imports this module.
BUILT_IN = ("lamina.parts", "lamina.tasks.kinds", "lamina.config.presets")


class Table(Mapping[str, Any]):
    """The parts of one kind, by name, and the decorator that adds one."""

    __hash__ = object.__hash__  # by identity: tables are few, and known by name

    def __init__(self, kind: str, contract: str) -> None:
        self.kind = kind  # what messages call it
        self._contract = contract  # module:class whose subclasses belong here
        self._parts: dict[str, Any] = {}

    def __call__(self, name: str) -> Callable[[T], T]:
        """The decorator: `@register.residual("keel")` above a frozen dataclass."""
        if not name or name != name.strip() or any(character in name for character in " ,=:"):
            raise ConfigError(f"{name!r} cannot name a {self.kind}: use letters, digits, - and _.")

        def add(part: T) -> T:
            self._check(name, part)
            self._parts[name] = part
            _state["version"] += 1
            return part
        return add

    def _check(self, name: str, part: Any) -> None:
        where = f"the {self.kind} {name!r} ({origin_of(part)})"
        module, _, contract_name = self._contract.partition(":")
        contract = getattr(importlib.import_module(module), contract_name)
        if not (isinstance(part, type) and issubclass(part, contract)):
            raise ConfigError(f"{where} does not inherit from {module.rpartition('.')[0]}.{contract_name}, which says what a "
                              f"{self.kind} must answer.")
        if not (dataclasses.is_dataclass(part) and part.__dataclass_params__.frozen):  # type: ignore[attr-defined]
            raise ConfigError(f"{where} is no frozen dataclass: put @dataclass(frozen=True, kw_only=True) between it and "
                              "@register.")
        if missing := sorted(own for own in dir(part) if getattr(getattr(part, own, None), "__isabstractmethod__", False)):
            raise ConfigError(f"{where} lacks {', '.join(missing)}, which every {self.kind} must have.")
        for field in dataclasses.fields(part):
            if "info" not in field.metadata:
                raise ConfigError(f"{where}: its field {field.name} has no option. Write {field.name}: TYPE = "
                                  "flag(DEFAULT, HELP).")
        self._check_new(name, part)

    def _check_new(self, name: str, part: Any) -> None:
        where, known = f"the {self.kind} {name!r} ({origin_of(part)})", self._parts.get(name)
        if known is not None and origin_of(known) != origin_of(part):
            raise ConfigError(f"{where} is registered already, by {origin_of(known)}. Choose another name.")

    def name_of(self, part: object) -> str:
        """What a part, or its class, is called here."""
        cls = part if isinstance(part, type) else type(part)
        return next(name for name, own in self._all().items() if own is cls)

    def _all(self) -> dict[str, Any]:
        load_built_in()
        return self._parts

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        """The plain choice first, the others as they came."""
        return iter(sorted(self._all(), key=lambda name: not getattr(self._parts[name], "is_plain", False)))

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return f"<{self.kind}: {', '.join(self)}>"


class Functions(Table):
    """Parts that are functions without options: what makes an activation, or the configuration of a preset."""

    def _check(self, name: str, part: Any) -> None:
        if not callable(part) or isinstance(part, type):
            raise ConfigError(f"the {self.kind} {name!r} ({origin_of(part)}) is no function without arguments.")
        self._check_new(name, part)


class Presets(Functions):
    """Named architectures, each a function that returns a ModelConfig, and the tasks that they are made for, by trait."""

    def __init__(self) -> None:
        super().__init__("preset", "")
        self._wants: dict[str, frozenset[str]] = {}
        self._following: set[str] = set()

    def __call__(self, name: str, *, wants: Iterable[str] = (PAIRS,), follows_encoder: bool = False) -> Callable[[T], T]:
        """`wants`: traits of a task (traits.py), any of which makes the preset one of its own.

        With `follows_encoder`, the decoder's widths are the encoder's where only those are given.
        """
        self._wants[name] = frozenset(wants)
        if follows_encoder:
            self._following.add(name)
        return super().__call__(name)

    def of_task(self, task: str) -> list[str]:
        """The first is the task's default."""
        return [name for name in self if self._wants[name] & register.task[task].traits]

    def tasks_of(self, name: str) -> list[str]:
        return [task for task in register.task if name in self.of_task(task)]

    def follows_encoder(self, name: str) -> bool:
        return name in self._following


class TasksWith(Collection[str]):
    """The names of the tasks that have one of these traits: the choices of an option."""

    def __init__(self, *traits: str) -> None:
        self.traits = set(traits)

    def _names(self) -> list[str]:
        return [name for name, kind in register.task.items() if kind.traits & self.traits]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __len__(self) -> int:
        return len(self._names())


def first_task(*traits: str) -> str:
    """The task that brought these traits: the first with all of them."""
    return next(name for name, kind in register.task.items() if kind.traits >= set(traits))


class Register:
    """One table for each kind of part."""

    def __init__(self) -> None:
        self.residual = Table("residual", "lamina.parts.contracts:Residual")
        self.fusion = Table("fusion", "lamina.parts.contracts:Fusion")
        self.mixing = Table("mixing", "lamina.parts.contracts:Mixing")
        self.head = Table("head", "lamina.parts.contracts:Head")
        self.positions = Table("positions", "lamina.parts.contracts:Positions")
        self.activation = Functions("activation", "")
        self.adapter = Table("adapter", "lamina.parts.contracts:Adapter")
        self.criterion = Table("criterion", "lamina.parts.contracts:Criterion")
        self.optimizer = Table("optimizer", "lamina.parts.contracts:Optimizer")
        self.schedule = Table("schedule", "lamina.parts.contracts:Schedule")
        self.step_rule = Table("step rule", "lamina.parts.contracts:StepRule")
        self.tracker = Table("tracker", "lamina.parts.contracts:Tracker")
        self.metric = Table("metric", "lamina.parts.contracts:Metric")
        self.subword = Table("subword library", "lamina.parts.contracts:SubwordLibrary")
        self.task = Table("task", "lamina.parts.contracts:TaskKind")
        self.arch = Presets()

    def tables(self) -> list[Table]:
        return [table for table in vars(self).values() if isinstance(table, Table)]


register = Register()
_state = {"is loaded": 0, "version": 0}


def load_built_in() -> None:
    """Once; what is imported asks for the tables of other kinds only when it is used."""
    if not _state["is loaded"]:
        _state["is loaded"] = 1
        for module in BUILT_IN:
            importlib.import_module(module)


def version() -> int:
    """Another number whenever a part is added: what was derived from the tables before no longer holds."""
    load_built_in()
    return _state["version"]


@contextmanager
def tables_restored() -> Iterator[None]:
    """Inside, parts may be added; afterwards the tables are as they were (plug_ins.restored also forgets the imports)."""
    before = {table: dict(table._all()) for table in register.tables()}
    try:
        yield
    finally:
        for table, parts in before.items():
            table._parts = parts
        _state["version"] += 1


def origin_of(part: object) -> str:
    return f"{getattr(part, '__module__', '?')}.{getattr(part, '__qualname__', part)}"


def is_built_in(part: object) -> bool:
    return str(getattr(part, "__module__", "")).partition(".")[0] == "lamina"

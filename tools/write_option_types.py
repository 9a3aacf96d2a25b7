"""Writes src/lamina/api/option_types.py, the keyword options of the Python interface as types."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

from lamina.config.preprocess_options import PreprocessConfig
from lamina.config.search_options import SearchConfig
from lamina.config.train_options import TrainConfig
from lamina.fields import NO_VALUE, Leaf, flat_names, unique_leaves

PATH = Path(__file__).parents[1] / "src" / "lamina" / "api" / "option_types.py"
HEAD = '''"""The keyword options of the Python interface, for type checkers and editors.

Written by `make docs` from the configuration classes: change those, or tools/write_option_types.py. Options of parts of your
own are not listed here; a type checker wants `# type: ignore` where they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypedDict
else:
    from typing import TypedDict
'''
# What has a parameter of its own, or makes no sense in a function.
LEFT_OUT = {"train": {"data", "print-config", "user-dir", "criterion", "task"},
            "preprocess": {"trainpref", "validpref", "testpref", "destdir", "source-lang", "target-lang", "only-source",
                           "user-dir"},
            "search": {"beam"}}


def type_text(kind: Any) -> str:
    """What a keyword accepts for an option of this type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return f"{type_text(next(choice for choice in arguments if choice is not type(None)))} | None"
    if origin is tuple:
        item = arguments[0].__name__
        return f"str | Sequence[{item}]" if item == "str" else f"{item} | Sequence[{item}] | str"
    return kind.__name__


def _row(name: str, leaf: Leaf) -> str:
    text = type_text(leaf.type)
    if leaf.info.bare_value is not NO_VALUE:
        text = text.replace("str", "str | bool", 1)
    return f"    {name}: {text}\n"


def _class(name: str, doc: str, rows: dict[str, Leaf]) -> str:
    return f'\n\nclass {name}(TypedDict, total=False):\n    """{doc}"""\n\n' + "".join(
        _row(key, rows[key]) for key in sorted(rows))


def text() -> str:
    searched = {leaf.name: leaf for leaf in unique_leaves(SearchConfig)}
    search = {name: searched[flag] for name, flag in flat_names(SearchConfig).items() if flag not in LEFT_OUT["search"]}
    search |= {name.replace("-", "_"): leaf for name, leaf in searched.items() if name not in LEFT_OUT["search"]}
    # `constraints` are texts in Python; their order is `constraint_order`.
    search.pop("constraints")

    def rows(config: type, left_out: set[str]) -> dict[str, Leaf]:
        return {leaf.name.replace("-", "_"): leaf for leaf in unique_leaves(config) if leaf.name not in left_out}

    return "".join((
        HEAD,
        _class("SearchOptions", "How to search: the options of `lamina generate`, or SearchConfig's fields.", search),
        _class("TrainOptions", "The options of `lamina train`.", rows(TrainConfig, LEFT_OUT["train"])),
        _class("PrepareOptions", "The options of `lamina preprocess`.", rows(PreprocessConfig, LEFT_OUT["preprocess"]))))


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")

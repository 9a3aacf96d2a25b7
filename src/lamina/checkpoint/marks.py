"""Marks of provenance: what was done to a model before, noted down under `training` of its checkpoint.

Whatever reads a checkpoint and writes another hands them on: a model that was folded yesterday cannot be pruned tomorrow,
whatever was done to it today.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lamina.checkpoint.format import Checkpoint
from lamina.config.keep import SIDES

# Each mark, and how to say it.
MARKS = {"averaged": "averaged from", "pruned": "pruned from", "folded": "folded, formerly --init-type",
         "from": "read from a file of", "layers": "layers of the model as trained"}
_KINDS: dict[str, type] = {"averaged": list, "layers": dict}  # the others are text


def marks_of(checkpoint: Checkpoint) -> dict[str, Any]:
    return {name: checkpoint.training[name] for name in MARKS if name in checkpoint.training}


def layers_as_trained(checkpoint: Checkpoint) -> dict[str, str]:
    """By side, which layers of the model as it was trained are left: `0,2,4 of 6`; nothing of a side that was never pruned."""
    records = {side: str(record) for side in SIDES
               if (record := checkpoint.config.get(f"{side}-layers-to-keep")) is not None}
    return records | checkpoint.training.get("layers", {})


def joined_marks(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a model that was made from several. Texts that differ are listed; of anything else the first counts."""
    joined: dict[str, Any] = {}
    for marks in each:
        for name, value in marks.items():
            before = joined.setdefault(name, value)
            if isinstance(before, str) and isinstance(value, str) and value not in before.split(", "):
                joined[name] = f"{before}, {value}"
    return joined


def readable_marks(content: Any) -> dict[str, Any]:
    """Those that a file of another format holds, as far as they are what marks are."""
    if not isinstance(content, Mapping):
        return {}
    return {name: content[name] for name in MARKS if name in content and _is_mark(name, content[name])}


def _is_mark(name: str, value: Any) -> bool:
    parts = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else [value]
    return isinstance(value, _KINDS.get(name, str)) and all(isinstance(part, str) for part in parts)

"""`lamina info`: what a checkpoint holds and where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamina import console
from lamina.config.tool_options import InfoConfig

if TYPE_CHECKING:
    from collections.abc import Iterator


def run(config: InfoConfig) -> None:
    from lamina.checkpoint.describe import describe
    from lamina.interop.any_format import load_any

    path = Path(config.checkpoint)
    checkpoint = load_any(path, notice=console.notice)
    if config.lists_weights:
        for name, weight in checkpoint.weights.items():
            print(f"{name}  {' x '.join(map(str, weight.shape))}")
        return
    described = describe(checkpoint, path)
    if config.is_json:
        print(console.printable(json.dumps(described, indent=1, ensure_ascii=False)))
        return
    for line in lines(described):
        print(console.printable(line))


def lines(described: dict[str, Any]) -> Iterator[str]:
    """A section a paragraph: its name, then a line for each value."""
    from lamina.checkpoint.describe import changed_options
    from lamina.checkpoint.marks import MARKS

    shown = described | {
        "file": described["file"] | {"bytes": f"{described['file']['bytes']:,} ({described['file']['bytes'] / 2**20:.1f} MiB)"},
        "parameters": {name: f"{number:,}" for name, number in described["parameters"].items()},
        "made_from": {MARKS[name]: value for name, value in described["made_from"].items()},
        "config": changed_options(described["config"])}
    headings = {"made_from": "made from", "config": "configuration, less what is at its default"}
    for section, values in shown.items():
        if not values:
            continue
        yield headings.get(section, section)
        width = max(map(len, values))
        for name, value in values.items():
            yield f"  {name.replace('_', ' ') if section != 'config' else name:<{width}}  {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {item}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)

"""How much of a model runs, as people write it: `half`, `6-3`, or {"encoder": 6, "decoder": 3}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from lamina.config.keep import SIDES, as_text, even_text, kept_layers
from lamina.errors import ConfigError

AUTO = "auto"
HALF = "half"
FULL = "full"


@dataclass(frozen=True)
class Depth:
    """The layers of each stack that run: `half`, text as for --encoder-layers-to-keep, or None for all of them."""

    encoder: str | None = None
    decoder: str | None = None

    def layers(self, side: str, num_layers: int) -> tuple[int, ...]:
        """Of a stack of so many layers, the numbers of those that run."""
        text = getattr(self, side)
        if text is None or not num_layers:
            return tuple(range(num_layers))
        return kept_layers(even_text((num_layers + 1) // 2) if text == HALF else text, num_layers, side)


# What people may write.
DepthText = Depth | str | Mapping[str, int | str | Sequence[int]] | None


def parse_depth(value: object) -> Depth | None:
    """What was written; None for `auto`, which leaves the depth of each sentence to a cascade.

    `full`, `half` (of an odd number of layers the larger half, spread evenly), `6-3` for 6 encoder layers and 3 decoder layers,
    or a mapping with `encoder` and `decoder`: a number of layers, spread evenly, or a list of layers, counted from 0. A stack
    that a mapping does not name runs whole.
    """
    if isinstance(value, Depth):
        return value
    if value is None or value == FULL:
        return Depth()
    if value == HALF:
        return Depth(HALF, HALF)
    if value == AUTO:
        return None
    if isinstance(value, str):
        encoder, dash, decoder = value.partition("-")
        if not (dash and encoder.isdecimal() and decoder.isdecimal()):
            _refuse(value)
        return Depth(as_text(int(encoder)), as_text(int(decoder)))
    if not isinstance(value, Mapping) or not value or not set(value) <= set(SIDES):
        _refuse(value)
    return Depth(**{side: _text(layers, value) for side, layers in value.items() if layers is not None})


def _text(layers: object, whole: object) -> str:
    if isinstance(layers, bool) or not isinstance(layers, (int, str, list, tuple)):
        _refuse(whole)
    return as_text(layers)


def _refuse(value: object) -> NoReturn:
    raise ConfigError(f"the depth is {value!r}; it must be full, half, auto, layers of encoder and decoder such as 6-3, or "
                      '{"encoder": 6, "decoder": 3}.')

"""Which layers of a trained model to keep, as people write it: `0,2,4`; `3` for layer 3; `every:2`; `even:3` for any three."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from lamina.errors import ConfigError
from lamina.fields import flag
from lamina.traits import DECODER, ENCODER

SIDES = ("encoder", "decoder")
_HELP = ("keep these layers of the checkpoint's {0}, counted from 0, and leave out the rest: a list (`0,2,4`, or `3` for layer "
         "3 alone), `every:2`, or a count spread evenly (`even:3`); evenly spaced layers are the best first choice")


@dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """Pruning: a model that was trained with LayerDrop works with fewer layers too."""

    encoder: str | None = flag(None, _HELP.format("encoder"), name="encoder-layers-to-keep", metavar="LAYERS",
                               paper="Fan et al. 2020 §3.2", wants=(ENCODER,))
    decoder: str | None = flag(None, _HELP.format("decoder"), name="decoder-layers-to-keep", metavar="LAYERS",
                               paper="Fan et al. 2020 §3.2", wants=(DECODER,))

    def __post_init__(self) -> None:
        for side in SIDES:
            if getattr(self, side) is not None:
                _parse(getattr(self, side), side)

    @property
    def is_empty(self) -> bool:
        return self.encoder is None and self.decoder is None


def as_text(layers: str | int | Sequence[int]) -> str:
    """The flag's text for what a script gives: text, how many layers to keep, or a list of them."""
    if isinstance(layers, str):
        return layers
    if isinstance(layers, int) and not isinstance(layers, bool):
        return even_text(layers)
    if not isinstance(layers, Sequence) or not all(isinstance(layer, int) for layer in layers):
        raise ConfigError(f"the layers to keep are {layers!r}; give a list such as [0, 2, 4], a number of layers, or text such "
                          "as 'every:2'.")
    return ",".join(map(str, layers))


def even_text(number: int) -> str:
    """So many layers, spread evenly, as the flag's text."""
    return f"even:{number}"


def record_text(layers: Sequence[int], num_layers: int) -> str:
    """What a pruned checkpoint notes down: `0,2,4 of 6`."""
    return f"{as_text(layers)} of {num_layers}"


def kept_layers(text: str, num_layers: int, side: str, owner: str = "") -> tuple[int, ...]:
    """The layers that `text` names, of a stack of `num_layers`, in ascending order whatever their order in the list."""
    choice = _parse(text, side)
    stack = f"the {side}{f' of {owner}' if owner else ''} has {num_layers} layer{'s' if num_layers > 1 else ''}"
    if choice.depth not in (None, num_layers):
        raise ConfigError(f"--{side}-layers-to-keep {text} is meant for {choice.depth} layers, but {stack}.")
    if choice.kind == "every":
        return tuple(range(0, num_layers, choice.numbers[0]))
    if choice.kind == "even":
        if choice.numbers[0] > num_layers:
            raise ConfigError(f"--{side}-layers-to-keep {text} asks for {choice.numbers[0]} layers, but {stack}.")
        return spread(choice.numbers[0], num_layers)
    missing = [number for number in choice.numbers if number >= num_layers]
    if missing:
        raise ConfigError(f"--{side}-layers-to-keep {text} names layer {missing[0]}, but {stack}, 0 to {num_layers - 1}. How "
                          f"many to keep is written `even:{min(missing[0], num_layers)}`.")
    return tuple(sorted(choice.numbers))


def spread(number: int, num_layers: int) -> tuple[int, ...]:
    """`number` layers, as evenly as can be, the first among them: layer floor(i * num_layers / number) for each i."""
    return tuple(place * num_layers // number for place in range(number))


def was_kept(text: str, record: str, side: str) -> bool:
    """Does `text` ask for the layers that a checkpoint with this record was pruned to?"""
    before = _parse(record, side)
    try:
        return before.depth is not None and kept_layers(text, before.depth, side) == before.numbers
    except ConfigError:
        return False


def layers_of_record(record: str, side: str) -> tuple[tuple[int, ...], int]:
    """`0,2,4 of 6` as layers and the depth that they were chosen from."""
    depth = _parse(record, side).depth
    if depth is None:
        _refuse(record, side)
    return kept_layers(record, depth, side), depth


class _Choice(NamedTuple):
    kind: str  # list, every, even
    numbers: tuple[int, ...]
    depth: int | None = None  # of the stack it is meant for, where it says so


def _parse(text: str, side: str) -> _Choice:
    words, _, depth = text.partition(" of ")
    choice = _parse_layers(words.strip(), text, side)
    return choice._replace(depth=_whole(depth, text, side)) if depth else choice


def _parse_layers(words: str, text: str, side: str) -> _Choice:
    if not words.strip(", "):
        raise ConfigError(f"--{side}-layers-to-keep is empty; name at least one layer, such as 0,2,4. To keep all of them, "
                          "leave it out.")
    kind, colon, number = words.partition(":")
    if colon:
        how_many = _whole(number, text, side)
        return _Choice(kind, (how_many,)) if kind in ("every", "even") and how_many >= 1 else _refuse(text, side)
    numbers = tuple(_whole(word, text, side) for word in words.removesuffix(",").split(","))
    repeated = next((number for place, number in enumerate(numbers) if number in numbers[:place]), None)
    if repeated is not None:
        raise ConfigError(f"--{side}-layers-to-keep {text} names layer {repeated} twice; a layer can be kept once.")
    return _Choice("list", numbers)


def _whole(word: str, text: str, side: str) -> int:
    return int(word) if word.strip().isdecimal() and word.strip().isascii() else _refuse(text, side)


def _refuse(text: str, side: str) -> NoReturn:
    raise ConfigError(f"--{side}-layers-to-keep is {text!r}; it must be layers counted from 0, such as 0,2,4 or 3, "
                      "every:2, or a count spread evenly, such as even:3.")

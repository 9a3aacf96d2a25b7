"""How LayerDrop's rate is shared out among the layers of a stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.errors import ConfigError
from lamina.fields import check

Rates = tuple[float, ...]

SCHEDULE_HELP = ("every layer has p (constant); layer i of N, counted from 1, has p * i/N, whose mean is p * (N+1)/2N "
                 "(linear); or p * (2^((i-1)/(N-1)) - 1), from 0 to p (exponential); or a list of rates instead of p, one for "
                 "each layer, such as 0,0.1,0.2, and for stacks of different depth 0,0.1,0.2/0.2,0.2")

# By name: the share of p that layer `index` of `number` has.
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda index, number: 1.0,
    "linear": lambda index, number: (index + 1) / number,
    # LayerSkip's, D(l) = exp(l * ln 2 / (L - 1)) - 1; the only layer of a stack has p.
    "exponential": lambda index, number: 2.0 ** (index / (number - 1)) - 1.0 if number > 1 else 1.0,
}
# Between the lists of the two stacks.
SIDES_MARK = "/"


def rates_of(side: str, rate: float, num_layers: int, schedule: str) -> Rates:
    """Of each layer of the encoder or the decoder; 0 for all where it has no rate."""
    if not rate:
        return (0.0,) * num_layers
    if schedule in SCHEDULES:
        return tuple(rate * SCHEDULES[schedule](index, num_layers) for index in range(num_layers))
    rates = _listed(schedule)[0 if side == "encoder" else -1]
    check(len(rates) == num_layers,
          f"--layerdrop-schedule has {len(rates)} rates for the {side}, which has {num_layers} layers. Give one for each, and "
          f"for stacks of different depth a list for each: ENCODER{SIDES_MARK}DECODER.")
    return rates


def schedule_of_layers(schedule: str, layers: Sequence[Sequence[int]]) -> str:
    """The schedule of a model of which some encoder and some decoder layers are left."""
    if schedule in SCHEDULES:
        return schedule
    sides = _listed(schedule)
    return SIDES_MARK.join(",".join(f"{own[index]:g}" for index in kept if index < len(own))
                           for own, kept in zip((sides[0], sides[-1]), layers, strict=True))


def _listed(text: str) -> list[Rates]:
    try:
        sides = [tuple(float(rate) for rate in side.split(",")) for side in text.split(SIDES_MARK)]
    except ValueError:
        sides = []
    if not 1 <= len(sides) <= 2:
        raise ConfigError(f"--layerdrop-schedule is {text!r}; it must be {', '.join(SCHEDULES)} or a list of rates, one for "
                          "each layer, such as 0,0.1,0.2.")
    check(all(0.0 <= rate < 1.0 for side in sides for rate in side),
          f"--layerdrop-schedule is {text}; every rate must lie in [0, 1).")
    return sides

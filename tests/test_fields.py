"""Flags, recipes and checkpoints are one mapping, generated from the fields."""

from dataclasses import dataclass

import pytest

from lamina.config.train_options import TrainConfig
from lamina.errors import ConfigError
from lamina.fields import build, check, coerce, flag, flatten, leaves, part, unique_leaves, variant, with_positive_names


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """Quiet."""


@dataclass(frozen=True, kw_only=True)
class Loud:
    """Loud."""

    volume: float = flag(0.5, "how loud")

    def __post_init__(self):
        check(self.volume <= 1, f"--volume is {self.volume}; it must be at most 1.")


@dataclass(frozen=True, kw_only=True)
class Side:
    """Side."""

    num_layers: int = flag(6, "layers", name="layers")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Machine."""

    left: Side = part(Side, "left-")
    right: Side = part(Side, "right-")
    sound: Quiet | Loud = variant("sound", "what it says", {"quiet": Quiet, "loud": Loud}, default="quiet")
    betas: tuple[float, float] = flag((0.9, 0.999), "two numbers")
    keep: tuple[int, ...] = flag((), "numbers")
    is_on: bool = flag(True, "runs", name="run")
    every: int = flag(0, "how often", needs="run")
    label: str | None = flag(None, "a name", needs="!run")


def test_flatten_and_build_are_inverse():
    machine = Machine(left=Side(num_layers=2), sound=Loud(volume=0.25), keep=(1, 2))
    flat = flatten(machine)
    assert flat == {"left-layers": 2, "right-layers": 6, "sound": "loud", "volume": 0.25, "betas": [0.9, 0.999],
                    "keep": [1, 2], "run": True, "every": 0, "label": None}
    assert build(Machine, flat) == machine


def test_defaults_are_those_of_the_fields():
    assert build(Machine, {}) == Machine()


def test_an_option_of_another_variant_has_no_effect():
    with pytest.raises(ConfigError, match="--volume has no effect with --sound quiet; it belongs to --sound loud"):
        build(Machine, {"volume": 0.7}, explicit=["volume"])
    # At its default, or not given by a person, it does no harm.
    assert build(Machine, {"volume": 0.5}, explicit=["volume"]) == Machine()
    assert build(Machine, {"volume": 0.7}) == Machine()


def test_an_option_that_needs_another_one():
    with pytest.raises(ConfigError, match="--every has no effect without --run"):
        build(Machine, {"every": 3, "run": False}, explicit=["every", "run"])
    with pytest.raises(ConfigError, match="--label has no effect together with --run"):
        build(Machine, {"label": "x"}, explicit=["label"])
    assert build(Machine, {"every": 3}, explicit=["every"]).every == 3


def test_what_is_off_anyway_may_be_switched_off():
    off = {"data": "x", "max-tokens": 64, "cuda-graphs": False, "compile": False}
    assert not build(TrainConfig, off, explicit=list(off)).precision.compiles


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean --left-layers"):
        build(Machine, {"left-layer": 3})


def test_checks_of_a_variant_run():
    with pytest.raises(ConfigError, match="at most 1"):
        build(Machine, {"sound": "loud", "volume": 3.0})
    with pytest.raises(ConfigError, match="must be one of quiet, loud"):
        build(Machine, {"sound": "shrill"})


@pytest.mark.parametrize(("kind", "value", "expected"), [
    (tuple[float, float], "(0.9, 0.98)", (0.9, 0.98)), (tuple[float, float], "(0.9,0.98)", (0.9, 0.98)),
    (tuple[float, float], "0.9,0.98", (0.9, 0.98)), (tuple[float, float], [0.9, 0.98], (0.9, 0.98)),
    (tuple[int, ...], "0,2,4", (0, 2, 4)), (tuple[int, ...], "8", (8,)), (tuple[int, ...], 8, (8,)),
    (float, "1e-07", 1e-7), (float, 3, 3.0), (int, "12", 12), (int, 12.0, 12), (bool, "False", False), (bool, True, True),
    (int | None, None, None), (int | None, "5", 5), (str | None, "x", "x"),
])
def test_coerce(kind, value, expected):
    result = coerce(kind, value, "x")
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(("kind", "value", "message"), [
    (int, "many", "a whole number"), (int, 1.5, "a whole number"), (float, "x", "a number"), (bool, "maybe", "true or false"),
    (tuple[float, float], "0.9", "2 numbers"), (tuple[float, float], "(0.9, __import__('os'))", "2 numbers"),
    (tuple[int, ...], "0,a", "whole numbers"), (int, True, "a whole number"), (str, 5, "text"), (int, None, "a whole number"),
])
def test_coerce_refuses(kind, value, message):
    with pytest.raises(ConfigError, match=message):
        coerce(kind, value, "x")


def test_switches_may_be_named_by_their_off_form():
    assert with_positive_names({"no-run": True, "every": 2}, Machine) == {"run": False, "every": 2}


def test_every_training_option_has_help_and_one_spelling():
    for leaf in leaves(TrainConfig):
        assert leaf.info.help, leaf.name
        assert leaf.name == leaf.name.lower().replace("_", "-")
    spellings = [name.lstrip("-") for leaf in unique_leaves(TrainConfig) for name in (leaf.name, *leaf.info.aliases)]
    assert len(spellings) == len(set(spellings))


def test_needs_name_options_that_exist():
    names = {leaf.name for leaf in leaves(TrainConfig)}
    assert {need.lstrip("!") for leaf in leaves(TrainConfig) for need in leaf.info.needs} <= names


def test_an_option_of_another_task_is_an_error():
    @dataclass(frozen=True, kw_only=True)
    class Block:
        """Blocks."""

        size: int = flag(8, "tokens of a block")

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """All."""

        task: str = flag("translation", "what to learn", choices=("translation", "language_modeling"))
        lang: str | None = flag(None, "language", tasks=("translation",))
        block: Block = part(Block, "block-", tasks=("language_modeling",))

    build(Config, {"block-size": 8}, explicit=["block-size"])
    build(Config, {"block-size": 9, "task": "language_modeling"}, explicit=["block-size"])
    with pytest.raises(ConfigError, match="--block-size has no effect with --task translation; it belongs to --task language"):
        build(Config, {"block-size": 9}, explicit=["block-size"])
    with pytest.raises(ConfigError, match="--lang has no effect with --task language_modeling"):
        build(Config, {"lang": "en", "task": "language_modeling"}, explicit=["lang"])

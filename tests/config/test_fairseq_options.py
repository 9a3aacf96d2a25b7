"""Every option of fairseq 0.9, of the two forks and of fairseq main is taken, taken with a notice, or refused with a reason."""

import re
from pathlib import Path

import pytest

from lamina import registry
from lamina.command_line import COMMANDS, load
from lamina.config.fairseq_options import FAIRSEQ_OPTIONS, REFUSED_VALUES, RETIRED, retired_for
from lamina.config.parser import make_parser, parse, resolve
from lamina.errors import ConfigError
from lamina.fields import unique_leaves

NAMES = Path(__file__).with_name("fairseq_option_names.txt")


def option_names():
    """{(toolkit, command): names}; a name that takes a value ends in =."""
    found, toolkit, commands = {}, "", []
    for line in NAMES.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            toolkit = line.removeprefix("## ")
        elif line.startswith("["):
            commands = re.findall(r"[\w-]+", line)
        elif not line.startswith("#"):
            for command in commands:
                found.setdefault((toolkit, command), []).extend(line.split())
    return found


OPTION_NAMES = option_names()


@pytest.mark.parametrize(("toolkit", "command"), OPTION_NAMES, ids=[" ".join(key) for key in OPTION_NAMES])
def test_every_option_is_taken_or_says_why_not(toolkit, command):
    cls = load(COMMANDS[command].config)
    has_data = any(leaf.name == "data" and leaf.info.positional for leaf in unique_leaves(cls))
    unknown, data_lost = [], []
    for name in OPTION_NAMES[toolkit, command]:
        words = [name.rstrip("="), *(["1"] if name.endswith("=") else []), *(["DATA"] if has_data else [])]
        try:
            given, _ = parse(f"lamina {command}", cls, "", words)
        except ConfigError as error:
            # The reason, and not that the option is unknown or its value unexpected.
            if not re.fullmatch(r"--\S+ is not supported: \S.*[^.]\. Leave it out\.", str(error)):
                unknown.append(f"{name}: {error}")
        else:
            if has_data and given.get("data") != "DATA":
                data_lost.append(name)
    assert not unknown
    assert not data_lost


def test_the_lists_are_whole():
    """By the numbers of options that the sources have; and ours of 0.9 adds none that they do not have."""
    numbers = {command: len(names) for (toolkit, command), names in OPTION_NAMES.items() if toolkit.startswith("fairseq 0.9")}
    assert numbers == {"preprocess": 42, "train": 342, "generate": 187, "interactive": 189, "eval-lm": 162, "score": 9,
                       "average": 5}
    for command, names in FAIRSEQ_OPTIONS.items():
        theirs = {name.rstrip("=").lstrip("-").replace("_", "-") for (toolkit, key), found in OPTION_NAMES.items()
                  if key == command and toolkit.startswith("fairseq 0.9") for name in found}
        assert {name.lstrip("-") for name in names} <= theirs


def of_command(command, *words):
    return parse(f"lamina {command}", load(COMMANDS[command].config), "", words)


@pytest.mark.parametrize("command", FAIRSEQ_OPTIONS)
def test_every_fairseq_option_is_implemented_an_alias_or_retired(command):
    parser = make_parser(command, load(COMMANDS[command].config), "")
    known = {name for action in parser._actions for name in action.option_strings}
    retired = [f"--{option.name}" for option in retired_for(command)]
    assert len(retired) == len(set(retired))
    assert not known & set(retired)
    for name in FAIRSEQ_OPTIONS[command]:
        option = name if name.startswith("-") else f"--{name}"
        assert (option in known) != (option in retired), option
    assert len(FAIRSEQ_OPTIONS[command]) == len(set(FAIRSEQ_OPTIONS[command]))


@pytest.mark.parametrize("command", sorted({option.command for option in RETIRED}))
def test_a_retired_option_says_why(command):
    for option in retired_for(command):
        words = [f"--{option.name}", *(["1"] if option.takes_value else [])]
        if option.is_refused:
            with pytest.raises(ConfigError, match=f"^--{option.name} is not supported: "):
                of_command(command, *words)
        else:
            given, notices = of_command(command, *words)
            assert given == {}
            assert len(notices) == 1
            assert notices[0].startswith(f"--{option.name} has no effect: ")


@pytest.mark.parametrize("words", [
    ["--lang-pairs", "de-en,fr-en", "DATA"], ["DATA", "--lang-pairs=de-en,fr-en"], ["DATA", "--encoder-langtok", "tgt"],
    ["--task", "multilingual_translation", "DATA", "--lang-pairs", "de-en", "--dropout", "0.1"],
])
def test_a_refused_option_says_why_wherever_it_stands(words):
    with pytest.raises(ConfigError, match="a model has one source and one target language"):
        of_command("train", *words)


@pytest.mark.parametrize(("command", "option", "value"), [
    ("generate", "print-alignment", "soft"), ("train", "init-type", "looklinear"),
    ("train", "task", "multilingual_translation"), ("train", "task", "speech_to_text"),
])
def test_a_value_that_is_not_here_says_why(command, option, value):
    with pytest.raises(ConfigError, match=f"^--{option} {value} is not supported: ") as failure:
        of_command(command, "DATA", f"--{option}", value)
    assert REFUSED_VALUES[option, value] in str(failure.value)


def test_a_value_is_refused_only_where_it_is_none_of_ours():
    for (option, value), reason in REFUSED_VALUES.items():
        homes = [leaf for command in COMMANDS.values() for leaf in unique_leaves(load(command.config)) if leaf.name == option]
        assert homes
        assert all(value not in (leaf.info.choices or ()) for leaf in homes)
        assert reason


def test_a_part_of_ones_own_may_take_the_name_of_what_is_missing(monkeypatch):
    monkeypatch.setitem(registry._state, "version", registry.version() + 1000)  # what was derived before no longer holds
    monkeypatch.setitem(registry.register.residual._parts, "looklinear", registry.register.residual["default"])
    assert of_command("train", "DATA", "--init-type", "looklinear")[0]["init-type"] == "looklinear"


@pytest.mark.parametrize(("words", "alignment"), [
    (["--print-alignment", "DATA"], "hard"), (["DATA", "--print-alignment"], "hard"),
    (["DATA", "--print-alignment", "hard"], "hard"), (["DATA"], None),
])
def test_an_optional_value_does_not_swallow_the_data(words, alignment):
    given, _ = of_command("generate", *words, "--path", "x.pt")
    config = resolve(load(COMMANDS["generate"].config), given)
    assert (config.data.data, config.output.alignment) == ("DATA", alignment)


def test_later_releases_words_for_what_is_here():
    config = resolve(load(COMMANDS["train"].config), of_command(
        "train", "DATA", "--max-tokens", "9", "--amp", "--amp-init-scale", "4", "--amp-scale-window", "7", "--save-async")[0])
    assert (config.precision.fp16, config.precision.fp16_init_scale, config.precision.fp16_scale_window) == (True, 4.0, 7)
    assert config.saving.is_async

    def scored_on_text(*words):
        given, _ = of_command("generate", "DATA", "--path", "x.pt", *words)
        return resolve(load(COMMANDS["generate"].config), given).is_detokenized

    assert scored_on_text("--scoring", "sacrebleu")
    assert not scored_on_text("--scoring", "bleu")
    assert not scored_on_text()
    with pytest.raises(ConfigError, match="Leave one of them out"):
        scored_on_text("--scoring", "bleu", "--sacrebleu")

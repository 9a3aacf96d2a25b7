"""From a command's configuration class to its command line, through argparse.

argparse was chosen over tyro after a trial (notes/log.md, 2026-11-15): flags stay unset when not given, values may be
optional (`--remove-bpe [KIND]`), every error is one line, and `--help` costs nothing to import.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

from lamina.config.command_help import Wanted, shown_options
from lamina.config.fairseq_options import REFUSED_VALUES, Retired, retired_for
from lamina.config.packaged_recipes import path_of
from lamina.config.presets import preset_values
from lamina.config.yaml_file import flag_words, read_mapping
from lamina.errors import ConfigError
from lamina.fields import MISSING, NO_VALUE, Leaf, build, default_text, describe, flatten, leaves, unique_leaves
from lamina.plug_ins import USER_DIR
from lamina.registry import register, version
from lamina.suggestions import suggestion

T = TypeVar("T")


WIDEST = 120  # of a line of help
WIDEST_CHOICES = 60  # of a flag's choices in braces


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        name = re.match(r"argument ([^:/ ]+).*: expected one argument$", message)
        hint = f" Where its value begins with a dash, write {name[1]}=VALUE." if name else ""
        raise ConfigError(f"{message}.{hint} See `{self.prog} --help`.")


class _Joined(argparse.Action):
    """--freeze A --freeze B as --freeze A,B."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
                 option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        # The terminal's own width; beyond a point, longer lines are harder to read.
        columns = shutil.get_terminal_size((100, 24)).columns
        super().__init__(prog, max_help_position=34, width=max(60, min(columns, WIDEST) - 2))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse.BooleanOptionalAction):
            return super()._format_action_invocation(action)
        names = [name for name in action.option_strings if not name.startswith("--no-")]
        return ", ".join(name.replace("--", "--[no-]", 1) for name in names)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        # Eighty flags in brackets explain nothing; the groups below do.
        positionals = " ".join(str(action.metavar) for action in actions if not action.option_strings)
        return f"usage: {self._prog} {positionals} [options]\n\n".replace("  ", " ")


def make_parser(prog: str, cls: type, description: str, epilog: str = "",
                is_shown: Callable[[Leaf], bool] = lambda _: True, *, names_tasks: bool = True) -> argparse.ArgumentParser:
    """Every leaf of `cls` as a flag; a flag that was not given leaves no trace in the namespace."""
    parser = _Parser(prog=prog, description=description, epilog=epilog, formatter_class=_Formatter,
                     allow_abbrev=False, argument_default=argparse.SUPPRESS, add_help=False)
    groups: dict[str, Any] = {}
    for leaf in filter(is_shown, unique_leaves(cls)):
        group = groups.get(leaf.group) or groups.setdefault(leaf.group, parser.add_argument_group(leaf.group))
        _add_leaf(group, leaf, _help_text(cls, leaf, names_tasks=names_tasks))
    return parser


def help_text(prog: str, cls: type, description: str, wanted: Wanted, words: Sequence[str]) -> str:
    """What `--help`, `--help WORD` or `--help-all` prints."""
    is_shown, note = shown_options(prog.removeprefix("lamina "), cls, wanted, words)
    # Where only the options of one task are shown, none has to name it.
    names_tasks = wanted.everything or wanted.word is not None
    return make_parser(prog, cls, description, note, is_shown, names_tasks=names_tasks).format_help()


def _add_leaf(group: Any, leaf: Leaf, text: str) -> None:
    info = leaf.info
    if info.positional:
        group.add_argument(leaf.name, nargs="*" if info.is_list else "?", metavar=leaf.name.upper(), help=text)
        return
    # Written both ways, as fairseq's users do: --encoder-layers and --encoder_layers.
    names = [f"--{leaf.name}", *(name if name.startswith("-") else f"--{name}" for name in info.aliases)]
    if leaf.is_bool:
        group.add_argument(*names, dest=leaf.name, help=text, action=argparse.BooleanOptionalAction)
        for off in info.off_aliases:
            group.add_argument(f"--{off}", dest=leaf.name, action="store_const", const=False,
                               help=f"the same as --no-{leaf.name}")
        return
    optional: dict[str, Any] = {} if info.bare_value is NO_VALUE else {"nargs": "?", "const": info.bare_value}
    if info.is_list:
        optional = {"nargs": "+", "action": "extend"}
    if info.repeats:
        optional = {"action": _Joined}
    metavar = info.metavar or ("{" + ",".join(info.choices or ()) + "}" if _are_few(info.choices) else _metavar(leaf.type))
    if metavar == "TEXT" and info.choices:
        metavar = "NAME"
    group.add_argument(*names, dest=leaf.name, metavar=metavar, help=text, **optional)


def _are_few(choices: Collection[str] | None) -> bool:
    """Whether they fit into a flag's own line of help; others are listed behind its meaning."""
    return bool(choices) and len(",".join(choices or ())) <= WIDEST_CHOICES


def _metavar(kind: Any) -> str:
    return {"a whole number": "N", "a number": "X", "text": "TEXT"}.get(describe(kind), "A,B,..")


def _help_text(cls: type, leaf: Leaf, *, names_tasks: bool) -> str:
    notes = []
    kinds = [kind for other in leaves(cls) if other.name == leaf.name for _, kind in other.chosen_by]
    if owners := [*(leaf.tasks if names_tasks else ()), *kinds]:
        notes.append("for " + ", ".join(dict.fromkeys(owners)))
    if leaf.info.paper:
        notes.append(leaf.info.paper)
    default = default_text(cls, leaf)
    if default and leaf.default is not MISSING:
        notes.append(f"default: {default}")
    meaning = leaf.info.help
    if leaf.info.choices and (leaf.info.metavar or not _are_few(leaf.info.choices)):
        meaning += f": one of {', '.join(leaf.info.choices)}"
        if isinstance(leaf.default, tuple):
            meaning += ", or several, separated by commas"
    text = meaning + (f" ({'; '.join(notes)})" if notes else "")
    return text.replace("%", "%%")


@cache
def _whole_parser(prog: str, cls: type, description: str,
                  version: int) -> tuple[argparse.ArgumentParser, set[str], dict[str, Retired]]:
    """With the retired options that are accepted; the names of the others; all retired ones. For a version of the tables."""
    parser = make_parser(prog, cls, description)
    known = {option for action in parser._actions for option in action.option_strings}
    retired = {option.name: option for option in retired_for(prog.split()[-1])}
    for option in retired.values():
        if not option.is_refused:
            arity: dict[str, Any] = {} if option.takes_value else {"action": "store_true"}
            parser.add_argument(f"--{option.name}", dest=f"retired {option.name}", help=argparse.SUPPRESS, **arity)
    return parser, known, retired


def parse(prog: str, cls: type, description: str, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What was given, by flat name, in the recipe and on the command line, and the notices that retired options deserve."""
    parser, known, retired = _whole_parser(prog, cls, description, version())

    def read(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        namespace, rest = parser.parse_known_args(_with_bare_values([_with_dashes(word) for word in words], cls))
        # An option that is unknown or refused left its value among the words, or in the place of one: it comes first.
        for name in (word.split("=")[0] for word in rest if word.startswith("-")):
            if name.removeprefix("--") in retired:
                raise ConfigError(f"{name} is not supported: {retired[name.removeprefix('--')].reason}. Leave it out.")
            hint = suggestion(name, [known_name.lstrip("-") for known_name in known])
            raise ConfigError(f"unknown option {name}.{hint} `{prog} --help` lists them all.")
        if rest:
            raise ConfigError(f"unexpected argument {rest[0]!r}: {prog} takes no further words. See `{prog} --help`.")
        return _without_retired(vars(namespace), retired, cls)

    given, notices = read(argv)
    if given.get("config"):
        try:
            recipe, recipe_notices = read(_recipe_words(given["config"], cls))
        except ConfigError as error:
            raise ConfigError(f"--config {given['config']}: {error}") from None
        if recipe.pop(USER_DIR, None):
            recipe_notices.append(f"--{USER_DIR} has no effect in a file, which must not decide what code is run: give it on "
                                  "the command line")
        given, notices = recipe | given, recipe_notices + notices
    return given, notices


def _without_retired(values: dict[str, Any], retired: dict[str, Retired], cls: type) -> tuple[dict[str, Any], list[str]]:
    # A part of that name that a person registered is no longer one of fairseq's that are missing here.
    choices = {leaf.name: leaf.info.choices or () for leaf in unique_leaves(cls)}
    given: dict[str, Any] = {}
    notices = []
    for name, value in values.items():
        if not name.startswith("retired "):
            if isinstance(value, str) and (name, value) in REFUSED_VALUES and value not in choices[name]:
                raise ConfigError(f"--{name} {value} is not supported: {REFUSED_VALUES[name, value]}.")
            given[name] = value
            continue
        option = retired[name.removeprefix("retired ")]
        notices.append(f"--{option.name} has no effect: {option.reason}")
    return given, notices


def _with_dashes(word: str) -> str:
    """--max_tokens=5 as --max-tokens=5; values are left alone, also those that begin like options: '--arch tiny_lm --cpu'."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if re.fullmatch(r"--[\w-]+", name) else word


def _with_bare_values(words: list[str], cls: type) -> list[str]:
    """--print-alignment DATA as --print-alignment=hard DATA: where it is known what values look like, another word is none."""
    bare = {f"--{leaf.name}": leaf for leaf in unique_leaves(cls)
            if (leaf.info.choices or leaf.info.form) and leaf.info.bare_value is not NO_VALUE}

    def is_value(word: str, leaf: Leaf) -> bool:
        return (word in (leaf.info.choices or ()) or (leaf.name, word) in REFUSED_VALUES
                or bool(leaf.info.form and re.fullmatch(leaf.info.form, word)))

    return [f"{word}={bare[word].info.bare_value}" if word in bare and not is_value(after, bare[word]) else word
            for word, after in pairwise([*words, ""])]


def _recipe_words(path: str, cls: type) -> list[str]:
    """The flags that a file gives: of a flat mapping all its keys, of a whole recipe (docs/recipes.md) those of its `train`."""
    values = read_mapping(path_of(path))
    return flag_words(values["train"] if isinstance(values.get("train"), dict) else values,
                      {leaf.name for leaf in unique_leaves(cls) if leaf.info.positional})


def resolve(cls: type[T], given: dict[str, Any]) -> T:
    """The configuration: the preset's values, and over them what was given."""
    base: dict[str, Any] = {}
    defaults = {leaf.name: leaf.default for leaf in unique_leaves(cls)}
    if "arch" in defaults:
        task = given.get("task", defaults["task"])
        presets = register.arch.of_task(task) if task in register.task else list(register.arch)  # `build` names an unknown task
        arch = given.get("arch", next(iter(presets)))
        if arch not in register.arch:
            hint = suggestion(arch, register.arch).replace("--", "")
            raise ConfigError(f"--arch is {arch!r}.{hint} Known: {', '.join(register.arch)}.")
        if arch not in presets:
            owner = register.arch.tasks_of(arch)[0]
            raise ConfigError(f"--arch {arch} is a preset for --task {owner}, and the task is {task}. Add --task {owner}, or "
                              f"choose one of {', '.join(presets)}.")
        if task in register.task:
            own = {name: value for name, value in register.task[task].defaults.items() if name in defaults}
            base = {"arch": arch, **own, **preset_values(arch, task, given)}
    return build(cls, base | given, given)


def spelled_out(prog: str, config: Any, implied: Mapping[str, Any] | None = None) -> str:
    """A command line that gives this configuration: what is not at its default, in the order of --help.

    `implied`: values that follow from others, such as those of a preset, in place of defaults.
    """
    flat, given = flatten(config), implied or {}
    words = [prog]
    flags: list[str] = []
    for leaf in unique_leaves(type(config)):
        value = flat.get(leaf.name, leaf.default)
        if _listed(value) == _listed(given.get(leaf.name, leaf.default)):
            continue
        if leaf.info.positional:
            words.append(shlex.join(map(str, value)) if leaf.info.is_list else shlex.quote(str(value)))
        else:
            flags.append(as_flag(leaf, value))
    return " ".join((*words, *flags))


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def as_flag(leaf: Leaf, value: Any) -> str:
    """What to type for a value of the flat form."""
    if leaf.is_bool:
        return f"--{'' if value else 'no-'}{leaf.name}"
    if leaf.info.is_list:
        return f"--{leaf.name} {shlex.join(map(str, value))}"
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return f"--{leaf.name}={shlex.quote(text)}" if text.startswith("-") else f"--{leaf.name} {shlex.quote(text)}"

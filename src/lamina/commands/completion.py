"""`lamina completion`: a script for the shell that completes commands, options and the names that options take."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import cast

from lamina.command_line import COMMANDS, load
from lamina.config.tool_options import CompletionConfig
from lamina.fields import Leaf, unique_leaves

BASH = """\
_lamina() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} words=
  case $command in {groups}) [ "$COMP_CWORD" -gt 2 ] && command="$command ${{COMP_WORDS[2]}}" ;; esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "$command $before" in
{values}
    esac
    if [ -z "$words" ]; then
      case $command in
{options}
      esac
      case "$current" in -*) ;; *) case $command in {groups}) ;; *) words= ;; esac ;; esac
    fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [ -n "${{COMPREPLY[*]}}" ] || COMPREPLY=($(compgen -f -- "$current"))
}}
complete -o filenames -F _lamina lamina"""
HEADS = {"bash": "# bash: put `eval \"$(lamina completion bash)\"` into ~/.bashrc",
         "zsh": "# zsh: put `eval \"$(lamina completion zsh)\"` into ~/.zshrc\nautoload -U +X compinit && compinit\n"
                "autoload -U +X bashcompinit && bashcompinit",
         "fish": "# fish: lamina completion fish > ~/.config/fish/completions/lamina.fish"}


def run(config: CompletionConfig) -> None:
    print(HEADS[config.shell])
    print("\n".join(_fish()) if config.shell == "fish" else _bash())


def _options() -> Iterator[tuple[str, list[Leaf]]]:
    for name, command in COMMANDS.items():
        yield name, [leaf for leaf in unique_leaves(cast(type, load(command.config))) if not leaf.info.positional]


def _groups() -> dict[str, list[str]]:
    """The first words of commands that have two, and what may follow each."""
    groups: dict[str, list[str]] = {}
    for name in COMMANDS:
        first, _, second = name.partition(" ")
        if second:
            groups.setdefault(first, []).append(second)
    return groups


def _bash() -> str:
    options, values = [], []
    for name, leaves in _options():
        flags = [leaf.spelling for leaf in leaves] + [f"--no-{leaf.name}" for leaf in leaves if leaf.is_bool]
        options.append(f'        "{name}") words="{" ".join([*flags, "--help", "--help-all"])}" ;;')
        values += [f'      "{name} --{leaf.name}") words="{" ".join(leaf.info.choices)}" ;;' for leaf in leaves
                   if leaf.info.choices]
    options += [f'        "{first}") words="{" ".join(seconds)}" ;;' for first, seconds in _groups().items()]
    return BASH.format(commands=" ".join(dict.fromkeys(name.split()[0] for name in COMMANDS)), groups="|".join(_groups()),
                       values="\n".join(values), options="\n".join(options))


def _fish() -> Iterator[str]:
    first = dict.fromkeys(name.split()[0] for name in COMMANDS)
    for name in first:
        about = COMMANDS[name].help if name in COMMANDS else ", ".join(_groups()[name])
        yield f"complete -c lamina -n __fish_use_subcommand -f -a {name} -d {shlex.quote(about)}"
    for group, seconds in _groups().items():
        yield f"complete -c lamina -n '__fish_seen_subcommand_from {group}' -f -a {shlex.quote(' '.join(seconds))}"
    for name, leaves in _options():
        seen = shlex.quote("; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split()))
        for leaf in leaves:
            yield f"complete -c lamina -n {seen} -l {leaf.name} -d {shlex.quote(leaf.info.help[:80])}{_fish_values(leaf)}"


def _fish_values(leaf: Leaf) -> str:
    if leaf.info.choices:
        return f" -x -a {shlex.quote(' '.join(leaf.info.choices))}"
    return "" if leaf.is_bool else " -r"

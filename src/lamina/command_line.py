"""The table of commands, each a configuration and a function, and how one is run.

Modules are named here as text and imported when they are asked for: recipes and launchers, which run commands, stay above them.
"""

from __future__ import annotations

import importlib
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lamina import console, provenance
from lamina.errors import AlreadyToldError, ConfigError, LaminaError, StopSignal
from lamina.garbage import no_garbage_collection


class Command(NamedTuple):
    """Torch is imported only when a command runs, so that --help answers at once."""

    config: str  # module:Class, free of torch
    run: str  # module:function, called with the configuration
    help: str


COMMANDS = {
    "preprocess": Command("lamina.config.preprocess_options:PreprocessConfig", "lamina.commands.preprocess:run",
                          "turn text into a data folder; learn and apply subwords"),
    "train": Command("lamina.config.train_options:TrainConfig", "lamina.commands.train:run",
                     "train a model on a data folder, or resume a run"),
    "average": Command("lamina.config.tool_options:AverageConfig", "lamina.commands.average:run",
                       "average the weights of several checkpoints into one"),
    "convert": Command("lamina.config.tool_options:ConvertConfig", "lamina.commands.convert:run",
                       "turn a model of fairseq, its forks or Hugging Face, or shards, into a checkpoint of Lamina"),
    "export": Command("lamina.config.tool_options:ExportConfig", "lamina.commands.export:run",
                      "write a model for others: safetensors, fairseq or CTranslate2, with a model card"),
    "fold": Command("lamina.config.tool_options:FoldConfig", "lamina.commands.fold:run",
                    "turn a model trained with Admin into a plain Transformer with the same outputs"),
    "prune": Command("lamina.config.prune_options:PruneConfig", "lamina.commands.prune:run",
                     "write a smaller checkpoint that keeps some layers, named or found on data"),
    "score": Command("lamina.config.score_options:ScoreConfig", "lamina.commands.score:run",
                     "score translations against references"),
    "generate": Command("lamina.config.generate_options:GenerateConfig", "lamina.commands.generate:run",
                        "translate a split of a data folder and score the translations"),
    "interactive": Command("lamina.config.generate_options:InteractiveConfig", "lamina.commands.interactive:run",
                           "translate lines, or continue prompts, from a terminal, a pipe or a file"),
    "rescore": Command("lamina.config.generate_options:RescoreConfig", "lamina.commands.rescore:run",
                       "score given translations with a model"),
    "calibrate": Command("lamina.config.calibrate_options:CalibrateConfig", "lamina.commands.calibrate:run",
                         "find out when few layers translate well enough, for `generate --cascade` and `serve`"),
    "serve": Command("lamina.config.serve_options:ServeConfig", "lamina.commands.serve:run",
                     "answer over HTTP: LibreTranslate's, DeepL's and OpenAI's APIs, and a page, any depth per request"),
    "eval-lm": Command("lamina.config.eval_lm_options:EvalLmConfig", "lamina.commands.eval_lm:run",
                       "measure the perplexity of a language model on a data folder"),
    "info": Command("lamina.config.tool_options:InfoConfig", "lamina.commands.info:run",
                    "show what a checkpoint holds and where it comes from"),
    "analyze fusion": Command("lamina.config.analyze_options:AnalyzeFusionConfig", "lamina.commands.analyze_fusion:run",
                              "show what a model's decoder and softmax read of its encoder, as figures on a page"),
    "analyze depth": Command("lamina.config.analyze_options:AnalyzeDepthConfig", "lamina.commands.analyze_depth:run",
                             "show what makes a model hard to train deep, as figures on a page"),
    "recipe list": Command("lamina.config.recipe_options:RecipeListConfig", "lamina.commands.recipe:show_list",
                           "list the experiments that come with Lamina"),
    "recipe run": Command("lamina.config.recipe_options:RecipeRunConfig", "lamina.commands.recipe:run",
                          "run an experiment from downloads to a row of results, or resume one"),
    "recipe prepare": Command("lamina.config.recipe_options:RecipePrepareConfig", "lamina.commands.recipe:prepare",
                              "turn a corpus as it is downloaded into the text that `lamina preprocess` takes"),
    "recipe table": Command("lamina.config.recipe_options:RecipeTableConfig", "lamina.commands.recipe:show_table",
                            "show a results file as tables"),
    "completion": Command("lamina.config.tool_options:CompletionConfig", "lamina.commands.completion:run",
                          "print a script that completes commands and options in your shell"),
    "demo": Command("lamina.config.tool_options:DemoConfig", "lamina.commands.demo:run",
                    "train and try a small English-Romanian model in minutes, no download"),
}


def load(reference: str) -> object:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def overview(group: str = "") -> str:
    """All commands, or those of a group."""
    chosen = {name: command for name, command in COMMANDS.items() if name.startswith(group)}
    width = max(map(len, chosen)) + 4
    columns = max(60, shutil.get_terminal_size((110, 24)).columns - 2)
    rows = "\n".join(
        textwrap.fill(command.help, columns, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
        for name, command in chosen.items())
    closing = ("`lamina COMMAND --help` shows a command's options, `--help WORD` searches them, `--help-all` lists them all. "
               "`lamina --version` prints the version.")
    return (f"usage: lamina {group or 'COMMAND '}...\n\nDeep, fused and prunable Transformers.\n\n{rows}\n\n"
            f"{textwrap.fill(closing, columns, break_on_hyphens=False)}")


def find_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that the first word names, or the first two (`analyze fusion`), and the words after it."""
    from lamina.suggestions import suggestion

    first, *rest = (words[0].replace("_", "-"), *words[1:])
    if first in COMMANDS:
        return first, rest
    kinds = [name.removeprefix(f"{first} ") for name in COMMANDS if name.startswith(f"{first} ")]
    if kinds and rest and rest[0] in kinds:
        return f"{first} {rest[0]}", rest[1:]
    if kinds:
        raise ConfigError(f"`lamina {first}` must be followed by {' or '.join(kinds)}. See `lamina {first} --help`.")
    hint = suggestion(first, COMMANDS).replace("--", "")
    raise ConfigError(f"there is no command {words[0]!r}.{hint} `lamina --help` lists them.")


def guarded(work: Callable[[], int | None]) -> int:
    """The exit status of some work; what a person should know of its failure is one line."""
    try:
        return work() or 0
    except StopSignal as stop:
        console.notice(str(stop))
        return stop.exit_code
    except AlreadyToldError as error:
        return error.code
    except LaminaError as error:
        console.tell(f"error: {error}")
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError) and (gone := console.streams_without_reader()):
            # The reader of our results (head, less) left before their end, as happens to other commands.
            for stream in gone:
                console.discard(stream)
            return console.WITHOUT_READER
        # Of a file or folder that a person named, most likely; what has no name is a bug of ours.
        if error.filename is None and error.errno not in console.STREAM_ERRORS:
            raise
        what = f"{error.filename}: {error.strerror}" if error.filename is not None else (
            f"{error.strerror}, while a file or an output of this command was written")
        console.tell(f"error: {what}. Check the name, the permissions and the space on the disk.")
        return 2
    except KeyboardInterrupt:
        console.tell("interrupted")
        return 130


def execute(words: list[str]) -> int:
    """Run a command; what goes wrong is raised, for callers that can do more about it than print it."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] in ("--version", "-V"):
        from lamina import __version__

        print(f"lamina {__version__}")
        return 0
    group = f"{words[0]} "
    if words[1:] in ([], ["-h"], ["--help"]) and any(name.startswith(group) for name in COMMANDS):
        print(overview(group))
        return 0
    from lamina.config.command_help import wanted_help
    from lamina.config.parser import help_text, parse, resolve
    from lamina.fields import flatten
    from lamina.gpu_driver import start_driver
    from lamina.plug_ins import import_paths, load_installed, missing_notice, paths_in

    if words[0].replace("_", "-").startswith("--local-rank=") and len(words) > 1:
        words = [words[1], words[0], *words[2:]]  # where torch.distributed.launch puts it: before the command
    name, rest = find_command(words)
    command = COMMANDS[name]
    say = console.notice if console.is_first_process() else lambda _: None
    load_installed(say)
    missing = import_paths(paths_in(rest), say)
    config_class: type = load(command.config)  # type: ignore[assignment]
    about = command.help[0].upper() + command.help[1:] + "."
    if (wanted := wanted_help(rest)) is not None:
        print(help_text(f"lamina {name}", config_class, about, wanted, rest), end="")
        return 0
    try:
        given, notices = parse(f"lamina {name}", config_class, about, rest)
        config: object = resolve(config_class, given)
    except ConfigError as error:
        raise ConfigError(f"{error} (--user-dir {', '.join(missing)} does not exist.)") if missing else error from None
    for notice in [*notices, *([missing_notice(missing)] if missing else [])]:
        say(notice)
    provenance.begin_command(words)
    if flatten(config).get("cpu") is False:
        start_driver()
    with no_garbage_collection():
        run = load(command.run)
    run(config)  # type: ignore[operator]
    return 0


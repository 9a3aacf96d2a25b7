"""What `--help` shows: the options people use, those that a word finds, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from lamina.fields import Leaf, unique_leaves
from lamina.registry import is_built_in, register
from lamina.suggestions import suggestion

# The options of commands that have too many for a screen: those of published command lines, and what daily work needs.
# Parts that choose others (--init-type, --optimizer) stand for what they choose.
EVERYDAY = {
    "train": """
        task arch config seed data source-lang target-lang user-dir encoder-layers decoder-layers encoder-normalize-before
        decoder-normalize-before share-all-embeddings share-decoder-input-output-embed dropout attention-dropout
        activation-dropout sample-break-mode tokens-per-sample mask-prob num-classes init-type fusion surfacefusion sf-gate
        sf-mode transparent-attention encoder-layerdrop decoder-layerdrop encoder-layers-to-keep decoder-layers-to-keep
        max-tokens update-freq criterion label-smoothing optimizer adam-betas clip-norm weight-decay lr lr-scheduler min-lr
        warmup-init-lr max-lr lr-period-updates t-mult warmup-updates max-epoch max-update patience fp16 cpu eval-bleu
        best-checkpoint-metric save-dir restore-file finetune-from-model save-interval-updates keep-last-epochs
        epoch-checkpoints log-format log-interval tracker tensorboard-logdir wandb-project print-config plan""",
    "generate": """
        data source-lang target-lang gen-subset max-tokens batch-size path model-overrides encoder-layers-to-keep
        decoder-layers-to-keep cascade cpu quantize beam nbest lenpen max-len-a max-len-b sampling sampling-topp
        no-repeat-ngram-size constraints remove-bpe print-alignment quiet sacrebleu metric results-path json user-dir""",
    "interactive": """
        path source-lang target-lang input buffer-size encoder-layers-to-keep decoder-layers-to-keep cascade cpu quantize beam
        nbest lenpen max-len-a max-len-b sampling sampling-topk sampling-topp temperature seed constraints remove-bpe plain
        print-alignment user-dir""",
    "analyze depth": """
        checkpoint out step seed cpu data task arch encoder-layers decoder-layers init-type deepnet-layers user-dir""",
}
FLAGS = ("-h", "--help", "--help-all")


class Wanted(NamedTuple):
    """Which help was asked for."""

    everything: bool
    word: str | None


def wanted_help(words: Sequence[str]) -> Wanted | None:
    """`--help`, `--help WORD` or `--help-all` among a command's words."""
    for place, word in enumerate(words):
        if word in FLAGS:
            after = words[place + 1] if place + 1 < len(words) else ""
            return Wanted(word == "--help-all", None if after.startswith("-") or not after else after.lower().replace("_", "-"))
    return None


def shown_options(command: str, cls: type, wanted: Wanted, words: Sequence[str]) -> tuple[Callable[[Leaf], bool], str]:
    """Which options to show, and the line that says what was left out and how to see it."""
    name = f"lamina {command}"
    if wanted.everything:
        return lambda leaf: True, ""
    if (word := wanted.word) is not None:
        bare = word.lstrip("-")
        found = {leaf.name for leaf in unique_leaves(cls) if _matches(leaf, bare)}
        if not found:
            hint = suggestion(f"--{bare}", [leaf.name for leaf in unique_leaves(cls)])
            return lambda leaf: False, (f"No option of `{name}` has {word!r} in its name or text.{hint} "
                                        f"`{name} --help-all` lists all.")
        return lambda leaf: leaf.name in found, f"Options with {word!r} in name or text. `{name} --help-all` lists all."
    task = _task_of(words, cls)
    everyday = EVERYDAY.get(command, "").split()

    def is_shown(leaf: Leaf) -> bool:
        is_used = not everyday or leaf.name in everyday or _is_from_outside(leaf)
        return is_used and (task is None or not leaf.tasks or task in leaf.tasks)

    hidden = sum(not is_shown(leaf) for leaf in unique_leaves(cls))
    if not hidden:
        return is_shown, ""
    of_task = f" of --task {task}" if task is not None else ""
    return is_shown, (f"These are the options{of_task} that people use most. {hidden} more: `{name} --help WORD` searches "
                      f"them, `{name} --help-all` lists them all.")


def _is_from_outside(leaf: Leaf) -> bool:
    """An option of a part that a person brought along: it is what --help is asked for."""
    return any(kind in table and not is_built_in(table[kind]) for table in register.tables() for _, kind in leaf.chosen_by)


def _matches(leaf: Leaf, word: str) -> bool:
    names = (leaf.name, *leaf.info.aliases, *(leaf.info.choices or ()))
    return any(word in name for name in names) or word in leaf.info.help.lower() or word in leaf.info.paper.lower()


def _task_of(words: Sequence[str], cls: type) -> str | None:
    """The task that --help is about; None where the command knows no tasks."""
    default = next((leaf.default for leaf in unique_leaves(cls) if leaf.name == "task"), None)
    if default is None:
        return None
    given = next((after for word, after in pairwise(words) if word == "--task"),
                 next((word.removeprefix("--task=") for word in words if word.startswith("--task=")), default))
    return given if given in register.task else str(default)

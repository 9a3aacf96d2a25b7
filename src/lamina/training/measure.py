"""What the score of a run's best checkpoint measures. Scores of different measures say nothing about each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lamina.config.train_options import OptimizationConfig
from lamina.data.feed import Feed
from lamina.fields import leaves
from lamina.parts.figures import known_figures, metric_of
from lamina.training.progress import Progress

METRIC = "best-checkpoint-metric"
VALIDATED = "validation set"
# The options that metrics of texts depend on, and those of them that cut words themselves.
_OF_TEXTS, _OF_WORDS = ("eval-bleu-remove-bpe", "eval-bleu-detok"), ("eval-tokenized-bleu",)


def measure_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run with this flat configuration measures, by option, on whatever data."""
    metric = config.get(METRIC, "loss")
    names = _criterion_options() if metric == "loss" else _options_of(metric)
    return {METRIC: metric, **{name: config[name] for name in names if name in config}}


def _options_of(figure: str) -> tuple[str, ...]:
    if figure == "f1":
        return ("f1-label",)
    if not known_figures()[figure].metric:
        return ()
    return (*_OF_WORDS, *_OF_TEXTS) if metric_of(figure).cuts_words else _OF_TEXTS


def _criterion_options() -> list[str]:
    return ["criterion", *dict.fromkeys(leaf.name for leaf in leaves(OptimizationConfig)
                                        if leaf.chosen_by and leaf.chosen_by[0][0] == "criterion")]


def size_of(feed: Feed) -> str:
    """Of a validation set, to tell it from others."""
    left_out = feed.too_long.indices
    tokens = sum(int(sizes.sum()) - int(sizes[left_out].sum()) for sizes in feed.corpus.sizes.values())
    return f"{len(feed.corpus) - len(left_out)} {feed.corpus.unit} of {tokens} tokens"


def forget_other_scores_(progress: Progress, now: dict[str, Any], note: Callable[[str], object]) -> None:
    """A best score of another measure goes, with a line; from here on the best one is of this measure."""
    before = progress.best_of
    changed = [name for name in now if name in before and before[name] != now[name]]
    if changed:
        for name in ("best", "stale"):
            progress.schedule.pop(name, None)
    if progress.best is not None and changed:
        what = ", ".join(f"{name if name == VALIDATED else f'--{name}'} was {before[name]} and is {now[name]}"
                         for name in changed)
        note(f"the best {before.get(METRIC, 'score')} so far, {progress.best:.4g}, is forgotten: {what}")
        progress.forget_best()
    progress.best_of = now

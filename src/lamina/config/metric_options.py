"""What the commands that score texts have in common: names of metrics, and the options of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from lamina.fields import check, flag_name
from lamina.parts.contracts import Metric
from lamina.registry import register


def chosen_metrics(names: Sequence[str], parts: Sequence[Metric]) -> list[Metric]:
    """Those that are named, in that order; `parts` holds one of every kind, with its options."""
    by_name = {part.name: part for part in parts}
    return [by_name[name] for name in names]


def metrics_that(*, need: str = "", cut_words: bool = False, are_of_sacrebleu: bool = False) -> list[str]:
    """Names of the metrics of which all this holds."""
    return [name for name, kind in register.metric.items()
            if (not need or need in kind.needs) and (not cut_words or kind.cuts_words)
            and (not are_of_sacrebleu or kind.is_of_sacrebleu())]


def check_has_use(option: str, owners: Sequence[str], chosen: Sequence[str]) -> None:
    """Raise unless one of the metrics that read an option was chosen."""
    check(bool(set(owners) & set(chosen)),
          f"--{option} has no effect without {' or '.join(owner.upper() for owner in owners)}. Add {' or '.join(owners)} to "
          f"--metric, or leave --{option} out.")


def check_metric_options(names: Sequence[str], parts: Sequence[Metric], known: Iterable[str]) -> None:
    """Something is measured, and no option is set of a metric that was not chosen."""
    check(bool(names), f"--metric is empty; choose from {', '.join(known)}.")
    for part in parts:
        for item in fields(part):  # type: ignore[arg-type]
            if getattr(part, item.name) != item.default:
                check_has_use(flag_name(item), [part.name], names)

"""The figures that there are, by name: what a model may be judged by, whichever part measures it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import NamedTuple

from lamina.errors import ConfigError
from lamina.parts.contracts import REFERENCES, Figure, Metric
from lamina.registry import origin_of, register, version

# Of all tasks.
LOSSES = {"loss": Figure("loss (bits per token)", 3, larger_is_better=False),
          "nll_loss": Figure("loss without smoothing (bits per token)", 3, larger_is_better=False),
          "ppl": Figure("perplexity", 2, larger_is_better=False)}


class Known(NamedTuple):
    """A figure and who measures it."""

    figure: Figure
    metric: str = ""  # a name of the table of metrics, or
    task: str = ""  # of tasks; neither: a loss


def known_figures() -> dict[str, Known]:
    return _known(version())


@cache
def _known(version: int) -> dict[str, Known]:
    found = {name: Known(figure) for name, figure in LOSSES.items()}
    measuring = [(kind, Known(figure, metric=name), own) for name, kind in register.metric.items()
                 for own, figure in kind.own_figures().items()]
    measuring += [(kind, Known(figure, task=name), own) for name, kind in register.task.items()
                  for own, figure in kind.figures.items()]
    for kind, known, own in measuring:
        if own in found:
            raise ConfigError(f"the figure {own!r} of {origin_of(kind)} is there already: a figure has one meaning. Choose "
                              "another name in its `figures`.")
        found[own] = known
    return found


def metric_of(figure: str) -> Metric:
    """The metric, with its usual options, that one of its figures names."""
    known = known_figures().get(figure)
    if known is None or not known.metric:
        raise ConfigError(f"{figure!r} is no figure of a metric; those are {', '.join(REFERENCE_FIGURES)}.")
    return register.metric[known.metric]()


class Names(Collection[str]):
    """Choices of an option, looked up whenever somebody asks: parts may be added later."""

    def __init__(self, find: Callable[[], list[str]]) -> None:
        self._find = find

    def __iter__(self) -> Iterator[str]:
        return iter(self._find())

    def __contains__(self, name: object) -> bool:
        return name in self._find()

    def __len__(self) -> int:
        return len(self._find())


def _compares(kind: type[Metric]) -> bool:
    return kind.needs <= {REFERENCES}


# Metrics where there are texts and references and nothing else, and their figures.
REFERENCE_METRICS = Names(lambda: [name for name, kind in register.metric.items() if _compares(kind)])
REFERENCE_FIGURES = Names(lambda: [name for name, known in known_figures().items()
                                   if known.metric and _compares(register.metric[known.metric])])
# What may decide which checkpoint is the best.
VALIDATION_FIGURES = Names(lambda: [*LOSSES, *REFERENCE_FIGURES,
                                    *(name for name, known in known_figures().items() if known.task)])
# What a choice of layers is judged by, and the loss of one; the first is the option's default.
PRUNING_FIGURES = Names(lambda: ["loss", *REFERENCE_FIGURES])
ANALYSIS_FIGURES = Names(lambda: [*REFERENCE_FIGURES, "loss"])

"""Quality and decoding speed at every depth of a model, for several ways to choose the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lamina.analysis.drawing import COLOURS, MARKERS, new_figure, save_figure
from lamina.config.keep import SIDES
from lamina.errors import ConfigError
from lamina.parts.figures import known_figures
from lamina.pruning.subsets import EVENLY_SPACED, RULES, SEARCHED, Scored, Subset, by_rule, descend, most_measurements, ranked

COLUMNS = ("depth", "choice", "encoder_layers", "decoder_layers", "{metric}", "tokens_per_second")


# Losses that differ by more than this factor would squeeze the good ones into a line.
LOG_FROM = 4.0


class Point(NamedTuple):
    """One choice of layers at one depth."""

    depth: int
    choice: str
    subset: Subset
    value: float
    tokens_per_second: float


def curve_stacks(whole: Subset, stacks: str, path: Path) -> str:
    """Whose depths to go through: those asked for, or of a model with one stack that one."""
    present = [side for side, layers in zip(SIDES, whole, strict=True) if layers]
    if stacks == "both":
        return stacks if len(present) == 2 else present[0]
    if stacks not in present:
        raise ConfigError(f"--curve {stacks} has nothing to draw: {path} has no {stacks}.")
    return stacks


def num_measurements(whole: Subset, stacks: str, width: int) -> int:
    """At most, for a progress bar."""
    depths = depths_of(whole, stacks)
    return most_measurements(whole.depths, depths[-1], width) + (2 * len(RULES) + 1) * len(depths) + 1


def depths_of(whole: Subset, stacks: str) -> list[tuple[int, int]]:
    """The depths of a curve, the whole model's first: of one stack, or of both, each as deep as it can be."""
    encoder, decoder = whole.depths
    match stacks:
        case "encoder":
            return [(number, decoder) for number in range(encoder, 0, -1)]
        case "decoder":
            return [(encoder, number) for number in range(decoder, 0, -1)]
    return [(min(encoder, number), min(decoder, number)) for number in range(max(encoder, decoder), 0, -1)]


def measure_curve(whole: Subset, stacks: str, quality: Callable[[Subset], float],
                  speed: Callable[[Sequence[Subset]], list[float]], *, width: int, is_maximized: bool) -> list[Point]:
    """Every way at every depth. Speed is a matter of depth alone, so one of the choices stands for all."""
    points = []
    frontier = [whole]
    all_depths = depths_of(whole, stacks)
    rates = speed([by_rule(EVENLY_SPACED, depths, whole) for depths in all_depths])
    for depths, rate in zip(all_depths, rates, strict=True):
        choices = {rule: by_rule(rule, depths, whole) for rule in RULES}
        # As --search does: the rules' choices are in the running, and the next depth may continue from them.
        found = ranked([*descend(frontier, depths, quality, width=width, is_maximized=is_maximized),
                        *(Scored(subset, quality(subset)) for subset in choices.values())], is_maximized=is_maximized)
        frontier = list(dict.fromkeys(item.subset for item in found))[:width]
        choices[SEARCHED] = found[0].subset
        depth = depths[1] if stacks == "decoder" else depths[0] if stacks == "encoder" else max(depths)
        points += [Point(depth, choice, subset, quality(subset), rate) for choice, subset in choices.items()]
    return points


def draw_curve(path: Path, points: Sequence[Point], *, stacks: str, metric: str) -> list[Path]:
    figure, (quality, speed) = new_figure(9.0, 3.8, num_panels=2)
    for number, choice in enumerate((*RULES, SEARCHED)):
        own = [point for point in points if point.choice == choice]
        # Hollow and ever smaller marks on ever thinner lines: those that coincide are all to be seen.
        quality.plot([point.depth for point in own], [point.value for point in own], label=choice, color=COLOURS[number],
                     marker=MARKERS[number], markersize=11 - 2 * number, markerfacecolor="none", markeredgewidth=1.4,
                     linewidth=3.2 - 0.7 * number, linestyle=("-", "--", "-.", "-")[number])
    rates = {point.depth: point.tokens_per_second for point in points}
    speed.plot(list(rates), list(rates.values()), color=COLOURS[0], marker=MARKERS[0], linewidth=1.6, markersize=5)
    is_level = len(set(points[0].subset.depths)) == 1
    layers = f"{stacks} layers kept" if stacks != "both" else f"layers kept in each stack{'' if is_level else ', at most'}"
    judged = known_figures()[metric].figure
    quality.set(xlabel=layers, ylabel=judged.label,
                title=f"quality ({'higher' if judged.larger_is_better else 'lower'} is better)")
    speed.set(xlabel=layers, ylabel="target tokens per second", title="decoding speed", ylim=(0, None))
    values = [point.value for point in points]
    if metric == "loss" and min(values) > 0 and max(values) > LOG_FROM * min(values):
        from matplotlib.ticker import LogLocator, NullFormatter

        quality.set_yscale("log")
        quality.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        quality.yaxis.set_major_formatter("{x:g}")
        quality.yaxis.set_minor_formatter(NullFormatter())
    for panel in (quality, speed):
        panel.set_xticks(list(rates))
    figure.legend(*quality.get_legend_handles_labels(), loc="outside lower center", ncols=len(RULES) + 1, frameon=False)
    speed.yaxis.set_major_formatter("{x:,.0f}")
    rows = [(point.depth, point.choice, *(" ".join(map(str, layers)) for layers in point.subset), f"{point.value:.4f}",
             f"{point.tokens_per_second:.1f}") for point in points]
    return save_figure(path, figure, [column.format(metric=metric) for column in COLUMNS], rows)

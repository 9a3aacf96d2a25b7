"""Quality by depth: a line for each variant over the layers that are left of it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from lamina.analysis.charts import COLUMN_WIDTH, LINE_STYLES
from lamina.analysis.drawing import COLOURS, MARKERS, new_figure
from lamina.recipes.recipe_file import FigureWords
from lamina.recipes.results import Row

# Of perplexities, what is shown: a cut that ruins the model would press the rest into one line.
MOST_OVER_BEST = 4.0
# `8_even` leaves 8 layers evenly spaced, `8_first` the first 8; both stacks shortened alike are even too.
EVEN = "even"
CHARACTERS_PER_INCH = 16


class Depth(NamedTuple):
    layers: int  # of all stacks together
    rule: str  # which are left


def draw_by_depth(groups: Mapping[tuple[str, str], list[Row]], name: str, label: str, words: FigureWords) -> Any:
    """One panel; with several rules, one for each variant that was cut. A model that was trained small is a point in all."""
    lines = _lines(groups, name)
    rules = list(dict.fromkeys(rule for _, rule in lines))
    cut = [variant for variant in dict.fromkeys(variant for variant, _ in lines)
           if any(known == variant and own for known, own in groups)]
    titles = cut if len([rule for rule in rules if not rule.startswith("+")]) > 1 else [""]
    legend = [words.label(name) for name in (cut if titles == [""] else rules)]
    width = COLUMN_WIDTH if titles == [""] else 1.4 * len(titles) + 0.6
    figure, panels = new_figure(width + max(map(len, legend)) / CHARACTERS_PER_INCH + 0.6, 2.8, len(titles))
    drawn: dict[str, Any] = {}
    for panel, title in zip(panels, titles, strict=True):
        for (variant, rule), points in lines.items():
            if title and variant != title and variant in cut:
                continue
            key = variant if not title or variant not in cut else rule
            number = (rules if key == rule else list(dict.fromkeys(known for known, _ in lines))).index(key)
            is_apart = rule.startswith("+")
            drawn.setdefault(words.label(key), panel.errorbar(
                [depth for depth, _ in points], [statistics.fmean(own) for _, own in points],
                yerr=_spread(points), capsize=2, markersize=4,
                color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], linewidth=1.2,
                fillstyle="none" if is_apart else "full", linestyle="none" if is_apart else LINE_STYLES[0]))
            if is_apart:
                depth, own = points[0]
                panel.annotate(rule[1:], (depth, statistics.fmean(own)), xytext=(4, -8), textcoords="offset points", fontsize=6)
        panel.set_title(words.label(title) if title else "")
        panel.set_xticks(sorted({depth for points in lines.values() for depth, _ in points}))
        panel.sharey(panels[0])
    if name.endswith("ppl"):
        best = min(min(own) for points in lines.values() for _, own in points)
        panels[0].set_ylim(0.9 * best, MOST_OVER_BEST * best)
    panels[0].set_ylabel(label)
    figure.supxlabel("layers, encoder and decoder together" if _has_two_stacks(groups) else "layers", fontsize=8)
    figure.legend(drawn.values(), drawn.keys(), frameon=False, loc="outside center right")
    return figure


def _spread(points: list[tuple[int, list[float]]]) -> list[float] | None:
    """Over seeds; one seed has no bars."""
    if all(len(own) < 2 for _, own in points):
        return None
    return [statistics.stdev(own) if len(own) > 1 else 0.0 for _, own in points]


def _lines(groups: Mapping[tuple[str, str], list[Row]], name: str) -> dict[tuple[str, str], list[tuple[int, list[float]]]]:
    """By variant and rule, its points from the shallowest. The whole model begins the line of each rule."""
    lines: dict[tuple[str, str], list[tuple[int, list[float]]]] = {}
    for (variant, cut), rows in groups.items():
        whole = _stacks(rows[0].get("train", ""))
        depth = _depth_of(cut, whole) if cut else Depth(sum(whole), EVEN)
        rules = [depth.rule] if cut else [
            rule for rule in dict.fromkeys(_depth_of(own, whole).rule for known, own in groups if known == variant and own)
            if not rule.startswith("+")] or [EVEN]
        for rule in rules:
            lines.setdefault((variant, rule), []).append((depth.layers, [row["figures"][name] for row in rows]))
    return {key: sorted(points) for key, points in lines.items()}


def _depth_of(cut: str, whole: tuple[int, ...]) -> Depth:
    """`6L-3L` of 12L-6L is 9 layers on the line of the rule; `12L-3L` stands apart, as 12 + 3."""
    stacks = tuple(map(int, re.findall(r"(\d+)L", cut)))
    if stacks:
        is_alike = len(stacks) < 2 or len(whole) < 2 or stacks[0] * whole[1] == stacks[1] * whole[0]
        return Depth(sum(stacks), EVEN if is_alike else f"+{stacks[0]} + {stacks[1]}")
    number, _, rule = cut.partition("_")
    return Depth(int(number) if number.isdecimal() else 0, rule or EVEN)


def _stacks(train: str) -> tuple[int, ...]:
    """The depths of the model that was trained, of its command."""
    return tuple(map(int, re.findall(r"--(?:encoder|decoder)-layers[= ](\d+)", train)))


def _has_two_stacks(groups: Mapping[tuple[str, str], list[Row]]) -> bool:
    return any(len(_stacks(row.get("train", ""))) > 1 for rows in groups.values() for row in rows)

"""Figures of results: what was measured by variant, depth, time or place in a grid, and how losses fell."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lamina.analysis.charts import COLUMN_WIDTH, LINE_STYLES, small_print
from lamina.analysis.drawing import COLOURS, MARKERS, new_figure, save_figure
from lamina.errors import ConfigError
from lamina.recipes.depth_charts import draw_by_depth
from lamina.recipes.plan import run_name
from lamina.recipes.recipe_file import FigureWords, find_recipe, grid_parts
from lamina.recipes.results import RUN, Row, latest
from lamina.recipes.run_figures import training_rows

# More curves than that in a panel, or panels in a row, would be unreadable.
MOST_VARIANTS, MOST_PANELS = 14, 4
# Of a line of text, about.
CHARACTERS_PER_INCH = 16
# Variant, seed, and losses by update.
Curve = tuple[str, int, list[tuple[int, float]]]
# Known of every training run, and drawn as curves instead.
OF_TRAINING = ("updates", "train loss", "tokens/s", "GiB", "valid loss", "best valid loss")
LOSS = "best valid loss"
LABELS_OF_FIGURES = {LOSS: "best validation loss, bits per token", "valid word ppl": "validation perplexity per word"}


def draw_recipes(rows: Sequence[Row], runs: Path, folder: Path) -> list[Path]:
    """RECIPE.svg and RECIPE-loss.svg, each with its numbers; the files written."""
    written: list[Path] = []
    measured = [row for row in latest(rows) if row["kind"] == RUN]
    for recipe in dict.fromkeys(row["recipe"] for row in measured):
        own = [row for row in measured if row["recipe"] == recipe]
        words = _words_of(recipe)
        num_variants = len({row["variant"] for row in own})
        name = _main_figure(own) or (LOSS if num_variants > MOST_VARIANTS else "")
        if name:
            written += _draw_figure(folder / f"{recipe}.svg", own, name, words)
        curves = [(row["variant"], row["seed"], curve) for row in own
                  if not row["cut"] and (curve := _curve(runs / recipe / run_name(row["variant"], row["seed"], row["budget"])))]
        panels = _panels(curves)
        if panels:
            written += _draw_curves(folder / f"{recipe}-loss.svg", panels, words)
    return written


def _words_of(recipe: str) -> FigureWords:
    """Of a recipe of ours; those of a file that is no longer known are called by their names."""
    try:
        return find_recipe(recipe).figure
    except ConfigError:
        return FigureWords()


def _main_figure(rows: list[Row]) -> str:
    names = [name for row in rows for name in row["figures"] if name not in OF_TRAINING]
    return next((name for name in names if name.endswith("word ppl")), next(iter(names), ""))


def _draw_figure(path: Path, rows: list[Row], name: str, words: FigureWords) -> list[Path]:
    """By depth where there are cuts, by time where that is the question, a map of a large grid; or a line per variant."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if name in row["figures"]:
            groups.setdefault((row["variant"], row["cut"]), []).append(row)
    values = {key: [row["figures"][name] for row in own] for key, own in groups.items()}
    label = LABELS_OF_FIGURES.get(name, name)
    with small_print():
        if any(cut for _, cut in groups):
            figure = draw_by_depth(groups, name, label, words)
        elif words.is_against_seconds:
            figure = _by_seconds(groups, name, words)
        elif len(values) > MOST_VARIANTS and (axes := _axes([variant for variant, _ in values])):
            figure = _grid(axes, {variant: own for (variant, _), own in values.items()}, label, words)
        else:
            figure = _by_variant({variant: own for (variant, _), own in values.items()}, label, words)
        if words.title:
            figure.suptitle(words.title, fontsize=9)
    numbers = [(variant, cut or "all", len(own), f"{statistics.fmean(own):.4f}") for (variant, cut), own in values.items()]
    return save_figure(path, figure, ("variant", "layers", "seeds", name), numbers)


def _by_variant(values: dict[str, list[float]], label: str, words: FigureWords) -> Any:
    """A line for each variant, the first on top: long names are read from left to right."""
    names = [words.label(variant) for variant in values]
    figure, (panel,) = new_figure(COLUMN_WIDTH + max(map(len, names)) / CHARACTERS_PER_INCH, 0.28 * len(names) + 0.9)
    for place, own in enumerate(values.values()):
        panel.errorbar([statistics.fmean(own)], [place], xerr=[statistics.stdev(own) if len(own) > 1 else 0.0],
                       marker=MARKERS[0], markersize=4, capsize=2, color=COLOURS[0])
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_xlabel(label)
    return figure


def _by_seconds(groups: dict[tuple[str, str], list[Row]], name: str, words: FigureWords) -> Any:
    """Quality by the time of training; several seeds are several points."""
    longest = max(len(words.label(variant)) for variant, _ in groups)
    figure, (panel,) = new_figure(COLUMN_WIDTH + longest / CHARACTERS_PER_INCH, 2.6)
    for number, ((variant, _), rows) in enumerate(groups.items()):
        points = [(row["seconds"]["train"], row["figures"][name]) for row in rows if "train" in row.get("seconds", {})]
        if points:
            panel.plot(*zip(*points, strict=True), linestyle="none", marker=MARKERS[number % len(MARKERS)], markersize=5,
                       color=COLOURS[number % len(COLOURS)], label=words.label(variant))
    panel.set(xlabel="seconds from command to exit", ylabel=name)
    panel.set_xlim(left=0)
    figure.legend(frameon=False, loc="outside center right")
    return figure


Axes = tuple[list[str], list[str], list[str]]


def _axes(variants: Sequence[str]) -> Axes | None:
    """The choices of a full grid's three axes; None for names of another form."""
    parts = [grid_parts(variant) for variant in variants]
    if {len(own) for own in parts} != {3}:
        return None
    first, second, third = (list(dict.fromkeys(names)) for names in zip(*parts, strict=True))
    return (first, second, third) if len(first) * len(second) * len(third) == len(parts) else None


def _grid(axes: Axes, values: dict[str, list[float]], label: str, words: FigureWords) -> Any:
    """A panel for each choice of the first axis, the second down, the third across."""
    import numpy as np

    titles, down, across = axes
    cells = {title: np.array([[statistics.fmean(values[f"{title}-{row}-{column}"]) for column in across] for row in down])
             for title in titles}
    low, high = (limit(own[np.isfinite(own)].tolist()) for own, limit in ((np.stack(list(cells.values())), min),
                                                                         (np.stack(list(cells.values())), max)))
    figure, panels = new_figure(1.3 * len(titles) + 1.6, 0.3 * len(down) + 1.3, len(titles))
    for panel, (title, own) in zip(panels, cells.items(), strict=True):
        panel.grid(visible=False)
        image = panel.imshow(own, cmap="cividis_r", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
        panel.set_xticks(range(len(across)), [words.label(name) for name in across], rotation=40, ha="right",
                         rotation_mode="anchor")
        panel.set_yticks(range(len(down)), [words.label(name) for name in down] if panel is panels[0] else [""] * len(down))
        panel.set_title(words.label(title))
        for (row, column), value in np.ndenumerate(own):
            panel.text(column, row, f"{value:.1f}", ha="center", va="center",
                       color="white" if value > (low + high) / 2 else "black")
    figure.colorbar(image, ax=panels, label=label).outline.set_linewidth(0.6)
    return figure


def _panels(curves: list[Curve]) -> dict[str, list[Curve]]:
    """Panels by title: one, or for a large grid one for each value of its first axis; none where it would be a maze."""
    if len({variant for variant, _, _ in curves}) <= MOST_VARIANTS:
        return {"": curves} if curves else {}
    panels: dict[str, list[Curve]] = {}
    for variant, seed, points in curves:
        title, _, rest = variant.partition("-")
        panels.setdefault(title, []).append((rest, seed, points))
    most = max(len({name for name, _, _ in own}) for own in panels.values())
    return panels if len(panels) <= MOST_PANELS and most <= MOST_VARIANTS else {}


def _curve(folder: Path) -> list[tuple[int, float]]:
    """Validation losses by update, in bits per token; training losses where there was no validation."""
    rows = list(training_rows(folder / "logs" / "train.log"))
    valid = [(row["num_updates"], row["nll_loss"]) for row in rows if row.get("where") == "valid" and "nll_loss" in row]
    return valid if len(valid) > 1 else [(row["num_updates"], row["nll_loss"]) for row in rows if "wps" in row]


def _draw_curves(path: Path, panels: dict[str, list[Curve]], words: FigureWords) -> list[Path]:
    """A line for each run; the seeds of a variant look alike, and so does a variant in every panel."""
    variants = list(dict.fromkeys(variant for curves in panels.values() for variant, _, _ in curves))
    lines: dict[str, Any] = {}
    with small_print():
        figure, drawn = new_figure(COLUMN_WIDTH * (1 + 0.6 * (len(panels) - 1)) + 1.4, 2.8, len(panels))
        for panel, (title, curves) in zip(drawn, panels.items(), strict=True):
            for variant, _, points in curves:
                number = variants.index(variant)
                (lines[variant],) = panel.plot(*zip(*points, strict=True), color=COLOURS[number % len(COLOURS)], linewidth=1.2,
                                               # Curves that coincide show through each other's gaps.
                                               linestyle=LINE_STYLES[number % len(LINE_STYLES)])
            panel.set(title=words.label(title) if title else "", xlabel="updates")
            panel.sharey(drawn[0])
        drawn[0].set_ylabel("validation loss, bits per token")
        figure.legend([lines[variant] for variant in variants], [words.label(variant) for variant in variants], frameon=False,
                      loc="outside center right")
        if words.title:
            figure.suptitle(words.title, fontsize=9)
    rows: list[Sequence[Any]] = [(f"{title}-{variant}" if title else variant, seed, update, f"{loss:.4f}")
                                 for title, curves in panels.items() for variant, seed, points in curves
                                 for update, loss in points]
    return save_figure(path, figure, ("variant", "seed", "updates", "loss"), rows)

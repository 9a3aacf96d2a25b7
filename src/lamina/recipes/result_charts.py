"""Figures of results: what was measured by variant and depth, and how losses fell."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lamina.analysis.charts import COLUMN_WIDTH, LINE_STYLES, small_print
from lamina.analysis.drawing import COLOURS, MARKERS, new_figure, save_figure
from lamina.recipes.plan import run_name
from lamina.recipes.results import RUN, Row, latest
from lamina.recipes.run_figures import training_rows

# More curves than that in a panel, or panels in a row, nobody could read.
MOST_VARIANTS, MOST_PANELS = 14, 4
# Of a legend, about.
CHARACTERS_PER_INCH, CHARACTERS_OF_A_MARKER = 16, 6
# Variant, seed, and losses by update.
Curve = tuple[str, int, list[tuple[int, float]]]
# Known of every training run, and drawn as curves instead.
OF_TRAINING = ("updates", "train loss", "tokens/s", "GiB", "valid loss", "best valid loss")


def draw_recipes(rows: Sequence[Row], runs: Path, folder: Path) -> list[Path]:
    """RECIPE.svg and RECIPE-loss.svg, each with its numbers; the files written."""
    written: list[Path] = []
    measured = [row for row in latest(rows) if row["kind"] == RUN]
    for recipe in dict.fromkeys(row["recipe"] for row in measured):
        own = [row for row in measured if row["recipe"] == recipe]
        num_variants = len({row["variant"] for row in own})
        name = _main_figure(own) or ("best valid loss" if num_variants > MOST_VARIANTS else "")
        if name:
            written += _draw_figure(folder / f"{recipe}.svg", own, name)
        curves = [(row["variant"], row["seed"], curve) for row in own
                  if not row["cut"] and (curve := _curve(runs / recipe / run_name(row["variant"], row["seed"], row["budget"])))]
        panels = _panels(curves)
        if panels:
            written += _draw_curves(folder / f"{recipe}-loss.svg", panels)
    return written


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


def _main_figure(rows: list[Row]) -> str:
    names = [name for row in rows for name in row["figures"] if name not in OF_TRAINING]
    return next((name for name in names if name.endswith("word ppl")), next(iter(names), ""))


def _draw_figure(path: Path, rows: list[Row], name: str) -> list[Path]:
    """Variants side by side; where there are cuts, these, and a series for each variant; so with the first axis of a grid."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if name in row["figures"]:
            groups.setdefault((row["variant"], row["cut"] or "all"), []).append(row["figures"][name])
    has_cuts = any(cut != "all" for _, cut in groups)
    is_grid = not has_cuts and len(groups) > MOST_VARIANTS

    def position(variant: str, cut: str) -> tuple[str, str]:
        """Series and place on the axis; a grid's variants are called by their axes: `admin-lr5e-4-b999`."""
        first, _, rest = variant.partition("-")
        return (variant, cut) if has_cuts else (first, rest) if is_grid else ("", variant)

    found = {position(*key): own for key, own in groups.items()}
    series, places = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    with small_print():
        legend_width = 0 if series == [""] else (max(map(len, series)) + CHARACTERS_OF_A_MARKER) / CHARACTERS_PER_INCH
        figure, (panel,) = new_figure(max(COLUMN_WIDTH, 0.3 * len(places) + 1.0) + legend_width, 2.6)
        for number, variant in enumerate(series):
            points = [(place, found[variant, place]) for place in places if (variant, place) in found]
            shift = min(0.15, 0.8 / len(series)) * (number - (len(series) - 1) / 2)
            panel.errorbar([places.index(place) + shift for place, _ in points], [statistics.fmean(own) for _, own in points],
                           yerr=[statistics.stdev(own) if len(own) > 1 else 0.0 for _, own in points], label=variant,
                           linestyle="none", marker=MARKERS[number % len(MARKERS)], markersize=4, capsize=2,
                           color=COLOURS[number % len(COLOURS)])
        panel.set_xticks(range(len(places)), places, rotation=40, ha="right", rotation_mode="anchor")
        panel.set_ylabel(name)
        if name.endswith("ppl"):
            panel.set_yscale("log")
            panel.minorticks_off()
        if series != [""]:
            figure.legend(frameon=False, loc="outside right upper")
    numbers = [(variant, cut, len(own), f"{statistics.fmean(own):.4f}") for (variant, cut), own in groups.items()]
    return save_figure(path, figure, ("variant", "layers", "seeds", name), numbers)


def _curve(folder: Path) -> list[tuple[int, float]]:
    """Validation losses by update, in bits a token; training losses where there was no validation."""
    rows = list(training_rows(folder / "logs" / "train.log"))
    valid = [(row["num_updates"], row["nll_loss"]) for row in rows if row.get("where") == "valid" and "nll_loss" in row]
    return valid if len(valid) > 1 else [(row["num_updates"], row["nll_loss"]) for row in rows if "wps" in row]


def _draw_curves(path: Path, panels: dict[str, list[Curve]]) -> list[Path]:
    """A line for each run; the seeds of a variant look alike, and so does a variant in every panel."""
    variants = list(dict.fromkeys(variant for curves in panels.values() for variant, _, _ in curves))
    lines: dict[str, Any] = {}
    with small_print():
        figure, drawn = new_figure(COLUMN_WIDTH * (1 + 0.6 * (len(panels) - 1)) + 1.4, 2.8, len(panels))
        for panel, (title, curves) in zip(drawn, panels.items(), strict=True):
            for variant, _, points in curves:
                number = variants.index(variant)
                (lines[variant],) = panel.plot(*zip(*points, strict=True), color=COLOURS[number % len(COLOURS)], linewidth=1.2,
                                               linestyle=LINE_STYLES[number // len(COLOURS) % len(LINE_STYLES)])
            panel.set(title=title, xlabel="updates")
            panel.sharey(drawn[0])
        drawn[0].set_ylabel("loss, bits a token")
        figure.legend([lines[variant] for variant in variants], variants, frameon=False, loc="outside right upper")
    rows: list[Sequence[Any]] = [(f"{title}-{variant}" if title else variant, seed, update, f"{loss:.4f}")
                                 for title, curves in panels.items() for variant, seed, points in curves
                                 for update, loss in points]
    return save_figure(path, figure, ("variant", "seed", "updates", "loss"), rows)

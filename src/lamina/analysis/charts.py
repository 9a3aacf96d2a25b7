"""The kinds of chart that the analyses draw, at the width of a column of print, with letters of 8 points in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from lamina.analysis.drawing import COLOURS, new_figure

COLUMN_WIDTH = 3.4  # inches
COLOUR_MAP = "cividis"  # as bright in grey as in colour
LINE_STYLES = ("-", "--", "-.", ":")
# Of those that are installed, the first that has a letter draws it: tokens come in any script.
FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari",
         "WenQuanYi Zen Hei", "Hiragino Sans", "Microsoft YaHei", "Arial Unicode MS")
# Above this many columns, numbers in the cells would touch.
MOST_ANNOTATED_COLUMNS = 16


@contextmanager
def small_print() -> Iterator[None]:
    """Sizes of letters and lines for what is created inside."""
    import matplotlib

    sizes: dict[Any, Any] = dict.fromkeys(("font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize",
                                           "ytick.labelsize", "legend.fontsize"), 8)
    with matplotlib.rc_context({**sizes, "axes.linewidth": 0.6, "lines.linewidth": 1.2}):
        yield


def heat_map(values: np.ndarray, row_names: Sequence[str], column_names: Sequence[str], *, row_label: str, column_label: str,
             value_label: str, is_annotated: bool = False) -> Any:
    """Rows by columns; where a column of print is too narrow for its cells, the figure is wider."""
    num_rows, num_columns = values.shape
    is_annotated &= num_columns <= MOST_ANNOTATED_COLUMNS
    width, height = (0.3, 0.25) if is_annotated else (0.16, 0.16)  # of a cell, in inches
    margins = 0.065 * max(map(len, row_names)) + 1.0, 0.065 * max(map(len, column_names)) + 0.4
    with small_print():
        figure, (panel,) = new_figure(max(COLUMN_WIDTH, width * num_columns + margins[0]),
                                      max(1.6, height * num_rows + margins[1]))
        panel.grid(visible=False)
        image = panel.imshow(values, cmap=COLOUR_MAP, vmin=0.0, aspect="auto", interpolation="nearest")
        # Not parsed: a token may hold a dollar sign, which would open a formula.
        plain = {"parse_math": False, "family": installed_fonts()}
        panel.set_xticks(range(num_columns), column_names, rotation=90, **plain)
        panel.set_yticks(range(num_rows), row_names, **plain)
        panel.tick_params(length=2)
        panel.set(xlabel=column_label, ylabel=row_label)
        panel.spines[["top", "right"]].set_visible(True)
        figure.colorbar(image, ax=panel, label=value_label).outline.set_linewidth(0.6)
        if is_annotated:
            middle = (image.norm.vmin + image.norm.vmax) / 2
            for (row, column), value in np.ndenumerate(values):
                panel.text(column, row, short_share(value), ha="center", va="center",
                           color="white" if value < middle else "black")
    return figure


def short_share(value: float) -> str:
    """.25, and 0 or 1 where it is exactly that."""
    return f"{value:g}" if value in (0.0, 1.0) else f"{value:.2f}".removeprefix("0")


def installed_fonts() -> list[str]:
    from matplotlib.font_manager import fontManager

    present = set(fontManager.get_font_names())
    return [name for name in FONTS if name in present]


class Box(NamedTuple):
    """What a box shows: the middle half between its ends, 5 % and 95 % at the whiskers, a dot for the mean."""

    name: str
    mean: float
    quantiles: Sequence[float]  # 5, 25, 50, 75, 95 %


def boxes(data: Sequence[Box], *, label: str, value_label: str, limits: tuple[float, float] | None = None) -> Any:
    with small_print():
        figure, (panel,) = new_figure(max(COLUMN_WIDTH, 0.45 * len(data) + 0.8), 2.6)
        panel.grid(visible=False, axis="x")
        statistics = [{"label": box.name, "mean": box.mean, "whislo": box.quantiles[0], "q1": box.quantiles[1],
                       "med": box.quantiles[2], "q3": box.quantiles[3], "whishi": box.quantiles[4]} for box in data]
        line = {"color": COLOURS[0], "linewidth": 1.0}
        panel.bxp(statistics, showfliers=False, showmeans=True, patch_artist=True, widths=0.6, whiskerprops=line, capprops=line,
                  boxprops={"facecolor": "#cfe3f2", "edgecolor": COLOURS[0], "linewidth": 1.0},
                  medianprops={"color": "black", "linewidth": 1.4},
                  meanprops={"marker": "o", "markerfacecolor": COLOURS[1], "markeredgecolor": COLOURS[1], "markersize": 3.5})
        panel.set_xticks(range(1, len(data) + 1), [box.name for box in data], rotation=40, ha="right", rotation_mode="anchor")
        panel.set(xlabel=label, ylabel=value_label)
        if limits is not None:
            panel.set_ylim(*limits)
    return figure


def bars(names: Sequence[str], values: Mapping[str, Sequence[float]], *, label: str) -> Any:
    """A panel for each series of values, one above the other, over the same names."""
    with small_print():
        figure, panels = new_figure(max(COLUMN_WIDTH, 0.2 * len(names) + 0.8), 1.35 * len(values) + 0.9,
                                    num_panels=len(values), is_stacked=True)
        for number, (panel, (value_label, series)) in enumerate(zip(panels, values.items(), strict=True)):
            panel.grid(visible=False, axis="x")
            panel.bar(range(len(names)), series, width=0.7, color=COLOURS[number])
            panel.axhline(0.0, color="black", linewidth=0.6)
            panel.set_ylabel(value_label)
            panel.margins(x=0.02, y=0.1)
            panel.locator_params(axis="y", nbins=4)
            panel.set_xticks(range(len(names)), names if panel is panels[-1] else [], rotation=90)
        panels[-1].set_xlabel(label)
        figure.align_ylabels(panels)
    return figure


def falling_curves(series: Mapping[str, np.ndarray], *, label: str, value_label: str, floor: float) -> Any:
    """Values from 1 downwards over 1, 2, 3, ..., on a logarithmic scale that shows whole powers of ten and ends at `floor`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    with small_print():
        figure, (panel,) = new_figure(COLUMN_WIDTH, 2.4)
        for number, (name, values) in enumerate(series.items()):
            panel.plot(np.arange(1, len(values) + 1), values, label=name, color=COLOURS[number], linestyle=LINE_STYLES[number])
        lowest = max(min(float(values.min()) for values in series.values()), floor)
        powers = -math.floor(math.log10(lowest)) or 1
        panel.set(xlabel=label, ylabel=value_label, yscale="log", ylim=(10.0**-powers, 1.3))
        # Few powers of ten leave room for the steps between them.
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if powers == 1 else (1.0,)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())
        if len(series) > 1:
            figure.legend(frameon=False, loc="outside upper center", ncols=len(series))
    return figure


def distributions(series: Mapping[str, np.ndarray], edges: np.ndarray, *, label: str, value_label: str) -> Any:
    """Shares of each series by bin, and its mean as an upright line."""
    with small_print():
        figure, (panel,) = new_figure(COLUMN_WIDTH, 2.5)
        for number, (name, values) in enumerate(series.items()):
            style = {"color": COLOURS[number], "linestyle": LINE_STYLES[number]}
            panel.stairs(bin_shares(values, edges), edges, label=f"{name} (mean {values.mean():.2f})", linewidth=1.2, **style)
            panel.axvline(float(values.mean()), linewidth=0.8, **style)
        panel.set(xlabel=label, ylabel=value_label)
        figure.legend(frameon=False, loc="outside upper center", ncols=len(series))
    return figure


def bin_shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.histogram(values, edges)[0] / max(len(values), 1)

"""Figures that are readable in print, and the numbers behind each of them in a CSV file of the same name.

matplotlib is imported where something is drawn, and used through its objects alone: no window, no global state.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lamina.files import whole_file

# Okabe and Ito's colours, which those who see few colours tell apart too; the order is that of use.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# So that lines differ in black and white as well.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DOTS_PER_INCH = 300


def new_figure(width: float, height: float, num_panels: int = 1, *, is_stacked: bool = False) -> tuple[Any, list[Any]]:
    """A figure of so many inches, and its panels: side by side, or one above the other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    shape = (num_panels, 1) if is_stacked else (1, num_panels)
    panels = [figure.add_subplot(*shape, number + 1) for number in range(num_panels)]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(visible=True, color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
    return figure, panels


def save_figure(path: Path, figure: Any, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[Path]:
    """`path` (.png or .svg), and its numbers beside it; the files written."""
    from matplotlib import rc_context

    # Letters stay letters, and the same numbers give the same file.
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": path.stem}
    with whole_file(path) as part, warnings.catch_warnings(), rc_context(settings):
        # A token's letters may be in no font; its name stands in the table all the same.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(part, dpi=DOTS_PER_INCH, format=path.suffix[1:],
                       metadata={"Date": None} if path.suffix == ".svg" else None)
    table = path.with_suffix(".csv")
    with whole_file(table) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    return [path, table]

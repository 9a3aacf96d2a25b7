"""The figures of `lamina analyze depth`, each with a sentence that says how to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lamina.analysis.charts import COLOUR_MAP, LINE_STYLES, small_print
from lamina.analysis.depth import layer_dependency, variances
from lamina.analysis.drawing import COLOURS, MARKERS, new_figure
from lamina.analysis.page import Section
from lamina.analysis.probes import Sum

PANEL = (3.1, 2.6)  # inches
SMALLEST_SHARE = 1e-3  # that the heat map tells apart
OTHER_SEEDS = "One batch was looked at: what another --seed changes as much is noise."


def dependency_section(sums: Mapping[str, Sequence[Sum]]) -> Section:
    from matplotlib.colors import LogNorm

    rows: list[tuple[Any, ...]] = []
    with small_print():
        figure, panels = new_figure(PANEL[0] * len(sums), PANEL[1], num_panels=len(sums))
        for (name, own), panel in zip(sums.items(), panels, strict=True):
            shares = layer_dependency(own)
            panel.grid(visible=False)
            image = panel.imshow(_shown(shares), origin="lower", aspect="auto", cmap=COLOUR_MAP, interpolation="nearest",
                                 norm=LogNorm(SMALLEST_SHARE, 1.0), extent=(-0.5, len(own) + 0.5, 0.5, len(own) + 0.5))
            figure.colorbar(image, ax=panel, label="share of its variance")
            panel.set(title=name, xlabel="residual branch (0: the stack's input)", ylabel="output of sub-layer")
            _count_on(panel.xaxis, panel.yaxis)
            rows += [(name, row + 1, branch, f"{shares[row, branch]:.6g}")
                     for row in range(len(own)) for branch in range(row + 2)]
    return Section(
        "layer_dependency", "Layer dependency",
        "How much of each sub-layer's output (a row) comes from each residual branch before it (a column). Where only the "
        "right end of a row is bright, as in Post-LN, an output depends on the newest branches, and what goes wrong in each of "
        "them adds up; Pre-LN and Admin spread their dependency over all of them.",
        " ".join(_newest_share(name, layer_dependency(own)) for name, own in sums.items()) + f" {OTHER_SEEDS}",
        figure, "heat map of the share of each residual branch in each sub-layer's output",
        ("stack", "sub_layer", "branch", "share"), rows,
        {f"{name}: share of the last output that its own branch has": layer_dependency(own)[-1, -1].item()
         for name, own in sums.items()})


def _newest_share(name: str, shares: Tensor) -> str:
    own, even = shares[-1, -1].item(), 1 / shares.size(1)
    how = "leans on it" if own > 2 * even else "spreads its dependency" if own < 1.25 * even else "leans on it a little"
    return (f"The {name}'s last output has {own:.1%} of its variance from the newest branch, an even share being {even:.1%}: "
            f"it {how}.")


def _shown(shares: Tensor) -> Any:
    """Branches after a sub-layer stay blank; shares too small to tell apart have the darkest colour."""
    shown = shares.clamp(min=SMALLEST_SHARE)
    for row in range(len(shown)):
        shown[row, row + 2 :] = torch.nan
    return shown.numpy()


class Measured(NamedTuple):
    """The checkpoint itself, beside the fresh models."""

    num_sub_layers: int
    change: float


def change_section(sub_layers: Sequence[int], changes: Mapping[str, Sequence[float]], *, stack: str, step: float,
                   checkpoint: Measured | None = None) -> Section:
    rows = [(name, depth, f"{change:.6g}") for name, values in changes.items()
            for depth, change in zip(sub_layers, values, strict=True)]
    with small_print():
        figure, (panel,) = new_figure(PANEL[0] + 0.6, PANEL[1])
        _draw_lines(panel, sub_layers, changes)
        if checkpoint is not None:
            panel.plot(*[[value] for value in checkpoint], marker="*", markersize=10, linestyle="none", color=COLOURS[-1],
                       label="the checkpoint")
            rows.append(("checkpoint", checkpoint.num_sub_layers, f"{checkpoint.change:.6g}"))
        panel.set(xlabel=f"sub-layers of the {stack}", ylabel="|F(W) − F(W*)|², mean over tokens", ylim=(0, None))
        figure.legend(frameon=False, loc="outside upper center", ncols=4)
    first, last = sub_layers[0], sub_layers[-1]
    return Section(
        "output_change", "Output change",
        f"How far the output F of fresh stacks moves when every entry of their weight matrices W moves by {step:g}, up or down "
        "at random, to W*: as the depth itself in Post-LN, as its logarithm in Pre-LN and Admin. An optimizer's "
        "first steps are such moves.",
        _growth(sub_layers, changes),
        figure, "squared change of the output over the number of sub-layers, a line for each kind of residual",
        ("kind", "sub_layers", "squared_change"), rows,
        {f"{name}: times as much at {last} sub-layers as at {first}": values[-1] / values[0]
         for name, values in changes.items() if values[0] > 0})  # ReZero begins as the identity, which nothing moves


def _growth(sub_layers: Sequence[int], changes: Mapping[str, Sequence[float]]) -> str:
    """The slope of each line on logarithmic scales, and how far its points lie from it."""
    found = []
    for name, values in changes.items():
        if min(values) <= 0:
            continue
        x, y = (np.log(np.asarray(own, dtype=float)) for own in (sub_layers, values))
        slope, offset = np.polyfit(x, y, 1)
        scatter = float(np.exp(np.abs(y - slope * x - offset).max()) - 1)
        found.append(f"{name} {slope:.1f} (points within {scatter:.0%} of the line)")
    if not found:
        return ""
    return (f"The change grows with the depth to the power of: {', '.join(found)}. 1 is in proportion to the depth, where "
            "stacks soon become hard to train; near 0 depth costs nothing. Kinds that differ by less than their points scatter "
            "are alike; --repeats averages over more fresh models.")


def gradient_section(norms: Mapping[str, Mapping[str, Sequence[float]]]) -> Section:
    rows = []
    with small_print():
        figure, panels = new_figure(2 * PANEL[0], PANEL[1], num_panels=2)
        for panel, (by, title) in zip(panels, (("weights", "by each layer's weights"), ("output", "by each layer's output")),
                                      strict=True):
            for number, (name, own) in enumerate(norms.items()):
                _draw_lines(panel, range(1, len(own[by]) + 1), {name: own[by]}, first=number)
                rows += [(name, by, layer, f"{norm:.6g}") for layer, norm in enumerate(own[by], start=1)]
            panel.set(title=title, xlabel="layer", ylabel="norm of the gradient")
            _use_log_scale(panel)
        figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=2)
    return Section(
        "gradient_norm", "Gradient norm by layer",
        "The norm of the mean loss's gradient at each layer. A line that falls by orders of magnitude towards the first layer "
        "is a gradient that vanishes, as in the decoders of deep Post-LN models.",
        " ".join(_first_to_last(name, own["output"]) for name, own in norms.items() if own["output"][-1]) + f" {OTHER_SEEDS}",
        figure, "norm of the gradient over the layers of each stack", ("stack", "by", "layer", "norm"), rows,
        {f"{name}: first layer's over last layer's, by {by}": own[by][0] / own[by][-1]
         for name, own in norms.items() for by in own if own[by][-1]})


def _first_to_last(name: str, norms: Sequence[float]) -> str:
    ratio = norms[0] / norms[-1]
    what = "it vanishes on the way down" if ratio < 0.1 else "it grows on the way down" if ratio > 10 else "it stays in range"
    return f"In the {name} the gradient at the first layer's output is {ratio:.2g} times that at the last: {what}."


def variance_section(sums: Mapping[str, Sequence[Sum]]) -> Section:
    rows = []
    with small_print():
        figure, panels = new_figure(PANEL[0] * len(sums), PANEL[1], num_panels=len(sums))
        for (name, own), panel in zip(sums.items(), panels, strict=True):
            lines = variances(own)
            _draw_lines(panel, range(1, len(own) + 1), lines)
            panel.set(title=name, xlabel="sub-layer", ylabel="variance")
            _use_log_scale(panel)
            rows += [(name, of, number, f"{value:.6g}") for of, values in lines.items()
                     for number, value in enumerate(values, start=1)]
        figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=3)
    return Section(
        "activation_variance", "Activation variance by depth",
        "The variance, over tokens and channels, of what each sub-layer adds up, its shortcut and its branch, and of its "
        "output. The further the shortcut lies above the branch, the less the output depends on that branch.",
        " ".join(_shortcut_to_branch(name, variances(own)) for name, own in sums.items()) + f" {OTHER_SEEDS}",
        figure, "variances of shortcut, branch and output over the sub-layers of each stack",
        ("stack", "of", "sub_layer", "variance"), rows)


def _shortcut_to_branch(name: str, lines: Mapping[str, Sequence[float]]) -> str:
    first, last = (lines["shortcut"][place] / max(lines["branch"][place], 1e-30) for place in (0, -1))
    return f"In the {name} the shortcut has {first:.1f} times the branch's variance at the bottom, {last:.1f} times at the top."


def _draw_lines(panel: Any, x: Sequence[int], lines: Mapping[str, Sequence[float]], first: int = 0) -> None:
    """Over something that is counted."""
    for number, (name, y) in enumerate(lines.items(), start=first):
        panel.plot(x, y, label=name, color=COLOURS[number], marker=MARKERS[number], markersize=3 if len(x) <= 40 else 0,
                   linestyle=LINE_STYLES[number % len(LINE_STYLES)])
    _count_on(panel.xaxis)


def _count_on(*axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True))


def _use_log_scale(panel: Any) -> None:
    """On y, over at least a decade, so that noise does not look like an effect; unless there is a value that is not above 0."""
    values = [float(value) for line in panel.get_lines() for value in line.get_ydata()]
    low, high = min(values), max(values)
    if low <= 0:
        return
    panel.set_yscale("log")
    if high < 10 * low:
        middle = (low * high) ** 0.5
        panel.set_ylim(middle / 10**0.55, middle * 10**0.55)

"""Charts: letters large enough for print, tokens as they are, numbers where they belong."""

import warnings

import numpy as np
import pytest

from lamina.analysis import charts
from lamina.analysis.drawing import save_figure

LINES = {name: np.linspace(1.0, 0.1, 9) for name in ("source", "target", "output")}
FIGURES = {
    "heat map": lambda: charts.heat_map(np.eye(3), ["a", "b", "c"], ["x", "y", "z"], row_label="rows", column_label="columns",
                                        value_label="share", is_annotated=True),
    "boxes": lambda: charts.boxes([charts.Box("1–9", 0.5, (0.1, 0.4, 0.5, 0.6, 0.9))], label="count", value_label="gate"),
    "bars": lambda: charts.bars(["layer 1", "layer 2"], {"BLEU": [-1.0, -2.0], "length": [0.1, 0.2]}, label="masked"),
    "curves": lambda: charts.falling_curves(LINES, label="rank", value_label="value", floor=1e-7),
    "distributions": lambda: charts.distributions({"aligned": np.array([0.9, 0.8]), "random": np.array([0.1])},
                                                  np.linspace(-1, 1, 11), label="cosine", value_label="share"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_letter_is_at_least_eight_points_and_inside_the_figure(name, tmp_path):
    from matplotlib.text import Text

    figure = FIGURES[name]()
    assert figure.get_size_inches()[0] == charts.COLUMN_WIDTH
    paths = save_figure(tmp_path / "figure.png", figure, ("a", "b"), [(1, "x,y")])
    assert [path.name for path in paths] == ["figure.png", "figure.csv"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert paths[1].read_text() == 'a,b\n1,"x,y"\n'
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert texts
    assert min(text.get_fontsize() for text in texts) >= 8
    figure.canvas.draw()
    labels = [label for panel in figure.axes for label in (panel.xaxis.label, panel.yaxis.label) if label.get_text()]
    assert len(labels) >= 2
    for item in (*labels, *figure.legends):
        box = item.get_window_extent()
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1


def test_tokens_are_drawn_as_they_are(tmp_path):
    figure = charts.heat_map(np.full((2, 3), 1 / 3), ["$5$", "<unk>"], ["你好", "$x", "_y$"], row_label="target",
                             column_label="source", value_label="attention")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(tmp_path / "figure.png", figure, (), [])
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["$5$", "<unk>"]
    assert not any(text.get_parse_math() for text in figure.axes[0].get_xticklabels())


def test_many_columns_make_a_wide_figure_without_numbers_in_it():
    few, many = (charts.heat_map(np.full((2, number), 1 / number), ["1", "2"], [f"layer {n}" for n in range(number)],
                                 row_label="rows", column_label="columns", value_label="share", is_annotated=True)
                 for number in (7, 30))
    assert [text.get_text() for text in few.axes[0].texts] == [".14"] * 14
    assert not many.axes[0].texts
    assert few.get_size_inches()[0] == charts.COLUMN_WIDTH
    assert charts.COLUMN_WIDTH < many.get_size_inches()[0] < 7.0


def test_shares_in_bins_and_in_cells():
    np.testing.assert_allclose(charts.bin_shares(np.array([-1.0, 0.1, 0.2, 1.0]), np.array([-1.0, 0.0, 0.5, 1.0])),
                               [0.25, 0.5, 0.25])
    assert [charts.short_share(value) for value in (0.0, 1.0, 0.256, 0.001)] == ["0", "1", ".26", ".00"]

"""The page: whole HTML that needs nothing else, replaced as a whole."""

import math
from html.parser import HTMLParser

import numpy as np
import pytest

from lamina.analysis import charts
from lamina.analysis.fusion_page import masking_section
from lamina.analysis.hiding import Masked, Quality, loss_change
from lamina.analysis.page import Section, shown, write_page
from tiny import tiny_model

VOID = {"meta", "img", "br"}


class Checker(HTMLParser):
    """Tags that close in order, and the text between them."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def figure():
    return charts.heat_map(np.eye(2), ["1", "2"], ["x", "y"], row_label="rows", column_label="columns", value_label="share")


def test_text_is_escaped_and_tags_close(tmp_path):
    sections = [Section("first", "a < b & c", "Is it <b>?", "So it is < 1.", figure(), 'a "quoted" figure', ("n",), [(1,)],
                        {"loss": 1.23456789, "pairs": 12, "name": "<x>"}),
                Section("second", "Absent", "There is nothing.")]
    written = write_page(tmp_path, title="<Title>", about={"model": "2 > 1"}, command="lamina analyze 'a b'", sections=sections)
    assert [path.name for path in written] == ["first.png", "first.csv", "summary.csv", "index.html"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(page)
    assert not checker.open
    text = " ".join(checker.text)
    for part in (
            "<Title>", "2 > 1", "lamina analyze 'a b'", "a < b & c", "Is it <b>?", "So it is < 1.",
            "There is nothing.", "1.235", "<x>"):
        assert part in text
    assert 'alt="a &quot;quoted&quot; figure"' in page
    assert '<a href="#second">Absent</a>' in page
    assert (tmp_path / "summary.csv").read_text() == ("analysis,fact,value\nfirst,loss,1.2345679\nfirst,pairs,12\n"
                                                      "first,name,<x>\n")


def test_what_is_absent_now_leaves_no_files_of_before(tmp_path):
    present = Section("first", "First", "Here.", "", figure(), "", ("n",), [(1,)])
    write_page(tmp_path, title="t", about={}, command="c", sections=[present])
    assert (tmp_path / "first.png").exists()
    write_page(tmp_path, title="t", about={}, command="c", sections=[Section("first", "First", "Not here.")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "summary.csv"]


def test_numbers_to_read():
    assert [shown(value) for value in (0.123456, 12345, 2.0, "text")] == ["0.1235", "12345", "2", "text"]


def quality(*losses):
    tokens = [10, 20, 30, 40][: len(losses)]
    by_batch = tuple(zip(losses, tokens, strict=True))
    return Quality(sum(loss * number for loss, number in by_batch) / sum(tokens), by_batch=by_batch)


def test_a_change_has_an_error_over_batches():
    whole = quality(1.0, 2.0, 3.0, 4.0)
    change, error = loss_change(quality(1.5, 2.5, 3.5, 4.5), whole)
    assert (change, error) == (pytest.approx(0.5), pytest.approx(0.0))
    change, error = loss_change(quality(2.0, 1.0, 4.0, 3.0), whole)
    assert abs(change) < 2 * error
    assert math.isnan(loss_change(quality(1.0, 2.0), quality(1.0, 1.0))[1])


def test_what_is_missed_is_told_apart_from_noise():
    whole = quality(1.0, 2.0, 3.0, 4.0)
    masked = Masked(whole, {"layer 1": quality(1.5, 2.6, 3.5, 4.6), "layer 2": quality(0.5, 1.4, 2.5, 3.4),
                            "surface": quality(2.0, 1.0, 4.0, 3.0)})
    section = masking_section(tiny_model(), masked)
    assert section.conclusion.startswith("Layer 1 is missed, layer 1 most (+0.5")
    assert "without layer 2 the loss is lower; of surface the change is within noise." in section.conclusion
    section = masking_section(tiny_model(), Masked(quality(1.0), {"layer 1": quality(2.0)}))
    assert section.conclusion.startswith("Fewer than three")

"""The page: whole HTML that needs nothing else, replaced as a whole."""

from html.parser import HTMLParser

import numpy as np

from lamina.analysis import charts
from lamina.analysis.page import Section, shown, write_page

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
    sections = [Section("first", "a < b & c", "Is it <b>?", figure(), 'a "quoted" figure', ("n",), [(1,)],
                        {"loss": 1.23456789, "pairs": 12, "name": "<x>"}),
                Section("second", "Absent", "There is nothing.")]
    written = write_page(tmp_path, title="<Title>", about={"model": "2 > 1"}, command="lamina analyze 'a b'", sections=sections)
    assert [path.name for path in written] == ["first.png", "first.csv", "summary.csv", "index.html"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(page)
    assert not checker.open
    text = " ".join(checker.text)
    for part in ("<Title>", "2 > 1", "lamina analyze 'a b'", "a < b & c", "Is it <b>?", "There is nothing.", "1.235", "<x>"):
        assert part in text
    assert 'alt="a &quot;quoted&quot; figure"' in page
    assert (tmp_path / "summary.csv").read_text() == ("analysis,fact,value\nfirst,loss,1.2345679\nfirst,pairs,12\n"
                                                      "first,name,<x>\n")


def test_what_is_absent_now_leaves_no_files_of_before(tmp_path):
    present = Section("first", "First", "Here.", figure(), "", ("n",), [(1,)])
    write_page(tmp_path, title="t", about={}, command="c", sections=[present])
    assert (tmp_path / "first.png").exists()
    write_page(tmp_path, title="t", about={}, command="c", sections=[Section("first", "First", "Not here.")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "summary.csv"]


def test_numbers_to_read():
    assert [shown(value) for value in (0.123456, 12345, 2.0, "text")] == ["0.1235", "12345", "2", "text"]

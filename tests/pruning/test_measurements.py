"""Results on disk, figures and their numbers."""

import csv
import json

import pytest

from lamina.analysis.drawing import new_figure, save_figure
from lamina.errors import DataError
from lamina.pruning.measurements import Measurements, file_digest


def test_what_was_measured_is_not_measured_again(tmp_path):
    path = tmp_path / "results.json"
    first = Measurements(path, {"metric": "loss"})
    assert first.get("a", lambda: 1.5) == 1.5
    again = Measurements(path, {"metric": "loss"})
    assert again.num_known == 1
    assert again.get("a", lambda: pytest.fail("measured twice")) == 1.5
    # Something else has results of its own, in the same file.
    other = Measurements(path, {"metric": "bleu"})
    assert other.num_known == 0
    assert other.get("a", lambda: 30.0) == 30.0
    assert sorted(series["results"]["a"] for series in json.loads(path.read_text())["series"].values()) == [1.5, 30.0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2, "series": {}}', '{"format": 1, "series": []}', "\xff"])
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match="cannot be read as such"):
        Measurements(path, {})
    assert path.read_bytes() == content.encode("latin-1")


def test_a_digest_is_of_contents(tmp_path):
    for name, text in (("a", "one"), ("b", "two"), ("c", "one")):
        (tmp_path / name).write_text(text)
    assert file_digest([tmp_path / "a"]) == file_digest([tmp_path / "c"]) != file_digest([tmp_path / "b"])


def test_a_figure_comes_with_its_numbers(tmp_path):
    figure, (panel, _) = new_figure(4.0, 2.0, num_panels=2)
    panel.plot([1, 2], [3, 4])
    files = save_figure(tmp_path / "new" / "figure.png", figure, ["x", "y"], [(1, 3), (2, 4)])
    assert [file.name for file in files] == ["figure.png", "figure.csv"]
    assert files[0].read_bytes()[:4] == b"\x89PNG"
    assert list(csv.reader(files[1].open())) == [["x", "y"], ["1", "3"], ["2", "4"]]
    assert sorted(file.name for file in files[0].parent.iterdir()) == ["figure.csv", "figure.png"]

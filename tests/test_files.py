"""Files that appear whole or not at all."""

import pytest

from lamina.errors import DataError
from lamina.files import whole_file


def test_a_file_appears_when_it_is_whole(tmp_path):
    with whole_file(tmp_path / "folder" / "a.txt") as part:
        part.write_text("new")
        assert not (tmp_path / "folder" / "a.txt").exists()
        assert part.suffix == ".txt"
    assert (tmp_path / "folder" / "a.txt").read_text() == "new"


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write():
        with whole_file(path) as part:
            part.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "a").write_text("a file")
    with pytest.raises(DataError, match="could not be written"), whole_file(tmp_path / "a" / "b.txt") as part:
        part.write_text("x")

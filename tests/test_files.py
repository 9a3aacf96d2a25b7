"""Files that appear whole or not at all."""

import pytest

from lamina.errors import DataError
from lamina.files import whole_file, whole_folder


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


def test_a_folder_appears_when_it_is_whole(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "deep" / "new", tmp_path / "empty"):
        with whole_folder(path) as part:
            (part / "a.txt").write_text("new")
            assert not (path / "a.txt").exists()
        assert [item.name for item in path.iterdir()] == ["a.txt"]
        assert not list(path.parent.glob(".*"))


def test_a_failure_leaves_no_folder(tmp_path):
    def write():
        with whole_folder(tmp_path / "new") as part:
            (part / "a.txt").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_left_alone(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(DataError, match="is there already"), whole_folder(path):
            pass
    assert (tmp_path / "a.txt").read_text() == "old"

"""Lines out of the archives and markup in which corpora come."""

import gzip
import io
import tarfile
import zipfile

import pytest

from lamina.errors import DataError
from lamina.recipes.sources import read_place

LINES = ["first", "", "third – ü"]
TEXT = "\n".join(LINES).encode() + b"\n"


def write_tar(path, mode="w:gz", **members):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("place", ["plain.txt", "packed.txt.gz", "a.tgz!inner/plain.txt", "a.tgz!plain.txt", "a.tar!packed.gz",
                                   "b.zip!plain.txt", "missing.tgz|a.tgz!plain.txt", "never_downloaded.tgz!plain.txt",
                                   "a.tgz!v9/text|plain.txt", "never_downloaded.tgz!deep.txt"])
def test_every_kind_of_place(tmp_path, place):
    (tmp_path / "plain.txt").write_bytes(TEXT)
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "one" / "two" / "deep.txt").write_bytes(TEXT)
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(TEXT))
    write_tar(tmp_path / "a.tgz", **{"other": b"x\n", "./inner/plain.txt": TEXT})
    write_tar(tmp_path / "a.tar", "w", **{"packed.gz": gzip.compress(TEXT)})
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("folder/plain.txt", TEXT)
    assert list(read_place(tmp_path, place)) == LINES


def test_the_segments_of_a_test_set(tmp_path):
    (tmp_path / "newstest-src.en.sgm").write_text(
        '<srcset setid="x" srclang="any">\n<doc docid="1">\n<p>\n<seg id="1">AT&amp;T said: "no"</seg>\n'
        '<seg id="2"> two\nlines </seg><SEG id="3"></SEG>\n</p></doc></srcset>\n')
    assert list(read_place(tmp_path, "newstest-src.en.sgm")) == ['AT&T said: "no"', "two lines", ""]


def test_the_talks_of_iwslt(tmp_path):
    (tmp_path / "train.tags.de-en.de").write_text(
        "<url>http://x</url>\n<keywords>a, b</keywords>\n<talkid>1</talkid>\n<title>Ein Titel</title>\n"
        "<description>Worum es geht</description>\n Das ist <b> ein Satz. \n<reviewer></reviewer>\n<translator>N\n")
    assert list(read_place(tmp_path, "train.tags.de-en.de")) == ["Ein Titel", "Worum es geht", "Das ist <b> ein Satz."]


def test_bytes_that_are_not_utf8_are_marked_and_no_error(tmp_path):
    (tmp_path / "x").write_bytes(b"good\nbad \xff\n")
    assert list(read_place(tmp_path, "x")) == ["good", "bad �"]


@pytest.mark.parametrize(("place", "message"), [
    ("nothing.txt", "has no nothing.txt"), ("nothing.tgz|none.tgz!a/b", r"has no nothing.tgz or none.tgz \(with a/b in it\)"),
    ("a.tgz!else", "has no else in it; it has other"), ("a.tgz!else|this", "has no else or this in it"),
    ("broken.tgz!x", "not a whole archive"),
    ("cut.tgz!plain", "Download it again"),
    ("cut.zip!x", "not a whole archive"), ("plain.rar!x", "no archive that is known"), ("open.sgm", "in the middle of a <seg>"),
])
def test_what_is_wrong_is_one_line(tmp_path, place, message):
    write_tar(tmp_path / "a.tgz", other=b"x\n")
    write_tar(tmp_path / "whole.tgz", plain=bytes(range(256)) * 400)
    (tmp_path / "cut.tgz").write_bytes((tmp_path / "whole.tgz").read_bytes()[:300])
    (tmp_path / "broken.tgz").write_bytes(b"no archive")
    (tmp_path / "cut.zip").write_bytes(b"PK")
    (tmp_path / "plain.rar").write_bytes(b"x")
    (tmp_path / "open.sgm").write_text('<seg id="1">never closed')
    with pytest.raises(DataError, match=message) as caught:
        list(read_place(tmp_path, place))
    assert "\n" not in str(caught.value)

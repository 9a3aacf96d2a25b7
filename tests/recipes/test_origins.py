"""Where corpora come from: every file of every shipped corpus says it, and what is there is compared."""

import hashlib
import json
import runpy
import zipfile
from pathlib import Path

import pytest

from lamina.cli import main
from lamina.config.packaged_recipes import all_corpora
from lamina.errors import ConfigError
from lamina.recipes.origins import Download, compared, digest_of, origin, read_downloads
from lamina.recipes.recipe_file import find_dataset

BUILD = Path(__file__).parents[2] / "recipes" / "data" / "build.py"


@pytest.fixture(scope="module")
def build():
    return runpy.run_path(str(BUILD))


@pytest.mark.parametrize("name", all_corpora())
def test_every_file_of_a_corpus_says_where_it_comes_from(name, build):
    dataset = find_dataset(name)
    for names in dataset.files:
        own = origin(dataset.downloads, names)
        assert own is not None, names
        assert own.checksum() or own.own or not own.is_public
        assert not own.build or own.build in build["CORPORA"]


def test_what_is_missing_is_told_at_once_with_its_source(tmp_path, capsys):
    assert main(["recipe", "prepare", "pooled_en_de", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert f"multi30k.tar.xz (python recipes/data/build.py multi30k --into {tmp_path})" in told
    assert "debian_en_de.tar.xz (not published: aligned by us" in told
    assert not (tmp_path / "out").exists()
    assert main(["recipe", "list", "wikitext103_layerdrop"]) == 0
    assert "wikitext-103-v1.zip: https://" in capsys.readouterr().out


def test_a_checksum_is_compared(tmp_path):
    file = tmp_path / "a.tgz"
    file.write_bytes(b"text")
    digest = hashlib.sha256(b"text").hexdigest()
    assert digest_of(file) == digest
    assert compared("a.tgz", digest, ()) == f"a.tgz: SHA-256 {digest}"
    assert compared("a.tgz", digest, (Download("a.tgz", url="https://x", sha256=digest),)).startswith("a.tgz: as in our runs")
    told = compared("a.tgz", digest, (Download("a.tgz", url="https://x", sha256="00"),))
    assert told == f"a.tgz: SHA-256 {digest}, in our runs 00; unless it is the same text packed again, scores do not compare"


def test_an_alternative_name_has_the_same_source():
    known = read_downloads({"b.tgz": {"url": "https://x"}})
    assert origin(known, "a.tgz|b.tgz") == known[0]
    assert origin(known, "c.tgz") is None


@pytest.mark.parametrize(("given", "told"), [
    (["a.tgz"], "must be a mapping"), ({"a.tgz": "https://x"}, "must be a mapping"),
    ({"a.tgz": {}}, "needs a url, a build, an own, or a note"), ({"a.tgz": {"uri": "x"}}, "unknown key 'uri'")])
def test_descriptions_are_checked(given, told):
    with pytest.raises(ConfigError, match=told):
        read_downloads(given)


# -- build.py

def test_a_corpus_is_built_from_files_that_are_there_and_others_are_refused(build, tmp_path):
    globs = build["main"].__globals__
    news = {address: f"{address[-2:]} line\n".encode() for address in globs["SHA256"] if address.startswith(globs["NEWS"])}
    for address, content in news.items():
        path = tmp_path / "from" / address.removeprefix("https://")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    get = globs["getter"](tmp_path / "from")
    with pytest.raises(SystemExit, match="it was changed or cut short"):
        dict(globs["wmt_news"](get))
    globs["SHA256"].update({address: hashlib.sha256(content).hexdigest() for address, content in news.items()})
    files = dict(globs["wmt_news"](get))
    assert files["wmt_news/newstest2016.en-ro.ro"] == b"ro line\n"
    assert len(files) == 4
    lines = [f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in sorted(files.items())]
    assert globs["digest"](files) == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_digests_of_archives_stay_with_the_text(tmp_path, capsys):
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    (downloads / "valid.txt").write_text("a b\nc d\n")
    with zipfile.ZipFile(downloads / "t.zip", "w") as archive:
        archive.writestr("train.txt", "a b\nc d\n")
    corpus = tmp_path / "own.yaml"
    corpus.write_text("about: own\nlanguages: []\ntrain: [t.zip!train.txt]\nvalid: [valid.txt]\n"
                      "downloads:\n  t.zip: {note: ours}\n")
    command = ["recipe", "prepare", str(corpus), "--data", str(downloads), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert main(command) == 0
    digest = hashlib.sha256((downloads / "t.zip").read_bytes()).hexdigest()
    assert json.loads((tmp_path / "out" / "corpus.json").read_text())["files"] == {"t.zip": digest}
    assert f"| t.zip: SHA-256 {digest}" in capsys.readouterr().out

"""A folder with other training targets: pairs of all parts, what is noted about it, and nothing where it fails."""

import numpy as np
import pytest

from lamina.data.binary import BinaryWriter
from lamina.data.corpus import Languages, load_dictionaries, open_corpus
from lamina.data.data_folder import MANIFEST_NAME, read_manifest
from lamina.data.retargeted import write_retargeted
from lamina.data.verify import verify_splits
from tiny import make_data

LANGUAGES = Languages("en", "xx")


@pytest.fixture
def data(tmp_path):
    folder = make_data(tmp_path / "made", num_lines=12)
    sizes = tuple(map(len, load_dictionaries(folder, LANGUAGES)))
    for language, size in zip(LANGUAGES, sizes, strict=True):  # a second part, as fairseq has them
        with BinaryWriter(folder / f"train1.en-xx.{language}", size) as writer:
            writer.write(np.array([5, 2]))
    return folder, sizes


def targets_for(folder, sizes):
    return [np.array([4 + number % 3, 2]) for number in range(len(open_corpus(folder, "train", LANGUAGES, sizes,
                                                                             adds_numbered=True)))]


@pytest.mark.parametrize("is_fairseqs", [False, True])
def test_all_parts_become_one_and_the_rest_stays(data, tmp_path, is_fairseqs):
    folder, sizes = data
    if is_fairseqs:
        (folder / MANIFEST_NAME).unlink()
    before, targets = open_corpus(folder, "train", LANGUAGES, sizes, adds_numbered=True), targets_for(folder, sizes)
    write_retargeted(folder, tmp_path / "new", LANGUAGES, sizes, targets)
    after = open_corpus(tmp_path / "new", "train", LANGUAGES, sizes, adds_numbered=True)
    assert len(after) == len(before)
    for number, target in enumerate(targets):
        assert list(after[number].source) == list(before[number].source)
        assert list(after[number].target) == list(target)
    names = {path.name for path in folder.iterdir() if not path.name.startswith("train1")}
    assert {path.name for path in (tmp_path / "new").iterdir()} == names
    manifest = read_manifest(tmp_path / "new")
    if is_fairseqs:
        assert manifest is None
        return
    verify_splits([tmp_path / "new"], ["train", "valid"], "full", pair=LANGUAGES)
    assert manifest["splits"]["train.en-xx.xx"]["tokens"] == 2 * len(targets)
    assert manifest["splits"]["valid.en-xx.xx"] == read_manifest(folder)["splits"]["valid.en-xx.xx"]
    assert manifest["vocabularies"] == read_manifest(folder)["vocabularies"]


def test_nothing_is_left_of_what_fails(data, tmp_path):
    folder, sizes = data
    targets = targets_for(folder, sizes)
    targets[3] = "no ids"
    with pytest.raises(ValueError, match=r"no ids|invalid literal"):
        write_retargeted(folder, tmp_path / "new", LANGUAGES, sizes, targets)
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".*"))

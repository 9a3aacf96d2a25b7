"""What ranks must have in common, and how a difference is told."""

from dataclasses import replace

import pytest

from lamina.config.parser import resolve
from lamina.config.train_options import TrainConfig
from lamina.distributed.agreement import OWN, check_agreement, difference, settings_of
from lamina.distributed.ranks import ALONE, Ranks
from lamina.errors import ConfigError


def config_of(folder, **options):
    return resolve(TrainConfig, {"data": str(folder), "max-tokens": 64} | options)


@pytest.fixture
def folder(tmp_path):
    for name in ("dict.en.txt", "train.en-xx.en.idx", "train.en-xx.en.bin", "manifest.json", "subwords.json"):
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize("options", [{"lr": 0.1}, {"seed": 2}, {"dropout": 0.2}, {"optimizer": "sgd"}, {"max-update": 7},
                                     {"update-freq": "2"}, {"fsdp": True}, {"encoder-layerdrop": 0.1}])
def test_settings_that_must_agree(folder, options):
    first, other = settings_of(config_of(folder)), settings_of(config_of(folder, **options))
    name = next(iter(options))
    assert f"--{name} is {other[f'--{name}']} on rank 3 and {first[f'--{name}']} on rank 0" in difference(3, first, other)


def test_settings_of_a_machine(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "data"
    elsewhere.mkdir()
    for path in folder.iterdir():
        (elsewhere / path.name).write_bytes(path.read_bytes())
    own = {"save-dir": "there", "num-workers": 3, "log-format": "json", "device-id": 1}
    assert settings_of(config_of(folder)) == settings_of(config_of(elsewhere, **own))


def test_names_that_may_differ_exist():
    """An option that is renamed must be renamed there, too."""
    from lamina.fields import flatten

    assert flatten(config_of("somewhere")).keys() >= OWN


@pytest.mark.parametrize("name", ["dict.en.txt", "train.en-xx.en.idx", "train.en-xx.en.bin", "subwords.json"])
def test_data_must_agree(folder, name):
    first = settings_of(config_of(folder))
    (folder / name).write_text(name[::-1])
    told = difference(1, first, settings_of(config_of(folder)))
    assert f"the data file {name} is {len(name)} bytes (" in told
    (folder / name).unlink()
    assert f"the data file {name} is none on rank 1" in difference(1, first, settings_of(config_of(folder)))


def test_what_does_not_decide_the_data_may_differ(folder):
    first = settings_of(config_of(folder))
    (folder / "manifest.json").write_text("made at another time")
    (folder / "notes.md").write_text("mine")
    assert settings_of(config_of(folder)) == first


def test_a_folder_that_is_not_there_is_for_the_task_to_tell(tmp_path):
    assert settings_of(config_of(tmp_path / "nowhere"))


def test_many_differences_are_counted():
    told = difference(1, {str(number): "a" for number in range(9)}, {str(number): "b" for number in range(9)})
    assert told.count("on rank 1") == 5
    assert "; and 4 more. Start all of them" in told


def test_code_must_agree(folder, monkeypatch):
    first = settings_of(config_of(folder))
    monkeypatch.setattr("lamina.distributed.agreement._code_digest", lambda: "0123abcd")
    assert "the version of Lamina is " in difference(1, first, settings_of(config_of(folder)))


class Told(Ranks):
    """The second of three ranks, the last of which has another seed."""

    def gather(self, own):
        item = own[0]
        if isinstance(item, str):
            return [item, item, "another digest"]
        return [item, item, {**item, "--seed": "2"}]


def test_all_ranks_say_the_same(folder):
    with pytest.raises(ConfigError, match=r"alike: --seed is 2 on rank 2 and 1 on rank 0\. Start all"):
        check_agreement(config_of(folder), replace(Told(), rank=1, size=3))
    check_agreement(config_of(folder), ALONE)

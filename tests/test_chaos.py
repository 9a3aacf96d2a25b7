"""A few faults of each kind; `make chaos` injects hundreds (tests/chaos.py)."""

import sys

import pytest

from chaos import Chaos, Row, table

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and limits the size of files")


@pytest.fixture(scope="module")
def chaos(tmp_path_factory):
    return Chaos(tmp_path_factory.mktemp("chaos"), seed=1, max_update=12)


def survived(row):
    return row.injected > 0 and row.survived == row.injected


def test_killed_runs_end_as_if_nothing_had_happened(chaos):
    assert survived(chaos.kill(8))


def test_so_do_runs_that_are_asked_to_stop(chaos):
    assert survived(chaos.terminate(2))


def test_so_do_runs_on_a_disk_that_is_full_for_a_while(chaos):
    assert survived(chaos.fill_disk(1))
    assert survived(chaos.stay_full())


def test_damage_is_noticed_and_the_checkpoint_before_taken(chaos):
    assert survived(chaos.corrupt(10, 2))


def test_the_table():
    lines = table([Row("kill", 3, 2, 7, "slow")]).splitlines()
    assert lines[1].split() == ["kill", "3", "2", "7", "slow"]

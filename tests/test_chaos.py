"""A few faults of each kind; `make chaos` injects hundreds (tests/chaos.py)."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial

import pytest
import torch

from chaos import LOST_LOGS, Chaos, Row, table

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and limits the size of files")


@pytest.fixture(scope="module")
def inject(tmp_path_factory):
    """Faults come from a process of their own: runs are forked there, which the threads of other tests could not survive."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
        folder = tmp_path_factory.mktemp("chaos")
        yield lambda fault, *numbers: apart.submit(partial(row_of, folder), fault, *numbers).result()


def row_of(folder, fault, *numbers):
    return getattr(chaos_in(folder), fault)(*numbers)


@cache
def chaos_in(folder):
    torch.set_num_threads(1)
    return Chaos(folder, seed=1, max_update=12)


def survived(row):
    return row.injected > 0 and row.survived == row.injected


def test_killed_runs_end_as_if_nothing_had_happened(inject):
    assert survived(inject("kill", 8))


def test_so_do_runs_that_are_asked_to_stop(inject):
    assert survived(inject("terminate", 2))


def test_so_do_runs_on_a_disk_that_is_full_for_a_while(inject):
    assert survived(inject("fill_disk", 1))
    assert survived(inject("stay_full"))


def test_damage_is_noticed_and_the_checkpoint_before_taken(inject):
    assert survived(inject("corrupt", 10, 2))


@pytest.mark.parametrize("kind", LOST_LOGS)
def test_so_do_runs_whose_log_nobody_takes(inject, kind):
    assert survived(inject("lose_log", kind, 2, 0))


def test_two_runs_in_one_folder(inject):
    assert survived(inject("share_folder", 2))


def test_ctrl_c_on_a_terminal_saves_several_ranks(inject):
    """The terminal signals all processes, and the launcher hands on what it hears."""
    assert survived(inject("signal_group", "Ctrl-C", 1))


def test_the_table():
    lines = table([Row("kill", 3, 2, 7, "slow")]).splitlines()
    assert lines[1].split() == ["kill", "3", "2", "7", "slow"]

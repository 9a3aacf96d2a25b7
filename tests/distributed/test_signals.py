"""What a process hears, and how often."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import lamina.distributed.signals as signals
from lamina.distributed.launch import handing_on_signals
from lamina.distributed.signals import StopWish, saves_wait


@pytest.fixture(autouse=True)
def usual_handlers():
    """Also where the tests run under nohup or in the background of a shell, and are told to ignore some."""
    usual = dict.fromkeys((*signals.STOPS, *signals.SAVES), signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", signals.STOPS)
@pytest.mark.parametrize("second", signals.STOPS)
def test_copies_of_a_signal_are_the_same_wish(first, second):
    """A terminal signals the whole group, and a launcher hands on what it hears."""
    notes = []
    with StopWish(notes.append) as wish:
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), second)
        os.kill(os.getpid(), first)
    assert wish.signal is first
    assert len(notes) == 1


def test_a_second_wish_stops_at_once(monkeypatch):
    monkeypatch.setattr(signals, "SECONDS_OF_ONE_WISH", 0.0)
    with StopWish() as wish:
        os.kill(os.getpid(), signal.SIGINT)
        assert wish.signal is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("error", [RuntimeError("reentrant call"), OSError(5, "Input/output error")])
def test_a_signal_is_heard_where_nothing_can_be_said(error):
    def mute(_):
        raise error

    with StopWish(mute) as wish:
        os.kill(os.getpid(), signal.SIGTERM)
    assert wish.signal == signal.SIGTERM


def test_nohup_holds():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopWish() as wish:
        os.kill(os.getpid(), signal.SIGHUP)
        assert wish.signal is None
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_rank_is_deaf_once_its_wish_is_granted(monkeypatch):
    """What a slow launcher hands on must not kill a rank that has saved and is about to end."""
    monkeypatch.setenv(signals.LAUNCHED_MARK, "1")
    with StopWish():
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_wish_to_save_is_granted_once():
    with StopWish() as wish:
        assert not wish.take_save()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert wish.take_save()
        assert not wish.take_save()
        assert wish.signal is None


@pytest.mark.parametrize("other_threads_hear_it", [False, True])
def test_a_wish_to_save_waits_for_training(other_threads_hear_it):
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    if other_threads_hear_it:
        other.start()
    try:
        wait_for_training()
    finally:
        over.set()


def wait_for_training():
    with saves_wait():
        os.kill(os.getpid(), signal.SIGUSR1)
        with StopWish() as wish:
            until = time.monotonic() + 20
            while not wish.take_save():  # another thread may hear it a moment later
                assert time.monotonic() < until
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


LAUNCHER = """
import os, signal, subprocess, sys, time
from lamina.distributed import launch
handed = []
launch.SECONDS_BETWEEN_LOOKS = 0.01
launch.signal_ranks = lambda number: handed.append(number) or len(handed) > 1
code = "import signal; print(*sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
try:
    with launch.handing_on_signals():
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
        os.kill(os.getpid(), signal.SIGUSR1)
        until = time.monotonic() + 20
        while len(handed) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        print([number.name for number in handed])  # again, since there were no ranks at first
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
        except launch.Stopped as stop:
            print(stop.sigval.name)
        os.kill(os.getpid(), signal.SIGINT)
        print([number.name for number in handed[2:]])
        launch.SECONDS_OF_ONE_WISH = 0
        os.kill(os.getpid(), signal.SIGTERM)
        print(handed[-1].name)
finally:
    print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def test_the_launcher_hears_for_its_ranks():
    """What ranks inherit waits until they can answer it; the launcher hands on saves, stops once, kills at a second wish."""
    done = subprocess.run([sys.executable, "-c", LAUNCHER], capture_output=True, text=True, check=True)
    waiting = str([str(int(number)) for number in sorted((signal.SIGINT, signal.SIGUSR1))])
    assert done.stdout.splitlines() == [waiting, "['SIGUSR1', 'SIGUSR1']", "SIGINT", "['SIGINT']", "SIGKILL", "True"]


def test_outside_the_main_thread_nothing_is_heard():
    def enter():
        with handing_on_signals(), saves_wait(), StopWish() as wish:
            names.append(wish.signal)

    names = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert names == [None]

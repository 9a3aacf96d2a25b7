"""The GPU's driver is started ahead by the commands that will use it, and by no others."""

import ctypes

import pytest

from lamina import command_line, gpu_driver


def test_a_machine_without_a_driver_hears_nothing_of_it(monkeypatch, capfd):
    monkeypatch.setattr(gpu_driver, "LIBRARY", "libnothing.so.0")
    gpu_driver.start_driver().join()
    assert capfd.readouterr() == ("", "")


def test_the_driver_is_started(monkeypatch):
    started = []

    class Driver:
        def __init__(self, name):
            self.cuInit = lambda flags: started.append((name, flags))

    monkeypatch.setattr(ctypes, "CDLL", Driver)
    gpu_driver.start_driver().join()
    assert started == [("libcuda.so.1", 0)]


@pytest.mark.parametrize(("words", "is_started"), [
    (["interactive", "--path", "a.pt"], True),
    (["interactive", "--path", "a.pt", "--cpu"], False),
    (["completion", "bash"], False)])
def test_commands_that_may_use_a_gpu_start_it(words, is_started, monkeypatch):
    started = []
    monkeypatch.setattr(gpu_driver, "start_driver", lambda: started.append(True))
    monkeypatch.setattr(command_line, "load", lambda reference, load=command_line.load: (
        (lambda _: None) if reference.endswith(":run") else load(reference)))
    assert command_line.execute(words) == 0
    assert bool(started) == is_started

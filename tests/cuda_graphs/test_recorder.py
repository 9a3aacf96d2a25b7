"""The recorder: here, where there is nothing to capture with."""

import gc
import re

import pytest
import torch

from lamina.cuda_graphs.recorder import Recorder, reason_of
from lamina.garbage import no_garbage_collection
from lamina.nn.compiling import STRICT

CPU = torch.device("cpu")


@pytest.mark.parametrize("was_on", [True, False])
def test_no_garbage_is_collected_while_something_is_captured(was_on):
    def capture_in_vain():
        assert not gc.isenabled()
        raise RuntimeError("cannot be captured")

    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(RuntimeError, match="cannot be captured"), no_garbage_collection():
            capture_in_vain()
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


def test_off_a_function_is_called():
    calls, recorder = [], Recorder(CPU, is_on=False)
    for number in range(3):
        recorder("step", lambda number=number: calls.append(number))
    recorder.forget()
    assert calls == [0, 1, 2]


def test_the_first_call_is_an_ordinary_one_and_the_second_is_captured(monkeypatch):
    class Captured:
        def replay(self):
            calls.append("replay")
            return "replayed"

    calls, captured, recorder = [], [], Recorder(CPU)
    monkeypatch.setattr(recorder, "capture", lambda function: captured.append(function) or Captured())

    def work(key):
        calls.append(key)
        return key

    results = [recorder(key, lambda key=key: work(key)) for key in ("short", "short", "long", "short", "long")]
    assert calls == ["short", "replay", "long", "replay", "replay"]
    assert results == ["short", "replayed", "long", "replayed", "replayed"]
    assert len(captured) == 2
    recorder.forget()
    recorder("short", lambda: calls.append("short"))
    assert len(captured) == 3  # libraries are still prepared


def fail(function):
    raise RuntimeError("operation not permitted when stream is capturing\nmore")


def test_what_cannot_be_captured_is_called(monkeypatch):
    monkeypatch.setenv(STRICT, "0")
    calls, recorder = [], Recorder(CPU)
    monkeypatch.setattr(recorder, "capture", fail)
    recorder("step", lambda: calls.append(1))
    with pytest.warns(UserWarning, match=r"without CUDA graphs.*capturing \(RuntimeError in fail, test_recorder.py:\d+\)$"):
        recorder("step", lambda: calls.append(2))
    recorder("step", lambda: calls.append(3))
    assert calls == [1, 2, 3]
    assert not recorder.is_on


def test_in_strict_mode_it_is_an_error(monkeypatch):
    recorder = Recorder(CPU)
    monkeypatch.setattr(recorder, "capture", fail)
    recorder("step", lambda: None)
    with pytest.raises(RuntimeError, match="operation not permitted"):
        recorder("step", lambda: None)


def test_memory_that_runs_out_is_no_breach(monkeypatch):
    said, recorder = [], Recorder(CPU, failed=lambda reason: said.append(reason))

    def capture(function):
        raise torch.OutOfMemoryError("CUDA out of memory\nmore")

    monkeypatch.setattr(recorder, "capture", capture)
    assert [recorder("step", lambda: 1) for _ in range(3)] == [1, 1, 1]
    assert said == ["CUDA out of memory"]


def test_a_reason_is_one_line(monkeypatch):
    monkeypatch.setenv(STRICT, "")
    assert reason_of(ValueError("\n  first\nsecond")) == "first"
    assert re.fullmatch("KeyError", reason_of(KeyError()))


def test_a_reason_has_its_place(monkeypatch):
    """A message as short as `tuple index out of range` says nothing alone."""
    monkeypatch.setenv(STRICT, "")
    with pytest.raises(IndexError) as raised:
        ().__getitem__(0)
    assert re.fullmatch(r"tuple index out of range \(IndexError in test_a_reason_has_its_place, test_recorder.py:\d+\)",
                        reason_of(raised.value))

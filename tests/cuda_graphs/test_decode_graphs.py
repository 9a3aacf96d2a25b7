"""Work that is recorded: here, where there is nothing to record it with."""

import pytest
import torch

from lamina.cuda_graphs.decode_graphs import Graphs

CPU = torch.device("cpu")


def test_off_a_function_is_called():
    calls, graphs = [], Graphs(CPU, is_on=False)
    for number in range(3):
        graphs("step", lambda number=number: calls.append(number))
    graphs.forget()
    assert calls == [0, 1, 2]


def test_the_first_call_is_an_ordinary_one_and_the_second_is_recorded(monkeypatch):
    class Captured:
        def replay(self):
            calls.append("replay")

    calls, recorded, graphs = [], [], Graphs(CPU, is_on=True)
    monkeypatch.setattr(graphs, "_recorded", lambda function: recorded.append(function) or Captured())
    for key in ("short", "short", "long", "short", "long"):
        graphs(key, lambda key=key: calls.append(key))
    assert calls == ["short", "replay", "long", "replay", "replay"]
    assert len(recorded) == 2
    graphs.forget()
    graphs("short", lambda: calls.append("short"))
    assert len(recorded) == 3  # libraries are still prepared


def test_what_cannot_be_recorded_is_called(monkeypatch):
    def fail(function):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    calls, graphs = [], Graphs(CPU, is_on=True)
    monkeypatch.setattr(graphs, "_recorded", fail)
    graphs("step", lambda: calls.append(1))
    with pytest.warns(UserWarning, match="without CUDA graphs.*capturing$"):
        graphs("step", lambda: calls.append(2))
    graphs("step", lambda: calls.append(3))
    assert calls == [1, 2, 3]
    assert not graphs.is_on

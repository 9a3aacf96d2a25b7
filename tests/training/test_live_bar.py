"""The live bar counts to the end of the run, and shows a loss from the first update on."""

import sys
import types

import pytest

import lamina.training.live_bar as bar_module
import lamina.training.report as report_module
from lamina.config.train_options import LogConfig, OptimizationConfig
from lamina.distributed.ranks import ALONE
from lamina.training.live_bar import NotebookBar, TimeLeft
from lamina.training.report import Reporter


class Bar:
    def __init__(self):
        self.shown = []

    def show(self, *words):
        self.shown.append(words)

    def close(self):
        pass


def shown_by(monkeypatch, **limits):
    bar = Bar()
    monkeypatch.setattr(report_module, "open_bar", lambda: bar)
    reporter = Reporter(LogConfig(format="rich", interval=4), ALONE, OptimizationConfig(**limits))
    reporter.begin_epoch(10)
    for update in range(1, 6):
        reporter.updated(epoch=2, batches_done=update, updates=10 + update, lr=0.1, loss=20.0, nll=20.0, grad_norm=1.0,
                         num_tokens=10, num_sentences=2, loss_scale=None)
    return bar.shown


@pytest.mark.parametrize(("limits", "total"), [({"max_update": 50}, 50), ({"max_epoch": 4}, 40),
                                               ({"max_update": 50, "max_epoch": 4}, 40)])
def test_it_counts_to_the_end_of_the_run(monkeypatch, limits, total):
    shown = shown_by(monkeypatch, **limits)
    assert [words[:3] for words in shown] == [("update (epoch 002)", number, total) for number in range(11, 16)]


def test_without_a_limit_it_counts_to_the_end_of_the_epoch(monkeypatch):
    assert [words[:3] for words in shown_by(monkeypatch)] == [("epoch 002", number, 10) for number in range(1, 6)]


def test_the_first_update_has_a_loss(monkeypatch):
    assert "loss=2.885 ppl=7.39" in shown_by(monkeypatch, max_update=50)[0][3]


def test_time_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bar_module.time, "monotonic", lambda: now[0])
    left = TimeLeft()
    assert left.seconds(0, 100) is None
    now[0] = 10.0
    assert left.seconds(20, 100) == 40.0
    now[0] = 100.0  # of long ago nothing counts
    left.seconds(30, 100)
    now[0] = 131.0
    left.seconds(61, 100)
    now[0] = 135.0
    assert left.seconds(65, 100) == pytest.approx(35.0)
    assert left.seconds(1, 100) is None  # another epoch


def test_in_a_notebook_it_is_a_line_of_html(monkeypatch):
    pages = []
    handle = types.SimpleNamespace(update=pages.append)
    module = types.ModuleType("IPython.display")
    module.HTML, module.display = str, lambda page, display_id: handle
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    bar = NotebookBar()
    bar.show("update (epoch 001)", 5, 50, "loss=<3>")
    bar.show("update (epoch 001)", 6, 50, "loss=2")  # too soon for another frame
    bar.show("update (epoch 001)", 50, 50, "loss=1")
    bar.close()
    assert len(pages) == 2
    assert 'value="5" max="50"' in pages[0]
    assert "loss=&lt;3&gt;" in pages[0]
    assert 'value="50"' in pages[1]

"""Searches on a CPU in several processes: the results of one process, whatever is asked for."""

import os
import signal
import sys

import numpy as np
import pytest
import torch

from lamina.cli import main
from lamina.config.search_options import SearchConfig
from lamina.decode.batched_search import search_rows
from lamina.decode.search import Search
from lamina.decode.search_workers import SMALLEST_BATCH, SearchWorkers, search_workers, shared_batch_size
from lamina.errors import DataError
from lamina.text.vocabulary import EOS
from tiny import TINY_FLAGS, make_data, tiny_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


def rows_of_text(number, seed=0):
    generator = np.random.default_rng(seed)
    return [np.append(generator.integers(4, 20, generator.integers(2, 9)), EOS) for _ in range(number)]


def ids_of(found):
    return {own.index: [(hypothesis.ids, hypothesis.score) for hypothesis in own.hypotheses] for own in found}


@pytest.mark.parametrize("wanted", [
    pytest.param({"search": SearchConfig(beam=3, nbest=2)}, id="beam"),
    pytest.param({"search": SearchConfig(beam=2, sampling=True), "seed": 5}, id="sampling"),
    pytest.param({"search": SearchConfig(beam=3, constraint_order="ordered"), "constraints": [[[5, 6]]] * 10 + [[]] * 11},
                 id="constraints"),
    pytest.param({"search": SearchConfig(beam=2), "prefixes": [np.array([7])] * 21}, id="prefixes"),
    pytest.param({"search": SearchConfig(beam=2), "with_attention": True}, id="attention")])
def test_workers_find_what_one_process_finds(wanted):
    wanted = dict(wanted)
    search, rows = Search([tiny_model(seed=3)], wanted.pop("search")), rows_of_text(21)
    expected = list(search_rows(search, rows, device="cpu", batch_size=4, **wanted))
    with SearchWorkers([Search([tiny_model(seed=4)], SearchConfig()), search], 2) as workers:
        found = list(search_rows(search, rows, device="cpu", batch_size=4, workers=workers, **wanted))
    assert ids_of(found) == ids_of(expected)
    assert len(found) == len(rows)
    if "with_attention" in wanted:
        by_index = {own.index: own.hypotheses[0].attention for own in expected}
        for own in found:
            # A batch of attention holds whichever rows came together.
            torch.testing.assert_close(own.hypotheses[0].attention, by_index[own.index], rtol=1e-5, atol=1e-6)


class Deadly(Search):
    def each(self, *given, **named):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_an_error():
    search = Deadly([tiny_model(seed=3)], SearchConfig(beam=2))
    with (pytest.raises(DataError, match=r"a worker process was killed.*smaller --batch-size"),
          SearchWorkers([search], 2) as workers):
        list(search_rows(search, rows_of_text(9), device="cpu", batch_size=3, workers=workers))


def test_what_is_broken_in_a_worker_is_told_here():
    broken = Search([tiny_model(seed=3)], SearchConfig(beam=2))
    broken.models = [None]
    with pytest.raises(AttributeError), SearchWorkers([broken], 2) as workers:
        list(search_rows(broken, rows_of_text(9), device="cpu", batch_size=3, workers=workers))


def test_who_needs_workers(monkeypatch):
    search = Search([tiny_model(seed=3)], SearchConfig())
    for threads, number, has_workers in ((1, 100, False), (2, SMALLEST_BATCH, False), (2, 2 * SMALLEST_BATCH, True)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        with search_workers([search], number) as workers:
            assert (workers is not None) == has_workers
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert [shared_batch_size(number, 64) for number in (16, 100, 200, 10_000)] == [SMALLEST_BATCH, 12, 25, 64]


def test_generate_prints_the_same_with_workers(tmp_path, capsys, monkeypatch):
    data = make_data(tmp_path, num_lines=60)
    assert main(["train", str(data), *TINY_FLAGS, "--max-update", "20", "--log-format", "none", "--no-epoch-checkpoints",
                 "--disable-validation", "--save-dir", str(tmp_path / "out")]) == 0
    words = ["generate", str(data), "--path", str(tmp_path / "out" / "checkpoint_last.pt"), "--gen-subset", "train", "--cpu",
             "--beam", "3", "--max-len-b", "8", "--batch-size", "7"]  # batches of another size round otherwise
    printed = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        capsys.readouterr()
        assert main(words) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) > 60

"""Sentences in several processes: the answers of one, and what becomes of them when a process dies."""

import os
import signal
import sys
import threading
import time

import pytest
import torch

import lamina
from lamina.cli import main
from lamina.decode.beam_step import BeamStep
from lamina.errors import DataError
from lamina.serve import lane_workers as module
from lamina.serve.engine import Engine
from lamina.serve.exchange import Request, WorkerLostError
from lamina.serve.lane_workers import LaneWorkers, lane_workers
from lamina.serve.lanes import Lanes
from tiny import TINY_FLAGS, WORDS, make_data

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
OPTIONS = {"max_len_b": 12}


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    data = make_data(folder, 60)
    flags = [str(data), *TINY_FLAGS, "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-layerdrop", "0.2",
             "--decoder-layerdrop", "0.2", "--max-update", "60", "--max-source-positions", "16", "--max-target-positions", "16",
             "--save-dir", str(folder / "out")]
    assert main(["train", *flags]) == 0
    return lamina.load(folder / "out" / "checkpoint_last.pt", device="cpu")


def sentences(number, seed=0):
    return [" ".join(WORDS[(seed + 3 * place + 7 * word) % len(WORDS)] for word in range(1 + (place + seed) % 9))
            for place in range(number)]


@pytest.fixture
def engine(translator):
    engine = Engine(translator, slots=8, defaults=OPTIONS, lanes=LaneWorkers(translator, 8, 2))
    yield engine
    engine.close(10)


def pids(engine):
    return [worker.pid for worker in engine._lanes.workers]


def wait_until(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def slow_steps(monkeypatch, seconds=0.05):
    """In the workers that are forked from now on."""
    step = BeamStep.step_
    monkeypatch.setattr(BeamStep, "step_", lambda self, due: (time.sleep(seconds), step(self, due))[1])


def test_answers_are_those_of_the_model_alone(engine, translator):
    """Many clients, depths and options at once."""
    kinds = [(None, {}), ("half", {"beam": 2}), ("2-1", {"beam": 1}), (None, {"beam": 3, "sampling": True, "nbest": 3})]
    answers = {}

    def ask(number):
        depth, options = kinds[number % len(kinds)]
        request = Request(texts=sentences(3, seed=number), depth=depth, options=options, client=str(number), seed=number)
        answers[number] = engine.submit(request).result(60)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(32):
        depth, options = kinds[number % len(kinds)]
        expected = translator.translate(sentences(3, seed=number), depth=depth, seed=number,
                                        **{"beam": 5, **OPTIONS, **options})
        found = answers[number].results
        assert [[item.text for item in own] for own in found] == [
            [own.text, *(other.text for other in own.alternatives)] for own in expected]
    stats = engine.stats()
    assert (stats.requests_done, stats.queue, stats.running, stats.workers_lost) == (32, 0, 0, 0)


def test_phrases_and_alignments_travel(engine, translator):
    (found,) = engine.submit(Request(texts=["the old boat"], constraints=[["MOON"]], with_alignment=True)).result(30).results
    assert "MOON" in found[0].text
    assert len(found[0].alignment) == len(found[0].text.split())
    bad = engine.submit(Request(texts=["a bird"], constraints=[["BIRD"] * 16]))
    with pytest.raises(DataError, match="the model's positions end at"):
        bad.result(30)


def test_a_worker_that_is_killed_is_replaced_and_loses_nothing(translator, monkeypatch, capfd):
    slow_steps(monkeypatch)
    engine = Engine(translator, slots=8, defaults=OPTIONS, lanes=LaneWorkers(translator, 8, 2))
    monkeypatch.undo()
    lines = sentences(12)
    futures = [engine.submit(Request(texts=[line], client=line)) for line in lines]
    before = pids(engine)
    wait_until(lambda: all(worker.running for worker in engine._lanes.workers))
    os.kill(before[0], signal.SIGKILL)
    texts = [future.result(60).results[0][0].text for future in futures]
    assert texts == [own.text for own in translator.translate(lines, **OPTIONS)]
    assert engine.stats().workers_lost == 1
    assert before[0] not in pids(engine)
    wait_until(lambda: engine.submit(Request(texts=["a bird"])).result(30) and len(pids(engine)) == 2)
    assert f"pid {before[0]}) was killed" in capfd.readouterr().err
    engine.close()
    wait_until(lambda: not any(map(is_there, before)))


def test_a_sentence_over_which_workers_die_is_given_up(translator, monkeypatch):
    """And no other."""
    monkeypatch.setattr(module, "RESTART_SECONDS", 0.05)
    step = BeamStep.step_

    def deadly(self, due):
        if self.config.beam == 3:
            os._exit(9)
        step(self, due)

    monkeypatch.setattr(BeamStep, "step_", deadly)
    engine = Engine(translator, slots=8, defaults=OPTIONS, lanes=LaneWorkers(translator, 8, 2))
    with pytest.raises(WorkerLostError, match="and so was the next"):
        engine.submit(Request(texts=["a bird"], options={"beam": 3})).result(60)
    assert engine.submit(Request(texts=["a bird"])).result(30).results
    assert engine.is_alive
    engine.close()


def test_a_step_that_fails_ends_nothing_else(translator, monkeypatch, capfd):
    step = BeamStep.step_

    def failing(self, due):
        if self.config.beam == 3:
            raise RuntimeError("broken")
        step(self, due)

    monkeypatch.setattr(BeamStep, "step_", failing)
    engine = Engine(translator, slots=8, defaults=OPTIONS, lanes=LaneWorkers(translator, 8, 2))
    bad = engine.submit(Request(texts=sentences(3), options={"beam": 3}))
    good = engine.submit(Request(texts=sentences(3)))
    with pytest.raises(RuntimeError, match="broken"):
        bad.result(30)
    assert len(good.result(30).results) == 3
    assert "in failing" in capfd.readouterr().err  # where it was
    engine.close()


def test_cancelled_requests_make_room(translator, monkeypatch):
    slow_steps(monkeypatch, 0.02)
    engine = Engine(translator, slots=2, defaults={"beam": 1, **OPTIONS}, lanes=LaneWorkers(translator, 2, 2))
    monkeypatch.undo()
    futures = [engine.submit(Request(texts=sentences(30), client=str(number))) for number in range(5)]
    wait_until(lambda: engine.stats().running == 2)
    assert all(future.cancel() for future in futures[:4])
    assert len(futures[4].result(60).results) == 30
    wait_until(lambda: engine.stats().running == 0)
    assert [len(worker.running) for worker in engine._lanes.workers] == [0, 0]
    engine.close()


def test_closing_does_not_wait_for_ever(translator, monkeypatch):
    slow_steps(monkeypatch, 0.1)
    engine = Engine(translator, slots=2, defaults=OPTIONS, lanes=LaneWorkers(translator, 2, 2))
    before = pids(engine)
    future = engine.submit(Request(texts=sentences(40)))
    wait_until(lambda: engine.stats().running == 2)
    started = time.monotonic()
    engine.close(0.2)
    assert time.monotonic() - started < 5
    assert future.exception(0) is not None
    wait_until(lambda: not any(map(is_there, before)))


def test_workers_end_with_their_parent(translator):
    """Even if it is killed, and while they are busy."""
    reader, writer = os.pipe()

    def serve():
        own = LaneWorkers(translator, 4, 2)
        os.write(writer, " ".join(str(worker.pid) for worker in own.workers).encode())
        time.sleep(60)

    parent = module._forked(serve)
    children = [int(pid) for pid in os.read(reader, 100).split()]
    assert len(children) == 2
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: not any(map(is_there, children)))


def test_who_has_workers(translator, monkeypatch):
    for threads, slots, count in ((1, 8, 0), (2, 1, 0), (2, 8, 2), (4, 3, 3)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        workers = lane_workers(translator, slots)
        assert (0 if workers is None else len(workers.workers)) == count
        if workers is not None:
            workers.close()
    assert Lanes(translator, 4).is_alive

"""One model, many clients: every answer is what the model gives alone."""

import threading
import time

import pytest

import lamina
from lamina.api.outputs import search_config
from lamina.cli import main
from lamina.decode.beam_step import BeamStep
from lamina.errors import ConfigError, DataError
from lamina.serve.engine import Engine
from lamina.serve.exchange import ClosedError, QueueFullError, Request
from lamina.serve.lanes import Lanes, Wanted
from tiny import TINY_FLAGS, WORDS, make_data

OPTIONS = {"max_len_b": 12}


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    data = make_data(folder, 60)
    flags = [str(data), *TINY_FLAGS, "--encoder-layers", "4", "--decoder-layers", "2", "--encoder-layerdrop", "0.2",
             "--decoder-layerdrop", "0.2", "--max-update", "60", "--max-source-positions", "16", "--max-target-positions", "16",
             "--save-dir", str(folder / "out")]
    assert main(["train", *flags]) == 0
    return lamina.load(folder / "out" / "checkpoint_last.pt", device="cpu")


@pytest.fixture
def engine(translator):
    engine = Engine(translator, slots=8, defaults=OPTIONS)
    yield engine
    engine.close(10)


def sentences(number, seed=0):
    return [" ".join(WORDS[(seed + 3 * place + 7 * word) % len(WORDS)] for word in range(1 + (place + seed) % 9))
            for place in range(number)]


def test_answers_are_those_of_the_model_alone(engine, translator):
    lines = sentences(20)
    answer = engine.submit(Request(texts=lines)).result(30)
    expected = translator.translate(lines, **OPTIONS)
    assert [found[0].text for found in answer.results] == [own.text for own in expected]
    assert [found[0].score for found in answer.results] == pytest.approx([own.score for own in expected], abs=1e-5)


@pytest.mark.parametrize("depth", ["half", "full", "2-1", {"encoder": 3}, {"encoder": [0, 3], "decoder": 1}])
def test_each_depth_is_that_of_the_pruned_model(engine, translator, depth):
    lines = sentences(9)
    answer = engine.submit(Request(texts=lines, depth=depth, options={"beam": 3, "nbest": 2})).result(30)
    wanted = {"half": (2, 1), "full": (None, None), "2-1": (2, 1)}.get(depth if isinstance(depth, str) else "")
    keep = wanted or (depth.get("encoder"), depth.get("decoder"))
    small = translator if keep == (None, None) else translator.prune(*keep)
    for found, own in zip(answer.results, small.translate(lines, 3, nbest=2, **OPTIONS), strict=True):
        assert [item.text for item in found] == [own.text, *(other.text for other in own.alternatives)]
    assert answer.results[0][0].depth == {"encoder": keep[0] if isinstance(keep[0], int) else 4 if keep[0] is None else 2,
                                          "decoder": keep[1] or 2}


def test_many_clients_at_once(engine, translator):
    """64 threads with depths and options of their own."""
    kinds = [(None, {}), ("half", {"beam": 2}), ("2-1", {"beam": 1}), (None, {"beam": 3, "lenpen": 0.5})]
    answers, threads = {}, []

    def ask(number):
        depth, options = kinds[number % len(kinds)]
        futures = [engine.submit(Request(texts=[line], depth=depth, options=options, client=str(number)))
                   for line in sentences(3, seed=number)]
        answers[number] = [future.result(60).results[0][0].text for future in futures]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(64):
        depth, options = kinds[number % len(kinds)]
        expected = translator.translate(sentences(3, seed=number), depth=depth, **{"beam": 5, **OPTIONS, **options})
        assert answers[number] == [own.text for own in expected]
    stats = engine.stats()
    assert stats.requests == stats.requests_done == sum(stats.sentences.values()) == 192
    assert stats.queue == stats.running == 0
    assert set(stats.sentences) == {"4-2", "2-1"}
    assert sum(own.number for own in stats.latencies.values()) == 192


def test_a_text_keeps_its_white_space(engine, translator):
    text = "  The old boat sings.\n\nA bird walks!  The moon?\t\n"
    parts = ["The old boat sings.", "A bird walks!", "The moon?"]
    first, second, third = (own.text for own in translator.translate(parts, **OPTIONS))
    (found,) = engine.submit(Request(texts=[text])).result(30).results
    assert found[0].text == f"  {first}\n\n{second}  {third}\t\n"
    assert found[0].num_sentences == 3
    (whole,) = engine.submit(Request(texts=[text], splits=False)).result(30).results
    assert whole[0].num_sentences == 1


def test_alignments_are_between_words(engine, translator):
    text = "the old boat. The moon sings"
    (found,) = engine.submit(Request(texts=[text], with_alignment=True, depth="half")).result(30).results
    words, sources = found[0].text.split(), text.split()
    assert len(found[0].alignment) == len(words)
    assert all(0 <= place < len(sources) for own in found[0].alignment for place in own)
    first = translator.translate("the old boat.", with_alignment=True, depth="half", **OPTIONS)
    assert found[0].alignment[: len(first.tokens)] == [[source] for source, _ in first.alignment]


def test_nothing_to_translate(engine):
    answer = engine.submit(Request(texts=["", "  \n"])).result(10)
    assert [found[0].text for found in answer.results] == ["", "  \n"]
    assert engine.submit(Request(texts=[])).result(10).results == []


@pytest.mark.parametrize(("request_", "error", "why"), [
    (Request(texts=["a bird"], options={"beam": 0}), ConfigError, "--beam is 0"),
    (Request(texts=["a bird"], options={"beams": 2}), ConfigError, "beams"),
    (Request(texts=["a bird"], depth="deep"), ConfigError, "the depth is 'deep'"),
    (Request(texts=["a bird"], depth="9-1"), ConfigError, "asks for 9 layers"),
    (Request(texts=["a bird"], depth="auto"), ConfigError, "needs a cascade"),
    (Request(texts=["a bird"], options={"max_len_from_padded_width": True}), ConfigError, "depend on the batch"),
    (Request(texts=["a bird"], constraints=[]), ConfigError, "1 texts, but 0 lists"),
    (Request(texts=["a bird"], constraints=[["zzz"]]), DataError, "the target dictionary has no"),
])
def test_requests_that_make_no_sense(engine, request_, error, why):
    with pytest.raises(error, match=why):
        engine.submit(request_)


def slow(engine, monkeypatch, seconds=0.02):
    """Steps take their time, so that there is a queue."""
    step = engine._lanes.step

    def delayed():
        time.sleep(seconds)
        yield from step()

    monkeypatch.setattr(engine._lanes, "step", delayed)


def wait_until(holds):
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_clients_take_turns(translator, monkeypatch):
    """Who brings a book does not keep the others waiting."""
    engine = Engine(translator, slots=2, defaults={"beam": 1, **OPTIONS})
    slow(engine, monkeypatch)
    book = engine.submit(Request(texts=sentences(60), client="book"))
    others = [engine.submit(Request(texts=[line], client=line)) for line in sentences(3)]
    for future in others:
        future.result(30)
    assert not book.done()
    assert engine.stats().queue > 30
    engine.close(30)
    assert [found[0].text for found in book.result(0).results] == [
        own.text for own in translator.translate(sentences(60), 1, **OPTIONS)]


def test_a_cancelled_request_frees_its_slots(translator, monkeypatch):
    engine = Engine(translator, slots=2, defaults={"beam": 1, **OPTIONS})
    slow(engine, monkeypatch)
    futures = [engine.submit(Request(texts=sentences(30), client=str(number))) for number in range(5)]
    wait_until(lambda: engine.stats().running == 2)
    assert all(future.cancel() for future in futures[:4])
    assert engine.stats().queue <= 30
    assert len(futures[4].result(30).results) == 30
    wait_until(lambda: engine.stats().running == 0)
    stats = engine.stats()
    assert (stats.requests, stats.requests_done, stats.requests_cancelled, stats.queue) == (5, 1, 4, 0)
    assert not futures[4].cancel()
    engine.close()


def test_a_full_queue_refuses(translator, monkeypatch):
    engine = Engine(translator, slots=1, queue_limit=3, defaults={"beam": 1, **OPTIONS})
    slow(engine, monkeypatch)
    long = engine.submit(Request(texts=sentences(9)))  # a request that is larger than the queue may pass when nobody waits
    wait_until(lambda: engine.stats().running == 1)
    with pytest.raises(QueueFullError, match="sentences are waiting, and at most 3 may") as caught:
        engine.submit(Request(texts=["a bird"]))
    assert 1 <= caught.value.retry_after <= 60
    assert engine.stats().requests_refused == 1
    assert len(long.result(30).results) == 9
    assert engine.submit(Request(texts=["a bird"])).result(30).results
    engine.close()


def test_a_step_that_fails_ends_nothing_else(translator, monkeypatch, capsys):
    engine = Engine(translator, slots=4, defaults=OPTIONS)
    step, is_broken = BeamStep.step_, True

    def failing(self, due):
        if is_broken and self.search.config.beam == 3:
            raise RuntimeError("broken")
        step(self, due)

    monkeypatch.setattr(BeamStep, "step_", failing)
    bad = engine.submit(Request(texts=sentences(3), options={"beam": 3}))
    good = engine.submit(Request(texts=sentences(3)))
    with pytest.raises(RuntimeError, match="broken"):
        bad.result(30)
    assert len(good.result(30).results) == 3
    is_broken = False
    assert len(engine.submit(Request(texts=sentences(3), options={"beam": 3})).result(30).results) == 3
    assert engine.stats().requests_failed == 1
    assert "RuntimeError: broken" in capsys.readouterr().err
    engine.close()


def test_phrases_that_do_not_fit_are_an_error_of_their_request_alone(engine):
    bad = engine.submit(Request(texts=["a bird"], constraints=[["BIRD"] * 16]))
    good = engine.submit(Request(texts=["a bird", "the moon"], constraints=[["MOON"], []]))
    with pytest.raises(DataError, match="the model's positions end at"):
        bad.result(30)
    assert "MOON" in good.result(30).results[0][0].text


def test_a_long_text_is_cut_and_says_so(engine):
    (found,) = engine.submit(Request(texts=["the old boat " * 9])).result(30).results
    assert found[0].is_cut


def test_steps_cost_what_their_layers_cost(translator):
    """Of two depths side by side, the lower one takes as many more steps as it has fewer layers."""
    lanes = Lanes(translator, 4)
    config = search_config(beam=1, min_len=12, **OPTIONS)
    for number, depth in enumerate(("4-2", "4-1")):
        lanes.add(Wanted(number, translator.encode_source("the moon"), config, translator.active_layers(depth), (1, 0)))
    finished = []
    while lanes.num_running:
        finished += [(key, {lane.cost: lane.scheduler.tick for lane in lanes.lanes.values()}) for key, _ in lanes.step()]
    assert [key for key, _ in finished] == [1, 0]
    assert finished[0][1][1.0] <= finished[0][1][0.5] // 2 + 1


def test_closing_finishes_what_was_accepted(translator):
    engine = Engine(translator, slots=2, defaults=OPTIONS)
    futures = [engine.submit(Request(texts=sentences(5))) for _ in range(4)]
    engine.close(30)
    assert all(future.result(0).results for future in futures)
    assert not engine.is_alive
    with pytest.raises(ClosedError):
        engine.submit(Request(texts=["a bird"]))


def test_closing_does_not_wait_for_ever(translator, monkeypatch):
    engine = Engine(translator, slots=1, defaults=OPTIONS)
    slow(engine, monkeypatch, 0.1)
    future = engine.submit(Request(texts=sentences(40)))
    wait_until(lambda: engine.stats().running == 1)
    started = time.monotonic()
    engine.close(0.2)
    assert time.monotonic() - started < 5
    with pytest.raises(ClosedError, match="before this was done"):
        future.result(0)

"""One model, many clients: every answer is what the model gives alone."""

import threading

import pytest

import lamina
from lamina.cli import main
from lamina.errors import ConfigError, DataError
from lamina.serve.engine import Engine
from lamina.serve.exchange import ClosedError, Request
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


def test_closing_finishes_what_was_accepted(translator):
    engine = Engine(translator, slots=2, defaults=OPTIONS)
    futures = [engine.submit(Request(texts=sentences(5))) for _ in range(4)]
    engine.close(30)
    assert all(future.result(0).results for future in futures)
    with pytest.raises(ClosedError):
        engine.submit(Request(texts=["a bird"]))

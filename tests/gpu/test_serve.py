"""Serving on a GPU: in float32 every answer is, byte for byte, what `generate` gives, however many others are served."""

import threading
from collections import Counter

import pytest
import torch

import lamina
from lamina.cli import main
from lamina.decode.cascade import Cascade
from lamina.serve.engine import Engine
from lamina.serve.exchange import Request
from tiny import TINY_FLAGS, WORDS, make_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

OPTIONS = {"max_len_b": 12}
DEPTHS = ("full", "half", "4-1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    data = make_data(folder, 60)
    assert main(["train", str(data), *TINY_FLAGS, "--encoder-layers", "4", "--decoder-layers", "2", "--encoder-layerdrop",
                 "0.2", "--decoder-layerdrop", "0.2", "--max-update", "60", "--max-source-positions", "64",
                 "--max-target-positions", "64", "--no-compile", "--save-dir", str(folder / "out")]) == 0
    return data, folder / "out" / "checkpoint_last.pt"


def sentences(number, seed=0):
    return [" ".join(WORDS[(seed + 3 * place + 7 * word) % len(WORDS)] for word in range(1 + (place + seed) % 19))
            for place in range(number)]


def asked_by_many(engine, lines, num_clients=16):
    """Each line at each depth, one after another, by clients that do not wait for each other."""
    jobs = [(line, depth) for line in lines for depth in DEPTHS]
    found = {}

    def ask(number):
        for line, depth in jobs[number::num_clients]:
            (answer,) = engine.submit(Request(texts=[line], depth=depth, splits=False, client=str(number))).result(120).results
            found[line, depth] = answer[0]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("num_slots", [4, 64])
@pytest.mark.parametrize("beam", [1, 5])
def test_answers_in_float32_are_those_of_translate(trained, num_slots, beam):
    model = lamina.load(trained[1], device="cuda", dtype="fp32")
    lines = sentences(40)
    engine = Engine(model, slots=num_slots, defaults={**OPTIONS, "beam": beam})
    try:
        found = asked_by_many(engine, lines)
    finally:
        engine.close(60)
    for depth in DEPTHS:
        expected = model.translate(lines, beam, depth=depth, **OPTIONS)
        assert [found[line, depth].text for line in lines] == [own.text for own in expected]


def test_answers_in_float32_are_those_of_the_command(trained, capsys):
    data, path = trained
    capsys.readouterr()
    assert main(["generate", str(data), "--path", str(path), "--gen-subset", "train", "--fp32", "--max-len-b", "12"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    sources = {row[0][2:]: row[1] for row in rows if row[0].startswith("S-")}
    expected = {row[0][2:]: row[2] for row in rows if row[0].startswith("H-")}
    engine = Engine(lamina.load(path, device="cuda", dtype="fp32"), slots=8, defaults=OPTIONS)
    try:
        found = asked_by_many(engine, list(dict.fromkeys(sources.values())))
    finally:
        engine.close(60)
    assert {number: found[source, "full"].text for number, source in sources.items()} == expected


def test_a_cascade_on_a_gpu_is_that_of_translate(trained):
    model = lamina.load(trained[1], device="cuda", dtype="fp32")
    lines = sentences(40)
    sure = sorted(sum(own.token_scores) / len(own.token_scores) for own in model.translate(lines, depth="4-1", **OPTIONS))
    # Between two sentences: a sum in another order must not decide.
    threshold = (sure[19] + sure[20]) / 2
    cascade = Cascade(model=model.digest, depth={"decoder": "0"}, threshold=threshold)
    expected = model.translate(lines, depth="auto", cascade=cascade, **OPTIONS)
    engine = Engine(model, slots=16, defaults=OPTIONS, cascade=cascade)
    try:
        answer = engine.submit(Request(texts=lines, depth="auto", splits=False)).result(120)
    finally:
        engine.close(60)
    assert [found[0].text for found in answer.results] == [own.text for own in expected]
    kept = Counter(found[0].num_shallow for found in answer.results)
    assert kept == {1: 20, 0: 20}


def test_differences_in_half_precision_are_counted(trained, record_property):
    """Sums may be rounded in another order beside other sentences: how often that shows is reported, and it must be seldom."""
    model = lamina.load(trained[1], device="cuda", dtype="fp16")
    lines = sentences(40)
    engine = Engine(model, slots=16, defaults=OPTIONS)
    try:
        found = asked_by_many(engine, lines)
    finally:
        engine.close(60)
    expected = [own.text for own in model.translate(lines, **OPTIONS)]
    different = sum(found[line, "full"].text != own for line, own in zip(lines, expected, strict=True))
    record_property("different", different)
    print(f"{different} of {len(lines)} translations differ in float16")
    assert different <= len(lines) // 4

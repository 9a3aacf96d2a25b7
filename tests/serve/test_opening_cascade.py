"""The depth "auto" over HTTP: a cascade, found beside the checkpoint or named, that answers as `translate` does."""

import http.client
import json
import math
import os
import signal
import subprocess
import sys

import pytest

from lamina.cli import main
from lamina.decode.cascade import Cascade, cascade_path
from lamina.errors import ConfigError
from served import running_server

LINES = ["the old boat sings", "a bird", "the moon", "small river reads a song", "letter garden house", "a small boat"]


@pytest.fixture(scope="module")
def cascade(served_models):
    """One that keeps about half of these lines."""
    model = served_models["translator"]
    found = model.translate(LINES, depth="2-1", max_len_b=12)
    sure = sorted(sum(own.token_scores) / len(own.token_scores) for own in found)
    return Cascade(model=model.digest, depth={"encoder": "0,1", "decoder": "0"}, threshold=sure[len(sure) // 2],
                   search={"max_len_b": 12})


def expected(served_models, cascade):
    return [own.text for own in served_models["translator"].translate(LINES, depth="auto", cascade=cascade, max_len_b=12)]


def test_answers_are_those_of_translate_at_depth_auto(served_models, cascade):
    with running_server([served_models["translator"]], cascade=cascade) as own:
        status, _, found = own.ask("/translate", {"q": LINES, "source": "a", "target": "b", "depth": "auto"})
        assert (status, found["translatedText"]) == (200, expected(served_models, cascade))
        assert (found["depth"]["shallow_sentences"], found["depth"]["sentences"]) == (3, 6)
        metrics = own.ask("/metrics")[2].splitlines()
        assert 'lamina_sentences_total{model="a-b",depth="2-1"} 3' in metrics
        assert 'lamina_cascade_total{model="a-b",outcome="kept"} 3' in metrics
        assert 'lamina_cascade_total{model="a-b",outcome="repeated"} 3' in metrics
        assert 'lamina_translation_seconds_count{model="a-b",depth="auto"} 1' in metrics
        assert own.ask("/models")[2]["translation"][0]["has_cascade"]


def test_a_default_depth_is_that_of_requests_that_name_none(served_models, cascade):
    with running_server([served_models["translator"]], cascade=cascade, depth="auto") as own:
        asked = {"q": LINES, "source": "a", "target": "b"}
        assert own.ask("/translate", asked)[2]["translatedText"] == expected(served_models, cascade)
        whole = own.ask("/translate", {**asked, "depth": "full"})[2]["translatedText"]
        assert whole == [found.text for found in served_models["translator"].translate(LINES, max_len_b=12)]


def test_without_a_cascade_auto_is_refused(live, served_models):
    status, _, found = live.ask("/translate", {"q": "moon", "source": "a", "target": "b", "depth": "auto"})
    assert (status, "lamina calibrate" in found["error"]) == (400, True)
    with pytest.raises(ConfigError, match="needs a cascade"), running_server([served_models["translator"]], depth="auto"):
        pass


def test_the_command_finds_the_file_beside_the_checkpoint(served_models, cascade, tmp_path):
    path = served_models["translator"].save(tmp_path / "model.pt")
    cascade.save(cascade_path([path]))
    command = [sys.executable, "-m", "lamina", "serve", f"a-b={path}", "--port", "0", "--max-len-b", "12", "--depth", "auto"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            said = next(line for line in process.stderr if "serving on" in line)
            connection = http.client.HTTPConnection(said.split("http://")[1].split(";")[0], timeout=20)
            connection.request("POST", "/translate", json.dumps({"q": LINES, "source": "a", "target": "b"}),
                               {"Content-Type": "application/json"})
            assert json.load(connection.getresponse())["translatedText"] == expected(served_models, cascade)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(("flags", "said"), [
    (["--depth", "auto"], "needs a cascade"), (["--depth", "deep"], "the depth is 'deep'"),
    (["--depth", "9-1"], "asks for 9 layers"), (["--cascade", "nothing.json"], "cannot be read as a cascade"),
    (["--cascade", "OTHER"], "none of the models is the one that")])
def test_the_command_refuses(served_models, cascade, tmp_path, capsys, flags, said):
    path = served_models["translator"].save(tmp_path / "model.pt")
    other = Cascade(model="0" * 16, depth={"decoder": "1"}, threshold=-math.log(2)).save(tmp_path / "other.json")
    flags = [str(other) if word == "OTHER" else word for word in flags]
    capsys.readouterr()
    assert main(["serve", f"a-b={path}", "--port", "0", *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_stale_file_is_told_and_left_out(served_models, tmp_path, capsys):
    path = served_models["translator"].save(tmp_path / "model.pt")
    Cascade(model="0" * 16, depth={"decoder": "1"}, threshold=-1.0).save(cascade_path([path]))
    capsys.readouterr()
    assert main(["serve", f"a-b={path}", "--port", "0", "--depth", "auto"]) == 2
    assert "was chosen for another model" in capsys.readouterr().err

"""What a server says, refuses, hides and survives."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from lamina.config.serve_options import ServiceLimits
from lamina.errors import ConfigError
from lamina.serve import running, service
from lamina.serve.api_keys import load_keys
from lamina.serve.running import listening_socket
from served import running_server

SENTENCE = "the old boat sings"
ASKED = {"q": SENTENCE, "source": "a", "target": "b"}
KEY = "a-key-of-some-length"


def texts(found):
    return [own.text for own in found]


# -- answers

def test_answers_are_those_of_the_model(live, served_models):
    lines = ["the old boat sings", "", "a bird", "moon"]
    status, _, found = live.ask("/translate", {**ASKED, "q": lines})
    assert status == 200
    assert found == {"translatedText": texts(served_models["translator"].translate(lines, max_len_b=12))}
    assert live.ask("/translate", form={**ASKED, "q": lines})[2] == found


def test_own_fields_are_those_of_the_model(live, served_models):
    body = {**ASKED, "beam": 4, "nbest": 3, "scores": True, "alignment": True, "depth": {"encoder": 1, "decoder": 1}}
    found = live.ask("/translate", body)[2]
    own = served_models["translator"].prune(1, 1).translate(SENTENCE, beam=4, nbest=3, max_len_b=12)
    assert [hypothesis["text"] for hypothesis in found["hypotheses"]] == texts([own, *own.alternatives])
    assert [hypothesis["score"] for hypothesis in found["hypotheses"]] == pytest.approx(
        [one.score for one in (own, *own.alternatives)], abs=1e-5)
    assert all(len(one["alignment"]) == len(one["text"].split()) for one in found["hypotheses"])
    assert found["depth"] == {"encoder": 1, "decoder": 1}
    asked = {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in body.items()}
    form = live.ask("/translate", form={**asked, "scores": "true", "alignment": "1"})[2]
    assert form["hypotheses"] == found["hypotheses"]


def test_alternatives_and_constraints(live, served_models):
    found = live.ask("/translate", {**ASKED, "alternatives": 2})[2]
    own = served_models["translator"].translate(SENTENCE, beam=5, nbest=3, max_len_b=12)
    assert [found["translatedText"], *found["alternatives"]] == texts([own, *own.alternatives])
    assert "MOON" in live.ask("/translate", {**ASKED, "constraints": ["MOON"]})[2]["translatedText"].split()
    several = live.ask("/translate", {**ASKED, "q": ["a bird", "moon"], "constraints": [["OLD"], []]})[2]["translatedText"]
    assert "OLD" in several[0].split()


def test_the_only_source_may_be_left_out(live):
    found = live.ask("/translate", {"q": "moon", "source": "auto", "target": "b"})[2]
    assert found["detectedLanguage"] == {"language": "a", "confidence": 0.0}


def test_masked_models_fill_gaps(live, served_models):
    found = live.ask("/fill-mask", {"text": "the <mask> boat", "topk": 3})[2]["fillings"]
    assert [own["text"] for own in found] == texts(served_models["masked"].fill_mask("the <mask> boat", topk=3))
    assert live.ask("/fill-mask", {"text": "no gap"})[0] == 400
    assert live.ask("/classify", {"text": "no head"})[0] == 400


def test_models_tell_their_shape_and_no_files(live):
    status, _, found = live.ask("/models")
    (pair,) = found["translation"]
    assert (status, pair["source"], pair["target"], pair["has_layerdrop"]) == (200, "a", "b", True)
    assert pair["surface"] == {"reads": pair["surface"]["reads"], "share": None, "is_per_word": True}
    assert "a gate learned for each token" in pair["surface"]["reads"]
    assert [(stop["encoder"], stop["decoder"]) for stop in pair["depths"]] == [(1, 1), (2, 1), (3, 2)]
    assert [len(row) for row in pair["fusion"]["shares"]] == [len(pair["fusion"]["columns"])] * 2
    assert (found["language"], found["masked"]) == (["lm"], [{"name": "masked", "heads": []}])
    assert ".pt" not in json.dumps(found)
    assert "/" not in json.dumps(found)


def test_inspect_gives_each_word_its_gate(live, served_models):
    found = live.ask("/inspect", {"text": SENTENCE, "source": "a", "target": "b"})[2]["words"]
    model = served_models["translator"]
    own = model.translate(SENTENCE, max_len_b=12).text
    assert [word["text"] for word in found] == own.split()
    gates = model.gates([(SENTENCE, own)]).values.tolist()
    assert [word["surface"] for word in found] == pytest.approx([1 - gate for gate in gates[: len(found)]], abs=1e-6)


# -- refusals

@pytest.mark.parametrize(("change", "status", "said"), [
    ({"format": "html"}, 400, "format html is not supported"),
    ({"format": "md"}, 400, "format must be one of"),
    ({"q": None}, 400, "q is missing"), ({"q": 5}, 400, "q must be text"), ({"q": ["a", 5]}, 400, "q must be text"),
    ({"target": None}, 400, "target is missing"), ({"target": "fr"}, 400, "no model translates into 'fr'"),
    ({"source": "b"}, 400, "no model translates from 'b' into b"),
    ({"depth": "deep"}, 400, "the depth is 'deep'"), ({"depth": {"encoder": 9}}, 400, "9"),
    ({"beam": 0}, 400, "beam must be"), ({"beam": 17}, 400, "--max-beam"),
    ({"beam": True}, 400, "beam must be"), ({"beam": 2, "nbest": 3}, 400, "nbest is 3"),
    ({"nbest": 1e300}, 400, "nbest must be"),
    ({"alternatives": -1}, 400, "alternatives must be"), ({"scores": "yes"}, 400, "scores must be true or false"),
    ({"constraints": "unheard"}, 400, "the target dictionary has no"), ({"constraints": [[1]]}, 400, "constraints must be"),
    ({"q": ["a", "b"], "constraints": ["MOON"]}, 400, "constraints must be"), ({"bean": 3}, 400, "Did you mean beam?"),
    ({"q": "x" * 20_001}, 413, "20001 characters"), ({"q": ["a"] * 129}, 413, "129 texts"),
    ({"q": "half a pair: \ud800"}, 400, "surrogate"),
])
def test_what_makes_no_sense_is_named(live, change, status, said):
    found = live.ask("/translate", {**ASKED, **change})
    assert found[0] == status
    assert said in found[2]["error"]


@pytest.mark.parametrize(("body", "kind", "status"), [
    (b"{", "application/json", 400), (b"[1]", "application/json", 400), (b'{"q": NaN}', "application/json", 400),
    (b'{"q": ' + b"[" * 5000, "application/json", 400), (b'{"beam": ' + b"9" * 5000 + b"}", "application/json", 400),
    (b"\xff\xfe", "application/json", 400), (b"q=%ff", "application/x-www-form-urlencoded", 400),
    (b"&".join(b"q=a" for _ in range(3000)), "application/x-www-form-urlencoded", 400),
    (b"a", "multipart/form-data; boundary=x", 415), (b"a", "text/plain", 415)])
def test_broken_bodies_are_refused(live, body, kind, status):
    assert live.ask("/translate", body, headers={"Content-Type": kind})[0] == status


@pytest.mark.parametrize(("path", "key"), [("/nothing", "error"), ("/v1/nothing", "error"), ("/v2/nothing", "message"),
                                           ("/page/nothing.js", "error"), ("/page/..%2f..%2fapp.py", "error")])
def test_other_paths_are_404_in_the_form_of_their_api(live, path, key):
    status, _, found = live.ask(path)
    assert status == 404
    assert key in found


def test_methods_are_checked(live):
    assert live.ask("/translate")[0] == 405
    assert live.ask("/health", {}, method="DELETE")[0] == 405


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_in_words(served_models, is_chunked):
    with running_server([served_models["translator"]], limits=ServiceLimits(max_body_kib=64)) as small:
        connection = http.client.HTTPConnection(small.url.removeprefix("http://"), timeout=30)
        body = (b"x" * 65536 for _ in range(20)) if is_chunked else b"x" * 20 * 65536
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"}, encode_chunked=is_chunked)
        answer = connection.getresponse()
        assert (answer.status, "64 KiB" in json.load(answer)["error"]) == (413, True)
        assert small.ask("/translate", ASKED)[0] == 200


# -- safety

def test_every_answer_keeps_a_browser_to_our_own_files(live):
    for path in ("/", "/health", "/nothing", "/page/page.js"):
        headers = live.ask(path)[1]
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere(live):
    page = live.ask("/")[2]
    assert "<style" not in page
    assert " style=" not in page
    assert " onclick" not in page
    assert "<script>" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_pages_of_other_sites_may_not_ask(live, served_models):
    foreign = {"Sec-Fetch-Site": "cross-site", "Origin": "https://example.org"}
    assert live.ask("/translate", ASKED, headers=foreign)[0] == 403
    assert live.ask("/translate", ASKED, headers={"Sec-Fetch-Site": "same-origin"})[0] == 200
    with running_server([served_models["translator"]], origins=["https://example.org"]) as open_to_one:
        status, headers, _ = open_to_one.ask("/translate", ASKED, headers=foreign)
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://example.org")
        assert open_to_one.ask("/translate", ASKED, headers={**foreign, "Origin": "https://other.org"})[0] == 403


def test_keys_are_needed_where_there_are_any(served_models, capfd):
    with running_server([served_models["translator"], served_models["language_model"]], names=("a-b", "lm"), keys=[KEY]) as own:
        own.service.logs_requests = True
        assert own.ask("/translate", ASKED)[0] == 403
        assert own.ask("/translate", {**ASKED, "api_key": "wrong-key-of-some-length"})[0] == 403
        assert own.ask("/translate", {**ASKED, "api_key": KEY})[0] == 200
        assert own.ask("/translate", ASKED, headers={"X-API-Key": KEY})[0] == 200
        assert own.ask("/translate", ASKED, headers={"Authorization": f"Bearer {KEY}"})[0] == 200
        assert own.ask("/v2/usage")[0] == 403
        assert own.ask("/v1/models")[0] == 401
        assert own.ask("/metrics")[0] == 403
        assert [own.ask(path)[0] for path in ("/", "/health", "/ready", "/models")] == [200] * 4
    said = capfd.readouterr()
    assert "POST /translate 403" in said.err
    assert "of-some-length" not in said.err + said.out
    assert SENTENCE not in said.err + said.out


def test_keys_come_from_a_file_and_the_environment(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{KEY}\n\n")
    keys = load_keys(str(file), {"LAMINA_API_KEYS": "another-key, third-key-here"})
    assert [keys.number_of(key) for key in ("another-key", "third-key-here", KEY)] == [0, 1, 2]
    assert [keys.number_of(key) for key in ("", None, KEY[:-1])] == [None] * 3
    assert not load_keys(None, {}).are_needed
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="shorter than 8") as raised:
        load_keys(str(file), {})
    assert "short\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys(str(tmp_path / "nothing"), {})


def test_our_own_errors_are_logged_and_not_told(live, monkeypatch, capfd):
    def fail(*_, **__):
        raise RuntimeError("/a/path/of/ours")

    monkeypatch.setattr(live.service.pairs[0].engine, "submit", fail)
    status, _, found = live.ask("/translate", ASKED)
    assert status == 500
    assert "path" not in json.dumps(found)
    assert "RuntimeError: /a/path/of/ours" in capfd.readouterr().err


# -- load



def test_a_full_queue_says_when_to_come_back(served_models):
    with running_server([served_models["translator"]], limits=ServiceLimits(queue=2), slots=1) as own, \
            slowed(own) as release:
        asking = [threading.Thread(target=own.ask, args=("/translate", {**ASKED, "q": f"moon {number}"}))
                  for number in range(6)]
        asking[0].start()
        assert release.is_reached.wait(15)  # the model has the first: those that come now wait, and none is refused too early
        for thread in asking[1:]:
            thread.start()
        until(lambda: own.service.pairs[0].engine.stats().queue >= 2)
        status, headers, found = own.ask("/translate", ASKED)
        assert (status, int(headers["Retry-After"]) >= 1) == (503, True)
        assert "busy" in found["error"]
        assert own.ask("/health")[0] == 200
        release()
        for thread in asking:
            thread.join(30)
        assert own.ask("/translate", ASKED)[0] == 200


def test_what_takes_too_long_is_given_up(served_models):
    with running_server([served_models["translator"]], limits=ServiceLimits(timeout=0.3)) as own, slowed(own) as release:
        status, headers, found = own.ask("/translate", ASKED)
        assert (status, "Retry-After" in headers) == (503, True)
        assert "0.3 seconds" in found["error"]
        # The answer may be here a moment before the work is called off: until then the model must not finish it.
        until(lambda: own.service.pairs[0].engine.stats().requests_cancelled == 1)
        release()


def test_whoever_leaves_frees_what_the_request_held(served_models):
    with running_server([served_models["translator"]]) as own, slowed(own) as release:
        address = own.url.removeprefix("http://").split(":")
        body = json.dumps(ASKED).encode()
        for _ in range(20):
            with socket.create_connection((address[0], int(address[1]))) as connection:
                connection.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
                                   + str(len(body)).encode() + b"\r\n\r\n" + body)
                time.sleep(0.02)
        engine = own.service.pairs[0].engine
        until(lambda: engine.stats().requests_cancelled == 20)
        release()
        until(lambda: engine.stats().queue == engine.stats().running == 0)
        assert own.ask("/translate", ASKED)[0] == 200
        assert own.service.counters.requests["libretranslate", service.GONE] == 20


def test_a_stream_that_is_left_stops_the_writer(live):
    connection = http.client.HTTPConnection(live.url.removeprefix("http://"), timeout=30)
    body = {"model": "lm", "prompt": "the", "stream": True, "max_tokens": 25}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().read(6) == b"data: "
    connection.close()
    writer = live.service.writers["lm"]
    until(lambda: not writer._num_active and not writer.num_waiting)
    assert live.ask("/v1/completions", {"model": "lm", "prompt": "the", "max_tokens": 2})[0] == 200


def test_a_client_that_says_nothing_is_shown_out(served_models, monkeypatch):
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.3)
    with running_server([served_models["translator"]]) as own:
        host, port = own.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as silent:
            silent.sendall(b"POST /translate HTTP/1.1\r\nHost:")
            assert silent.recv(100) == b""
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        for _ in range(2):  # one that talks may rest in between
            connection.request("POST", "/translate", json.dumps(ASKED), {"Content-Type": "application/json"})
            assert connection.getresponse().read()
            time.sleep(0.6)


def test_connections_have_a_limit(served_models):
    with running_server([served_models["translator"]], limits=ServiceLimits(max_connections=3)) as own:
        host, port = own.url.removeprefix("http://").split(":")
        held = [socket.create_connection((host, int(port)), timeout=10) for _ in range(3)]
        until(lambda: own.service.num_connections() == 3)
        status, headers, found = own.ask("/health")
        assert (status, headers["Retry-After"]) == (503, "2")
        assert "too many connections" in found["error"]
        for connection in held:
            connection.close()
        until(lambda: own.service.num_connections() == 0)
        assert own.ask("/health")[0] == 200


@pytest.mark.parametrize("sent", [
    b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 70000,
    b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
def test_what_is_no_http_is_refused(live, sent):
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        assert connection.recv(12) in (b"HTTP/1.1 400", b"")
    assert live.ask("/health")[0] == 200


def test_a_head_that_does_not_end_is_refused(live):
    """In small pieces, none of which is too large, and also while an answer is awaited on the same connection."""
    host, port = live.url.removeprefix("http://").split(":")
    body = json.dumps(ASKED).encode()
    whole = (b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
             + str(len(body)).encode() + b"\r\n\r\n" + body)
    for before in (b"", whole):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(before + b"GET /health HTTP/1.1\r\nA: ")
            said = b""
            with suppress(ConnectionError):  # it no longer reads
                for _ in range(40):
                    connection.sendall(b"a" * 1024)
                    time.sleep(0.001)
                while part := connection.recv(4096):
                    said += part
            assert b"400 Bad Request" in said or not said
    assert live.ask("/health")[0] == 200


def test_metrics_count_by_api_and_depth(served_models):
    with running_server([served_models["translator"], served_models["language_model"]], names=("a-b", "lm")) as own:
        own.ask("/translate", ASKED)
        own.ask("/translate", {**ASKED, "depth": {"encoder": 1, "decoder": 1}})
        own.ask("/translate", {**ASKED, "beam": 0})
        own.ask("/v1/completions", {"model": "lm", "prompt": "the", "max_tokens": 4, "temperature": 0})
        status, headers, text = own.ask("/metrics")
        assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
        lines = text.splitlines()
        assert 'lamina_requests_total{api="libretranslate",status="200"} 2' in lines
        assert 'lamina_requests_total{api="libretranslate",status="400"} 1' in lines
        assert 'lamina_sentences_total{model="a-b",depth="1-1"} 1' in lines
        assert 'lamina_translation_seconds_count{model="a-b",depth="1-1"} 1' in lines
        assert 'lamina_queue{model="a-b"} 0' in lines
        assert any(line.startswith("lamina_tokens_per_second ") and float(line.split()[1]) > 0 for line in lines)
        assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in lines)


# -- the end

def test_draining_finishes_what_runs_and_refuses_what_comes(served_models):
    with running_server([served_models["translator"]], limits=ServiceLimits(grace=20)) as own, slowed(own) as release:
        host, port = own.url.removeprefix("http://").split(":")
        kept = http.client.HTTPConnection(host, int(port), timeout=10)
        kept.connect()
        found = []
        asking = threading.Thread(target=lambda: found.append(own.ask("/translate", ASKED)))
        asking.start()
        until(lambda: own.service.pairs[0].engine.stats().requests >= 2)
        own.server.stop()
        assert not found
        until(lambda: refuses(host, int(port)))
        release()
        asking.join(20)
        assert found[0][0] == 200
        own.thread.join(20)
        assert not own.thread.is_alive()


def test_the_end_of_the_grace_is_told(served_models):
    with running_server([served_models["translator"]], limits=ServiceLimits(grace=1.5)) as own, slowed(own) as release:
        found = []
        asking = threading.Thread(target=lambda: found.append(own.ask("/translate", ASKED)))
        asking.start()
        until(lambda: own.service.pairs[0].engine.stats().requests >= 2)
        started = time.monotonic()
        own.server.stop()
        asking.join(10)
        assert (found[0][0], "stopping" in found[0][2]["error"]) == (503, True)
        assert time.monotonic() - started < 3
        release()


def test_sigterm_ends_the_command_with_0(served_models, tmp_path):
    model = served_models["translator"].save(tmp_path / "model.pt")
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lamina", "serve", f"en-de={model}", "--port", "0", "--max-len-b", "12", "--grace", "5"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process, killed_at_last(process):
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "serving on" in line:
                break
        assert "en-de: Translator" in "".join(lines)
        address = lines[-1].split("http://")[1].split(";")[0]
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("POST", "/translate", json.dumps({"q": "moon", "source": "en", "target": "de"}),
                           {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr.read() == "| stopped\n"


def test_a_port_that_is_taken_is_told_in_one_line():
    with listening_socket("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(ConfigError, match="is taken"):
            listening_socket("127.0.0.1", first.getsockname()[1])


# -- helpers

@contextmanager
def slowed(own):
    """The model answers when what this gives is called."""
    model, free = own.service.pairs[0].translator.models[0], threading.Event()
    begin = model.start

    def release():
        free.set()

    release.is_reached = threading.Event()  # whether the model has been asked

    def start(*given, **named):
        release.is_reached.set()
        free.wait(30)
        return begin(*given, **named)

    model.start = start
    try:
        yield release
    finally:
        free.set()
        del model.start


@contextmanager
def killed_at_last(process):
    try:
        yield
    finally:
        process.kill()


def until(holds, seconds=15):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def refuses(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
    except ConnectionRefusedError:
        return True
    return False

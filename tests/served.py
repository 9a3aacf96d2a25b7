"""Real servers on free ports of this machine, with small models behind them."""

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import lamina
from lamina.cli import main
from lamina.config.serve_options import ServiceLimits
from tiny import TINY_FLAGS, make_data

LIMITS = {"max_len_b": 12}


def train(folder, data, name, *flags):
    assert main(["train", str(data), "--max-update", "12", "--save-dir", str(folder / name), *flags]) == 0
    return lamina.load(folder / name / "checkpoint_last.pt", device="cpu")


def train_models(folder):
    """A translator from a to b, which was trained with LayerDrop and has a gate, a language model, a masked one."""
    data = make_data(folder)
    fused = ["--encoder-layers", "3", "--decoder-layers", "2",
             "--encoder-layerdrop", "0.2", "--decoder-layerdrop", "0.2", "--transparent-attention", "--surfacefusion", "att",
             "--sf-gate", "0", "--sf-mode", "hard", "--max-source-positions", "32", "--max-target-positions", "32"]
    models = {"translator": train(folder, data, "ab", *TINY_FLAGS, *fused)}
    models["language_model"] = language_model(folder)
    models["masked"] = masked_model(folder)
    return models


def language_model(folder):
    text = folder / "lm"
    text.with_suffix(".text").write_text("the old boat sings near the river\na small bird reads\n" * 12)
    assert main(["preprocess", "--only-source", "--trainpref", str(text), "--validpref", str(text), "--destdir",
                 str(folder / "lm-data"), "--source-lang", "text"]) == 0
    return train(folder, folder / "lm-data", "lm", "--task", "language_modeling", "--arch", "transformer_lm",
                 "--decoder-layers", "1", "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "32",
                 "--decoder-attention-heads", "2", "--tokens-per-sample", "32", "--max-tokens", "128", "--sample-break-mode",
                 "eos")


def masked_model(folder):
    return train(folder, folder / "lm-data", "masked", "--task", "masked_lm", "--arch", "roberta_base", "--encoder-layers", "1",
                 "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads", "2",
                 "--tokens-per-sample", "32", "--max-tokens", "128")


class Running:
    """A server, and the shortest way to ask it."""

    def __init__(self, server, service, url, thread):
        self.server, self.service, self.url, self.thread = server, service, url, thread

    def ask(self, path, body=None, *, form=None, headers=None, method=None, timeout=60):
        """Status, headers and body, which is read as JSON where it is that."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if data is not None else {}
        if form is not None:
            from urllib.parse import urlencode

            data, kind = urlencode(form, doseq=True).encode(), {"Content-Type": "application/x-www-form-urlencoded"}
        request = urllib.request.Request(self.url + path, data, {**kind, **(headers or {})}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.headers, read(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.headers, read(error)


def read(answer):
    text = answer.read().decode()
    return json.loads(text) if answer.headers.get("Content-Type", "").startswith("application/json") else text


@contextmanager
def running_server(models, *, keys=(), limits=None, origins=(), slots=8, names=("a-b",), defaults=None, cascade=None,
                   depth=None, port=0, **options):
    from lamina.serve.api_keys import ApiKeys
    from lamina.serve.app import build_app
    from lamina.serve.opening import opened
    from lamina.serve.running import listening_socket, run_server
    from lamina.serve.service import Service

    service = Service(limits=limits or ServiceLimits(grace=5.0, timeout=20.0), keys=ApiKeys(keys))
    for name, model in zip((*names, *[None] * len(models)), models, strict=False):
        opened(service, name, model, slots=slots, defaults=LIMITS if defaults is None else defaults,
               queue_limit=service.limits.queue, cascade=cascade, depth=depth)
    own = listening_socket("127.0.0.1", port)
    found = []
    thread = threading.Thread(target=run_server, args=(build_app(service, origins=origins), service, own), kwargs={
        "grace": service.limits.grace, "max_connections": service.limits.max_connections, "started": found.append, **options})
    thread.start()
    while not found:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield Running(found[0], service, f"http://127.0.0.1:{own.getsockname()[1]}", thread)
    finally:
        found[0].stop()
        thread.join(60)
        assert not thread.is_alive()

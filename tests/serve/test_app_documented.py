"""docs/serving.md: its clients, against a real server; its unit and container, as far as this machine can read them."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from lamina.command_line import COMMANDS, load
from lamina.config.parser import parse, resolve
from served import running_server

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def fenced(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(served_models):
    with running_server(served_models.values(), names=("en-de", "lm", "masked")) as running:
        yield running


@pytest.mark.parametrize("block", fenced("python"), ids=lambda block: re.search(r"(\w+)\.", block)[1])
def test_the_python_of_the_page_runs(server, capsys, block):
    for name in re.findall(r"^(?:import|from) (deepl|openai|libretranslatepy)", block, flags=re.MULTILINE):
        pytest.importorskip(name, reason=f"{name} is not installed")
    namespace = {}
    exec(compile(block.replace("http://127.0.0.1:5000", server.url), "docs/serving.md", "exec"), namespace)
    assert capsys.readouterr().out.strip()
    if hasattr(namespace.get("client"), "close"):
        namespace["client"].close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_of_the_page_works(server):
    lines = "".join(fenced("sh")).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line.replace("http://127.0.0.1:5000", server.url)) for line in lines if line.startswith("curl ")]
    assert len(commands) == 6
    for words in commands:
        done = subprocess.run([words[0], "--noproxy", "*", "--fail", *words[1:]], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, (words, done.stderr)
        if "/metrics" not in words[-1]:
            assert "error" not in json.loads(done.stdout)


def test_the_page_quotes_an_error_that_there_is(server):
    status, _, found = server.ask("/translate", {"q": "a"})
    assert status == 400
    assert json.dumps(found) in PAGE


@pytest.mark.parametrize("words", [
    shlex.split(re.search(r"^ExecStart=(.*)$", PAGE, flags=re.MULTILINE)[1])[2:],
    json.loads(re.search(r"^CMD (\[.*\])$", PAGE, flags=re.MULTILINE)[1])[2:]], ids=["systemd", "container"])
def test_what_starts_the_server_parses(words):
    cls = load(COMMANDS["serve"].config)
    given, notices = parse("lamina serve", cls, "", words)
    assert resolve(cls, given).files.each()[0].name == "en-de"
    assert not notices

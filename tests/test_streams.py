"""Standard streams that are closed, full, or of few characters: one line at most, and an exit status."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full")

WORDS = ("-m", "lamina", "train", "data", "--max-tokens", "5", "--save-dir", "\u0103\u2581", "--print-config")


def run(tmp_path, shell, **environ):
    return subprocess.run(["sh", "-c", f'"$0" "$@" {shell}', sys.executable, *WORDS], cwd=tmp_path, capture_output=True,
                          env={**os.environ, **environ}, timeout=60)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("shell", "code", "what"), [
    ("> /dev/full", 2, b"error: No space left on device"), (">&-", 0, b""), ("2>&-", 0, b""), ("2> /dev/full", 0, b""),
    ("<&- >&- 2>&-", 0, b"")])
def test_closed_and_full_streams(tmp_path, shell, code, what, unbuffered):
    done = run(tmp_path, shell, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == code
    assert done.stderr.startswith(what)
    assert done.stderr.count(b"\n") == bool(what)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_encodings_of_few_characters(tmp_path, encoding):
    done = run(tmp_path, "", PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert b"\\u2581" in done.stdout


def test_a_closed_stream_is_never_the_number_of_a_file():
    """What a library prints to number 1 would go into the checkpoint that got it."""
    code = ("import os, sys; from lamina.console import settle_streams; settle_streams(); "
            "file = open(os.devnull); sys.exit(file.fileno() < 3)")
    assert subprocess.run(["sh", "-c", f"'{sys.executable}' -c '{code}' <&- >&- 2>&-"], timeout=60).returncode == 0

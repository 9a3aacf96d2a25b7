"""What is printed, where nobody takes it."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from lamina import console
from lamina.command_line import guarded

is_linux = sys.platform.startswith("linux")


def without_reader():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", buffering=1)


def full_disk():
    return open("/dev/full", "w", buffering=1)


BAD_STREAMS = [without_reader, pytest.param(full_disk, marks=pytest.mark.skipif(not is_linux, reason="/dev/full"))]


@pytest.mark.parametrize("bad", BAD_STREAMS)
def test_work_goes_on_without_its_output(bad, capsys):
    with bad() as stream, redirect_stdout(stream):
        with console.lasting_output():
            for number in range(3):
                print(number, flush=True)
            print("hello", file=sys.stderr)
        assert sys.stdout is stream
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: stdout cannot be written (")
    assert first.endswith("): work continues without it")
    assert second == "hello"


@pytest.mark.parametrize("bad", BAD_STREAMS)
def test_work_goes_on_where_nothing_can_be_said(bad):
    with bad() as stream, redirect_stdout(stream), redirect_stderr(stream), console.lasting_output():
        print("hello", flush=True)
        console.notice("hello")
        print("hello", file=sys.stderr, flush=True)


def test_a_disk_may_have_room_again(tmp_path):
    class Disk:
        is_full = True
        text = ""

        def write(self, text):
            if self.is_full:
                raise OSError(28, "No space left on device")
            self.text += text

        def flush(self):
            pass

    disk = Disk()
    with redirect_stdout(disk), console.lasting_output():
        print("lost")
        disk.is_full = False
        print("told")
    assert disk.text.strip() == "told"


def test_a_line_is_told_in_one_piece():
    """Unbuffered, as under torchrun, what is written in pieces mixes with the pieces of other ranks."""
    pieces = []

    class Unbuffered(io.StringIO):
        def write(self, text):
            pieces.append(text)
            return len(text)

    with redirect_stderr(Unbuffered()):
        console.notice("hello")
    assert list(filter(None, pieces)) == ["| hello\n"]


def test_closed_streams(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with console.lasting_output():
        print("hello", flush=True)
        assert not sys.stderr.isatty()


@pytest.mark.parametrize("bad", BAD_STREAMS)
def test_what_cannot_be_told_changes_no_exit_status(bad):
    from lamina.errors import ConfigError

    def fail():
        raise ConfigError("no")

    with bad() as stream, redirect_stderr(stream):
        console.notice("hello")
        assert guarded(fail) == 2


def test_results_without_a_reader_are_no_success(capsys):
    with without_reader() as stream, redirect_stdout(stream):
        assert guarded(lambda: print("result", flush=True)) == 141
        print("the rest", flush=True)  # goes nowhere, and Python has nothing to complain about at its end
    assert capsys.readouterr().err == ""


def test_a_broken_pipe_of_another_kind_is_our_own_defect():
    def work():
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        guarded(work)


def test_unbuffered_results_without_a_reader_are_no_success(capsys):
    """As with PYTHONUNBUFFERED=1: what failed is not kept, so that writing it again would succeed."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as raw, redirect_stdout(io.TextIOWrapper(raw, write_through=True)):
        assert guarded(lambda: print("result")) == 141
    assert capsys.readouterr().err == ""


def test_results_that_nobody_takes_at_the_end_are_no_success_either(capsys):
    """What was printed last may still wait to be written."""
    with without_reader() as stream, redirect_stdout(stream):
        stream.reconfigure(line_buffering=False)
        print("result")
        assert console.flushed(0) == 141
        assert console.flushed(2) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not is_linux, reason="/dev/full")
def test_notices_that_nobody_takes_at_the_end_change_no_exit_status():
    with full_disk() as stream, redirect_stderr(stream):
        stream.reconfigure(line_buffering=False)
        print("notice", file=sys.stderr)
        assert console.flushed(0) == 0

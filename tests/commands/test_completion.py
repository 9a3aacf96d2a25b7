"""`lamina completion`, tried in the shell that it is for."""

import shutil
import subprocess

import pytest

from lamina.cli import main

ASK = """
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_lamina; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(words, capsys, shell="bash"):
    """What is offered for the last of some words; `''` asks for a new one."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    done = subprocess.run(["bash", "-c", script + ASK.format(words=words)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(("words", "offered"), [
    ("lamina tr", ["train"]),
    ("lamina analyze ''", ["fusion", "depth"]),
    ("lamina recipe ru", ["run"]),
    ("lamina train data --encoder-layerd", ["--encoder-layerdrop"]),
    ("lamina train --lr-scheduler inv", ["inverse_sqrt"]),
    ("lamina analyze fusion --ou", ["--out"]),
    ("lamina generate data --no-qu", ["--no-quiet"]),
])
def test_bash_completes(words, offered, capsys):
    assert completed(words, capsys) == offered


def test_a_word_that_is_no_option_is_completed_as_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data-bin").mkdir()
    assert completed("lamina train dat", capsys) == ["data-bin"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_takes_its_script(capsys):
    assert main(["completion", "zsh"]) == 0
    subprocess.run(["zsh", "-f", "-c", capsys.readouterr().out], check=True)


def test_fish_has_a_line_for_each_option(capsys):
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("-l encoder-layerdrop" in line and "from train" in line for line in lines)
    assert all(line.startswith(("complete -c lamina ", "#")) for line in lines)


def test_another_shell_is_refused(capsys):
    assert main(["completion", "csh"]) == 2
    assert "must be one of bash, zsh, fish" in capsys.readouterr().err

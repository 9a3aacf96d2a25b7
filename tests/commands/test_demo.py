"""`lamina demo`, shortened."""

import re
import shlex

import pytest

from lamina.cli import main
from lamina.command_line import COMMANDS, find_command, load
from lamina.config.parser import parse

pytest.importorskip("babel")
pytest.importorskip("num2words")


def test_the_demo_runs_and_can_be_run_again(tmp_path, capsys):
    folder = str(tmp_path / "demo")
    flags = ["demo", "--folder", folder, "--train-pairs", "400", "--max-update", "3", "--samples", "2"]
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert "$ lamina preprocess -s en -t ro" in out
    assert "$ lamina train" in out
    for row in ("plain, 4 + 2 layers: ", "SurfaceFusion, Admin and LayerDrop, 4 + 2 layers: ",
                "the same checkpoint, cut to 2 + 1 layers: ", "copying the source: "):
        assert row in out
    assert out.count(" sentences/s") == 3
    # The first omega of a stack starts at 1; three updates of warm-up move it little.
    omegas = re.search(r"encoder 1\.00((?: \d\.\d\d){7}); decoder 1\.00((?: \d\.\d\d){5})\n", out)
    assert all(float(omega) > 1.0 for group in omegas.groups() for omega in group.split())
    assert out.count("  en  ") == 2
    # What it tells a person to try is understood.
    for line in re.findall(r"^\|   lamina (.*)$", out, flags=re.MULTILINE)[:-1]:
        name, words = find_command(shlex.split(line))
        parse(f"lamina {name}", load(COMMANDS[name].config), "", words)
    assert main(flags) == 0
    assert capsys.readouterr().out.count("training stopped: 3 updates are done") == 2
    assert main([*flags, "--seed", "2"]) == 2
    assert "holds a demo with other settings" in capsys.readouterr().err

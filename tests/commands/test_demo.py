"""`lamina demo`, shortened."""

import pytest

from lamina.cli import main

pytest.importorskip("babel")
pytest.importorskip("num2words")


def test_the_demo_runs_and_can_be_run_again(tmp_path, capsys):
    folder = str(tmp_path / "demo")
    flags = ["demo", "--folder", folder, "--train-pairs", "400", "--max-update", "3", "--samples", "2"]
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert "$ lamina preprocess -s en -t ro" in out
    assert "$ lamina train" in out
    assert "test BLEU: " in out
    assert "(copying the source: " in out
    assert out.count("  en  ") == 2
    assert main(flags) == 0
    assert "training stopped: 3 updates are done" in capsys.readouterr().out
    assert main([*flags, "--seed", "2"]) == 2
    assert "holds a demo with other settings" in capsys.readouterr().err

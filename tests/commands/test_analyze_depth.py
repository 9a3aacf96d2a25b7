"""`lamina analyze depth`, in-process."""

import csv
import json
import re

import pytest

from lamina.cli import main
from tiny import TINY_FLAGS, make_data, write_text

SMALL = ("--arch", "tiny", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "16", "--encoder-attention-heads", "2",
         "--decoder-attention-heads", "2", "--encoder-layers", "3", "--decoder-layers", "2")
QUICK = ("--sub-layers", "4,8", "--repeats", "1", "--sentences", "2", "--length", "6", "--cpu")
FIGURES = ("activation_variance", "gradient_norm", "layer_dependency", "output_change")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("depth")
    data = make_data(folder)
    assert main(["train", str(data), *TINY_FLAGS, "--init-type", "admin", "--max-update", "2", "--save-dir",
                 str(folder / "save")]) == 0
    return data, folder / "save" / "checkpoint_last.pt"


def rows(folder, name):
    with (folder / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_page(folder, *words):
    assert {path.name for path in folder.iterdir()} == {"index.html", "summary.csv", *(
        f"{name}.{kind}" for name in FIGURES for kind in ("png", "csv"))}
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(FIGURES)
    assert all(word in page for word in words)


def test_a_configuration(tmp_path, capsys):
    assert main(["analyze", "depth", *SMALL, *QUICK, "--init-type", "admin", "--out", str(tmp_path / "out"),
                 "--json", str(tmp_path / "figures.json")]) == 0
    assert "index.html" in capsys.readouterr().err
    check_page(tmp_path / "out", "3 encoder layers and 2 decoder layers", "--init-type admin", "freshly initialised", "made-up")
    changes = rows(tmp_path / "out", "output_change")
    assert [(row["kind"], row["sub_layers"]) for row in changes] == [
        (kind, depth) for kind in ("Post-LN", "Pre-LN", "Admin") for depth in ("4", "8")]
    assert all(float(row["squared_change"]) > 0 for row in changes)
    gradients = rows(tmp_path / "out", "gradient_norm")
    assert len(gradients) == 2 * (3 + 2)
    shares = rows(tmp_path / "out", "layer_dependency")
    assert sum(float(row["share"]) for row in shares if row["stack"] == "encoder" and row["sub_layer"] == "6"
               ) == pytest.approx(1.0, abs=1e-4)
    assert len(rows(tmp_path / "out", "activation_variance")) == 3 * (6 + 6)
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert {name: pytest.approx(value, rel=1e-6) for name, value in figures.items()} == {
        f"{row['analysis']}: {row['fact']}": float(row["value"]) for row in rows(tmp_path / "out", "summary")}


def test_a_checkpoint_on_its_data(trained, tmp_path, capsys):
    data, checkpoint = trained
    assert main(["analyze", "depth", str(checkpoint), "--out", str(tmp_path), "--data", str(data), "--sub-layers", "4,8",
                 "--repeats", "1", "--cpu"]) == 0
    check_page(tmp_path, str(checkpoint), str(data), "trained")
    assert rows(tmp_path, "output_change")[-1]["kind"] == "checkpoint"
    assert rows(tmp_path, "output_change")[-1]["sub_layers"] == "2"


def test_a_fresh_rezero_stack_does_not_move(tmp_path):
    assert main(["analyze", "depth", *SMALL, *QUICK, "--init-type", "rezero", "--out", str(tmp_path)]) == 0
    check_page(tmp_path, "--init-type rezero")
    assert {row["squared_change"] for row in rows(tmp_path, "output_change") if row["kind"] == "rezero"} == {"0"}
    assert [row["fact"] for row in rows(tmp_path, "summary") if "times as much" in row["fact"]] == [
        f"{kind}: times as much at 8 sub-layers as at 4" for kind in ("Post-LN", "Pre-LN", "Admin")]


@pytest.mark.parametrize(("task", "stack"), [("language_modeling", "decoder"), ("masked_lm", "encoder")])
def test_models_of_one_stack(task, stack, tmp_path):
    model = [f"--{stack}-{flag}" for flag in ("layers", "embed-dim", "ffn-embed-dim", "attention-heads")]
    words = [word for pair in zip(model, ("3", "16", "16", "2"), strict=True) for word in pair]
    assert main(["analyze", "depth", "--task", task, *words, *QUICK, "--out", str(tmp_path)]) == 0
    check_page(tmp_path, f"3 {stack} layers")
    assert {row["stack"] for row in rows(tmp_path, "layer_dependency")} == {stack}


def test_a_named_profile_is_read(tmp_path, capsys):
    profile = tmp_path / "profile.ratio.init"
    profile.write_text("".join(f"{number} 3.0\n" for _ in range(2) for number in range(1, 7)))
    line = ["analyze", "depth", *SMALL, *QUICK, "--init-type", "adaptive", "--admin-profile", str(profile)]
    assert main([*line, "--out", str(tmp_path / "out")]) == 0
    shortcuts = [float(row["variance"]) for row in rows(tmp_path / "out", "activation_variance") if row["of"] == "shortcut"]
    assert shortcuts[1:6] == pytest.approx([9.0] * 5, rel=1e-3)
    profile.write_text("1 1.0\n")
    assert main([*line, "--out", str(tmp_path / "other")]) == 2
    assert "does not fit the model" in capsys.readouterr().err


def test_errors(trained, tmp_path, capsys):
    _, checkpoint = trained
    out = ["--out", str(tmp_path / "out")]

    def error(*words):
        assert main(["analyze", "depth", *words]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    assert "--out is missing" in error()
    assert "in rising order" in error(*out, "--sub-layers", "8,4")
    assert "leave out the flags of the model" in error(str(checkpoint), *out, "--encoder-layers", "9")
    assert "--arch has no effect together with --checkpoint" in error(str(checkpoint), *out, "--arch", "tiny")
    assert "there is no checkpoint" in error(str(tmp_path / "nothing.pt"), *out)
    text = write_text(tmp_path / "text", num_lines=3, seed=4)
    other = tmp_path / "other"
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--destdir", str(other), "--workers",
                 "1", "--joined-dictionary"]) == 0
    capsys.readouterr()
    differing = error(str(checkpoint), *out, "--data", str(other))
    assert re.search(r"dictionaries of \d+ and \d+ symbols, the checkpoint of", differing)
    (tmp_path / "file").write_text("")
    assert "cannot be a folder" in error(*SMALL, "--out", str(tmp_path / "file"))
    assert not (tmp_path / "out").exists()

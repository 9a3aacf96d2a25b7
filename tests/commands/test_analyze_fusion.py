"""`lamina analyze fusion`, in-process, on models trained on 60 lines."""

import base64
import csv
import json
import re

import pytest

from lamina.checkpoint.format import load_checkpoint, save_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data

FIGURES = ["fusion_weights", "gate", "masked_layers", "singular_values", "embedding_similarity", "source_attention"]
FUSED = ("--transparent-attention", "--ta-source-embedding", "--surfacefusion", "att")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("analyze"), num_lines=60)


def train(data, name, *flags):
    folder = data.parent / name
    assert main(["train", str(data), *TINY_FLAGS, "--encoder-layers", "2", "--max-tokens", "200", "--max-epoch", "2", "--cpu",
                 "--log-format", "none", "--no-epoch-checkpoints", "--save-dir", str(folder), *flags]) == 0
    return folder / "checkpoint_best.pt"


@pytest.fixture(scope="module")
def fused(data):
    return train(data, "fused", *FUSED)


@pytest.fixture(scope="module")
def plain(data):
    return train(data, "plain")


def analyze(checkpoint, data, out, *flags):
    return main(["analyze", "fusion", str(checkpoint), str(data), "--out", str(out), "--cpu", *flags])


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_figures_numbers_and_page(fused, data, tmp_path):
    out = tmp_path / "deep" / "page"
    assert analyze(fused, data, out, "--sentence", "the $ old <b> boat", "--beam", "2", "--json",
                   str(tmp_path / "figures.json")) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["index.html", "summary.csv", *(f"{name}.{kind}" for name in FIGURES for kind in ("png", "csv"))])
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert [base64.b64decode(image) for image in images] == [(out / f"{name}.png").read_bytes() for name in FIGURES]
    assert not re.search(r'(src|href)="(https?:)?//', page)
    assert re.findall(r'<section id="(\w+)">', page) == FIGURES
    assert "lamina analyze fusion" in page
    assert "&#x27;the $ old &lt;b&gt; boat&#x27;" in page
    assert "a learned mix of encoder layers" in page
    assert "a gate learned for each token" in page
    assert "The softmax also reads the source embeddings, as far as the gate lets it." in page
    assert "6 sentence pairs" in page
    tables = {name: table(out / f"{name}.csv") for name in FIGURES}
    weight = load_checkpoint(fused).weights["memory.weight"]
    assert [float(row["share"]) for row in tables["fusion_weights"]] == pytest.approx(
        weight.softmax(dim=1).flatten().tolist(), abs=1e-5)
    assert [row["masked"] for row in tables["masked_layers"]] == ["nothing", "embedding", "layer 1", "layer 2", "surface"]
    for row in tables["masked_layers"]:
        assert float(row["loss_bits"]) - float(tables["masked_layers"][0]["loss_bits"]) == pytest.approx(
            float(row["loss_change"]), abs=1e-5)
    assert sum(int(row["tokens"]) for row in tables["gate"]) == sum(
        len(line.split()) + 1 for line in (data.parent / "text" / "valid.xx").read_text().splitlines())
    assert [row["source_token"] for row in tables["source_attention"] if row["target_place"] == "1"] == [
        "the", "<unk>", "old", "<unk>", "boat", "</s>"]
    by_target = {}
    for row in tables["source_attention"]:
        by_target[row["target_place"]] = by_target.get(row["target_place"], 0.0) + float(row["weight"])
    assert list(by_target.values()) == pytest.approx([1.0] * len(by_target), abs=1e-4)
    facts = {row["fact"]: row["value"] for row in table(out / "summary.csv")}
    assert 0.0 < float(facts["mean gate"]) < 1.0
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert figures["gate: mean gate"] == pytest.approx(float(facts["mean gate"]), rel=1e-6)


def test_masked_layers_are_judged_by_any_metric_that_compares_with_references(plain, data, tmp_path, capsys):
    assert analyze(plain, data, tmp_path / "chrf", "--metric", "chrf", "--max-pairs", "3") == 0
    assert list(table(tmp_path / "chrf" / "masked_layers.csv")[0]) == [
        "masked", "loss_bits", "loss_change", "chrf", "chrf_change", "length_ratio", "length_ratio_change"]
    assert "chrF, the length of translations" in (tmp_path / "chrf" / "index.html").read_text(encoding="utf-8")
    assert analyze(plain, data, tmp_path / "m2", "--metric", "m2") == 2
    assert "--metric is 'm2'; it must be one of bleu, chrf, ter, rouge1" in capsys.readouterr().err


def test_what_a_model_lacks_is_said_and_an_earlier_page_is_replaced(fused, plain, data, tmp_path):
    assert analyze(fused, data, tmp_path, "--metric", "loss") == 0
    (tmp_path / "notes.txt").write_text("mine")
    assert analyze(plain, data, tmp_path, "--metric", "loss") == 0
    absent = {"fusion_weights", "gate"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["index.html", "summary.csv", "notes.txt", *(f"{name}.{kind}" for name in FIGURES for kind in ("png", "csv")
                                                     if name not in absent)])
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "every decoder layer of this model reads the encoder&#x27;s output and nothing else" in page
    assert "There is no gate: the softmax of this model reads the decoder&#x27;s output alone" in page
    assert "last decoder layer&#x27;s cross-attention" in page
    assert list(table(tmp_path / "masked_layers.csv")[0]) == ["masked", "loss_bits", "loss_change"]


def test_layers_of_a_folded_model_are_not_masked(data, tmp_path):
    """What one hands on is scaled for the next: skipping it would measure nothing."""
    trained = train(data, "admin", "--init-type", "admin", "--max-epoch", "1")
    assert main(["fold", str(trained), "--output", str(tmp_path / "folded.pt")]) == 0
    assert analyze(tmp_path / "folded.pt", data, tmp_path / "out", "--metric", "loss") == 0
    assert not (tmp_path / "out" / "masked_layers.csv").exists()
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "No layer can be masked: the model was folded" in page


def test_the_same_seed_gives_the_same_page(fused, data, tmp_path):
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert analyze(fused, data, tmp_path / name, "--metric", "loss", "--seed", seed, "--max-pairs", "3") == 0
    first, second, third = ({path.name: path.read_bytes() for path in (tmp_path / name).glob("*.csv")} for name in "abc")
    assert first == second
    assert first != third


def test_a_run_that_fails_leaves_the_earlier_page(fused, data, tmp_path, capsys):
    assert analyze(fused, data, tmp_path, "--metric", "loss") == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert analyze(fused, data, tmp_path, "--metric", "loss", "--sentence", "boat " * 2000) == 2
    assert "--sentence has 2001 tokens, more than the 1024 positions" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_given_translation_is_drawn(plain, data, tmp_path):
    assert analyze(plain, data, tmp_path, "--metric", "loss", "--sentence", "the boat", "--target", "BOAT THE") == 0
    rows = table(tmp_path / "source_attention.csv")
    assert list(dict.fromkeys(row["target_token"] for row in rows)) == ["BOAT", "THE", "</s>"]


def test_embeddings_of_two_widths_are_not_compared(data, tmp_path):
    checkpoint = train(data, "widths", "--no-share-all-embeddings", "--decoder-embed-dim", "8", "--max-epoch", "1")
    assert analyze(checkpoint, data, tmp_path, "--metric", "loss") == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "source embeddings have 16 channels and target embeddings 8" in page
    assert {row["embedding"] for row in table(tmp_path / "singular_values.csv")} == {"source", "target", "output"}


def test_errors_are_one_line(plain, data, tmp_path, capsys):
    def error(*words):
        assert main(["analyze", "fusion", *map(str, words)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "DATA is missing" in error(plain, "--out", tmp_path)
    assert "--out is missing" in error(plain, data)
    assert "there is no data folder" in error(plain, tmp_path / "none", "--out", tmp_path / "out")
    assert "there is no checkpoint" in error(tmp_path / "none.pt", data, "--out", tmp_path / "out")
    assert "--max-pairs is -1" in error(plain, data, "--out", tmp_path, "--max-pairs", "-1")
    assert "--target has no effect without --sentence" in error(plain, data, "--out", tmp_path, "--target", "BOAT")
    (tmp_path / "file").write_text("")
    assert "cannot be a folder" in error(plain, data, "--out", tmp_path / "file")
    other = load_checkpoint(plain)
    other.config["task"] = "language_modeling"
    save_checkpoint(tmp_path / "lm.pt", other)
    assert "was trained for --task language_modeling" in error(tmp_path / "lm.pt", data, "--out", tmp_path / "out")


def test_groups_of_commands(capsys):
    for words in (["analyze"], ["analyze", "--help"]):
        assert main(words) == 0
        output = capsys.readouterr().out
        assert "analyze fusion" in output
        assert "preprocess" not in output
    assert main(["analyze", "nothing"]) == 2
    assert "`lamina analyze` must be followed by fusion" in capsys.readouterr().err

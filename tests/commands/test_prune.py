"""`lamina prune`: named layers, searched layers, curves."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint, save_checkpoint
from lamina.cli import main
from lamina.data.corpus import find_languages, load_dictionaries, open_corpus
from tiny import TINY_FLAGS, make_data, write_text

DEPTH = 4
PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]
REAL = {"encoder": (1, 3), "decoder": (0, 3)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A Pre-LN model of four layers a stack, two of which do nothing at all: their branches end in zeros."""
    folder = tmp_path_factory.mktemp("prune")
    data = make_data(folder, num_lines=40)
    assert main(["train", str(data), *TINY_FLAGS, *PRE_NORM, "--encoder-layers", "2", "--decoder-layers", "2", "--max-tokens",
                 "200", "--max-epoch", "60", "--lr", "0.02", "--dropout", "0", "--log-format", "none", "--no-epoch-checkpoints",
                 "--disable-validation", "--save-dir", str(folder / "out")]) == 0
    small = load_checkpoint(folder / "out" / "checkpoint_last.pt")
    weights = {name: weight for name, weight in small.weights.items() if ".layers." not in name}
    for name, weight in small.weights.items():
        if ".layers." in name:
            side, _, layer, rest = name.split(".", 3)
            weights[f"{side}.layers.{REAL[side][int(layer)]}.{rest}"] = weight
            idle = sorted(set(range(DEPTH)) - set(REAL[side]))[int(layer)]
            is_end = rest.startswith(("attention.out_proj", "cross_attention.out_proj", "ffn.fc2"))
            weights[f"{side}.layers.{idle}.{rest}"] = torch.zeros_like(weight) if is_end else weight.clone()
    config = small.config | {f"{side}-layers": DEPTH for side in REAL} | {f"{side}-layerdrop": 0.2 for side in REAL}
    path = folder / "out" / "planted.pt"
    save_checkpoint(path, replace(small, config=config, weights=weights))
    return str(data), str(path)


def prune(capsys, *words):
    code = main(["prune", *map(str, words)])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out.splitlines()


def depths(path):
    config = load_checkpoint(path).model_config()
    return config.encoder.num_layers, config.decoder.num_layers


def test_named_layers(trained, tmp_path, capsys):
    data, path = trained
    lines = prune(capsys, path, "--decoder-layers-to-keep", "every:2", "--output", tmp_path / "small.pt")
    assert lines[:2] == ["| Pruning model to specified layer configuration", f"| decoder layers 0,2 of {DEPTH}"]
    small = load_checkpoint(tmp_path / "small.pt")
    assert lines[2] == f"| num. model params: {sum(weight.numel() for weight in small.weights.values())}"
    assert depths(tmp_path / "small.pt") == (DEPTH, 2)
    assert small.training == {"pruned": "planted.pt"}
    assert (tmp_path / "small.pt").stat().st_size < 0.5 * Path(path).stat().st_size
    for command in (["generate", data, "--path", str(tmp_path / "small.pt"), "--gen-subset", "valid", "--cpu", "--quiet"],
                    ["average", "--inputs", str(tmp_path / "small.pt"), "--output", str(tmp_path / "mean.pt")],
                    ["train", data, *TINY_FLAGS, *PRE_NORM, "--encoder-layers", str(DEPTH), "--decoder-layers", str(DEPTH),
                     "--max-update", "1", "--finetune-from-model", str(tmp_path / "small.pt"), "--save-dir",
                     str(tmp_path / "on")]):
        assert main(command) == 0
    assert depths(tmp_path / "on" / "checkpoint_last.pt") == (DEPTH, 2)
    # Here lists always count the file's own layers, so that one may go on pruning.
    prune(capsys, tmp_path / "small.pt", "--decoder-layers-to-keep", "every:2", "--output", tmp_path / "smaller.pt")
    assert depths(tmp_path / "smaller.pt") == (DEPTH, 1)


@pytest.mark.parametrize("width", [1, 2])
def test_search_finds_layers_that_do_nothing(trained, tmp_path, capsys, width):
    data, path = trained
    lines = prune(capsys, path, data, "--search", "--encoder-layers", 2, "--decoder-layers", 2, "--beam-width", width,
                  "--gen-subset", "train", "--output", tmp_path / "small.pt", "--cpu", "--json", tmp_path / "found.json")
    assert "| encoder layers 1,3 of 4" in lines
    assert "| decoder layers 0,3 of 4" in lines
    values = {line[2:].split("  ")[0].strip(): float(line.split()[-1 if "kept" not in line else -3]) for line in lines
              if line.startswith(("| all layers", "| searched", "| evenly"))}
    assert values["searched"] == pytest.approx(values["all layers"], abs=1e-3)
    assert values["searched"] < values["evenly spaced"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert {row["choice"]: round(row["value"], 3) for row in found["choices"]}.items() >= values.items()
    assert found["kept"]["layers"] == next(row["layers"] for row in found["choices"] if row["choice"] == "searched")
    assert found["figures"] == {"loss": found["kept"]["value"]}
    assert depths(tmp_path / "small.pt") == (2, 2)


def test_search_by_bleu_and_for_one_side(trained, tmp_path, capsys):
    data, path = trained
    lines = prune(capsys, path, data, "--search", "--decoder-layers", 3, "--metric", "bleu", "--output", tmp_path / "small.pt",
                  "--cpu")
    assert "| BLEU, on valid:" in lines
    assert depths(tmp_path / "small.pt") == (DEPTH, 3)
    (series,) = json.loads((tmp_path / "small.search.json").read_text())["series"].values()
    assert series["about"]["metric"] == "bleu"
    # 4 ways to leave out one layer, of which the rules share three, and the whole model.
    assert len(series["results"]) == 5


def test_a_search_that_was_stopped_goes_on(trained, tmp_path, capsys, monkeypatch):
    from lamina.pruning.layer_meter import LayerMeter

    data, path = trained
    measured: list[str] = []
    original = LayerMeter.quality

    def quality(self, subset):
        measured.append(str(subset))
        if len(measured) == 3:
            raise KeyboardInterrupt
        return original(self, subset)

    monkeypatch.setattr(LayerMeter, "quality", quality)
    words = [path, data, "--search", "--decoder-layers", 2, "--gen-subset", "train", "--output", tmp_path / "small.pt", "--cpu"]
    assert main(["prune", *map(str, words)]) == 130
    assert not (tmp_path / "small.pt").exists()
    assert len(json.loads((tmp_path / "small.search.json").read_text())["series"]) == 1
    lines = prune(capsys, *words)
    assert "| decoder layers 0,3 of 4" in lines
    assert len(measured) - len(set(measured)) == 1  # the one that was interrupted
    number = len(measured)
    prune(capsys, *words)
    assert len(measured) == number
    # Another metric, or other weights, is measured anew, in the same file.
    prune(capsys, *words, "--metric", "bleu", "--beam", 2)
    assert len(measured) > number
    assert len(json.loads((tmp_path / "small.search.json").read_text())["series"]) == 2


def test_curve(trained, tmp_path, capsys):
    data, path = trained
    lines = prune(capsys, path, data, "--curve", "decoder", "--gen-subset", "train", "--output", tmp_path / "small.pt", "--cpu",
                  "--json", tmp_path / "curve.json")
    assert lines[-2:] == [f"| wrote {tmp_path / 'small.curve.png'}", f"| wrote {tmp_path / 'small.curve.csv'}"]
    assert (tmp_path / "small.curve.png").read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "small.pt").exists()
    with (tmp_path / "small.curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["depth"] for row in rows] == [str(depth) for depth in (4, 3, 2, 1) for _ in range(4)]
    assert {row["choice"] for row in rows} == {"evenly spaced", "first layers", "last layers", "searched"}
    half = {row["choice"]: row for row in rows if row["depth"] == "2"}
    assert half["searched"]["decoder_layers"] == "0 3"
    assert half["first layers"]["decoder_layers"] == "0 1"
    assert half["last layers"]["decoder_layers"] == "2 3"
    assert half["evenly spaced"]["decoder_layers"] == "0 2"
    assert float(half["searched"]["loss"]) == min(float(row["loss"]) for row in half.values())
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)
    curve = json.loads((tmp_path / "curve.json").read_text())["curve"]
    assert [row["choice"] for row in curve] == [row["choice"] for row in rows]
    assert [row["value"] for row in curve] == pytest.approx([float(row["loss"]) for row in rows], abs=1e-4)


@pytest.mark.parametrize(("words", "message"), [
    (["--output", "{out}"], "which layers are to stay?"),
    (["--output", "{path}", "--decoder-layers-to-keep", "2"], "is one of the inputs"),
    (["--output", "{out}", "--decoder-layers-to-keep", "0,1,2,3"], "there is nothing to prune"),
    (["--output", "{out}", "--decoder-layers-to-keep", "0,4"], "names layer 4, but the decoder of {path} has 4 layers, 0 to 3"),
    (["{data}", "--output", "{out}", "--decoder-layers-to-keep", "2"], "a data folder has no effect without --search"),
    (["--output", "{out}", "--decoder-layers-to-keep", "2", "--metric", "bleu"], "--metric has no effect without --search or"),
    (["--output", "{out}", "--search", "--decoder-layers", "2"], "--search and --curve measure on data"),
    (["{data}", "--output", "{out}", "--search"], "--search needs a budget"),
    (["{data}", "--output", "{out}", "--search", "--decoder-layers", "9"], "--decoder-layers is 9, but {path} has 4"),
    (["{data}", "--output", "{out}", "--search", "--decoder-layers", "4"], "there is nothing to prune"),
    (["{data}", "--output", "{out}", "--search", "--decoder-layers", "0"], "a model needs at least 1 layer"),
    (["{data}", "--output", "{out}", "--decoder-layers", "2", "--curve"], "--decoder-layers has no effect without --search"),
    (["{data}", "--output", "{out}", "--search", "--decoder-layers", "2", "--encoder-layers-to-keep", "2"], "Leave one of"),
    (["{data}", "--output", "{out}", "--search", "--decoder-layers", "2", "--gen-subset", "nothing"], "has no split 'nothing'"),
])
def test_errors(trained, tmp_path, capsys, words, message):
    data, path = trained
    names = {"data": data, "path": path, "out": tmp_path / "small.pt"}
    assert main(["prune", path, *(word.format(**names) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message.format(**names) in error
    assert not (tmp_path / "small.pt").exists()


def test_searches_for_several_depths_share_what_they_measure(trained, tmp_path, capsys, monkeypatch):
    from lamina.pruning.layer_meter import LayerMeter

    data, path = trained
    measured = []
    original = LayerMeter.quality
    monkeypatch.setattr(LayerMeter, "quality", lambda self, subset: measured.append(str(subset)) or original(self, subset))
    for depth in (3, 1, 2):
        prune(capsys, path, data, "--search", "--decoder-layers", depth, "--measurements", tmp_path / "known.json",
              "--output", tmp_path / f"small{depth}.pt", "--cpu")
    assert len(measured) == len(set(measured))
    assert [path.name for path in tmp_path.glob("*.json")] == ["known.json"]


def test_the_measurements_of_something_else_are_not_overwritten(trained, tmp_path, capsys):
    data, path = trained
    (tmp_path / "small.search.json").write_text("my notes")
    words = ["prune", path, data, "--search", "--decoder-layers", "2", "--output", str(tmp_path / "small.pt"), "--cpu"]
    assert main(words) == 2
    assert "cannot be read as such. Remove it" in capsys.readouterr().err
    assert (tmp_path / "small.search.json").read_text() == "my notes"


def test_weights_are_those_of_the_kept_layers(trained, tmp_path, capsys):
    _, path = trained
    prune(capsys, path, "--encoder-layers-to-keep", "3,1", "--output", tmp_path / "small.pt")
    whole, small = load_checkpoint(path).weights, load_checkpoint(tmp_path / "small.pt").weights
    assert torch.equal(small["encoder.layers.0.ffn.fc1.weight"], whole["encoder.layers.1.ffn.fc1.weight"])
    assert torch.equal(small["encoder.layers.1.ffn.fc1.weight"], whole["encoder.layers.3.ffn.fc1.weight"])
    assert torch.equal(small["decoder.layers.3.ffn.fc1.weight"], whole["decoder.layers.3.ffn.fc1.weight"])


def test_a_language_model(tmp_path, capsys):
    text = write_text(tmp_path / "text", 40)
    write_text(text, 10, seed=1, split="valid")
    data = str(tmp_path / "data")
    assert main(["preprocess", "--only-source", "--trainpref", f"{text}/train.en", "--validpref", f"{text}/valid.en",
                 "--destdir", data, "--workers", "1"]) == 0
    assert main(["train", data, "--task", "language_modeling", "--arch", "transformer_lm", "--decoder-layers", "3",
                 "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "16", "--decoder-attention-heads", "2", "--max-tokens",
                 "128", "--tokens-per-sample", "32", "--decoder-layerdrop", "0.5", "--max-update", "3", "--log-format", "none",
                 "--save-dir", str(tmp_path / "full")]) == 0
    full = tmp_path / "full" / "checkpoint_last.pt"
    lines = prune(capsys, full, data, "--search", "--decoder-layers", 2, "--curve", "--cpu", "--output", tmp_path / "small.pt")
    assert any(line.startswith("| decoder layers ") and line.endswith(" of 3") for line in lines)
    assert (tmp_path / "small.curve.png").exists()
    assert load_checkpoint(tmp_path / "small.pt").model_config().decoder.num_layers == 2
    evaluate = ["eval-lm", data, "--gen-subset", "valid", "--cpu", "--path"]
    capsys.readouterr()
    assert main([*evaluate, str(full), "--model-overrides", "{'decoder_layers_to_keep':'0,2'}"]) == 0
    on_demand = capsys.readouterr().out.splitlines()
    assert on_demand[0] == "| Pruning model to specified layer configuration"
    prune(capsys, full, "--decoder-layers-to-keep", "0,2", "--output", tmp_path / "half.pt")
    assert main([*evaluate, str(tmp_path / "half.pt")]) == 0
    assert capsys.readouterr().out.splitlines() == on_demand[1:]
    for words, message in ((["--encoder-layers-to-keep", "1"], "--encoder-layers-to-keep has no effect: the language_modeling"),
                           ([data, "--search", "--encoder-layers", "1"], "--encoder-layers has no effect: "),
                           ([data, "--curve", "encoder"], f"--curve encoder has nothing to draw: {full} has no encoder"),
                           ([data, "--curve", "--metric", "bleu"], "--metric bleu is for translations")):
        assert main(["prune", str(full), *words, "--output", str(tmp_path / "other.pt")]) == 2
        assert message in capsys.readouterr().err


def test_bleu_of_text_that_came_tokenized_is_of_its_tokens(tmp_path, capsys):
    """In the search, too, and what was measured otherwise is not taken for it."""
    text = write_text(tmp_path / "text", 20)
    for file in text.iterdir():
        file.write_text("".join(f"it &apos;s {line} .\n" for line in file.read_text().splitlines()))
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--destdir", str(tmp_path / "data"),
                 "--workers", "1", "--joined-dictionary"]) == 0
    assert main(["train", str(tmp_path / "data"), *TINY_FLAGS, "--decoder-layers", "2", "--decoder-layerdrop", "0.2",
                 "--max-update", "1", "--disable-validation", "--save-dir", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    lines = prune(capsys, tmp_path / "out" / "checkpoint_last.pt", tmp_path / "data", "--search", "--decoder-layers", "1",
                  "--metric", "bleu", "--gen-subset", "train", "--output", tmp_path / "small.pt", "--cpu")
    assert lines[0] == "| BLEU, tokens as they stand (tok:none), on train:"
    (series,) = json.loads((tmp_path / "small.search.json").read_text())["series"].values()
    assert series["about"]["tokenized"] is True
    capsys.readouterr()
    assert main(["analyze", "fusion", str(tmp_path / "out" / "checkpoint_last.pt"), str(tmp_path / "data"), "--gen-subset",
                 "train", "--out", str(tmp_path / "page"), "--cpu"]) == 0
    assert "tok:none" in (tmp_path / "page" / "summary.csv").read_text()


# -- importance, and healing


@pytest.mark.parametrize("kind", ["influence", "loss"])
def test_a_guess_in_one_pass_finds_layers_that_do_nothing(trained, tmp_path, capsys, kind):
    """As the exact search does, and with the same figure for them."""
    data, path = trained
    budget = ["--search", "--encoder-layers", "2", "--decoder-layers", "2", "--gen-subset", "train"]
    lines = prune(capsys, path, data, *budget, "--importance", kind, "--output", tmp_path / "small.pt")
    exact = prune(capsys, path, data, *budget, "--output", tmp_path / "exact.pt")
    guess = next(line for line in lines if line.startswith(f"| by {kind}"))
    assert "encoder 1,3; decoder 0,3 " in guess
    worth = {words[3]: [float(word) for word in words[5:]] for words in map(str.split, lines) if words[1] == kind}
    assert set(worth) == {"encoder", "decoder"}
    for side, numbers in worth.items():
        idle = [number for layer, number in enumerate(numbers) if layer not in REAL[side]]
        assert max(idle) < 1e-4 < min(numbers[layer] for layer in REAL[side])
    # As good as all layers, and by the same figures as those of the search.
    figures = [re.findall(r"\d+\.\d+", line) for line in (guess, next(line for line in exact if "| all layers" in line))]
    assert figures[0] == figures[1]


def test_the_angular_guess_takes_out_a_block(trained, tmp_path, capsys):
    data, path = trained
    lines = prune(capsys, path, data, "--search", "--decoder-layers", "2", "--importance", "angular", "--output",
                  tmp_path / "small.pt")
    distances = next([float(word) for word in line.split()[9:]] for line in lines if "decoder layers: " in line)
    assert len(distances) == 3  # blocks of two among four layers
    assert min(distances) == distances[1]
    assert any(line.startswith("| by angular") and "decoder 0,3" in line for line in lines)


@pytest.mark.parametrize("teacher", ["0.5", "0"])
def test_healing_trains_the_cut_model_and_writes_the_best_of_it(trained, tmp_path, capsys, teacher):
    data, path = trained
    output = tmp_path / "healed.pt"
    lines = prune(capsys, path, data, "--encoder-layers-to-keep", "even:1", "--output", output, "--heal", "10", "--heal-lr",
                  "0.01", "--distill-weight", teacher, "--cpu")
    assert any("learning from" in line for line in lines) == (teacher == "0.5")
    assert any("10 updates are done" in line for line in lines)
    healed, cut = load_checkpoint(output), load_checkpoint(tmp_path / "healed.heal" / "cut.pt")
    assert depths(output) == (1, DEPTH)
    assert healed.training["healed"] == 10
    assert healed.weights.keys() == cut.weights.keys()
    assert any(not torch.equal(weight, cut.weights[name]) for name, weight in healed.weights.items())
    assert main(["generate", data, "--path", str(output), "--gen-subset", "valid", "--quiet", "--cpu"]) == 0


def test_healing_on_what_the_whole_model_says(trained, tmp_path, capsys):
    data, path = trained
    output = tmp_path / "healed.pt"
    words = ("--encoder-layers-to-keep", "even:1", "--output", output, "--heal", "4", "--cpu")
    lines = prune(capsys, path, data, *words, "--distill", "sequence")
    assert not any("learning from" in line for line in lines)
    text = tmp_path / "healed.heal" / "translated"
    healed, last = load_checkpoint(output), load_checkpoint(tmp_path / "healed.heal" / "checkpoint_last.pt")
    assert healed.training["healed"] == 4
    assert all(torch.equal(weight, last.weights[name]) for name, weight in healed.weights.items())
    # Its targets are the whole model's translations; sources, validation text and dictionaries are the folder's.
    languages = find_languages(Path(data), "train", None, None)
    _, target = load_dictionaries(text, languages)
    sizes = tuple(map(len, load_dictionaries(text, languages)))
    for split in ("train", "valid"):
        ours, theirs = (open_corpus(folder, split, languages, sizes) for folder in (text, Path(data)))
        assert [list(pair.source) for pair in ours] == [list(pair.source) for pair in theirs]
        assert ([list(pair.target) for pair in ours] == [list(pair.target) for pair in theirs]) == (split == "valid")
    assert main(["generate", data, "--path", str(path), "--gen-subset", "train", "--beam", "5", "--cpu"]) == 0
    said = dict(line[2:].split("\t")[::2] for line in capsys.readouterr().out.splitlines() if line.startswith("H-"))
    ours = open_corpus(text, "train", languages, sizes)
    assert all(" ".join(target.symbols[token] for token in ours[index].target[:-1]) == said[str(index)]
               for index in range(len(ours)))
    assert main(["train", str(text), "--max-tokens", "64", "--plan", "--verify", "full", "--cpu"]) == 0
    capsys.readouterr()
    # What was begun is continued, and not mixed with another kind.
    assert main(["prune", path, data, *map(str, words)]) == 2
    assert "with another --distill left" in capsys.readouterr().err


def test_translations_of_another_dictionary_or_of_no_translator_are_refused(trained, tmp_path, capsys):
    _, path = trained
    words = ("--output", str(tmp_path / "healed.pt"), "--heal", "2", "--distill", "sequence", "--cpu")
    other = make_data(tmp_path / "other", num_lines=5)
    keep = ("--encoder-layers-to-keep", "even:1")
    assert main(["prune", path, str(other), *keep, *words]) == 2
    assert re.search(r"was trained with the \w+ dictionary \w+, but .* has", capsys.readouterr().err)
    text = tmp_path / "lm"
    text.mkdir()
    (text / "train").write_text("a b c d\n" * 20)
    assert main(["preprocess", "--only-source", "--trainpref", f"{text}/train", "--validpref", f"{text}/train", "--destdir",
                 f"{text}/bin", "--workers", "1"]) == 0
    assert main(["train", f"{text}/bin", "--task", "language_modeling", "--arch", "tiny_lm", "--decoder-layers", "2",
                 "--max-tokens", "64", "--tokens-per-sample", "16", "--max-update", "1", "--cpu", "--save-dir",
                 f"{text}/out"]) == 0
    capsys.readouterr()
    assert main(["prune", f"{text}/out/checkpoint_last.pt", f"{text}/bin", "--decoder-layers-to-keep", "0", *words]) == 2
    assert "--task language_modeling makes none" in capsys.readouterr().err
    assert not list(tmp_path.glob("healed*"))


def test_healing_that_makes_no_sense_is_refused(trained, tmp_path, capsys):
    data, path = trained
    output = tmp_path / "healed.pt"
    for words, why in (
        ([path, "--encoder-layers-to-keep", "1", "--heal", "5"], "give the data folder"),
        ([path, data, "--heal", "5"], "which layers are to stay|needs a model to heal"),
        ([path, data, "--encoder-layers-to-keep", "1", "--heal-lr", "0.1"], "--heal"),
        ([path, data, "--encoder-layers-to-keep", "1", "--distill", "sequence"], "--heal"),
        ([path, data, "--search", "--encoder-layers", "2", "--importance", "loss", "--beam-width", "2"], "ranks the layers"),
        ([path, "--encoder-layers-to-keep", "1", "--importance", "loss"], "--importance has no effect without"),
    ):
        assert main(["prune", *words, "--output", str(output)]) == 2, why
        assert re.search(why, capsys.readouterr().err), why
        assert not list(tmp_path.iterdir())
    prune(capsys, path, data, "--encoder-layers-to-keep", "1", "--output", output, "--heal", "1", "--cpu")
    assert main(["prune", path, data, "--encoder-layers-to-keep", "3", "--output", str(output), "--heal", "1", "--cpu"]) == 2
    assert "holds what healing another model left" in capsys.readouterr().err

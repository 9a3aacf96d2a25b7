"""`lamina calibrate`, and what keeps to its threshold: `generate --cascade`, `interactive --cascade`, depth "auto"."""

import io
import json
import math
import sys
from dataclasses import replace

import pytest

import lamina
from lamina.cli import main
from lamina.decode.cascade import Cascade, confidence
from lamina.errors import ConfigError
from tiny import TINY_FLAGS, make_data

OPTIONS = ["--beam", "2", "--max-len-b", "12"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder, a checkpoint that is better with all its layers, and its cascade."""
    folder = tmp_path_factory.mktemp("cascade")
    data = make_data(folder, num_lines=30)
    assert main(["train", str(data), *TINY_FLAGS, "--encoder-layers", "3", "--decoder-layers", "2", "--encoder-embed-dim", "32",
                 "--encoder-layerdrop", "0.2", "--decoder-layerdrop", "0.2", "--max-tokens", "500", "--max-update", "100",
                 "--lr", "0.01", "--warmup-updates", "20", "--log-format", "none", "--save-interval", "1000",
                 "--disable-validation", "--save-dir", str(folder / "out")]) == 0
    path = folder / "out" / "checkpoint_last.pt"
    assert main(["calibrate", str(path), str(data), "--cpu", "--depth", "2-1", "--gen-subset", "train", "--max-loss", "100",
                 *OPTIONS]) == 0
    file = path.with_suffix(".cascade.json")
    # All may be lost, so all is kept: tests want some of each kind.
    cascade = Cascade.load(file)
    curve = cascade.figures["curve"]
    middle = curve[len(curve) // 2]
    assert cascade.threshold == curve[-1]["threshold"]
    replace(cascade, threshold=middle["threshold"], figures=cascade.figures | {"cascade": middle}).save(file)
    return data, path, file


def generate(capsys, trained, *flags, subset="train"):
    capsys.readouterr()
    code = main(["generate", str(trained[0]), "--path", str(trained[1]), "--gen-subset", subset, "--cpu", *OPTIONS, *flags])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured


def fails(capsys, *words):
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


def hypotheses(captured):
    return {line.split("\t")[0]: line.split("\t")[1:] for line in captured.out.splitlines() if line.startswith("H-")}


def test_the_file_says_what_was_measured_and_generate_gives_it(trained, capsys, tmp_path):
    cascade = Cascade.load(trained[2])
    figures = cascade.figures
    assert (cascade.depth, cascade.search) == ({"encoder": "0,1", "decoder": "0"}, {"beam": 2, "max_len_b": 12})
    assert figures["whole"]["bleu"] > 0.0
    captured = generate(capsys, trained, "--cascade", "--json", str(tmp_path / "figures.json"))
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["figures"]["bleu"] == pytest.approx(figures["cascade"]["bleu"])
    assert 1.0 - found["repeated"] / found["sentences"] == pytest.approx(figures["cascade"]["kept"])
    assert f"translated {found['repeated']} sentences again" in captured.err


def test_each_line_is_the_shallow_one_or_the_whole_one(trained, capsys):
    cascade = Cascade.load(trained[2])
    mixed = hypotheses(generate(capsys, trained, "--cascade"))
    whole = hypotheses(generate(capsys, trained))
    shallow = hypotheses(generate(capsys, trained, "--encoder-layers-to-keep", "0,1", "--decoder-layers-to-keep", "0"))
    # H- lines have means of logarithms to the base 2, rounded to six places.
    bits = cascade.threshold / math.log(2) - 1e-6
    assert mixed not in (whole, shallow)
    for name, found in mixed.items():
        assert found == (shallow if float(shallow[name][0]) >= bits else whole)[name]


def test_python_and_interactive_do_the_same(trained, capsys, monkeypatch):
    model = lamina.load(trained[1], device="cpu")
    lines = ["the old boat sings", "a bird", "", "the small river", "moon sings a song"]
    found = model.translate(lines, depth="auto", cascade=trained[2], beam=2, max_len_b=12)
    threshold = Cascade.load(trained[2]).threshold
    shallow, whole = (model.translate(lines, depth=depth, beam=2, max_len_b=12) for depth in ("2-1", None))
    for own, few, every in zip(found, shallow, whole, strict=True):
        is_sure = not few.token_scores or sum(few.token_scores) / len(few.token_scores) >= threshold
        assert own == (few if is_sure else every)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    capsys.readouterr()
    assert main(["interactive", "--path", str(trained[1]), "--cpu", "--cascade", str(trained[2]), "--plain", *OPTIONS]) == 0
    assert capsys.readouterr().out.splitlines() == [own.text for own in found]


def test_confidence_is_the_mean_whatever_hypotheses_are_compared_by(trained):
    model = lamina.load(trained[1], device="cpu")
    for options in ({}, {"lenpen": 0.3}, {"unnormalized": True}):
        own = model.translate("the old boat", beam=2, **options)
        assert confidence(own) == pytest.approx(sum(own.token_scores) / len(own.token_scores))


def test_other_options_are_told(trained, capsys):
    assert "(--lenpen)" in generate(capsys, trained, "--cascade", "--lenpen", "0.5").err
    assert "other options" not in generate(capsys, trained, "--cascade", "--nbest", "2").err


def test_mistakes_are_told_in_a_line(trained, capsys, tmp_path):
    data, path, file = trained
    general = ["generate", data, "--path", path, "--cpu", "--cascade"]
    assert "there is no cascade" in fails(capsys, *general, tmp_path / "nothing.json")
    assert "is not a cascade" in fails(capsys, *general, written(tmp_path / "other.json", "{}"))
    assert "cannot be read as a cascade" in fails(capsys, *general, written(tmp_path / "broken.json", "{"))
    damaged = written(tmp_path / "damaged.json", json.dumps(json.loads(file.read_text()) | {"threshold": "high"}))
    assert "is damaged" in fails(capsys, *general, damaged)
    assert "chosen for the model" in fails(capsys, *general, file, "--decoder-layers-to-keep", "1")
    assert "no effect together with --score-reference" in fails(capsys, *general, file, "--score-reference")
    model = lamina.load(path, device="cpu")
    with pytest.raises(ConfigError, match="needs a cascade"):
        model.translate("a bird", depth="auto")
    with pytest.raises(ConfigError, match="has no effect at a depth of its own"):
        model.translate("a bird", depth="half", cascade=file)
    with pytest.raises(ConfigError, match="not a choice of layers"):
        model.active_layers("auto")


@pytest.mark.parametrize(("flags", "said"), [
    (["--depth", "3-2"], "all of this model's layers, 3-2"), (["--depth", "9-1"], "asks for 9 layers"),
    (["--depth", "auto"], "no depth that a cascade can begin with"), (["--depth", "deep"], "the depth is 'deep'"),
    (["--max-loss", "-1"], "--max-loss is -1.0"), (["--sampling"], "--sampling draws at random"),
    (["--gen-subset", "nothing"], "nothing"), (["--output", "no/such/folder/file.json"], "there is no folder")])
def test_calibrate_refuses(trained, capsys, flags, said):
    before = trained[2].read_text()
    assert said in fails(capsys, "calibrate", trained[1], trained[0], "--cpu", *OPTIONS, *flags)
    assert trained[2].read_text() == before


def test_a_cascade_that_may_keep_nothing_is_not_written(trained, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("lamina.pruning.calibration.Curve.chosen", lambda self, loss: self.points[0])
    said = fails(capsys, "calibrate", trained[1], trained[0], "--cpu", "--gen-subset", "train", *OPTIONS, "--output",
                 tmp_path / "file.json")
    assert "not even the surest" in said
    assert not (tmp_path / "file.json").exists()


def written(path, text):
    path.write_text(text)
    return path

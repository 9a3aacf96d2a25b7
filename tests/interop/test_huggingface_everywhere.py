"""Models of every family of Hugging Face's in the commands: what holds for models of our own holds for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from huggingface_models import (
    SENTENCES,
    bart_folder,
    fsmt_folder,
    m2m_folder,
    mbart_folder,
    nllb_folder,
    roberta_folder,
)
from huggingface_parity import TARGETS, quiet
from lamina.cli import main
from lamina.parts.model_manners import FirstTokens
from served import running_server

PAIRS = list(zip(SENTENCES[:4], TARGETS, strict=True))
MAKE: dict[str, Any] = {
    "bart": lambda folder: bart_folder(folder, end_bias=7.0),
    "fsmt": lambda folder: fsmt_folder(folder, seed=3, end=3.0),
    "m2m_100": lambda folder: m2m_folder(folder, end=1.0),
    "nllb": lambda folder: nllb_folder(folder, end=1.0),
    "legacy nllb": lambda folder: nllb_folder(folder, is_legacy=True, end=1.0),
    "mbart": lambda folder: mbart_folder(folder, end=1.0),
    "mbart50": lambda folder: mbart_folder(folder, is_mbart50=True, end=1.0),
}


@pytest.fixture(scope="module", params=MAKE)
def folder(request, tmp_path_factory) -> Path:
    return MAKE[request.param](tmp_path_factory.mktemp("family") / request.param.replace(" ", "_"))


def loaded(path: Path, **how: Any) -> Any:
    return lamina.load(path, device="cpu", notice=quiet, **how)


def texts(model: Any) -> list[str]:
    return [found.text for found in model.translate(SENTENCES, beam=2)]


def said(capsys: Any, command: list[str]) -> str:
    capsys.readouterr()
    assert main(command) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_it_can_do_what_all_models_can(tmp_path, folder, capsys):
    """Convert, average, prune, quantize, export, rescore and translate lines."""
    ours, native = loaded(folder), tmp_path / "native.pt"
    expected, likelihoods = texts(ours), [score.total for score in ours.score(PAIRS)]
    said(capsys, ["convert", str(folder), "--output", str(native)])
    said(capsys, ["average", "--inputs", str(folder), str(native), "--output", str(tmp_path / "mean.pt")])
    said(capsys, ["export", str(folder), "--format", "safetensors", "--output", str(tmp_path / "exported")])
    for path in (native, tmp_path / "mean.pt", tmp_path / "exported"):
        assert texts(loaded(path)) == expected
    said(capsys, ["prune", str(folder), "--output", str(tmp_path / "small.pt"), "--decoder-layers-to-keep", "0,"])
    assert texts(loaded(tmp_path / "small.pt")) == texts(ours.prune(decoder=[0]))
    rounded = loaded(folder, quantize="int8")
    assert [score.total for score in rounded.score(PAIRS)] == pytest.approx(likelihoods, rel=0.1)
    for name, lines in (("source", SENTENCES[:4]), ("target", TARGETS)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = said(capsys, ["rescore", "--path", str(folder), "--source", str(tmp_path / "source"), "--target",
                        str(tmp_path / "target"), "--cpu"])
    found = [float(line.split("\t")[2]) for line in out.splitlines() if line.startswith("H-")]
    assert found == pytest.approx([total / float(torch.tensor(2.0).log()) for total in likelihoods], abs=1e-3)
    out = said(capsys, ["interactive", "--path", str(folder), "--input", str(tmp_path / "source"), "--beam", "2", "--cpu"])
    assert [line.split("\t")[2] for line in out.splitlines() if line.startswith("D-")] == expected[:4]


def test_ctranslate2_takes_it_or_says_why_not(tmp_path, folder, capsys):
    ctranslate2 = pytest.importorskip("ctranslate2")
    status = main(["export", str(folder), "--format", "ctranslate2", "--output", str(tmp_path / "out")])
    if folder.name in ("mbart", "legacy_nllb"):
        assert status == 2
        assert "CTranslate2 has no --encoder-reads" in capsys.readouterr().err
        return
    assert status == 0
    ours = loaded(folder)
    first = [ours.vocabularies[1].symbols[token] for rule in ours.models[0].rules if isinstance(rule, FirstTokens)
             for token in rule.first_tokens]
    theirs = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32")
    pieces = [ours.subwords[0].encode(sentence) for sentence in SENTENCES]
    found = theirs.translate_batch(pieces, beam_size=1, max_decoding_length=20, target_prefix=[first] * len(pieces))
    for result, own in zip(found, ours.translate(SENTENCES, beam=1, max_length_offset=20), strict=True):
        spoken = [token for token in result.hypotheses[0] if token != "<s>"]
        assert spoken == [token for token in own.tokens if token != "</s>"][: len(spoken)]


@pytest.fixture(scope="module")
def data(folder, tmp_path_factory) -> Path:
    place, (source, target) = tmp_path_factory.mktemp("data"), loaded(folder).languages
    for language, lines in ((source, SENTENCES[:4]), (target, TARGETS)):
        (place / f"train.{language}").write_text("\n".join(lines * 4) + "\n", encoding="utf-8")
    assert main(["preprocess", "-s", source, "-t", target, "--trainpref", str(place / "train"), "--validpref",
                 str(place / "train"), "--like", str(folder), "--destdir", str(place / "bin"), "--workers", "1"]) == 0
    return place / "bin"


def test_it_is_fine_tuned_with_the_flags_that_are_named(tmp_path, folder, data, capsys):
    """Without them the run says which; with them it begins from the model itself, and LayerDrop comes on top."""
    command = ["train", str(data), "--finetune-from-model", str(folder), "--save-dir", str(tmp_path / "fine"), "--cpu",
               "--max-update", "2", "--max-tokens", "400", "--no-epoch-checkpoints"]
    capsys.readouterr()
    assert main([*command, "--lr", "1e-4"]) == 2
    named = re.search(r"has other flags than this run: use (--.*)\.$", capsys.readouterr().err.strip())
    assert named, "the flags of the model"
    flags = [*named[1].split(), "--encoder-layerdrop", "0.2", "--decoder-layerdrop", "0.2"]
    said(capsys, [*command, *flags, "--lr", "1e-20"])
    before, still = loaded(folder), loaded(tmp_path / "fine" / "checkpoint_last.pt")
    assert texts(still) == texts(before)
    assert still.models[0].rules == before.models[0].rules
    said(capsys, [*command, *flags, "--lr", "1e-3", "--max-update", "4", "--reset-optimizer"])
    assert main(["prune", str(tmp_path / "fine" / "checkpoint_last.pt"), "--decoder-layers-to-keep", "1,", "--output",
                 str(tmp_path / "small.pt")]) == 0


def test_it_translates_data_and_is_searched_for_layers(tmp_path, folder, data, capsys):
    out = said(capsys, ["generate", str(data), "--path", str(folder), "--gen-subset", "valid", "--beam", "2", "--cpu"])
    ours = loaded(folder)
    found = {int(line.split("\t")[0][2:]): line.split("\t")[2] for line in out.splitlines() if line.startswith("D-")}
    assert [found[number] for number in range(4)] == texts(ours)[:4]
    said(capsys, ["prune", str(folder), str(data), "--search", "--decoder-layers", "1", "--output",
                  str(tmp_path / "small.pt"), "--cpu"])
    assert len(loaded(tmp_path / "small.pt").models[0].decoder.layers) == 1


def test_it_is_served_at_any_depth(folder):
    ours = loaded(folder)
    source, target = ours.languages
    with running_server([ours], names=(f"{source}-{target}",), defaults={}) as server:
        for depth, model in ((None, ours), ({"decoder": "0,"}, ours.prune(decoder=[0]))):
            asked = {"q": SENTENCES, "source": source, "target": target, "format": "text"} | ({"depth": depth} if depth else {})
            status, _, answer = server.ask("/translate", asked)
            assert status == 200, answer
            assert answer["translatedText"] == [found.text for found in model.translate(SENTENCES)]


def test_a_masked_model_is_trained_further(tmp_path, capsys):
    """On text that is cut as it does, with the flags that the run names."""
    folder = roberta_folder(tmp_path / "roberta")
    (tmp_path / "train").write_text("\n".join(SENTENCES * 8) + "\n", encoding="utf-8")
    said(capsys, ["preprocess", "--only-source", "--trainpref", str(tmp_path / "train"), "--validpref", str(tmp_path / "train"),
                  "--like", str(folder), "--destdir", str(tmp_path / "bin"), "--workers", "1"])
    command = ["train", str(tmp_path / "bin"), "--task", "masked_lm", "--finetune-from-model", str(folder), "--save-dir",
               str(tmp_path / "fine"), "--cpu", "--max-update", "2", "--max-tokens", "400", "--lr", "1e-20",
               "--no-epoch-checkpoints"]
    capsys.readouterr()
    assert main(command) == 2
    named = re.search(r"has other flags than this run: use (--.*)\.$", capsys.readouterr().err.strip())
    assert named
    said(capsys, [*command, *named[1].split(), "--encoder-layerdrop", "0.2"])
    text = "the old <mask> sings near"
    found, expected = (loaded(path).fill_mask(text) for path in (tmp_path / "fine" / "checkpoint_last.pt", folder))
    assert [filling.text for filling in found] == [filling.text for filling in expected]
    said(capsys, ["prune", str(folder), "--encoder-layers-to-keep", "1,", "--output", str(tmp_path / "small.pt")])
    assert len(loaded(tmp_path / "small.pt").models[0].encoder.layers) == 1

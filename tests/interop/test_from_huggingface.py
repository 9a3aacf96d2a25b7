"""Models of Hugging Face's, saved by transformers itself: the same function, the same texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import lamina
from huggingface_models import SENTENCES, marian_folder
from huggingface_parity import TARGETS, check_log_probs, check_texts, opened, quiet
from lamina.cli import main
from lamina.errors import CheckpointError
from lamina.interop.any_format import load_any
from lamina.interop.to_fairseq import fairseq_content


@pytest.mark.parametrize("is_separate", [False, True], ids=["shared", "separate"])
def test_marian_computes_the_same(tmp_path, is_separate):
    tokenizer, theirs, ours = opened(marian_folder(tmp_path / "opus", is_separate=is_separate))
    if not is_separate:
        check_log_probs(tokenizer, theirs, ours, SENTENCES[:4], TARGETS)
    check_texts(tokenizer, theirs, ours)


@pytest.mark.parametrize("renormalizes", [False, True])
def test_marian_ends_where_theirs_ends(tmp_path, renormalizes):
    lengths: set[int] = set()
    for end_bias in (3.0, 5.0, 6.0):
        folder = marian_folder(tmp_path / f"opus{end_bias}", end_bias=end_bias)
        described = json.loads((folder / "generation_config.json").read_text())
        (folder / "generation_config.json").write_text(json.dumps({**described, "renormalize_logits": renormalizes}))
        lengths |= set(check_texts(*opened(folder)))
    assert len(lengths) > 3


def test_a_marian_model_can_do_what_all_models_can(tmp_path, capsys):
    """Convert, average, prune, rescore, quantize and export, with the same texts as the folder's."""
    folder = marian_folder(tmp_path / "opus", end_bias=5.0)
    ours = lamina.load(folder, device="cpu", notice=quiet)
    expected = [found.text for found in ours.translate(SENTENCES, beam=2)]
    native = tmp_path / "opus.pt"
    assert main(["convert", str(folder), "--output", str(native)]) == 0
    assert "[en] 77 types, [xx] 77 types" in capsys.readouterr().out
    assert main(["average", "--inputs", str(folder), str(native), "--output", str(tmp_path / "mean.pt")]) == 0
    assert main(["export", str(folder), "--format", "safetensors", "--output", str(tmp_path / "exported")]) == 0
    for path in (native, tmp_path / "mean.pt", tmp_path / "exported"):
        assert [found.text for found in lamina.load(path, device="cpu").translate(SENTENCES, beam=2)] == expected
    assert main(["prune", str(folder), "--output", str(tmp_path / "small.pt"), "--decoder-layers-to-keep", "0"]) == 0
    small = lamina.load(tmp_path / "small.pt", device="cpu", notice=quiet)
    pairs = list(zip(SENTENCES[:4], TARGETS, strict=True))
    assert [found.ids for found in small.translate(SENTENCES)] == [
        found.ids for found in ours.prune(decoder=[0]).translate(SENTENCES)]
    assert [score.total for score in small.score(pairs)] != [score.total for score in ours.score(pairs)]
    rounded = lamina.load(folder, device="cpu", quantize="int8", notice=quiet)
    assert [score.total for score in rounded.score(pairs)] == pytest.approx(
        [score.total for score in ours.score(pairs)], rel=0.1)
    with pytest.raises(CheckpointError, match="fairseq has no"):
        fairseq_content(load_any(folder))


def test_marian_in_ctranslate2(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    folder = marian_folder(tmp_path / "opus", end_bias=3.0)
    assert main(["export", str(folder), "--format", "ctranslate2", "--output", str(tmp_path / "out")]) == 0
    ours = lamina.load(folder, device="cpu", notice=quiet)
    theirs = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32")
    pieces = [ours.subwords[0].encode(sentence) for sentence in SENTENCES]
    found = theirs.translate_batch(pieces, beam_size=1, max_decoding_length=20)
    expected = ours.translate(SENTENCES, beam=1, max_length_offset=20)
    for result, own in zip(found, expected, strict=True):
        assert result.hypotheses[0] == [token for token in own.tokens if token != "</s>"][: len(result.hypotheses[0])]


def test_pickled_weights_are_tensors_or_nothing(tmp_path):
    folder = marian_folder(tmp_path / "opus")
    ours = lamina.load(folder, device="cpu", notice=quiet)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    again = lamina.load(folder, device="cpu", notice=quiet)
    assert again.translate(SENTENCES) == ours.translate(SENTENCES)

    class Boom:
        def __reduce__(self):
            return (Path(tmp_path / "was-run").touch, ())

    torch.save({**weights, "boom": Boom()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="only tensors and plain values are read"):
        load_any(folder)
    assert not (tmp_path / "was-run").exists()


def damaged(name: str, change: Any) -> Any:
    def apply(folder: Path) -> None:
        described = json.loads((folder / name).read_text())
        change(described)
        (folder / name).write_text(json.dumps(described))

    return apply


@pytest.mark.parametrize(("break_it", "message"), [
    (lambda folder: (folder / "source.spm").unlink(), "lacks source.spm, the sentencepiece model of the source side"),
    (lambda folder: (folder / "source.spm").write_bytes(b"nonsense"), "is not a sentencepiece model"),
    (lambda folder: (folder / "vocab.json").unlink(), "lacks vocab.json"),
    (lambda folder: (folder / "vocab.json").write_text("[]"), "does not hold a JSON object"),
    (lambda folder: (folder / "vocab.json").write_text("{"), "cannot be read as JSON"),
    (damaged("vocab.json", lambda words: words.update(more=9999)), "has the id 9999"),
    (damaged("vocab.json", lambda words: words.update(more="x")), "ids are numbers"),
    (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"12345678nonsense"), "cannot be read as safetensors"),
    (damaged("config.json", lambda config: config.update(model_type="t5")), "'t5': its attention has relative positions"),
    (damaged("config.json", lambda config: config.update(model_type="gpt2")), "'gpt2': its blocks fit, but its dictionary"),
    (damaged("config.json", lambda config: config.update(model_type="opt")), "model_type 'opt', which Lamina does not read"),
    (damaged("config.json", lambda config: config.update(auto_map={"AutoModel": "code.Model"})), "code of its own"),
    (damaged("config.json", lambda config: config.update(activation_function="xielu")), "activation_function='xielu'"),
    (damaged("config.json", lambda config: config.update(d_model=10**6)), "describe a model of more than"),
    (damaged("config.json", lambda config: config.update(encoder_layers="six")), "encoder_layers='six'"),
    (damaged("config.json", lambda config: config.update(normalize_before=True)), "normalize_before=True"),
    (damaged("config.json", lambda config: config.update(encoder_layers=3)), "lacks the parameters behind"),
    (damaged("generation_config.json", lambda config: config.update(decoder_start_token_id=10**6)),
     "decoder_start_token_id is 1000000"),
    (damaged("generation_config.json", lambda config: config.update(repetition_penalty=1.2)), "repetition_penalty=1.2"),
    (damaged("generation_config.json", lambda config: config.update(bad_words_ids=[[3, 4]])), "phrases of several tokens"),
])
def test_damaged_folders_are_refused_in_one_line(tmp_path, capsys, break_it, message):
    folder = marian_folder(tmp_path / "opus")
    break_it(folder)
    capsys.readouterr()
    assert main(["convert", str(folder), "--output", str(tmp_path / "out.pt")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("|")]
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize(("path", "message"), [
    ("hf://just-a-name", "names no model on the Hugging Face Hub"),
    ("hf://nobody/nothing-of-the-kind", "cannot be downloaded"),
])
def test_the_hub_says_no_in_one_line(path, message, monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub", reason="the package huggingface_hub is not installed")

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network\nmore of it")

    monkeypatch.setattr(hub, "list_repo_files", refuse)
    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(CheckpointError, match=message) as caught:
        lamina.load(path, device="cpu", notice=quiet)
    assert "\n" not in str(caught.value)


def test_a_model_of_the_hub_is_loaded_like_a_folder(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub", reason="the package huggingface_hub is not installed")
    folder, asked = marian_folder(tmp_path / "opus"), []

    def download(name: str, **how: Any) -> str:
        asked.append((name, how["allow_patterns"]))
        return str(folder)

    monkeypatch.setattr(hub, "list_repo_files", lambda name: ["model.safetensors"])
    monkeypatch.setattr(hub, "snapshot_download", download)
    model = lamina.load("hf://helsinki/opus:hf://helsinki/opus", device="cpu", notice=quiet)
    assert len(model.models) == 2
    assert asked[0][0] == "helsinki/opus"
    assert not any(pattern.endswith((".bin", ".py")) for pattern in asked[0][1])

"""Models in folders: what is written can be read back, by us and in fairseq's names, and the card says what it is."""

import json
import re
from dataclasses import replace

import pytest
import torch

import lamina
from fairseq_files import fixture_content, write_fixture_file
from golden_files import read_json, read_tensors
from lamina.checkpoint.format import load_checkpoint, save_checkpoint
from lamina.cli import main
from lamina.errors import CheckpointError, DamageError
from lamina.interop.any_format import load_any
from lamina.interop.exported_folder import file_keys
from lamina.interop.to_fairseq import fairseq_content, state_dict
from lamina.pruning.cut import Keep, prune_checkpoint

PLAIN = ["transformer_postln", "transformer_preln", "transformer_learned_pos", "transformer_layernorm_embedding",
         "transformer_separate_vocabs", "transformer_shared_all_embeddings", "transformer_lm", "prune_lm"]
OTHERS = ["admin_adaptive", "deepnet", "rezero", "sf_att_hard_gate08", "sf_max_hard", "ta_ffn", "transformer_lm_adaptive",
          "roberta_tiny", "layerwise_attention_preln"]


def assert_same(one, other):
    assert (one.config, one.languages, one.dictionaries, one.subwords) == \
        (other.config, other.languages, other.dictionaries, other.subwords)
    assert one.weights.keys() == other.weights.keys()
    for name, weight in one.weights.items():
        assert torch.equal(weight, other.weights[name]), name


# -- safetensors

@pytest.mark.parametrize("fixture", PLAIN + OTHERS)
def test_fixtures_survive_convert_and_export(tmp_path, fixture):
    """From fairseq's file to ours, to a folder, and back to a file."""
    path = write_fixture_file(tmp_path / "old", fixture)
    assert main(["convert", str(path), "--output", str(tmp_path / "new.pt")]) == 0
    assert main(["export", str(tmp_path / "new.pt"), "--output", str(tmp_path / "folder")]) == 0
    converted, exported = load_checkpoint(tmp_path / "new.pt"), load_any(tmp_path / "folder")
    assert_same(converted, exported)
    assert_same(load_any(path), exported)
    assert main(["convert", str(tmp_path / "folder"), "--output", str(tmp_path / "again.pt")]) == 0
    assert_same(load_checkpoint(tmp_path / "again.pt"), converted)
    assert (exported.metrics, exported.training["from"]) == (converted.metrics, "fairseq")


def test_load_takes_the_folder(tmp_path):
    path = write_fixture_file(tmp_path / "old", "transformer_postln")
    assert main(["export", str(path), "--output", str(tmp_path / "folder")]) == 0
    lines = ["word1 word2 word3", "word7"]
    one, other = (lamina.load(place, device="cpu").translate(lines, max_len_b=5) for place in (path, tmp_path / "folder"))
    assert [(item.text, item.score) for item in one] == [(item.text, item.score) for item in other]


def test_no_other_folder_is_taken_for_one(tmp_path, capsys):
    with pytest.raises(CheckpointError, match="not one that `lamina export --format safetensors` wrote"):
        load_any(tmp_path)
    path = write_fixture_file(tmp_path / "old", "transformer_postln")
    assert main(["export", str(path), "--output", str(tmp_path / "folder")]) == 0
    file = tmp_path / "folder" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DamageError, match=r"model.safetensors is damaged: its content does not match its checksum"):
        load_any(tmp_path / "folder")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    del config["files"]  # as in a folder of before there were checksums
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="cannot be read as an exported model"):
        load_any(tmp_path / "folder")
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config | {"lamina_format": 99}))
    with pytest.raises(CheckpointError, match="has format 99"):
        load_any(tmp_path / "folder")


@pytest.mark.parametrize("name", ["model.safetensors", "dict.src.txt", "subwords.json"])
def test_a_flipped_bit_is_noticed(tmp_path, name):
    path = write_fixture_file(tmp_path / "old", "transformer_postln")
    assert main(["export", str(path), "--output", str(tmp_path / "folder")]) == 0
    file = next((tmp_path / "folder").glob(name.replace("src", "*")))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamageError, match=f"{file.name} is damaged"):
        load_any(tmp_path / "folder")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    for files in ({"../x": "0"}, [1], {"nothing": "0"}):
        (tmp_path / "folder" / "config.json").write_text(json.dumps(config | {"files": files}))
        with pytest.raises(CheckpointError, match="cannot be read as an exported model"):
            load_any(tmp_path / "folder")


def test_names_of_files():
    assert file_keys("translation", ("en", "en")) == ["en", "en2"]
    assert file_keys("translation", ("en", "ro")) == ["en", "ro"]
    assert file_keys("language_modeling", ("text",)) == [""]
    assert file_keys("sentence_prediction", ("input", "label")) == ["", "label"]


# -- fairseq

@pytest.mark.parametrize("fixture", PLAIN)
def test_fairseq_gets_its_own_names_and_numbers_back(tmp_path, fixture):
    path = write_fixture_file(tmp_path / "old", fixture)
    checkpoint, weights, tied = load_any(path), read_tensors(fixture, "weights"), read_json(fixture)["tied"]
    found = state_dict(checkpoint)
    # 0.9's name for the output; later versions take it under either.
    names = {"decoder.output_projection.weight": "decoder.embed_out"}
    for name, weight in weights.items():
        assert torch.equal(found.pop(names.get(name, name)), weight), name
    assert all(name.endswith(".version") or name in tied for name in found)
    assert main(["export", str(path), "--format", "fairseq", "--output", str(tmp_path / "folder")]) == 0
    exported = load_any(tmp_path / "folder" / "model.pt")
    for name, weight in checkpoint.weights.items():
        assert torch.equal(exported.weights[name], weight), name
    assert exported.model_config() == checkpoint.model_config()
    assert (exported.languages, exported.dictionaries) == (checkpoint.languages, checkpoint.dictionaries)


def changed(content, how):
    """RoBERTa's file in its other forms."""
    weights, torch_args = content["model"], vars(content["args"])
    if "untied" in how:
        torch_args["untie_weights_roberta"] = True
        weights["encoder.lm_head.weight"] = weights["encoder.lm_head.weight"].flip(0)
    if "pre-norm" in how:
        torch_args["encoder_normalize_before"] = True
        weights |= {f"encoder.sentence_encoder.layer_norm.{kind}": torch.rand(32) for kind in ("weight", "bias")}
    if "classes" in how:
        torch_args |= {"task": "sentence_prediction", "init_token": 0 if "framed" in how else None, "separator_token": 2}
        weights |= {f"classification_heads.nli.{name}": torch.rand(shape) for name, shape in (
            ("dense.weight", (32, 32)), ("dense.bias", (32,)), ("out_proj.weight", (3, 32)), ("out_proj.bias", (3,)))}


@pytest.mark.parametrize("how", ["tied", "untied", "untied, pre-norm", "untied, classes", "tied, classes, framed"])
def test_fairseq_gets_its_roberta_back(tmp_path, how):
    path = write_fixture_file(tmp_path / "old", "roberta_tiny")
    content = fixture_content("roberta_tiny")
    changed(content, how)
    torch.save(content, path)
    if "classes" in how:
        (tmp_path / "old" / "label").mkdir()
        (tmp_path / "old" / "label" / "dict.txt").write_text("no 3\nyes 2\nperhaps 1\n")
    assert main(["export", str(path), "--format", "fairseq", "--output", str(tmp_path / "folder")]) == 0
    checkpoint, exported = load_any(path), load_any(tmp_path / "folder" / "model.pt")
    assert exported.model_config() == checkpoint.model_config()
    assert checkpoint.model_config().embedding.unties_head == ("untied" in how)
    assert checkpoint.model_config().classifier.init_token == (-1 if how == "untied, classes" else 0)
    assert (exported.task, exported.languages, exported.dictionaries) == (
        checkpoint.task, checkpoint.languages, checkpoint.dictionaries)
    assert exported.weights.keys() == checkpoint.weights.keys()
    assert all(torch.equal(weight, exported.weights[name]) for name, weight in checkpoint.weights.items())
    # In the names of 0.9, where it had such models.
    found, theirs = fairseq_content(checkpoint), content["model"]
    if "pre-norm" not in how:
        theirs = {re.sub(r"^encoder\.", "decoder.", name).replace("layernorm_embedding", "emb_layer_norm"): weight
                  for name, weight in theirs.items()}
    assert found["model"].keys() == {name for name in theirs if not name.endswith("version")}
    assert all(torch.equal(weight, theirs[name]) for name, weight in found["model"].items())
    args = {name: value for name, value in vars(content["args"]).items() if name not in ("arch", "source_lang", "target_lang")}
    assert {name: vars(found["args"])[name] for name in args} == args


def test_what_fairseqs_roberta_cannot_be_told_is_refused(tmp_path):
    checkpoint = load_any(write_fixture_file(tmp_path, "roberta_tiny"))
    for name, value in (("encoder-positions", "sinusoidal"), ("layernorm-embedding", False), ("scale-embedding", True)):
        other = replace(checkpoint, config={**checkpoint.config, name: value})
        with pytest.raises(CheckpointError, match="its RoBERTa has learned positions"):
            fairseq_content(other)


@pytest.mark.parametrize(("fixture", "reason"), [
    ("sf_att_hard_gate08", "SurfaceFusion mixes a second distribution"),
    ("ta_ffn", "read different states of the encoder"), ("admin_adaptive", "lamina fold"),
    ("transformer_lm_adaptive", "adaptive vocabularies")])
def test_what_fairseq_does_not_have_is_refused(tmp_path, fixture, reason):
    with pytest.raises(CheckpointError, match=reason):
        fairseq_content(load_any(write_fixture_file(tmp_path, fixture)))


# -- the command

def test_ctranslate2_by_command(tmp_path, capsys):
    theirs = pytest.importorskip("ctranslate2")
    path = write_fixture_file(tmp_path / "old", "admin_adaptive")
    assert main(["export", str(path), "--format", "ctranslate2", "--output", str(tmp_path / "folder")]) == 0
    said = capsys.readouterr()
    assert "adaptive residuals are folded into plain ones" in said.err
    assert "model.bin" in said.out
    translator = theirs.Translator(str(tmp_path / "folder"))
    assert translator.translate_batch([["word1", "word2"]], max_decoding_length=4)
    assert "residuals of adaptive, folded into plain ones" in (tmp_path / "folder" / "README.md").read_text()


def test_a_language_model_for_ctranslate2(tmp_path):
    theirs = pytest.importorskip("ctranslate2")
    path = write_fixture_file(tmp_path / "old", "transformer_lm")
    assert main(["export", str(path), "--format", "ctranslate2", "--output", str(tmp_path / "folder")]) == 0
    assert 'ctranslate2.Generator("folder")' in (tmp_path / "folder" / "README.md").read_text()
    generator = theirs.Generator(str(tmp_path / "folder"))
    assert generator.generate_batch([["</s>", "word1"]], max_length=3, sampling_topk=1)


def test_nothing_is_half_written(tmp_path, capsys):
    path = write_fixture_file(tmp_path / "old", "sf_att_hard_gate08")
    assert main(["export", str(path), "--format", "ctranslate2", "--output", str(tmp_path / "folder")]) == 2
    assert "SurfaceFusion" in capsys.readouterr().err
    assert [item.name for item in tmp_path.iterdir()] == ["old"]
    assert main(["export", str(path), "--output", str(tmp_path / "old")]) == 2
    assert "is there already and not empty" in capsys.readouterr().err


def test_the_card(tmp_path):
    path = write_fixture_file(tmp_path, "sf_att_hard_gate08", encoder_layerdrop=0.2)
    checkpoint = prune_checkpoint(load_any(path), Keep(encoder=(0,)))
    checkpoint.metrics = {"loss": 4.25, "bleu": 31.5}
    save_checkpoint(tmp_path / "new.pt", checkpoint)
    assert main(["export", str(tmp_path / "new.pt"), "--output", str(tmp_path / "model")]) == 0
    card = (tmp_path / "model" / "README.md").read_text()
    number = sum(weight.numel() for weight in checkpoint.weights.values())
    depth = read_json("sf_att_hard_gate08")["args"]["encoder_layers"]
    for line in (f"| parameters | {number:,} |", "| validation bleu | 31.5 |", "- SurfaceFusion: att, hard, gate 0.8",
                 "- LayerDrop in the encoder, 0.2", f"- encoder pruned to layers 0 of {depth}", "from en to xx",
                 "| epoch | 3 |", 'lamina.load("model")', "| trained with | fairseq |"):
        assert line in card, line

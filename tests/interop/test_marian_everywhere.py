"""A MarianMT folder in the commands that read data: its dictionaries and pieces for new text, then all that models can do."""

from dataclasses import replace

import pytest

import lamina
from huggingface_models import SENTENCES, marian_folder
from lamina.cli import main
from lamina.data.data_folder import read_manifest
from lamina.errors import DataError
from lamina.interop.huggingface_families import FAMILIES
from lamina.registry import register
from lamina.text.subword import load_subwords
from lamina.text.vocabulary import Vocabulary
from served import running_server
from tiny import write_text


def quiet(_):
    """What is noticed is not asked here."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return marian_folder(tmp_path_factory.mktemp("marian") / "opus", end_bias=5.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory, folder):
    place = tmp_path_factory.mktemp("data")
    text = write_text(place / "text", 12) / "train"
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", str(text), "--validpref", str(text),
                 "--like", str(folder), "--destdir", str(place / "bin"), "--workers", "1"]) == 0
    return place / "bin"


def test_new_text_is_cut_and_numbered_as_the_model_does(data, folder):
    ours = lamina.load(folder, device="cpu", notice=quiet)
    assert [Vocabulary.load(data / f"dict.{language}.txt") for language in ("en", "xx")] == list(ours.vocabularies)
    subwords = load_subwords(data)
    for language, own in zip(("en", "xx"), ours.subwords, strict=True):
        assert subwords[language].to_bytes() == own.to_bytes()
    assert read_manifest(data)["options"]["like"] == str(folder)


def test_the_preset_is_what_opus_mt_says_of_itself():
    """The config.json of its base models, in its own words."""
    both = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048, "layerdrop": 0.0}
    said = {"d_model": 512, "activation_function": "swish", "scale_embedding": True, "max_position_embeddings": 512,
            "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "share_encoder_decoder_embeddings": True,
            **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in both.items()}}
    config, preset = FAMILIES["marian"].model_config(said, {}), register.arch["marian"]()
    assert config.encoder == preset.encoder
    assert replace(config.decoder, reads=preset.decoder.reads) == preset.decoder
    for name in ("embedding", "dropout", "activation", "norm_eps"):
        assert getattr(config, name) == getattr(preset, name)


def test_python_prepares_likewise(tmp_path, folder, data):
    pairs = [("a small boat", "A SMALL BOAT"), ("the moon", "THE MOON")]
    made = lamina.prepare(pairs, valid=pairs, out=tmp_path / "bin", source_lang="en", target_lang="xx", like=str(folder),
                          workers=1)
    for name in ("dict.en.txt", "dict.xx.txt"):
        assert (made.path / name).read_bytes() == (data / name).read_bytes()


@pytest.mark.parametrize(("flags", "message"), [
    (["--joined-dictionary"], "--like has no effect together with --joined-dictionary"),
    (["--subword", "sentencepiece"], "--like has no effect together with --subword"),
    (["--thresholdsrc", "2"], "--thresholdsrc has no effect together with --like"),
    (["--sentencepiece-model", "x.model"], "brings its segmentation along: leave out --sentencepiece-model"),
    (["--like", "nowhere"], "nowhere"),
])
def test_what_a_model_decides_is_not_asked_twice(tmp_path, folder, capsys, flags, message):
    text = write_text(tmp_path / "text") / "train"
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", str(text), "--like", str(folder), "--destdir",
                 str(tmp_path / "bin"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "bin").exists()


def test_a_model_of_one_text_has_no_pairs(tmp_path, capsys):
    text = write_text(tmp_path / "text")
    assert main(["preprocess", "--only-source", "--trainpref", f"{text}/train.en", "--destdir", str(tmp_path / "lm-data")]) == 0
    assert main(["train", str(tmp_path / "lm-data"), "--task", "language_modeling", "--arch", "tiny_lm", "--max-update", "1",
                 "--decoder-layers", "1", "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "16", "--max-tokens", "256",
                 "--decoder-attention-heads", "2", "--save-dir", str(tmp_path / "lm"), "--cpu", "--disable-validation"]) == 0
    with pytest.raises(DataError, match="is a model of one text, and these are pairs"):
        lamina.prepare([("a", "b")], out=tmp_path / "bin", like=str(tmp_path / "lm" / "checkpoint_last.pt"), workers=1)


def test_generate_rescore_and_search_for_layers(tmp_path, folder, data, capsys):
    ours = lamina.load(folder, device="cpu", notice=quiet)
    capsys.readouterr()
    assert main(["generate", str(data), "--path", str(folder), "--gen-subset", "valid", "--beam", "2", "--cpu"]) == 0
    said = capsys.readouterr().out
    source = (data.parent / "text" / "train.en").read_text().splitlines()
    found = {int(line.split("\t")[0][2:]): line.split("\t")[2] for line in said.splitlines() if line.startswith("D-")}
    assert [found[number] for number in range(len(source))] == [ours.translate(text, beam=2).text for text in source]
    (tmp_path / "source").write_text("\n".join(source) + "\n")
    (tmp_path / "target").write_text("\n".join(found[number] for number in range(len(source))) + "\n")
    capsys.readouterr()
    assert main(["rescore", "--path", str(folder), "--source", str(tmp_path / "source"), "--target", str(tmp_path / "target"),
                 "--cpu"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= len(source)
    assert main(["prune", str(folder), str(data), "--search", "--decoder-layers", "1", "--output", str(tmp_path / "small.pt"),
                 "--cpu"]) == 0
    small = lamina.load(tmp_path / "small.pt", device="cpu")
    assert (len(small.models[0].encoder.layers), len(small.models[0].decoder.layers)) == (2, 1)


def test_it_is_served_at_any_depth(folder):
    ours = lamina.load(folder, device="cpu", notice=quiet)
    shallow = ours.prune(decoder=[0])
    with running_server([ours], names=("en-xx",), defaults={}) as server:
        for depth, model in ((None, ours), ({"decoder": "0,"}, shallow)):
            asked = {"q": SENTENCES, "source": "en", "target": "xx", "format": "text"} | ({"depth": depth} if depth else {})
            status, _, said = server.ask("/translate", asked)
            assert status == 200, said
            assert said["translatedText"] == [found.text for found in model.translate(SENTENCES)]

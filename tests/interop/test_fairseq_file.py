"""Checkpoint files of fairseq: what is read of them, what is refused, and what becomes of it."""

import argparse
import os
import sys
import types

import pytest
import torch

import lamina
from fairseq_files import fixture_content, words, write_dictionaries, write_fixture_file
from golden_files import GOLDEN, read_json, read_model
from lamina.checkpoint.format import save_checkpoint
from lamina.errors import CheckpointError
from lamina.interop.any_format import load_any, load_foreign
from lamina.interop.fairseq import places
from lamina.interop.fairseq_file import DictionaryPlaces, flat_args

MODELS = sorted(path.parent.name for path in GOLDEN.glob("*/weights.safetensors") if "args" in read_json(path.parent.name)
                and path.parent.name not in ("admin_profiling", "prune_enc_dec", "prune_lm", "fairseq_main_lm_layerdrop",
                                        "sf_dropout_mask"))
PLAIN = "transformer_shared_all_embeddings"


def assert_same_model(checkpoint, model):
    ours = dict(model.named_parameters())
    built = dict(checkpoint.build_model().named_parameters())
    assert ours.keys() == built.keys() == checkpoint.weights.keys()
    for name, parameter in ours.items():
        assert torch.equal(parameter, built[name]), name


@pytest.mark.parametrize("fixture", MODELS)
def test_every_fixture_as_a_file(tmp_path, fixture):
    checkpoint = load_any(write_fixture_file(tmp_path, fixture))
    model = read_model(fixture)
    assert_same_model(checkpoint, model)
    assert checkpoint.metrics == {"loss": 4.5}


@pytest.mark.parametrize("options", [{"has_cfg": True}, {"is_legacy": True}, {"has_cfg": True, "is_legacy": True}])
def test_all_forms_of_the_file(tmp_path, options):
    checkpoint = load_any(write_fixture_file(tmp_path, PLAIN, **options))
    assert_same_model(checkpoint, read_model(PLAIN))
    assert checkpoint.languages == ("en", "xx")
    assert checkpoint.config["share-all-embeddings"]


def test_nested_configurations():
    """As later versions nest them, the model's section last."""
    content = {"cfg": {"model": {"_name": "transformer", "encoder": {"layers": 3, "embed_dim": 8}, "dropout": 0.2},
                       "task": {"_name": "translation", "source_lang": "de"}, "optimization": {"dropout": 9}}}
    assert flat_args(content) == {"encoder_layers": 3, "encoder_embed_dim": 8, "dropout": 0.2, "source_lang": "de",
                                  "arch": "transformer", "task": "translation"}


def test_layers_to_keep_of_the_arguments(tmp_path):
    path = write_fixture_file(tmp_path, "prune_lm", decoder_layers_to_keep="0,2,4")
    checkpoint = load_any(path)
    assert checkpoint.model_config().decoder.num_layers == 3
    assert_same_model(checkpoint, read_model("prune_lm", decoder_layers_to_keep="0,2,4"))


def test_a_classifier(tmp_path):
    """With the folders of its task: input0 and label."""
    content = fixture_content("roberta_tiny", task="sentence_prediction")
    dim = content["args"].encoder_embed_dim
    content["model"] = {name: tensor for name, tensor in content["model"].items() if "classification_heads" not in name}
    content["model"] |= {f"classification_heads.nli.{name}": torch.rand(shape) for name, shape in (
        ("dense.weight", (dim, dim)), ("dense.bias", (dim,)), ("out_proj.weight", (3, dim)), ("out_proj.bias", (3,)))}
    torch.save(content, tmp_path / "x.pt")
    write_dictionaries(tmp_path / "data" / "input0", "roberta_tiny")
    with pytest.raises(CheckpointError, match=r"there is no dict\.txt in .*label"):
        load_any(tmp_path / "x.pt", places=DictionaryPlaces.of(tmp_path / "data"))
    (tmp_path / "data" / "label").mkdir()
    (tmp_path / "data" / "label" / "dict.txt").write_text("no 3\nyes 2\nperhaps 1\n")
    checkpoint = load_any(tmp_path / "x.pt", places=DictionaryPlaces.of(tmp_path / "data"))
    assert (checkpoint.task, checkpoint.languages) == ("sentence_prediction", ("input", "label"))
    assert torch.equal(checkpoint.weights["classifiers.nli.out_proj.weight"],
                       content["model"]["classification_heads.nli.out_proj.weight"])
    save_checkpoint(tmp_path / "new.pt", checkpoint)
    prediction = lamina.load(tmp_path / "new.pt").predict("nli", "word1 word2")
    assert set(prediction.probabilities) == {"no", "yes", "perhaps"}


# -- the restricted reader

def meters():
    """Classes that pickle under the names of fairseq's, which is not installed."""
    module = types.ModuleType("fairseq.meters")
    for name in ("AverageMeter", "TimeMeter", "StopwatchMeter", "Other"):
        setattr(module, name, type(name, (), {"__module__": "fairseq.meters"}))
    return module


def save_with(path, monkeypatch, **extra):
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    module = meters()
    monkeypatch.setitem(sys.modules, "fairseq.meters", module)
    content = fixture_content(PLAIN)
    content["extra_state"] |= {name: getattr(module, kind)() for name, kind in extra.items()}
    for meter in content["extra_state"].values():
        if hasattr(meter, "__dict__"):
            meter.sum, meter.count = 3.5, 2
    torch.save(content, path)
    monkeypatch.undo()


def test_meters_are_read_without_fairseq(tmp_path, monkeypatch):
    write_dictionaries(tmp_path, PLAIN)
    save_with(tmp_path / "x.pt", monkeypatch, loss="AverageMeter", wps="TimeMeter", wall="StopwatchMeter")
    assert_same_model(load_any(tmp_path / "x.pt"), read_model(PLAIN))
    assert "fairseq.meters" not in sys.modules


def test_other_classes_are_refused_by_name(tmp_path, monkeypatch):
    save_with(tmp_path / "x.pt", monkeypatch, loss="Other")
    with pytest.raises(CheckpointError, match=r"it needs the Python object fairseq\.meters\.Other"):
        load_any(tmp_path / "x.pt")


class Evil:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("is_legacy", [False, True])
def test_no_file_runs_code(tmp_path, is_legacy):
    content = fixture_content(PLAIN) | {"extra": Evil(tmp_path / "made")}
    torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=not is_legacy)
    with pytest.raises(CheckpointError, match=r"it needs the Python object (posix|nt)\.mkdir"):
        load_any(tmp_path / "x.pt")
    assert not (tmp_path / "made").exists()


def test_other_archives(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="not a checkpoint of Lamina or fairseq"):
        load_any(tmp_path / "x.pt")
    path = write_fixture_file(tmp_path, PLAIN)
    save_checkpoint(tmp_path / "new.pt", load_any(path))
    with pytest.raises(CheckpointError, match="nothing to convert"):
        load_foreign(tmp_path / "new.pt")


# -- what cannot be represented is named

@pytest.mark.parametrize(("args", "message"), [
    ({"sf_mode": "postnorm_v1"}, "sf_mode='postnorm_v1'"),
    ({"sf_mode": "soft_5"}, "sf_mode='soft_5'"),
    ({"sf_mode": "postnorm_5"}, "sf_mode='postnorm_5'"),
    ({"sf_mode": "looklinear"}, "sf_mode='looklinear'"),
    ({"surfacefusion": "looklinear"}, "surfacefusion='looklinear'"),
    ({"addtional_source_output": "x"}, "addtional_source_output='x'"),
    ({"no_encoder_fnn": True}, "no_encoder_fnn=True"),
    ({"no_decoder_fnn": True}, "no_decoder_fnn=True"),
    ({"no_cross_attention": True}, "no_cross_attention=True"),
    ({"merge_src_tgt_embed": True}, "merge_src_tgt_embed=True"),
    ({"task": "speech_to_text"}, "task='speech_to_text'"),
    ({"activation_fn": "swish"}, "--activation-fn is 'swish'"),
])
def test_options_are_refused_by_name(tmp_path, args, message):
    path = write_fixture_file(tmp_path, PLAIN, **args)
    with pytest.raises(CheckpointError, match=r"old\.pt \(fairseq, --arch ") as caught:
        load_any(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_targets_of_other_language_models_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="past_target=True"):
        load_any(write_fixture_file(tmp_path, "transformer_lm", past_target=True))


def test_an_unknown_architecture_is_named(tmp_path):
    content = fixture_content(PLAIN, arch="lstm")
    content["model"]["encoder.lstm.weight_ih_l0"] = torch.zeros(4, 4)
    write_dictionaries(tmp_path, PLAIN)
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"--arch lstm.*the parameter encoder\.lstm\.weight_ih_l0"):
        load_any(tmp_path / "x.pt")
    heard = []
    assert_same_model(load_any(write_fixture_file(tmp_path, PLAIN, arch="mine"), notice=heard.append), read_model(PLAIN))
    assert len(heard) == 1
    assert "--arch mine is none that Lamina knows" in heard[0]


@pytest.mark.parametrize("change", [
    lambda content: content.update(args=argparse.Namespace(encoder_layers="many", task="translation")),
    lambda content: content.update(args=[1, 2]),
    lambda content: content["model"].update({"encoder.layers.0.fc1.weight": "text"}),
    lambda content: content["model"].update({"encoder.layers.0.fc1.weight": torch.tensor(1.0)}),
    lambda content: content["model"].clear(),
    lambda content: content["model"].pop("encoder.layers.0.fc1.weight"),
    lambda content: setattr(content["args"], "decoder_layers_to_keep", 7),
])
def test_damaged_content_is_one_line(tmp_path, change):
    content = fixture_content(PLAIN)
    change(content)
    write_dictionaries(tmp_path, PLAIN)
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(CheckpointError) as caught:
        load_any(tmp_path / "x.pt")
    assert "\n" not in str(caught.value)
    assert "x.pt" in str(caught.value)


@pytest.mark.parametrize("extra", [{"optimizer_history": 3}, {"optimizer_history": [None]}, {"extra_state": []},
                                   {"last_optimizer_state": {"state": [], "param_groups": [{"params": "x"}]}}])
def test_damaged_progress_does_not_keep_the_model_away(tmp_path, extra):
    content = fixture_content(PLAIN) | extra
    content["args"].optimizer = "adam"
    write_dictionaries(tmp_path, PLAIN)
    torch.save(content, tmp_path / "x.pt")
    checkpoint = load_any(tmp_path / "x.pt")
    assert_same_model(checkpoint, read_model(PLAIN))
    assert "optimizer" not in checkpoint.training


# -- dictionaries and languages

def test_dictionaries_of_a_folder(tmp_path):
    path = write_fixture_file(tmp_path / "model", PLAIN)
    for file in ("dict.en.txt", "dict.xx.txt"):
        (tmp_path / "model" / file).unlink()
    with pytest.raises(CheckpointError, match=r"there is no dict\.en\.txt in .*model\. .*--dict-dir"):
        load_any(path)
    write_dictionaries(tmp_path / "dicts", PLAIN)
    checkpoint = load_any(path, places=DictionaryPlaces.of(tmp_path / "empty", tmp_path / "dicts"))
    assert checkpoint.dictionaries[1] == (tmp_path / "dicts" / "dict.xx.txt").read_text()
    (tmp_path / "dicts" / "dict.xx.txt").write_text(words(7))
    with pytest.raises(CheckpointError, match=r"embeddings, but the dictionary .*dict\.xx\.txt has 7 symbols"):
        load_any(path, places=DictionaryPlaces.of(tmp_path / "dicts"))


def test_languages_of_the_data_folder(tmp_path):
    path = write_fixture_file(tmp_path, PLAIN, source_lang=None, target_lang=None)
    with pytest.raises(CheckpointError, match="does not say its languages"):
        load_any(path)
    assert load_any(path, places=DictionaryPlaces.of(source_lang="xx", target_lang="en")).languages == ("xx", "en")
    (tmp_path / "train.en-xx.en.idx").touch()
    assert load_any(path).languages == ("en", "xx")


# -- the optimizer's state

def fairseq_moments(content, seed=0):
    """Random ones, in the order in which fairseq numbers parameters: those of the state dict, tied ones once."""
    generator = torch.Generator().manual_seed(seed)
    tied = {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    names = [name for name in content["model"] if name not in tied]
    return {name: torch.rand(content["model"][name].shape, generator=generator) for name in names}


def add_optimizer(content, *, kind="adam", is_flat=False, **group):
    first, second = fairseq_moments(content, 1), fairseq_moments(content, 2)
    content["args"].optimizer = kind
    content["optimizer_history"] = [{"num_updates": 60}]
    if is_flat:
        state = {0: {"step": 60, "exp_avg": torch.cat([value.flatten() for value in first.values()]),
                     "exp_avg_sq": torch.cat([value.flatten() for value in second.values()])}}
    elif kind == "nag":
        state = {number: {"momentum_buffer": value} for number, value in enumerate(first.values())}
    else:
        state = {number: {"step": 60, "exp_avg": one, "exp_avg_sq": other}
                 for number, (one, other) in enumerate(zip(first.values(), second.values(), strict=True))}
    content["last_optimizer_state"] = {"state": state, "param_groups": [{"params": list(state), "lr": 0.1, **group}]}
    if is_flat:
        content["last_optimizer_state"]["loss_scale"] = 64.0
    return first, second


def saved(tmp_path, content):
    write_dictionaries(tmp_path, PLAIN)
    torch.save(content, tmp_path / "x.pt")
    return load_any(tmp_path / "x.pt").training


@pytest.mark.parametrize("is_flat", [False, True])
def test_moments_find_their_parameters(tmp_path, is_flat):
    content = fixture_content(PLAIN)
    expected = add_optimizer(content, is_flat=is_flat)
    training = saved(tmp_path, content)
    assert "optimizer" not in load_any(tmp_path / "x.pt", is_resumable=False).training
    assert training["optimizer_kind"] == "adam"
    assert int(training["optimizer"]["step"]) == 60
    assert training["progress"] == {"updates": 60, "epoch": 3}
    assert float(training["scale"]["value"]) == (64.0 if is_flat else 1.0)
    for moments, theirs in zip((training["optimizer"][name] for name in ("exp_avg", "exp_avg_sq")), expected, strict=True):
        for name, tensor in theirs.items():
            (place,) = places(name)
            assert torch.equal(place.view(moments[place.name]), tensor), name


@pytest.mark.parametrize("fixture", ["admin_adaptive", "rezero", "sf_att_hard_gate08", "ta_ffn", "transformer_lm_adaptive",
                                     "roberta_tiny", "transformer_separate_vocabs"])
def test_moments_of_every_kind_of_model(tmp_path, fixture):
    """Weights that pose as their own moments end where the weights end: fused projections, omegas, bands, heads."""
    content = fixture_content(fixture)
    names = [name for name in content["model"] if name not in read_json(fixture)["tied"]]
    content["args"].optimizer = "radam"
    content["last_optimizer_state"] = {"state": {number: {"step": 7, "exp_avg": content["model"][name],
                                                          "exp_avg_sq": content["model"][name] + 1}
                                                 for number, name in enumerate(names)},
                                       "param_groups": [{"params": list(range(len(names))), "lr": 0.1}]}
    write_dictionaries(tmp_path, fixture)
    torch.save(content, tmp_path / "x.pt")
    checkpoint = load_any(tmp_path / "x.pt")
    state = checkpoint.training["optimizer"]
    for name, weight in checkpoint.weights.items():
        assert torch.equal(state["exp_avg"][name], weight), name
        assert torch.equal(state["exp_avg_sq"][name], weight + 1), name


def test_nesterov_momentum_is_freed_of_its_rate(tmp_path):
    content = fixture_content(PLAIN)
    velocity, _ = add_optimizer(content, kind="nag", lr_old=0.25)
    training = saved(tmp_path, content)
    torch.testing.assert_close(training["optimizer"]["momentum_buffer"]["encoder.layers.0.ffn.fc1.weight"],
                               velocity["encoder.layers.0.fc1.weight"] / -0.25)


@pytest.mark.parametrize(("change", "problem"), [
    (lambda content: content["last_optimizer_state"]["param_groups"].append({}), "2 groups"),
    (lambda content: content["last_optimizer_state"]["param_groups"][0]["params"].pop(), "knows"),
    (lambda content: content["last_optimizer_state"]["state"][0].pop("exp_avg"), "no exp_avg"),
    (lambda content: setattr(content["args"], "optimizer", "adafactor"), "--optimizer adafactor"),
])
def test_a_state_without_a_place_is_left_behind(tmp_path, change, problem):
    content = fixture_content(PLAIN)
    add_optimizer(content)
    change(content)
    training = saved(tmp_path, content)
    assert "optimizer" not in training
    assert problem in training["optimizer_problem"]

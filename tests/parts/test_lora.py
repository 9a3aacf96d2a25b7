"""LoRA: only what is added is trained, and merged into the matrices it is the same model."""

from dataclasses import replace

import pytest
import torch

import lamina
from lamina.checkpoint.averaging import average_checkpoints
from lamina.checkpoint.format import Checkpoint, load_checkpoint, save_checkpoint
from lamina.checkpoint.merging import merge_adapter
from lamina.cli import main
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.errors import ConfigError
from lamina.fields import flatten
from lamina.interop.any_format import load_any
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts.adapters import NoAdapter
from lamina.parts.lora import CHOICES, Lora
from lamina.parts.muon import Muon
from lamina.parts.residuals import Admin
from lamina.parts.update_rules import Sgd
from lamina.training.freezing import freeze_
from lamina.training.update import Updater
from tiny import FUSIONS, MIXINGS, TINY_FLAGS, batch_of, make_data, tiny_config, tiny_model, tiny_pair

ALL = {"plain": {}, "Pre-LN": {"is_pre_norm": True}, "Admin": {"init": Admin()}, **FUSIONS, **MIXINGS}
SUBSETS = {"all": CHOICES, "q and v": ("q", "v"), "k": ("k",), "feed-forward": ("fc1", "fc2"), "out": ("out",)}


def with_lora(changes=None, **options):
    config = replace(tiny_config(num_layers=3, **(changes or {})), adapter=Lora(lora_rank=3, **options))
    return config, tiny_model(config)  # shaken: what is added is no longer zero


@pytest.mark.parametrize(("name", "matrices"), [*((name, "all") for name in ALL), *(("att learned", name) for name in SUBSETS)])
def test_merged_equals_unmerged(name, matrices):
    changes, matrices = ALL[name], SUBSETS[matrices]
    config, model = with_lora(changes, lora_matrices=matrices)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    plain = tiny_model(replace(config, adapter=NoAdapter()))
    merged = config.adapter.merged(weights)
    assert merged.keys() == dict(plain.named_parameters()).keys()
    assert any(not torch.equal(merged[name], weights[name]) for name in merged)
    plain.load_state_dict(merged, strict=False)
    source, target = tiny_pair()
    torch.testing.assert_close(plain.log_probs(source, target), model.log_probs(source, target), rtol=0, atol=1e-5)
    state = model.start(source, target.size(1))
    steps = torch.stack([model.step(target[:, place], state) for place in range(target.size(1))], dim=1)
    torch.testing.assert_close(steps, plain.log_probs(source, target), rtol=2e-5, atol=2e-5)


def test_queries_and_values_alone_leave_the_rows_of_keys_as_they_are():
    config, model = with_lora(lora_matrices=("q", "v"))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    name = "encoder.layers.0.attention.in_proj.weight"
    changed = config.adapter.merged(weights)[name].ne(weights[name]).view(3, -1).any(dim=1)
    assert changed.tolist() == [True, False, True]


def test_at_first_nothing_is_added():
    config = replace(tiny_config(num_layers=2), adapter=Lora())
    torch.manual_seed(0)
    from lamina.models.build import build_model

    model = build_model(config, 40, 40).eval()
    torch.manual_seed(0)
    plain = build_model(replace(config, adapter=NoAdapter()), 40, 40).eval()
    assert torch.equal(model.log_probs(*tiny_pair()), plain.log_probs(*tiny_pair()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", [Sgd(), Muon()], ids=["sgd", "muon"])
@pytest.mark.parametrize("active", [ALL_LAYERS, ActiveLayers(encoder=(True, False, True), decoder=(False, True, True))],
                         ids=["all", "some"])
def test_an_update_moves_what_is_added_and_nothing_else(dtype, optimizer, active):
    config, model = with_lora(lora_dropout=0.2)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    updater = Updater(model.train(), OptimizationConfig(optimizer=optimizer, clip_norm=0.0), PrecisionConfig(), dtype)
    assert all(config.adapter.owns(name) for name in updater.weights.names)
    updater.update([batch_of(slice(0, 4))], lr=0.1, seed=1, draws=[active])
    after = updater.weights.state_dict()
    for name, value in before.items():
        runs = active == ALL_LAYERS or not name.startswith(("encoder.layers.1.", "decoder.layers.0."))
        assert torch.equal(after[name], value) != (config.adapter.owns(name) and runs), name


def test_other_weights_may_be_trained_besides_and_some_be_frozen():
    _, model = with_lora(lora_train_also=("source_embedding", "*.norm"))
    freeze_(model, ("decoder",), lambda note: None)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert "source_embedding.table.weight" in trained
    assert "encoder.layers.2.ffn_residual.norm.bias" in trained
    assert "encoder.layers.0.ffn.fc1.lora.up" in trained
    assert "encoder.layers.0.ffn.fc1.weight" not in trained
    assert not any(name.startswith("decoder.") for name in trained)
    with pytest.raises(ConfigError, match=r"--lora-train-also souce_embedding names none .* Did you mean source_embedding"):
        with_lora(lora_train_also=("souce_embedding",))


@pytest.mark.parametrize(("options", "message"), [
    ({"lora_rank": 0}, "--lora-rank is 0; it must be at least 1"),
    ({"lora_alpha": 0.0}, "--lora-alpha is 0.0; it must be above"),
    ({"lora_dropout": 1.0}, "--lora-dropout is 1.0"), ({"lora_matrices": ()}, "--lora-matrices names none")])
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Lora(**options)


# -- the commands


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    data = make_data(folder)
    train = ["train", str(data), *TINY_FLAGS, "--cpu", "--num-workers", "0"]
    assert main([*train, "--encoder-layers", "2", "--decoder-layers", "2", "--max-update", "6", "--encoder-layerdrop", "0.3",
                 "--decoder-layerdrop", "0.3", "--save-dir", f"{folder}/base"]) == 0
    return folder, [*train, "--encoder-layers", "2", "--decoder-layers", "2"], folder / "base" / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def tuned(base):
    folder, train, start = base
    flags = ["--finetune-from-model", str(start), "--lora-rank", "4", "--lora-merge", "--encoder-layerdrop", "0.3",
             "--lr", "0.05", "--save-dir", f"{folder}/tuned", "--save-interval-updates", "4"]
    assert main([*train, *flags, "--max-update", "8"]) == 0
    return [*train, *flags], folder / "tuned"


def test_only_the_last_checkpoint_keeps_it_apart(base, tuned):
    adapter = Lora(lora_rank=4)
    start, last = load_checkpoint(base[2]), load_checkpoint(tuned[1] / "checkpoint_last.pt")
    assert last.model_config().adapter == adapter
    assert all(torch.equal(last.weights[name], value) for name, value in start.weights.items())
    assert all(adapter.owns(name) for name in last.weights.keys() - start.weights.keys())
    for name in ("checkpoint_best.pt", "checkpoint_2_4.pt"):
        merged = load_checkpoint(tuned[1] / name)
        assert merged.weights.keys() == start.weights.keys()
        assert merged.config["adapter"] == "none"
        assert "optimizer" not in merged.training
    merged = merge_adapter(last).weights
    assert any(not torch.equal(merged[name], value) for name, value in start.weights.items())


def test_a_run_resumes_exactly(base, tuned):
    line, folder = tuned
    other = [*line[:-4], "--save-dir", f"{folder}-again"]
    assert main([*other, "--max-update", "4"]) == 0
    assert main([*other, "--max-update", "8"]) == 0
    one, two = (load_checkpoint(f"{path}/checkpoint_last.pt").weights for path in (folder, f"{folder}-again"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_every_command_takes_one_that_is_not_merged(base, tuned, tmp_path, capsys):
    last, source = tuned[1] / "checkpoint_last.pt", torch.tensor([[4, 5, 6, 2]])
    target = torch.tensor([[2, 7, 8, 9]])
    model = load_checkpoint(last).build_model().eval()
    expected = model.log_probs(source, target)

    def check(path, atol=1e-5):
        found = lamina.load(path, device="cpu", prepack=False).models[0]
        assert not any("lora" in name for name, _ in found.named_parameters())
        torch.testing.assert_close(found.log_probs(source, target), expected, rtol=0, atol=atol)

    check(last)
    assert main(["convert", str(last), "--output", f"{tmp_path}/merged.pt"]) == 0
    check(tmp_path / "merged.pt")
    assert main(["convert", f"{tmp_path}/merged.pt", "--output", f"{tmp_path}/again.pt"]) == 2
    assert "there is nothing to convert" in capsys.readouterr().err
    assert main(["average", "--inputs", str(last), str(last), "--output", f"{tmp_path}/mean.pt"]) == 0
    check(tmp_path / "mean.pt")
    assert main(["export", str(last), "--output", f"{tmp_path}/safe"]) == 0
    check(tmp_path / "safe")
    assert main(["export", str(last), "--format", "fairseq", "--output", f"{tmp_path}/fairseq"]) == 0
    check(tmp_path / "fairseq" / "model.pt")
    pytest.importorskip("ctranslate2")
    assert main(["export", str(last), "--format", "ctranslate2", "--output", f"{tmp_path}/ct2"]) == 0


def test_averages_are_of_merged_matrices(tuned):
    paths = [tuned[1] / name for name in ("checkpoint_last.pt", "checkpoint_2_4.pt")]
    one, two = (merge_adapter(load_checkpoint(path)).weights for path in paths)
    mean = average_checkpoints(paths, load=lambda path: load_any(path, is_resumable=False)).weights
    assert all(torch.allclose(mean[name], (one[name] + two[name]) / 2, atol=1e-6) for name in mean)


def test_pruning_keeps_it_apart(tuned, tmp_path):
    last = tuned[1] / "checkpoint_last.pt"
    whole = load_checkpoint(last).build_model().eval()
    assert main(["prune", str(last), "--decoder-layers-to-keep", "1", "--output", f"{tmp_path}/pruned.pt"]) == 0
    pruned = load_checkpoint(tmp_path / "pruned.pt")
    assert "decoder.layers.0.ffn.fc1.lora.up" in pruned.weights
    source, target = torch.tensor([[4, 5, 6, 2]]), torch.tensor([[2, 7, 8, 9]])
    torch.testing.assert_close(pruned.build_model().eval().log_probs(source, target),
                               whole.log_probs(source, target, active=ActiveLayers(None, (False, True))))


def test_admin_is_merged_before_it_is_folded(tmp_path):
    config, model = with_lora({"init": Admin()})
    symbols = "".join(f"w{number} 1\n" for number in range(36))
    checkpoint = Checkpoint(config={"task": "translation", "arch": "tiny", **flatten(config)}, languages=("en", "xx"),
                            dictionaries=(symbols, symbols), subwords=({"kind": "none"}, {"kind": "none"}),
                            weights={name: parameter.detach() for name, parameter in model.named_parameters()})
    save_checkpoint(tmp_path / "admin.pt", checkpoint)
    assert main(["fold", f"{tmp_path}/admin.pt", "--output", f"{tmp_path}/folded.pt"]) == 0
    folded = load_checkpoint(tmp_path / "folded.pt").build_model().eval()
    torch.testing.assert_close(folded.log_probs(*tiny_pair()), model.log_probs(*tiny_pair()), rtol=0, atol=2e-5)


def test_the_next_run_begins_with_what_was_learned(base, tuned, tmp_path):
    """Whether it trains everything then, or another LoRA."""
    last = tuned[1] / "checkpoint_last.pt"
    learned = merge_adapter(load_checkpoint(last)).weights
    for flags in ([], ["--lora-rank", "2"]):
        save = tmp_path / f"run{len(flags)}"
        assert main([*base[1], *flags, "--finetune-from-model", str(last), "--lr", "1e-12", "--max-update", "1", "--save-dir",
                     str(save)]) == 0
        own = load_checkpoint(save / "checkpoint_last.pt").weights
        assert all(torch.allclose(own[name], value, rtol=0, atol=1e-9) for name, value in learned.items())


def test_what_it_needs_is_said(base, tuned, tmp_path, capsys):
    assert main([*base[1], "--lora-rank", "4", "--save-dir", f"{tmp_path}/new"]) == 2
    assert "--adapter lora trains a little beside a model that is trained already" in capsys.readouterr().err
    assert main([*base[1], "--lora-merge", "--save-dir", f"{tmp_path}/new"]) == 2
    assert "--lora-merge has no effect without --lora-rank" in capsys.readouterr().err
    assert main([*base[1], "--adapter", "none", "--lora-rank", "4", "--save-dir", f"{tmp_path}/new"]) == 2
    assert "--lora-rank has no effect with --adapter none" in capsys.readouterr().err
    assert main([*base[1], "--restore-file", str(tuned[1] / "checkpoint_last.pt"), "--save-dir", f"{tmp_path}/new"]) == 2
    assert "--adapter lora --lora-rank 4" in capsys.readouterr().err


def test_a_new_dictionary_keeps_its_log_probs(base, tmp_path):
    """Extended by 500 types, what the model says of old text is, renormalised over the old types, what it was."""
    folder, train, start = base
    old = load_checkpoint(start)
    extended = tmp_path / "dict.txt"
    extended.write_text(old.dictionaries[0] + "".join(f"new{number} 1\n" for number in range(500)))
    text = folder / "text"
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--validpref", f"{text}/valid",
                 "--srcdict", str(extended), "--joined-dictionary", "--destdir", f"{tmp_path}/data", "--workers", "1"]) == 0
    flags = ["--lora-rank", "2", "--lora-train-also", "source_embedding", "--finetune-from-model", str(start), "--lr", "1e-12",
             "--max-update", "1", "--save-dir", f"{tmp_path}/run"]
    assert main(["train", f"{tmp_path}/data", *train[2:], *flags]) == 0
    new = load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")
    size = len(old.vocabularies()[0])
    assert len(new.vocabularies()[0]) == size + 500
    source, target = (ids.clamp(max=size - 1) for ids in tiny_pair())
    before = old.build_model().eval().log_probs(source, target)
    after = new.build_model().eval().log_probs(source, target)[..., :size].log_softmax(dim=-1)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)

"""LayerDrop and pruning through the commands: train, then train, translate and score with fewer layers."""

import io
import re
import shutil
import sys
from dataclasses import replace

import pytest
import torch

import lamina
from lamina.checkpoint.format import load_checkpoint, save_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data

DEEP = [*TINY_FLAGS, "--encoder-layers", "4", "--decoder-layers", "4", "--max-tokens", "200", "--log-format", "none"]
LINE = "| Pruning model to specified layer configuration"
DROP = ["--encoder-layerdrop", "0.2", "--decoder-layerdrop", "0.2"]
KEEP = ["--encoder-layers-to-keep", "0,2", "--decoder-layers-to-keep", "1,3"]


def train(data, save_dir, *flags):
    return main(["train", data, *DEEP, "--save-dir", str(save_dir), *flags])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layerdrop")
    data = str(make_data(folder, num_lines=60))
    assert train(data, folder / "full", *DROP, "--max-epoch", "6", "--lr", "0.02", "--no-epoch-checkpoints") == 0
    return data, folder / "full" / "checkpoint_last.pt"


def depths(path):
    config = load_checkpoint(path).model_config()
    return config.encoder.num_layers, config.decoder.num_layers


def hypotheses(capsys, data, *flags):
    assert main(["generate", data, "--gen-subset", "valid", "--cpu", "--beam", "2", *map(str, flags)]) == 0
    captured = capsys.readouterr()
    return captured, [line for line in captured.out.splitlines() if line.startswith("H-")]


def test_resuming_draws_the_same_masks(trained, tmp_path):
    data, _ = trained
    flags = ["--encoder-layerdrop", "0.5", "--decoder-layerdrop", "0.5", "--layerdrop-schedule", "linear", "--update-freq", "2",
             "--dropout", "0.1"]
    assert train(data, tmp_path / "whole", *flags, "--max-update", "6") == 0
    assert train(data, tmp_path / "parts", *flags, "--max-update", "3") == 0
    assert train(data, tmp_path / "parts", *flags, "--max-update", "6") == 0
    one, other = (load_checkpoint(tmp_path / name / "checkpoint_last.pt").weights for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert train(data, tmp_path / "plain", *flags[6:], "--max-update", "6") == 0
    plain = load_checkpoint(tmp_path / "plain" / "checkpoint_last.pt").weights
    assert not all(torch.equal(one[name], plain[name]) for name in one)


def test_batches_of_an_update_may_draw_their_own_layers(trained, tmp_path, capsys):
    data, _ = trained
    flags = ["--encoder-layerdrop", "0.5", "--update-freq", "2", "--batch-size", "4", "--lr", "0.01"]
    by_batch = [*flags, "--layerdrop-draws", "batch"]
    assert train(data, tmp_path / "whole", *by_batch, "--max-update", "4") == 0
    assert train(data, tmp_path / "parts", *by_batch, "--max-update", "2") == 0
    assert train(data, tmp_path / "parts", *by_batch, "--max-update", "4") == 0
    advice = "LayerDrop draws layers once for {}; --layerdrop-draws sentence learns better and is faster"
    assert advice.format("each batch") in capsys.readouterr().out
    assert train(data, tmp_path / "same", *flags, "--layerdrop-draws", "update", "--max-update", "4") == 0
    assert advice.format("the 2 batches of an update") in capsys.readouterr().out
    one, other, same = (load_checkpoint(tmp_path / name / "checkpoint_last.pt").weights for name in ("whole", "parts", "same"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], same[name]) for name in one)
    capsys.readouterr()
    for wrong, message in ((["--layerdrop-draws", "batch"], "--layerdrop-draws has no effect without --encoder-layerdrop"),
                           ([*by_batch, "--fsdp", "--reshard-after-forward"], "they hold each other's"),
                           ([*by_batch, "--fsdp", "--fsdp-size", "1"], "Leave out --reshard-after-forward and --fsdp-size")):
        assert train(data, tmp_path / "wrong", *wrong) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_resumed_run_keeps_its_draws(trained, tmp_path, capsys):
    """Also one of a time before --layerdrop-draws, or before sentences drew for themselves."""
    data, _ = trained
    flags = ["--encoder-layerdrop", "0.5", "--batch-size", "4", "--lr", "0.01", "--max-update"]

    def draws(folder, *more):
        assert train(data, tmp_path / folder, *flags, *more) == 0
        assert "LayerDrop draws layers once" not in capsys.readouterr().out or more[-1] != "sentence"
        return load_checkpoint(tmp_path / folder / "checkpoint_last.pt").config["layerdrop-draws"]

    assert draws("new", "2") == "sentence"
    assert draws("old", "2", "--layerdrop-draws", "update") == "update"
    path = tmp_path / "old" / "checkpoint_last.pt"
    state = load_checkpoint(path)
    for stored, expected in (("update", "update"), (None, "update"), ("batch", "batch")):
        config = {name: value for name, value in state.config.items() if name != "layerdrop-draws"}
        save_checkpoint(path, replace(state, config=config | ({} if stored is None else {"layerdrop-draws": stored})))
        assert draws("old", "4") == expected
    assert draws("old", "6", "--layerdrop-draws", "sentence") == "sentence"
    # What a run without LayerDrop noted has had no effect.
    save_checkpoint(path, replace(state, config=state.config | {"layerdrop-draws": "update", "encoder-layerdrop": 0.0}))
    assert draws("old", "4") == "sentence"
    # Another run that begins with its weights is a new one.
    assert draws("tuned", "2", "--finetune-from-model", str(path)) == "sentence"


@pytest.mark.parametrize("order", ["mixed", "length"])
def test_recomputed_layers_draw_the_same(trained, tmp_path, order):
    data, _ = trained
    flags = [*DROP, "--batch-order", order, "--dropout", "0.1", "--max-update", "4"]
    for name, more in (("plain", []), ("recomputed", ["--checkpoint-activations"])):
        assert train(data, tmp_path / name, *flags, *more) == 0
    one, other = (load_checkpoint(tmp_path / name / "checkpoint_last.pt").weights for name in ("plain", "recomputed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_generate_with_fewer_layers(trained, capsys):
    data, path = trained
    _, whole = hypotheses(capsys, data, "--path", path)
    captured, pruned = hypotheses(capsys, data, "--path", path, *KEEP)
    assert captured.out.splitlines()[0] == LINE
    assert re.fullmatch(r"\| num\. model params: \d+", captured.out.splitlines()[1])
    assert "warning" not in captured.err
    assert pruned != whole
    # The same inside --model-overrides, in either spelling, and from Python.
    _, again = hypotheses(capsys, data, "--path", path, "--model-overrides",
                          "{'encoder_layers_to_keep': '0,2', 'decoder-layers-to-keep': [1, 3]}")
    assert again == pruned
    translator = lamina.load(path, encoder_layers_to_keep="every:2", decoder_layers_to_keep=[1, 3])
    assert [len(stack.layers) for stack in (translator.models[0].encoder, translator.models[0].decoder)] == [2, 2]
    # An ensemble prunes each of its models.
    captured, both = hypotheses(capsys, data, "--path", f"{path}:{path}", *KEEP)
    assert captured.out.count(LINE) == 1
    assert [line.split("\t")[2] for line in both] == [line.split("\t")[2] for line in pruned]


def test_a_number_that_stands_alone_is_a_layer_as_in_fairseq(trained, capsys, tmp_path):
    data, path = trained
    _, third = hypotheses(capsys, data, "--path", path, "--decoder-layers-to-keep", "2")
    for overrides in ("{'decoder_layers_to_keep':'2'}", "{'decoder_layers_to_keep':2}"):
        assert hypotheses(capsys, data, "--path", path, "--model-overrides", overrides)[1] == third
    assert main(["prune", str(path), "--decoder-layers-to-keep", "2", "--output", str(tmp_path / "third.pt")]) == 0
    assert "| decoder layers 2 of 4" in capsys.readouterr().out.splitlines()
    assert hypotheses(capsys, data, "--path", tmp_path / "third.pt")[1] == third
    translator = lamina.load(path, encoder_layers_to_keep=3, decoder_layers_to_keep="2")  # Python's numbers are counts
    assert [len(stack.layers) for stack in (translator.models[0].encoder, translator.models[0].decoder)] == [3, 1]
    _, first = hypotheses(capsys, data, "--path", path, "--model-overrides", "{'decoder_layers_to_keep':'0'}")
    assert first != third


def test_interactive_and_rescore_prune_too(trained, capsys, tmp_path, monkeypatch):
    _, path = trained
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the moon sings\n")))
    assert main(["interactive", "--path", str(path), "--cpu", "--plain", "--decoder-layers-to-keep", "even:2"]) == 0
    captured = capsys.readouterr()
    assert LINE in captured.err.splitlines()
    assert len(captured.out.splitlines()) == 1
    for name in ("source", "target"):
        (tmp_path / name).write_text("the moon sings\n")
    rescore = ["rescore", "--path", str(path), "--source", f"{tmp_path}/source", "--target", f"{tmp_path}/target", "--cpu"]
    assert main([*rescore, "--encoder-layers-to-keep", "0,3"]) == 0
    captured = capsys.readouterr()
    assert LINE in captured.err.splitlines()
    assert len(captured.out.splitlines()) == 3


@pytest.mark.parametrize(("flags", "message"), [
    (["--decoder-layers-to-keep", "0,9"], "names layer 9, but the decoder of"),
    (["--decoder-layers-to-keep", "0,0"], "names layer 0 twice"),
    (["--decoder-layers-to-keep", ""], "is empty"),
    (["--decoder-layers-to-keep", "x"], "must be layers counted from 0"),
    (["--model-overrides", "{'decoder_layers_to_keep': 'even:5'}"], "asks for 5 layers, but the decoder of"),
    (["--model-overrides", "{'decoder_layers_to_keep': '5'}"], "names layer 5, but the decoder of"),
    (["--model-overrides", "{'decoder_layers_to_keep': 2.5}"], "the layers to keep are 2.5"),
    (["--model-overrides", "{'decoder_layers_to_kep': '5'}"], "Did you mean --decoder-layers-to-keep?"),
    (["--decoder-layers-to-keep", "1", "--model-overrides", "{'decoder_layers_to_keep': '5'}"], "is given twice"),
])
def test_bad_lists(trained, capsys, flags, message):
    data, path = trained
    assert main(["generate", data, "--path", str(path), "--gen-subset", "valid", "--cpu", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("how", ["--restore-file", "--finetune-from-model"])
def test_training_a_pruned_model_on(trained, tmp_path, capsys, how):
    data, path = trained
    save_dir = tmp_path / "half"
    epochs = ["--max-epoch", "7", "--log-format", "simple"] if how == "--restore-file" else ["--max-update", "2",
                                                                                          "--log-format", "simple"]
    assert train(data, save_dir, *DROP, *KEEP, how, str(path), *epochs) == 0
    output = capsys.readouterr().out.splitlines()
    assert LINE in output
    stored = load_checkpoint(save_dir / "checkpoint_last.pt")
    params = sum(weight.numel() for weight in stored.weights.values())
    assert f"| num. model params: {params} (num. trained: {params})" in output
    assert not any("no optimizer state" in line for line in output)
    assert stored.config["encoder-layers-to-keep"] == "0,2 of 4"
    assert depths(save_dir / "checkpoint_last.pt") == (2, 2)
    updates = stored.training["progress"]["updates"]
    assert updates > 2 if how == "--restore-file" else updates == 2
    if how == "--restore-file":  # what the optimizer knew of the kept layers went on from there
        step = load_checkpoint(path).training["optimizer"]["step"]
        assert stored.training["optimizer"]["step"] > step
    # It reloads everywhere: without the flags, with them, and further pruned.
    _, plain = hypotheses(capsys, data, "--path", save_dir / "checkpoint_last.pt")
    captured, again = hypotheses(capsys, data, "--path", save_dir / "checkpoint_last.pt", *KEEP)
    assert plain == again
    assert LINE not in captured.out
    cases = [((), (2, 2)), (KEEP, (2, 2)), (("--encoder-layers", "2", "--decoder-layers", "2"), (2, 2)),
             (("--decoder-layers-to-keep", "even:1"), (2, 1))]
    for number, (flags, depth) in enumerate(cases):
        folder = shutil.copytree(save_dir, tmp_path / str(number))
        assert train(data, folder, *flags, "--max-update", str(updates + 1)) == 0
        assert depths(folder / "checkpoint_last.pt") == depth
        assert load_checkpoint(folder / "checkpoint_last.pt").training["progress"]["updates"] == updates + 1
    # An average of pruned checkpoints is one.
    assert main(["average", "--inputs", str(save_dir / "checkpoint_last.pt"), str(save_dir / "checkpoint_best.pt"),
                 "--output", str(tmp_path / "mean.pt")]) == 0
    assert depths(tmp_path / "mean.pt") == (2, 2)


def test_without_a_checkpoint_the_model_is_small_from_the_start(trained, tmp_path, capsys):
    data, _ = trained
    assert train(data, tmp_path, "--decoder-layers-to-keep", "every:2", "--max-update", "1", "--log-format", "simple") == 0
    assert "there is no checkpoint to prune" in capsys.readouterr().out
    assert depths(tmp_path / "checkpoint_last.pt") == (4, 2)


def test_a_model_trained_without_layerdrop_is_warned_of(trained, tmp_path, capsys):
    data, _ = trained
    assert train(data, tmp_path, "--max-update", "1") == 0
    captured, _ = hypotheses(capsys, data, "--path", tmp_path / "checkpoint_last.pt", "--decoder-layers-to-keep", "even:2")
    assert "was trained without --decoder-layerdrop" in captured.err
    assert "encoder-layerdrop" not in captured.err


def test_the_reference_lines_run_as_they_are(trained, tmp_path, capsys):
    """Sixteen layers a stack, trained with LayerDrop, then cut to half: trained on, and translating."""
    data, _ = trained
    tiny = [*DEEP, "--encoder-layers", "16", "--decoder-layers", "16", "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim",
            "8"]
    keep = "--encoder-layers-to-keep 0,2,4,6,8,10,12,14 --decoder-layers-to-keep 0,2,4,6,8,10,12,14".split()
    assert main(["train", data, *tiny, *"--encoder-layerdrop 0.2 --decoder-layerdrop 0.2".split(), "--max-update", "2",
                 "--save-dir", str(tmp_path / "full")]) == 0
    full = str(tmp_path / "full" / "checkpoint_last.pt")
    capsys.readouterr()
    assert main(["train", data, *tiny, *keep, "--restore-file", full, "--max-update", "4", "--save-dir",
                 str(tmp_path / "half")]) == 0
    assert LINE in capsys.readouterr().out.splitlines()
    assert depths(tmp_path / "half" / "checkpoint_last.pt") == (8, 8)
    captured, _ = hypotheses(capsys, data, "--path", full, *keep)
    assert captured.out.startswith(f"{LINE}\n| num. model params: ")


@pytest.mark.parametrize("flags", [
    "--transparent-attention --fine-grained-ta --ta-source-embedding --surfacefusion att --sf-idx 1",
    "--layer-wise-attention --encoder-normalize-before --decoder-normalize-before",
    "--init-type admin --surfacefusion mean --sf-gate 0.8 --checkpoint-activations",
    "--init-type deepnet --transparent-attention",
    "--init-type rezero --layerdrop-schedule linear --bf16",
])
def test_fusion_and_deep_residuals_drop_prune_and_go_on(trained, tmp_path, capsys, flags):
    data, _ = trained
    flags = [*flags.split(), "--encoder-layerdrop", "0.5", "--decoder-layerdrop", "0.5", "--disable-validation"]
    assert train(data, tmp_path / "full", *flags, "--max-update", "3") == 0
    full = tmp_path / "full" / "checkpoint_last.pt"
    # The first and the last layers go, of which fusion knows most; then training goes on, and once more.
    keep = ["--encoder-layers-to-keep", "1,2", "--decoder-layers-to-keep", "0,2"]
    for updates in (4, 5):
        start = ["--restore-file", str(full)] if updates == 4 else []
        assert train(data, tmp_path / "half", *flags, *keep, *start, "--max-update", str(updates)) == 0
        is_reset = updates == 4 and "--transparent-attention" in flags
        assert ("the optimizer starts from scratch for memory.weight" in capsys.readouterr().out) == is_reset
    assert load_checkpoint(tmp_path / "half" / "checkpoint_last.pt").training["progress"]["updates"] == 5
    # Pruned on demand and pruned to a file: the same translations.
    _, demanded = hypotheses(capsys, data, "--path", full, *keep)
    assert main(["prune", str(full), *keep, "--output", str(tmp_path / "small.pt")]) == 0
    _, stored = hypotheses(capsys, data, "--path", tmp_path / "small.pt")
    assert demanded == stored


def test_pruning_in_place_is_warned_of(trained, tmp_path, capsys):
    data, path = trained
    shutil.copy(path, tmp_path / "checkpoint_last.pt")
    assert train(data, tmp_path, "--decoder-layers-to-keep", "even:2", "--max-update", "1") == 0
    assert "take the place of the whole one's" in capsys.readouterr().out

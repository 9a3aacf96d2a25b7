"""`lamina convert`, and fairseq's checkpoints wherever a command takes one."""

import pytest
import torch

import lamina
from fairseq_files import as_fairseq, fixture_content, write_dictionaries, write_fixture_file
from golden_files import read_model, read_tensors
from lamina.checkpoint.format import load_checkpoint, read_archive
from lamina.cli import main
from lamina.interop.fairseq_file import READABLE
from tiny import TINY_FLAGS, make_data

PLAIN = "transformer_shared_all_embeddings"
# fairseq's batches are of one length each, and a run that continues from its file keeps them.
TRAIN = (*TINY_FLAGS, "--optimizer", "adam", "--dropout", "0", "--cpu", "--no-epoch-checkpoints", "--batch-order", "length")


@pytest.mark.parametrize("fixture", [PLAIN, "admin_adaptive", "sf_att_hard_gate08", "transformer_lm_adaptive", "roberta_tiny"])
def test_convert(tmp_path, capsys, fixture):
    path, output = write_fixture_file(tmp_path, fixture), tmp_path / "out" / "new.pt"
    assert main(["convert", str(path), "--output", str(output)]) == 0
    said = capsys.readouterr().out
    model, checkpoint = read_model(fixture), load_checkpoint(output)
    assert f"| num. model params: {sum(parameter.numel() for parameter in model.parameters())}" in said
    assert f"| wrote {output}" in said
    for name, parameter in model.named_parameters():
        assert torch.equal(checkpoint.weights[name], parameter), name
    assert main(["convert", str(output), "--output", str(tmp_path / "again.pt")]) == 2
    assert "nothing to convert" in capsys.readouterr().err
    assert not (tmp_path / "again.pt").exists()


def test_dictionaries_are_named(tmp_path, capsys):
    path = tmp_path / "model" / "old.pt"
    write_dictionaries(tmp_path / "data", PLAIN)
    path.parent.mkdir()
    torch.save(fixture_content(PLAIN), path)
    assert main(["convert", str(path), "--output", str(tmp_path / "new.pt")]) == 2
    assert "--dict-dir" in capsys.readouterr().err
    assert main(["convert", str(path), "--output", str(tmp_path / "new.pt"), "--dict-dir", str(tmp_path / "data")]) == 0
    assert lamina.load(path, dict_dir=tmp_path / "data").vocabularies == lamina.load(tmp_path / "new.pt").vocabularies


def test_half_precision_becomes_single(tmp_path):
    """As --fp16 writes it; here weights are float32."""
    content = fixture_content(PLAIN)
    content["model"] = {name: tensor.half() for name, tensor in content["model"].items()}
    write_dictionaries(tmp_path, PLAIN)
    torch.save(content, tmp_path / "old.pt")
    assert main(["convert", str(tmp_path / "old.pt"), "--output", str(tmp_path / "new.pt")]) == 0
    weights = load_checkpoint(tmp_path / "new.pt").weights
    for name, parameter in read_model(PLAIN).named_parameters():
        assert weights[name].dtype == torch.float32
        assert torch.equal(weights[name], parameter.half().float()), name


def test_fold_and_prune_take_it_as_it_is(tmp_path):
    path = write_fixture_file(tmp_path, "admin_adaptive")
    assert main(["fold", str(path), "--output", str(tmp_path / "folded.pt")]) == 0
    assert load_checkpoint(tmp_path / "folded.pt").config["init-type"] == "default"
    assert main(["prune", str(path), "--encoder-layers-to-keep", "0", "--output", str(tmp_path / "small.pt")]) == 0
    assert load_checkpoint(tmp_path / "small.pt").model_config().encoder.num_layers == 1


def test_a_fork_says_what_it_said_before(tmp_path):
    """From the file to log-probabilities, through lamina.load."""
    fixture = "sf_att_hard_gate08"
    model = lamina.load(write_fixture_file(tmp_path, fixture), device="cpu").models[0]
    inputs, expected = read_tensors(fixture, "inputs"), read_tensors(fixture, "expected")
    is_token = inputs["target"].ne(1)
    log_probs = model.log_probs(inputs["src_tokens"], inputs["prev_output_tokens"])
    torch.testing.assert_close(log_probs[is_token], expected["lprobs"][is_token], rtol=0, atol=5.6e-6)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three updates, as a checkpoint of ours and as fairseq would have written it."""
    folder = tmp_path_factory.mktemp("convert")
    data = make_data(folder)
    assert main(["train", str(data), *TRAIN, "--max-update", "3", "--save-dir", str(folder / "ours")]) == 0
    checkpoint = load_checkpoint(folder / "ours" / "checkpoint_last.pt")
    torch.save(as_fairseq(checkpoint), folder / "theirs.pt")
    return folder


def weights_after(folder, save_dir, *flags):
    assert main(["train", str(folder / "data"), *TRAIN, "--save-dir", str(folder / save_dir), *flags]) == 0
    return load_checkpoint(folder / save_dir / "checkpoint_last.pt")


def test_training_goes_on_as_if_nothing_had_happened(trained, capsys):
    """The epoch begins anew, since batches are others' there; the weights and the optimizer are where they were."""
    whole = weights_after(trained, "native", "--restore-file", str(trained / "ours" / "checkpoint_last.pt"), "--max-update",
                          "5", "--reset-dataloader")
    capsys.readouterr()
    resumed = weights_after(trained, "foreign", "--restore-file", str(trained / "theirs.pt"), "--max-update", "5",
                            "--reset-dataloader")
    assert "(epoch 1 @ 3 updates)" in capsys.readouterr().out
    assert resumed.training["progress"]["updates"] == 5
    for name, weight in whole.weights.items():
        assert torch.equal(weight, resumed.weights[name]), name


def test_an_optimizer_that_does_not_fit_starts_afresh(trained, capsys):
    content = read_archive(trained / "theirs.pt", allowed=READABLE)
    content["last_optimizer_state"]["param_groups"] *= 2
    torch.save(content, trained / "odd.pt")
    capsys.readouterr()
    resumed = weights_after(trained, "odd", "--restore-file", str(trained / "odd.pt"), "--max-update", "1")
    assert "the optimizer starts from scratch, since the checkpoint's state does not fit: its optimizer has 2 groups" in \
        capsys.readouterr().out
    assert resumed.training["progress"]["updates"] == 1


def test_commands_take_it_as_it_is(trained, tmp_path, capsys):
    data, path = str(trained / "data"), str(trained / "theirs.pt")
    for flags in (["--path", path], ["--path", str(trained / "ours" / "checkpoint_last.pt")]):
        assert main(["generate", data, "--gen-subset", "valid", "--beam", "2", "--max-len-b", "5", *flags]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[: len(said) // 2] == said[len(said) // 2:]
    (trained / "dict.en.txt").write_text((trained / "data" / "dict.en.txt").read_text())
    (trained / "dict.xx.txt").write_text((trained / "data" / "dict.xx.txt").read_text())
    assert main(["average", "--inputs", path, path, "--output", str(tmp_path / "mean.pt")]) == 0
    mean = load_checkpoint(tmp_path / "mean.pt").weights
    torch.testing.assert_close(mean, load_checkpoint(trained / "ours" / "checkpoint_last.pt").weights)
    tuned = weights_after(trained, "tuned", "--finetune-from-model", path, "--max-update", "1")
    assert tuned.training["progress"]["updates"] == 1

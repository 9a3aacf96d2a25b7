"""`lamina train`, in-process, on a 20-line corpus."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from itertools import count

import pytest
import torch

from golden_files import GOLDEN
from lamina.checkpoint.format import load_checkpoint, save_checkpoint
from lamina.cli import main
from lamina.distributed.signals import STOPS
from lamina.metrics.bleu import corpus_bleu
from lamina.text.tokenizer import detokenizer
from lamina.training.folder_lock import only_run_in
from tiny import TINY_FLAGS, make_data, write_text


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(make_data(tmp_path_factory.mktemp("train")))


@pytest.fixture(scope="module")
def longer_data(tmp_path_factory):
    return str(make_data(tmp_path_factory.mktemp("longer"), num_lines=120))


def train(data, save_dir, *flags):
    return main(["train", data, *TINY_FLAGS, "--save-dir", str(save_dir), *flags])


def last(save_dir, name="checkpoint_last.pt"):
    return load_checkpoint(save_dir / name)


def test_a_run_from_start_to_end(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-epoch", "2", "--eval-bleu", "--eval-bleu-print-samples") == 0
    out = capsys.readouterr().out
    assert "num. model params: " in out
    assert "effective batch: up to 64 tokens (max-tokens 64 x update-freq 1 x 1 rank)" in out
    assert re.search(r"\| epoch 001: +1 / \d+ loss=[\d.]+, nll_loss=[\d.]+, ppl=[\d.]+, wps=\d+.* eta=\d:\d\d:\d\d", out)
    assert re.search(r"\| epoch 002 \| valid on 'valid' subset \| loss [\d.]+ \| .* bleu [\d.]+ \| best_loss", out)
    assert "translation: " in out
    assert "training stopped: 2 epochs are done (--max-epoch)" in out
    assert sorted(os.listdir(tmp_path)) == ["checkpoint1.pt", "checkpoint2.pt", "checkpoint_best.pt", "checkpoint_last.pt",
                                            "train.jsonl"]
    checkpoint = last(tmp_path)
    assert checkpoint.languages == ("en", "xx")
    assert checkpoint.config["encoder-embed-dim"] == 16
    assert checkpoint.training["progress"]["epoch"] == 3
    assert checkpoint.metrics.keys() == {"loss", "nll_loss", "ppl", "bleu"}
    assert "<s>" not in checkpoint.dictionaries[0]


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory):
    """Moses tokens, as fairseq's scripts prepare them: half of them are punctuation, which is easy to learn."""
    folder = tmp_path_factory.mktemp("tokenized")
    for split, seed in (("train", 0), ("valid", 1)):
        write_text(folder / "text", 20, seed=seed, split=split)
        for file in (folder / "text").glob(f"{split}.*"):
            file.write_text("".join(f"it &apos;s {line} , &apos;s .\n" for line in file.read_text().splitlines()))
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{folder}/text/train", "--validpref",
                 f"{folder}/text/valid", "--destdir", str(folder / "data"), "--workers", "1", "--joined-dictionary"]) == 0
    return str(folder / "data")


def printed_bleu(out):
    return float(re.findall(r"valid on 'valid' subset .* bleu ([\d.]+)", out)[-1])


def test_bleu_of_text_that_came_tokenized(tokenized, tmp_path, capsys):
    """13a would split &apos; in three, each a match: the figure that generate prints, of tokens or of text, is another."""
    figures = {}
    for name, flags in {"left out": [], "tokens": ["--eval-tokenized-bleu"], "moses": ["--eval-bleu-detok", "moses"],
                        "13a": ["--eval-bleu-detok", "space"]}.items():
        if name == "moses":
            pytest.importorskip("sacremoses")
        assert train(tokenized, tmp_path / name, "--max-update", "12", "--lr", "0.05", "--eval-bleu", *flags,
                     "--eval-bleu-print-samples") == 0
        out = capsys.readouterr().out
        figures[name] = printed_bleu(out)
        assert f"BLEU at validation: tok:{'none' if name in ('left out', 'tokens') else '13a'}" in out
        assert ("the text looks tokenized" in out) == (name == "left out")
        assert ("&apos;" in re.search(r"reference: .*", out)[0]) == (name != "moses")
    assert figures["left out"] == figures["tokens"] < figures["13a"]
    # What detokenizing both files and scoring them says.
    assert main(["generate", tokenized, "--path", str(tmp_path / "moses" / "checkpoint_last.pt"), "--gen-subset", "valid",
                 "--beam", "1", "--max-len-a", "2", "--max-len-b", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    detokenize = detokenizer("xx")
    texts = [[detokenize(line.split("\t")[-1]) for line in lines if line.startswith(kind)] for kind in ("H-", "T-")]
    assert figures["moses"] == pytest.approx(corpus_bleu(*texts), abs=0.006)
    assert figures["moses"] != pytest.approx(figures["13a"], abs=0.5)


def test_rouge_of_text_that_came_tokenized(tokenized, tmp_path, capsys):
    """Its words are letters and digits: of &apos; it sees apos, in every sentence."""
    pytest.importorskip("rouge_score")
    for flags, is_told in (([], True), (["--eval-bleu-detok", "space"], False)):
        assert train(tokenized, tmp_path / str(is_told), "--max-update", "1", "--eval-rouge", *flags) == 0
        assert ("; the text looks tokenized (--eval-bleu-detok moses" in capsys.readouterr().out) == is_told


def test_tokens_that_are_tokenized_once_more_are_told(tokenized, tmp_path, capsys):
    assert train(tokenized, tmp_path, "--max-update", "1") == 0
    assert main(["generate", tokenized, "--path", str(tmp_path / "checkpoint_last.pt"), "--gen-subset", "valid", "--sacrebleu",
                 "--quiet"]) == 0
    assert "warning: the reference translations look tokenized, and --sacrebleu tokenizes" in capsys.readouterr().err


def test_rouge_at_validation(data, tmp_path, capsys):
    pytest.importorskip("rouge_score")
    assert train(data, tmp_path, "--max-epoch", "2", "--eval-rouge", "--eval-bleu-print-samples", "--best-checkpoint-metric",
                 "rouge1") == 0
    out = capsys.readouterr().out
    assert "| ROUGE at validation: nrefs:1|best:max|stemmer:no|" in out
    assert re.search(r"\| rouge1 [\d.]+ \| rouge2 [\d.]+ \| rougeL [\d.]+ \| rougeLsum [\d.]+ \| best_rouge1 [\d.]+", out)
    assert "translation: " in out
    assert "bleu" not in last(tmp_path).metrics
    assert 0 <= last(tmp_path).metrics["rougeL"] <= last(tmp_path).metrics["rouge1"] <= 100


def test_rouge_without_its_package_is_an_error_before_training(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    assert train(data, tmp_path, "--max-epoch", "1", "--eval-rouge") == 2
    assert "pip install 'lamina[rouge]'" in capsys.readouterr().err
    assert not (tmp_path / "checkpoint_last.pt").exists()


@pytest.mark.parametrize("positions", ["", "--encoder-learned-pos"])
def test_long_sources_are_cut(tmp_path, capsys, positions):
    """From text to summaries, with sources of 40 words and room for 12; the pairs are all used."""
    text = write_text(tmp_path / "text")
    for split in ("train", "valid"):
        write_text(text, 20, split=split)
        sources = (text / f"{split}.en").read_text().splitlines()
        (text / f"{split}.en").write_text("".join(" ".join([source] * 20)[:200].rsplit(" ", 1)[0] + "\n" for source in sources))
    folder = str(tmp_path / "long")
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--validpref", f"{text}/valid",
                 "--destdir", folder, "--workers", "1", "--joined-dictionary"]) == 0
    flags = ["--max-source-positions", "12", "--max-target-positions", "40", "--max-update", "2", *positions.split()]
    assert train(folder, tmp_path / "refused", *flags) == 2
    assert "longer than 12 source" in capsys.readouterr().err
    assert train(folder, tmp_path / "out", *flags, "--truncate-source", "--eval-bleu") == 0
    model = str(tmp_path / "out" / "checkpoint_last.pt")
    assert main(["generate", folder, "--path", model, "--gen-subset", "valid", "--beam", "2",
                 "--truncate-source", "--max-len-b", "5"]) == 0
    out = capsys.readouterr().out
    assert sum(line.startswith("H-") for line in out.splitlines()) == 20
    # A reference that is too long is not cut: what cannot help is not advised.
    short = ["--model-overrides", "{'max_target_positions': 3}"]
    line = ["generate", folder, "--path", model, "--gen-subset", "valid"]
    if "learned" not in positions:
        assert main([*line, "--truncate-source", *short]) == 2
        error = error_of(capsys)
        assert "References are too long among them: add --skip-invalid-size-inputs-valid-test to leave them out." in error
        assert "truncate" not in error
    assert main(line) == 2
    assert "Add --truncate-source, or --skip-invalid-size-inputs-valid-test" in error_of(capsys)
    assert all(len(line.split("\t")[1].split()) <= 12 for line in out.splitlines() if line.startswith("S-"))


def test_the_loss_falls(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-epoch", "12", "--log-format", "json", "--no-epoch-checkpoints") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    losses = [row["loss"] for row in rows if row.get("where") == "valid"]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("stop", ["epoch", "mid-epoch"])
@pytest.mark.parametrize("choice", [["--optimizer", "adam"],
                                    ["--optimizer", "nag", "--momentum", "0.9", "--surfacefusion", "att", "--sf-mode", "soft",
                                     "--sf-dropout", "0.5"]])
def test_resuming_equals_not_stopping_to_the_bit(data, tmp_path, stop, choice):
    flags = [*choice, "--dropout", "0.2", "--clip-norm", "0.5", "--update-freq", "2"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(data, whole, *flags, "--max-epoch", "4") == 0
    first = ["--max-epoch", "2"] if stop == "epoch" else ["--max-update", "3"]
    assert train(data, parts, *flags, *first) == 0
    assert train(data, parts, *flags, "--max-epoch", "4") == 0
    one, other = last(whole), last(parts)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    same = {name: value for name, value in one.training["progress"].items() if name not in ("seconds", "stale_validations")}
    assert same == {name: other.training["progress"][name] for name in same}
    assert one.metrics == other.metrics


def test_same_seed_same_bits_other_seed_others(data, tmp_path):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert train(data, tmp_path / name, "--max-update", "3", "--dropout", "0.2", "--seed", seed) == 0
    weights = [last(tmp_path / name).weights for name in "abc"]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


def test_preparing_batches_ahead_changes_nothing(data, tmp_path):
    for name in ("0", "2"):
        assert train(data, tmp_path / name, "--max-update", "4", "--num-workers", name) == 0
    one, other = last(tmp_path / "0").weights, last(tmp_path / "2").weights
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_restore_file_that_does_not_exist_means_a_fresh_start(data, tmp_path, capsys):
    warning = f"--restore-file x.pt does not exist, neither in {tmp_path} nor as a path: training starts from scratch"
    assert train(data, tmp_path, "--max-update", "1", "--restore-file", "x.pt") == 0
    first = capsys.readouterr()
    # At the beginning, and again at the end, where hours of lines may have followed.
    assert first.err.count(f"warning: {warning}") == 2
    assert "checkpoint_last.pt" not in first.err
    assert train(data, tmp_path, "--max-update", "1", "--restore-file", "x.pt", "--log-format", "json") == 0
    again = capsys.readouterr()
    assert f"{tmp_path / 'checkpoint_last.pt'} of an earlier run is not read, and will be replaced" in again.err
    assert last(tmp_path).training["progress"]["updates"] == 1
    assert sum(warning in json.loads(line).get("warning", "") for line in again.out.splitlines()) == 2
    assert train(data, tmp_path / "plain", "--max-update", "1") == 0
    assert "warning" not in capsys.readouterr().err


def test_a_run_has_one_beginning(data, tmp_path, capsys):
    assert train(data, tmp_path / "a", "--max-update", "1") == 0
    model = str(tmp_path / "a" / "checkpoint_last.pt")
    assert train(data, tmp_path / "b", "--max-update", "1", "--finetune-from-model", model, "--restore-file", "x.pt") == 2
    assert (f"error: --finetune-from-model {model} begins a new run with a model's weights, and --restore-file x.pt continues "
            "with an old one. Leave one of them out") in capsys.readouterr().err
    missing = str(tmp_path / "a" / "no.pt")
    assert train(data, tmp_path / "b", "--max-update", "1", "--finetune-from-model", missing) == 2
    assert missing in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    for updates in ("1", "2"):
        assert train(data, tmp_path / "b", "--max-update", updates, "--finetune-from-model", model) == 0
    assert f"checkpoint_last.pt is there: this run is resumed, and {model} is not read again" in capsys.readouterr().out
    assert last(tmp_path / "b").training["progress"]["updates"] == 2


@pytest.mark.parametrize("other", [["--max-tokens", "128"], ["--seed", "7"]])
def test_resuming_inside_an_epoch_with_other_batches_keeps_the_place_in_sentences(longer_data, tmp_path, capsys, other):
    assert train(longer_data, tmp_path, "--max-update", "4") == 0
    before = last(tmp_path).training["progress"]
    assert train(longer_data, tmp_path, "--max-update", "5", *other) == 0
    line = re.search(r"batches are not those that epoch 1 of the checkpoint had \(as with another --max-tokens or --seed\): "
                     r"it continues after as many pairs, (\d+) of 120, at batch (\d+) of (\d+) instead of 4; some may come "
                     r"twice",
                     capsys.readouterr().out)
    done, place, number = map(int, line.groups())
    assert done == before["sentences_done"]
    assert (done / 120 - 0.25) * number < place < (done / 120 + 0.25) * number + 1
    after = last(tmp_path).training["progress"]
    assert (after["epoch"], after["batches_done"], after["updates"]) == (1, place + 1, 5)
    # The new batches are those that the next sitting counts.
    assert train(longer_data, tmp_path, "--max-update", "6", *other) == 0
    assert "batches are not those" not in capsys.readouterr().out


def test_resuming_inside_an_epoch_on_other_data_begins_it_again(longer_data, tmp_path, capsys):
    assert train(longer_data, tmp_path / "a", "--max-update", "4") == 0
    other = shutil.copytree(longer_data, tmp_path / "other")
    for path in other.glob("valid.*"):
        shutil.copy(path, other / path.name.replace("valid", "train", 1))
    (other / "manifest.json").unlink()
    assert train(str(other), tmp_path / "a", "--max-update", "5") == 0
    assert "the training data is not what epoch 1 of the checkpoint had: the epoch begins again" in capsys.readouterr().out
    progress = last(tmp_path / "a").training["progress"]
    assert (progress["updates"], progress["epoch"], progress["batches_done"]) == (5, 2, 0)  # one batch is all there is


def test_resetting(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-epoch", "1") == 0
    updates = last(tmp_path).training["progress"]["updates"]
    reset = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
    shutil.copy(tmp_path / "checkpoint_last.pt", tmp_path / "start.pt")
    assert train(data, tmp_path, "--restore-file", "start.pt", *reset, "--max-update", "2") == 0
    assert f"(epoch 1 @ 0 updates)" in capsys.readouterr().out  # noqa: F541
    assert updates > 2
    progress = last(tmp_path).training["progress"]
    assert (progress["updates"], progress["epoch"]) == (2, 1)
    # The schedule alone: updates go on, the warm-up begins anew.
    assert train(data, tmp_path, "--restore-file", "start.pt", "--reset-lr-scheduler", "--max-update", str(updates + 1)) == 0
    assert last(tmp_path).training["progress"]["schedule_start"] == updates


SMOOTHED = ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]


@pytest.mark.parametrize(("first", "then", "words"), [
    (["--eval-bleu", "--best-checkpoint-metric", "bleu"], [], "is forgotten: --best-checkpoint-metric was bleu and is loss"),
    (SMOOTHED, [], "--criterion was label_smoothed_cross_entropy and is cross_entropy"),
    (SMOOTHED, [*SMOOTHED[:-1], "0.9"], "--label-smoothing was 0.1 and is 0.9"),
    (["--eval-bleu", "--best-checkpoint-metric", "bleu", "--eval-tokenized-bleu"],
     ["--eval-bleu", "--best-checkpoint-metric", "bleu"], "--eval-tokenized-bleu was True and is False"),
    ([], ["--valid-subset", "train"], "validation set was 6 pairs of "),
    ([], ["--lr", "1e-9", "--max-tokens", "100", "--seed", "2"], ""),
])
def test_the_best_score_is_compared_with_others_of_its_kind(data, tmp_path, capsys, first, then, words):
    """Otherwise a BLEU of 0, or the loss without smoothing, stays the best for ever."""
    assert train(data, tmp_path, "--max-update", "2", *first) == 0
    (tmp_path / "checkpoint_best.pt").unlink()
    before = last(tmp_path).training["progress"]["best"]
    capsys.readouterr()
    assert train(data, tmp_path, "--max-update", "3", "--lr", "1e-9", *then) == 0
    out, stored = capsys.readouterr().out, last(tmp_path)
    assert words in out
    assert ("is forgotten" in out) == bool(words)
    progress = stored.training["progress"]
    if words:
        metric = progress["best_of"]["best-checkpoint-metric"]
        assert progress["best"] == stored.metrics[metric] == last(tmp_path, "checkpoint_best.pt").metrics[metric]
        assert progress["stale_validations"] == 0
    else:
        assert progress["best"] <= before


def test_a_checkpoint_that_does_not_say_what_its_score_measured(data, tmp_path, capsys):
    """Of a time before: its configuration does."""
    assert train(data, tmp_path, "--max-update", "2", "--eval-bleu", "--best-checkpoint-metric", "bleu") == 0
    old = last(tmp_path)
    del old.training["progress"]["best_of"]
    save_checkpoint(tmp_path / "checkpoint_last.pt", old)
    assert train(data, tmp_path, "--max-update", "3", "--disable-validation") == 0
    assert "is forgotten" not in capsys.readouterr().out, "nothing was validated"
    assert train(data, tmp_path, "--max-update", "4") == 0
    assert "is forgotten" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--reset-optimizer"], ["--reset-meters"], []])
def test_the_best_score_stays_unless_a_run_of_its_own_begins(data, tmp_path, flags):
    """As in fairseq: after --reset-optimizer, a new folder gets a checkpoint_best.pt, however bad it is."""
    assert train(data, tmp_path / "old", "--max-update", "9", "--lr", "0.02") == 0
    start = last(tmp_path / "old")
    start.training["progress"] |= {"best": 0.01, "stale_validations": 3}
    save_checkpoint(tmp_path / "start.pt", start)
    assert train(data, tmp_path / "new", "--restore-file", str(tmp_path / "start.pt"), *flags, "--max-update", "10") == 0
    assert (tmp_path / "new" / "checkpoint_best.pt").exists() == bool(flags)
    progress = last(tmp_path / "new").training["progress"]
    assert (progress["best"] == 0.01) == (not flags)
    assert (progress["stale_validations"] >= 3) == (not flags)


def test_a_second_phase_in_one_folder(data, tmp_path, capsys, monkeypatch):
    """Its updates count from 0 again, and are the newest all the same; the first phase's files stay."""
    import lamina.training.saver as saver_module

    moments = count(10)  # these runs take less than the seconds that a file tells
    monkeypatch.setattr(saver_module, "origin", lambda: {"time": str(next(moments))})
    flags = ("--no-epoch-checkpoints", "--save-interval-updates", "2", "--keep-interval-updates", "2")
    assert train(data, tmp_path, *flags, "--max-update", "12") == 0
    run = last(tmp_path).training["run"]
    assert train(data, tmp_path, *flags, "--max-update", "14") == 0  # the same run continued
    assert last(tmp_path).training["run"] == run
    first = {path.name for path in tmp_path.glob("checkpoint_?_*.pt")}
    assert {name[:-3].split("_")[-1] for name in first} == {"12", "14"}
    capsys.readouterr()
    assert train(data, tmp_path, *flags, "--max-update", "8", "--reset-optimizer", "--reset-dataloader", "--reset-meters") == 0
    second = {path.name for path in tmp_path.glob("checkpoint_?_*.pt")} - first
    assert {name[:-3].split("_")[-1] for name in second} == {"6", "8"}
    assert first < {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / f"checkpoint_best.run-{run}.pt").exists()
    assert f"is of another run: it is now checkpoint_last.run-{run}.pt" in capsys.readouterr().out
    # Averages and stand-ins are of the second as well.
    average = ["average", "--inputs", str(tmp_path), "--num-update-checkpoints", "2"]
    assert main([*average, "--output", str(tmp_path / "a.pt")]) == 0
    out, err = capsys.readouterr()
    assert all(name in out for name in second)
    assert "2 update checkpoints of another run, left out" in err
    (tmp_path / "checkpoint_best.pt").unlink()
    (tmp_path / "checkpoint_last.pt").unlink()
    (tmp_path / "checkpoint_last.pt").write_bytes(b"damaged beyond reading")
    for path in tmp_path.glob("checkpoint*.pt"):
        os.utime(path, (1000, 1000) if path.name in second else (2000, 2000))  # as copies may have them
    assert train(data, tmp_path, *flags, "--max-update", "8") == 0
    out = capsys.readouterr().out
    assert re.search(r"Going on from \S+checkpoint_\d_8.pt instead, the latest of the run that saved last \(run-", out)


def test_finetuning_takes_weights_only(data, tmp_path, capsys):
    assert train(data, tmp_path / "a", "--max-update", "2") == 0
    assert train(data, tmp_path / "b", "--max-update", "1", "--lr", "1e-12", "--finetune-from-model",
                 str(tmp_path / "a" / "checkpoint_last.pt")) == 0
    assert "weights taken from" in capsys.readouterr().out
    one, other = last(tmp_path / "a"), last(tmp_path / "b")
    assert other.training["progress"]["updates"] == 1
    torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-6)


def test_saving_and_validating_by_updates(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-update", "6", "--save-interval-updates", "2", "--keep-interval-updates", "1",
                 "--validate-interval-updates", "3", "--no-epoch-checkpoints") == 0
    out = capsys.readouterr().out
    assert [int(number) for number in re.findall(r"valid on .* num_updates (\d+)", out)] == [2, 3, 4, 6]
    names = set(os.listdir(tmp_path))
    assert {"checkpoint_best.pt", "checkpoint_last.pt"} < names
    assert sum(name.startswith(("checkpoint_1_", "checkpoint_2_")) for name in names) == 1


def test_patience_and_min_lr_stop(data, tmp_path, capsys):
    assert train(data, tmp_path / "a", "--max-epoch", "50", "--patience", "1", "--lr", "1e-9") == 0
    assert "no improvement in 1 validations" in capsys.readouterr().out
    assert train(data, tmp_path / "b", "--max-epoch", "50", "--min-lr", "0.004") == 0
    assert "the learning rate has fallen to its floor" in capsys.readouterr().out
    assert last(tmp_path / "b").training["progress"]["updates"] == 7  # 0.005 * sqrt(4 / 7) < 0.004


def test_no_save_and_disable_validation(data, tmp_path, capsys):
    assert train(data, tmp_path / "a", "--max-epoch", "1", "--no-save") == 0
    assert not (tmp_path / "a").exists()
    assert train(data, tmp_path / "b", "--max-epoch", "1", "--disable-validation", "--no-save-optimizer-state") == 0
    assert sorted(os.listdir(tmp_path / "b")) == ["checkpoint1.pt", "checkpoint_last.pt", "train.jsonl"]
    assert "optimizer" not in last(tmp_path / "b").training
    assert train(data, tmp_path / "b", "--max-update", "1", "--disable-validation") == 0
    assert "holds no optimizer state" in capsys.readouterr().out


def test_tensorboard_scalars(data, tmp_path):
    assert train(data, tmp_path, "--max-epoch", "1", "--no-save", "--tensorboard-logdir", str(tmp_path / "tb")) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"train/loss", "train/ppl", "train/wps", "train/gnorm", "train/lr", "train/mem_gib", "train/eta_s", "valid/loss",
            "epoch/loss"} <= tags
    # One point for each interval: the epoch's mean has a curve of its own.
    assert [point.step for point in events.Scalars("train/loss")] == [1, 2, 3]
    assert [point.step for point in events.Scalars("epoch/loss")] == [3]


def test_bfloat16_and_fp16_on_the_cpu(data, tmp_path, capsys):
    assert train(data, tmp_path / "a", "--max-update", "3", "--bf16", "--cpu") == 0
    assert last(tmp_path / "a").weights["encoder.layers.0.ffn.fc1.weight"].dtype == torch.float32
    assert "bfloat16" in capsys.readouterr().out
    assert train(data, tmp_path / "b", "--max-update", "1", "--fp16", "--cpu") == 0
    assert "--fp16 has no effect without a GPU" in capsys.readouterr().out


def test_a_fairseq_folder_trains(tmp_path):
    assert train(str(GOLDEN / "databin_mmap" / "joined"), tmp_path, "--max-update", "2", "-s", "fr", "-t", "en") == 0
    assert last(tmp_path).languages == ("fr", "en")


def test_several_folders_take_turns(data, tmp_path, capsys):
    assert train(f"{data}:{data}", tmp_path, "--max-epoch", "2", "--no-save") == 0
    assert "epoch 002 | valid" in capsys.readouterr().out


def test_pretrained_embeddings(data, tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("2 16\nboat " + " ".join(["0.5"] * 16) + "\nnoword " + " ".join(["1"] * 16) + "\n")
    assert train(data, tmp_path, "--max-update", "1", "--lr", "1e-12", "--encoder-embed-path", str(vectors)) == 0
    checkpoint = last(tmp_path)
    row = checkpoint.weights["source_embedding.table.weight"][checkpoint.vocabularies()[0].id("boat")]
    torch.testing.assert_close(row, torch.full((16,), 0.5), rtol=0, atol=1e-6)


@pytest.mark.parametrize("metric", [[], ["--eval-bleu", "--best-checkpoint-metric", "bleu"]])
def test_of_two_equal_scores_the_later_is_kept_and_patience_ends(data, tmp_path, monkeypatch, metric, capsys):
    figures = {"loss": 1.0, "nll_loss": 1.0, "ppl": 2.0}
    monkeypatch.setattr("lamina.training.validator.validation_loss", lambda *_, **__: figures)
    monkeypatch.setattr("lamina.parts.text_metrics.BleuMetric.corpus", lambda self, *_: self.score({"bleu": 5.0}))
    assert train(data, tmp_path, "--max-epoch", "9", "--patience", "2", *metric) == 0
    assert "no improvement in 2 validations (--patience)" in capsys.readouterr().out
    assert load_checkpoint(tmp_path / "checkpoint_best.pt").training["progress"]["epoch"] == 4  # as epoch 3 left it
    assert last(tmp_path).training["progress"]["epoch"] == 4


def test_pairs_that_are_left_out_do_not_count(longer_data, tmp_path, capsys):
    assert train(longer_data, tmp_path, "--max-update", "1", "--max-source-positions", "6",
                 "--skip-invalid-size-inputs-valid-test") == 0
    lines = capsys.readouterr().out
    left_out, total = map(int, re.search(r"(\d+) of (\d+) pairs of \S+train are longer than", lines).groups())
    assert 0 < left_out < total == 120
    assert re.search(rf"train: {total - left_out} pairs in \d+ batches, [\d.]+ % padding; {left_out} more are left out, "
                     "too long$", lines, flags=re.MULTILINE)


def test_validation_translates_as_generate_does_with_its_limits(data, tmp_path, capsys):
    """A model that has learned nothing does not stop by itself: the limit decides what is scored."""
    assert train(data, tmp_path, "--max-update", "1", "--eval-bleu", "--eval-tokenized-bleu", "--eval-bleu-print-samples") == 0
    sample = re.search(r"translation: (.*)", capsys.readouterr().out)[1]
    line = ["generate", data, "--path", str(tmp_path / "checkpoint_last.pt"), "--gen-subset", "valid", "--cpu", "--beam", "1"]
    assert main([*line, "--max-len-a", "2", "--max-len-b", "20"]) == 0
    found = [row.split("\t")[2] for row in capsys.readouterr().out.splitlines() if row.startswith("H-")]
    assert sample in found
    assert main(line) == 0
    assert sample not in [row.split("\t")[2] for row in capsys.readouterr().out.splitlines() if row.startswith("H-")]


# -- bad input: one line, exit code 2, nothing lost

def error_of(capsys):
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    return error[0]


def test_missing_data(tmp_path, capsys):
    assert train(str(tmp_path / "nowhere"), tmp_path / "out") == 2
    assert "there is no data folder" in error_of(capsys)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_told_before_the_first_update(data, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert train(data, tmp_path / "file", "--max-update", "1") == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith(f"error: no checkpoint could be written to {tmp_path / 'file'}: ")
    assert "num_updates" not in error
    assert train(data, tmp_path / "file", "--max-update", "1", "--no-save") == 0


def test_a_split_that_is_not_there(data, tmp_path, capsys):
    assert train(data, tmp_path, "--train-subset", "trian") == 2
    assert "there are none. The folder has train, valid." in error_of(capsys)


def test_a_folder_of_texts(tmp_path, capsys):
    text = write_text(tmp_path / "text", num_lines=3, seed=1)
    assert main(["preprocess", "--only-source", "--trainpref", f"{text}/train.en", "--destdir", str(tmp_path / "lm")]) == 0
    capsys.readouterr()
    assert train(str(tmp_path / "lm"), tmp_path / "out") == 2
    assert "--task language_modeling" in error_of(capsys)


def test_a_truncated_bin(data, tmp_path, capsys):
    broken = tmp_path / "data"
    shutil.copytree(data, broken)
    path = broken / "train.en-xx.en.bin"
    path.write_bytes(path.read_bytes()[:-10])
    assert train(str(broken), tmp_path / "out", "--max-update", "1") == 2
    assert "train.en-xx.en.bin" in error_of(capsys)


def test_a_dictionary_of_other_data(data, tmp_path, capsys):
    assert train(data, tmp_path / "out", "--max-update", "1") == 0
    capsys.readouterr()
    other = make_data(tmp_path / "other", num_lines=2)
    capsys.readouterr()
    assert train(str(other), tmp_path / "out", "--max-update", "2") == 2
    error = error_of(capsys)
    assert re.search(r"was trained with the source dictionary \w+, but .* has \w+", error)


def test_a_damaged_checkpoint_is_refused_and_kept(data, tmp_path, capsys):
    (tmp_path / "checkpoint_last.pt").write_bytes(b"garbage")
    assert train(data, tmp_path, "--max-update", "1") == 2
    assert "cannot be read as a checkpoint" in error_of(capsys)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == b"garbage"


def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(data, tmp_path, capsys):
    flags = ["--dropout", "0.2", "--save-interval-updates", "2"]
    whole = tmp_path / "whole"
    assert train(data, whole, *flags, "--max-update", "7") == 0
    assert train(data, tmp_path, *flags, "--max-update", "5") == 0
    path = tmp_path / "checkpoint_last.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    assert train(data, tmp_path, *flags, "--max-update", "7") == 0
    out = capsys.readouterr().out
    assert re.search(r"checkpoint_last.pt is damaged: .* Going on from .*checkpoint_\d_4.pt instead", out)
    assert "@ 4 updates" in out
    one, other = last(whole), last(tmp_path)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    # A file that was asked for by name has no stand-in.
    (tmp_path / "mine.pt").write_bytes(content)
    assert train(data, tmp_path, *flags, "--restore-file", "mine.pt", "--max-update", "7") == 2
    assert "mine.pt is damaged: its content does not match its checksum" in error_of(capsys)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("update", [2, 3, 4, 6])  # in the middle; at an epoch's end; where a validation is due; the last one
def test_a_signal_saves_and_resuming_equals_not_stopping(data, tmp_path, capsys, monkeypatch, request, number, update):
    import lamina.training.run as run_module

    former = signal.signal(number, signal.SIG_DFL)  # under nohup it would be ignored
    request.addfinalizer(lambda: signal.signal(number, former))
    flags = ["--dropout", "0.2", "--save-interval-updates", "4", "--max-epoch", "2", "--log-format", "json"]
    assert train(data, tmp_path / "whole", *flags) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "where" in line]
    real = run_module.Updater.update

    def update_and_signal(self, batches, lr, seed, *rest):
        if seed == (1 << 32) + update - 1:
            os.kill(os.getpid(), number)
        return real(self, batches, lr, seed, *rest)

    monkeypatch.setattr(run_module.Updater, "update", update_and_signal)
    handlers = [signal.getsignal(kind) for kind in STOPS]
    assert train(data, tmp_path / "parts", *flags) == 128 + number
    assert [signal.getsignal(kind) for kind in STOPS] == handlers
    printed = capsys.readouterr()
    assert printed.err.startswith(f"| stopped by {number.name} after update {update}: ")
    assert last(tmp_path / "parts").training["progress"]["updates"] == update
    monkeypatch.undo()
    assert train(data, tmp_path / "parts", *flags) == 0
    one, other = last(tmp_path / "whole"), last(tmp_path / "parts")
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert one.metrics == other.metrics
    assert without_time(one.training["progress"]) == without_time(other.training["progress"])
    both = printed.out.splitlines() + capsys.readouterr().out.splitlines()
    assert list(map(figures, rows)) == [figures(line) for line in both if "where" in line]
    assert sorted(os.listdir(tmp_path / "whole")) == sorted(os.listdir(tmp_path / "parts"))


def without_time(progress):
    return {name: value for name, value in progress.items() if name != "seconds"}


def figures(line):
    return {name: value for name, value in json.loads(line).items()
            if name not in ("train_wall", "wps", "ups", "mem_gib", "eta_s", "data_wait")}


def test_no_rank_leaves_before_the_state_is_on_disk(data, tmp_path, monkeypatch):
    """A launcher that ends all ranks when one is gone would end the first one while it writes."""
    import lamina.training.run as run_module

    events = []
    real_sum, real_finish, real_update = run_module.Ranks.sum, run_module.Keeper.finish, run_module.Updater.update
    monkeypatch.setattr(run_module.Ranks, "sum", lambda *words: [events.append("meet"), real_sum(*words)][1])
    monkeypatch.setattr(run_module.Keeper, "finish", lambda keeper: [real_finish(keeper), events.append("on disk")][0])
    monkeypatch.setattr(run_module.Updater, "update", lambda *words: [os.kill(os.getpid(), signal.SIGTERM),
                                                                     real_update(*words)][1])
    assert train(data, tmp_path) == 128 + signal.SIGTERM
    assert events[-2:] == ["on disk", "meet"]


@pytest.mark.parametrize("update", [2, 3, 4, 6])  # in the middle; at an epoch's end; where a checkpoint is due; the last one
def test_sigusr1_saves_and_goes_on(data, tmp_path, monkeypatch, update):
    import lamina.training.run as run_module

    flags = ["--dropout", "0.2", "--save-interval-updates", "4", "--max-epoch", "2"]
    assert train(data, tmp_path / "whole", *flags) == 0
    real_update, real_save, saved = run_module.Updater.update, run_module.Saver.save_now, []

    def update_and_signal(self, batches, lr, seed, *rest):
        if seed == (1 << 32) + update - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return real_update(self, batches, lr, seed, *rest)

    def save_and_copy(self, **options):
        real_save(self, **options)
        self.keeper.settle()
        saved.append(shutil.copytree(tmp_path / "parts", tmp_path / "copy"))

    with monkeypatch.context() as patch:
        patch.setattr(run_module.Updater, "update", update_and_signal)
        patch.setattr(run_module.Saver, "save_now", save_and_copy)
        assert train(data, tmp_path / "parts", *flags) == 0
    whole = last(tmp_path / "whole")
    assert len(saved) == 1
    for folder in (tmp_path / "parts", *saved):
        if folder in saved:  # one that was killed right after
            assert last(folder).training["progress"]["updates"] == update
            assert train(data, folder, *flags) == 0
        found = last(folder)
        assert all(torch.equal(value, found.weights[name]) for name, value in whole.weights.items())
        assert without_time(found.training["progress"]) == without_time(whole.training["progress"])
        assert found.metrics == whole.metrics


def test_sigusr1_does_not_save_a_state_that_is_not_finite(data, tmp_path, capsys, monkeypatch):
    import lamina.training.run as run_module

    real_update = run_module.Updater.update

    def update_ruin_and_signal(self, *arguments):
        result = real_update(self, *arguments)
        self.weights.master.fill_(math.nan)
        os.kill(os.getpid(), signal.SIGUSR1)
        return result

    monkeypatch.setattr(run_module.Updater, "update", update_ruin_and_signal)
    assert train(data, tmp_path, "--max-update", "3") == 2
    assert "training diverged: after update 1, " in error_of(capsys)
    assert not list(tmp_path.glob("*.pt"))


def test_a_full_disk_for_a_while_costs_nothing(data, tmp_path, capsys, monkeypatch):
    import lamina.training.keeper as keeper_module

    flags = ["--save-interval-updates", "1", "--max-update", "4"]
    assert train(data, tmp_path / "whole", *flags) == 0
    capsys.readouterr()
    real, attempts = keeper_module.save_checkpoint, []

    def full_at_first(path, checkpoint):
        attempts.append(path)
        with monkeypatch.context() as patch:
            if len(attempts) in (2, 3):
                patch.setattr(torch, "save", full)
            real(path, checkpoint)

    def full(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeper_module, "save_checkpoint", full_at_first)
    assert train(data, tmp_path / "out", *flags) == 0
    assert capsys.readouterr().out.count("No space left on device. Free some space") == 2
    one, other = last(tmp_path / "whole"), last(tmp_path / "out")
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert not list((tmp_path / "out").glob(".*"))


def test_saving_in_the_background_changes_nothing(data, tmp_path):
    flags = ["--dropout", "0.2", "--save-interval-updates", "2", "--keep-interval-updates", "2", "--max-epoch", "2"]
    for name, how in (("a", ["--no-async-save"]), ("b", [])):
        assert train(data, tmp_path / name, *flags, *how) == 0
    assert sorted(os.listdir(tmp_path / "a")) == sorted(os.listdir(tmp_path / "b"))
    for name in (path.name for path in (tmp_path / "a").glob("*.pt")):
        one, other = last(tmp_path / "a", name), last(tmp_path / "b", name)
        assert all(torch.equal(one.weights[key], other.weights[key]) for key in one.weights)
        assert torch.equal(one.training["optimizer"]["exp_avg"]["encoder.layers.0.ffn.fc1.weight"],
                           other.training["optimizer"]["exp_avg"]["encoder.layers.0.ffn.fc1.weight"])


def test_a_checkpoint_says_where_it_comes_from(data, tmp_path):
    assert train(data, tmp_path, "--max-update", "1") == 0
    checkpoint = last(tmp_path)
    assert checkpoint.versions.keys() >= {"lamina", "torch", "python", "numpy"}
    assert checkpoint.origin["command"].startswith(f"lamina train {data} --arch tiny")
    assert checkpoint.origin["time"].startswith("20")


@pytest.mark.parametrize("fault", ["disappears", "changes"])
def test_data_that_goes_away_costs_nothing(data, tmp_path, capsys, monkeypatch, fault):
    import lamina.training.run as run_module

    own, out, flags = tmp_path / "data", tmp_path / "out", ["--max-epoch", "3", "--dropout", "0.2"]
    shutil.copytree(data, own)
    assert train(str(own), tmp_path / "whole", *flags) == 0
    path, real = own / "train.en-xx.en.bin", run_module.Updater.update

    def update_and_break(self, batches, lr, seed, *rest):
        if seed == (1 << 32) + 4:  # in the second epoch
            path.rename(tmp_path / "kept")
            if fault == "changes":
                shutil.copy(tmp_path / "kept", path)
        return real(self, batches, lr, seed, *rest)

    monkeypatch.setattr(run_module.Updater, "update", update_and_break)
    capsys.readouterr()
    assert train(str(own), out, *flags) == 2
    assert re.search(r"train.en-xx.en.bin has (disappeared|changed since).* Checkpoints so far are whole", error_of(capsys))
    assert last(out).training["progress"]["epoch"] == 3
    monkeypatch.undo()
    (tmp_path / "kept").replace(path)
    assert train(str(own), out, *flags) == 0
    one, other = last(tmp_path / "whole"), last(out)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


def test_another_model_or_optimizer_than_the_checkpoints(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-update", "1") == 0
    capsys.readouterr()
    assert train(data, tmp_path, "--max-update", "2", "--encoder-layers", "2") == 2
    error = error_of(capsys)
    assert "does not fit the model: it lacks encoder.layers.1" in error
    assert "checkpoint_last.pt has other flags than this run: use --encoder-layers 1." in error
    assert train(data, tmp_path / "other", "--max-update", "1", "--surfacefusion", "att", "--sf-attention-heads", "2",
                 "--finetune-from-model", str(tmp_path / "checkpoint_last.pt")) == 2
    assert "this run: use --surfacefusion none and leave out --sf-attention-heads." in error_of(capsys)
    assert train(data, tmp_path, "--max-update", "2", "--optimizer", "sgd") == 2
    assert "was trained with --optimizer adam, not sgd" in error_of(capsys)


@pytest.mark.parametrize(("flags", "words"), [
    (["--activation-fn", "gelu"], "--activation-fn relu"), (["--encoder-attention-heads", "4"], "--encoder-attention-heads 2"),
    (["--init-type", "deepnet", "--no-scale-embedding"], "--scale-embedding --init-type default"),
    (["--dropout", "0.3", "--max-source-positions", "99", "--encoder-layerdrop", "0.1"], "")])
def test_weights_that_fit_another_model_too(data, tmp_path, capsys, flags, words):
    assert train(data, tmp_path / "a", "--max-update", "1") == 0
    assert "warning" not in capsys.readouterr().out
    for own in (["--finetune-from-model"], ["--reset-optimizer", "--restore-file"]):
        assert train(data, tmp_path / own[0], "--max-update", "1", *flags, *own,
                     str(tmp_path / "a" / "checkpoint_last.pt")) == 0
        out = capsys.readouterr().out
        assert (f"computes something else with them. For the same model, use {words}" in out) == bool(words)
        assert ("warning" in out) == bool(words)


def test_sharing_needs_a_joined_dictionary(tmp_path, capsys):
    folder = make_data(tmp_path, flags=())
    capsys.readouterr()
    assert train(str(folder), tmp_path / "out") == 2
    assert "--joined-dictionary" in error_of(capsys)


def test_too_long_validation_pairs_stop_the_run(data, tmp_path, capsys):
    flags = ["--max-source-positions", "6", "--max-update", "1"]
    assert train(data, tmp_path, *flags) == 2
    assert "--skip-invalid-size-inputs-valid-test" in error_of(capsys)
    assert train(data, tmp_path, *flags, "--skip-invalid-size-inputs-valid-test") == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"\d+ of \d+ pairs of .* are longer than 6 source", out)) == 2


def test_divergence_keeps_the_last_checkpoint(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-epoch", "1") == 0
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    capsys.readouterr()
    assert train(data, tmp_path, "--max-epoch", "9", "--lr", "1e30", "--reset-lr-scheduler", "--warmup-updates", "0") == 2
    assert re.search(r"training diverged at update \d+: the gradient of \S+ overflowed", error_of(capsys))
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before


def test_a_bad_gradient_is_skipped_and_counted(data, tmp_path, capsys, monkeypatch):
    import lamina.training.update as update_module

    real, calls = update_module.batch_loss, []

    def sometimes_bad(*arguments, **options):
        calls.append(None)
        sums = real(*arguments, **options)
        return sums._replace(loss=sums.loss * math.nan) if len(calls) in (2, 5) else sums

    monkeypatch.setattr(update_module, "batch_loss", sometimes_bad)
    assert train(data, tmp_path, "--max-update", "6", "--save-interval-updates", "1") == 0
    out = capsys.readouterr().out
    assert re.search(r"update 2 is skipped: the gradient of \S+ is not finite \(1 so far; 10 in a row end the run\)", out)
    assert "update 5 is skipped" in out
    assert out.count("no checkpoint now") == 2
    assert {"checkpoint_1_1.pt", "checkpoint_2_4.pt"} < set(os.listdir(tmp_path))
    assert not {"checkpoint_1_2.pt", "checkpoint_2_5.pt"} & set(os.listdir(tmp_path))
    assert all(value.isfinite().all() for value in last(tmp_path).weights.values())
    # A run does not end on such a state.
    calls.clear()
    assert train(data, tmp_path / "end", "--max-update", "2") == 2
    assert "training ended with 1 updates whose gradient was not finite" in capsys.readouterr().err


def test_a_state_whose_validation_is_not_finite_is_not_saved(data, tmp_path, monkeypatch, capsys):
    assert train(data, tmp_path, "--max-epoch", "1") == 0
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    nan = dict.fromkeys(("loss", "nll_loss", "ppl"), float("nan"))
    monkeypatch.setattr("lamina.training.validator.validation_loss", lambda *_, **__: nan)
    capsys.readouterr()
    assert train(data, tmp_path, "--max-epoch", "2") == 2
    out, err = capsys.readouterr()
    assert "no checkpoint now: the latest validation loss was not finite" in out
    assert "training ended on a state whose validation loss was not finite; checkpoints from before are untouched." in err
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    assert not (tmp_path / "checkpoint2.pt").exists()
    monkeypatch.undo()
    assert train(data, tmp_path, "--max-epoch", "2") == 0
    assert (tmp_path / "checkpoint2.pt").exists()


@pytest.mark.parametrize("flags", [("--lr", "1e38"), ("--lr", "1e38", "--optimizer", "sgd", "--clip-norm", "1e30", "--no-save"),
                                   ("--lr", "3e38", "--optimizer", "sgd", "--weight-decay", "1000", "--disable-validation")])
def test_a_ruined_state_is_no_result(data, tmp_path, capsys, flags):
    assert train(data, tmp_path, "--max-update", "1", "--warmup-updates", "0", *flags) == 2
    assert re.search(r"training (ended on a state whose validation loss was not|diverged: after update 1, \S+ holds values "
                     "that are not) finite", error_of(capsys))
    assert not list(tmp_path.glob("*.pt"))


def test_a_ruined_checkpoint_is_not_resumed_from(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-epoch", "2") == 0
    path = tmp_path / "checkpoint_last.pt"
    whole = last(tmp_path)
    name = next(iter(whole.weights))
    path.unlink()
    (tmp_path / "checkpoint2.pt").unlink()
    (tmp_path / "checkpoint_best.pt").unlink()
    save_checkpoint(path, replace(whole, weights=whole.weights | {name: whole.weights[name] * math.nan}))
    capsys.readouterr()
    assert train(data, tmp_path, "--max-epoch", "2") == 0
    assert re.search(rf"warning: \S+last.pt is of no use: {name} holds values .* Going on from \S+checkpoint1.pt instead\n",
                     capsys.readouterr().out)
    save_checkpoint(tmp_path / "mine.pt", replace(whole, weights=whole.weights | {name: whole.weights[name] * math.inf}))
    assert train(data, tmp_path / "new", "--finetune-from-model", str(tmp_path / "mine.pt"), "--max-epoch", "1") == 2
    assert "mine.pt is of no use" in error_of(capsys)


def test_an_epoch_without_an_update_has_no_loss(data, tmp_path, capsys, monkeypatch):
    import lamina.training.update as update_module

    real = update_module.batch_loss

    def bad(*arguments, **options):
        sums = real(*arguments, **options)
        return sums._replace(loss=sums.loss * math.nan)

    monkeypatch.setattr(update_module, "batch_loss", bad)
    assert train(data, tmp_path, "--max-epoch", "1") == 2
    out = capsys.readouterr().out
    assert "| epoch 001 | loss nan | nll_loss nan | ppl nan |" in out
    assert not list(tmp_path.glob("*.pt"))


def test_a_full_disk(data, tmp_path, capsys, monkeypatch):
    assert train(data, tmp_path, "--max-epoch", "1") == 0
    before = sorted(os.listdir(tmp_path))
    capsys.readouterr()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    assert train(data, tmp_path, "--max-epoch", "2") == 2
    assert "No space left on device" in error_of(capsys)
    assert sorted(os.listdir(tmp_path)) == before


def test_two_runs_in_one_folder(data, tmp_path, capsys):
    """The second is told who holds it, before it has read or written anything there."""
    assert train(data, tmp_path, "--max-update", "2") == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with only_run_in(tmp_path):
        assert train(data, tmp_path, "--max-update", "4") == 2
        assert re.search(rf"{tmp_path} is in use by process {os.getpid()} on .*choose another --save-dir", error_of(capsys))
        assert train(data, tmp_path, "--max-update", "4", "--no-save") == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert train(data, tmp_path, "--max-update", "4") == 0


def test_missing_vectors(data, tmp_path, capsys):
    assert train(data, tmp_path, "--encoder-embed-path", "nowhere.vec") == 2
    assert "cannot be read as word vectors" in error_of(capsys)


def test_the_reader_of_the_output_may_leave(data, tmp_path):
    """Training does not depend on anybody reading its log."""
    command = [sys.executable, "-m", "lamina", "train", data, *TINY_FLAGS, "--max-update", "5", "--save-dir", str(tmp_path)]
    pipe = f"{' '.join(map(repr, command))} 2>&1 | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("| ")
    assert last(tmp_path).training["progress"]["updates"] == 5


@pytest.mark.parametrize("log_format", ["simple", "json", "rich"])
@pytest.mark.parametrize("kind", ["closed pipe", "full disk"])
def test_so_may_the_disk_under_it_be_full(data, tmp_path, log_format, kind):
    if kind == "full disk" and not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    reading, writing = os.pipe()
    os.close(reading)
    with (open(writing if kind == "closed pipe" else "/dev/full", "w", buffering=1) as stream,
          redirect_stdout(stream), redirect_stderr(stream)):
        assert train(data, tmp_path, "--max-update", "5", "--log-format", log_format) == 0
    assert last(tmp_path).training["progress"]["updates"] == 5


@pytest.mark.parametrize("first_failure", [3, 1000])  # while it is written, and when it is closed
def test_so_may_the_disk_under_tensorboard_be_full(data, tmp_path, capsys, monkeypatch, first_failure):
    writer = pytest.importorskip("tensorboard.summary.writer.record_writer").RecordWriter
    real, num_writes = writer.write, []

    def write(self, content):
        num_writes.append(content)
        if len(num_writes) >= first_failure:
            raise OSError(28, "No space left on device")
        real(self, content)

    def close(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write", write)
    monkeypatch.setattr(writer, "close", close)
    assert train(data, tmp_path / "out", "--max-update", "5", "--tensorboard-logdir", str(tmp_path / "board")) == 0
    out, err = capsys.readouterr()
    assert out.count("| warning: tensorboard takes no more figures: No space left on device.") == 1
    assert "Traceback" not in err
    assert last(tmp_path / "out").training["progress"]["updates"] == 5


def test_a_folder_for_tensorboard_that_cannot_be(data, tmp_path, capsys):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    assert train(data, tmp_path / "out", "--max-update", "5", "--tensorboard-logdir", str(tmp_path / "file" / "board")) == 2
    assert f"--tensorboard-logdir {tmp_path / 'file' / 'board'} cannot be written: Not a directory" in error_of(capsys)


# -- the references' command lines, verbatim but for folders, sizes and the number of updates

def test_the_references_plain_line(data, tmp_path):
    line = ("train DATA --arch transformer_iwslt_de_en --share-all-embeddings --optimizer adam --adam-betas '(0.9, 0.98)' "
            "--clip-norm 0.0 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-07 --warmup-updates 4000 --lr 0.0005 "
            "--min-lr 1e-09 --dropout 0.3 --weight-decay 0.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 "
            "--save-dir OUT --seed 333 --ddp-backend=no_c10d --fp16 --max-tokens 2048 --update-freq 1 --max-update 60000 "
            "--keep-last-epochs 1")
    run_line(line, data, tmp_path)


def test_the_references_radam_line(data, tmp_path):
    line = ("train DATA -s en -t xx --arch transformer_iwslt_de_en --share-all-embeddings --user-dir ../radam_fairseq "
            "--optimizer radam --adam-betas \"(0.9,0.98)\" --clip-norm 0.0 --lr 7e-4 --lr-scheduler inverse_sqrt "
            "--warmup-init-lr 1e-7 --warmup-updates 6000 --max-update 100000 --dropout 0.3 --attention-dropout 0.1 "
            "--relu-dropout 0.1 --weight-decay 0.0001 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 "
            "--save-dir OUT --max-tokens 4096 --update-freq 1 --seed 1111 --log-format simple --fp16 --restore-file x.pt "
            "--fp16-scale-window 256 --threshold-loss-scale 0.03125 --log-interval 100")
    run_line(line, data, tmp_path)


def run_line(line, data, tmp_path):
    import shlex

    words = shlex.split(line.replace("DATA", data).replace("OUT", str(tmp_path)))
    words[words.index("--max-update") + 1] = "2"
    small = ["--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "32", "--decoder-embed-dim", "32",
             "--encoder-ffn-embed-dim", "32", "--decoder-ffn-embed-dim", "32", "--cpu"]
    assert main([*words, *small]) == 0
    assert (tmp_path / "checkpoint_best.pt").exists()

"""Masked language models and sentence classifiers: `lamina train` and what `lamina.load` makes of the result."""

import re
import shutil

import numpy as np
import pytest
import torch

import lamina
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.errors import ConfigError, DataError
from tiny import TINY_MASKED_FLAGS

SUBJECTS, VERBS, PLACES = "cat dog bird child".split(), "sat slept sang ran".split(), "mat tree garden river".split()
GOOD, BAD = "lovely fine happy bright".split(), "awful sad gloomy broken".split()


def sentences(number, seed):
    """The verb follows from the subject, and the label from the adjective."""
    generator = np.random.default_rng(seed)
    for _ in range(number):
        subject, adjective, place = generator.integers(4), generator.integers(8), PLACES[generator.integers(4)]
        text = f"the {(GOOD + BAD)[adjective]} {SUBJECTS[subject]} {VERBS[subject]} on the {place} ."
        yield text, "pos" if adjective < 4 else "neg"


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def preprocess(*flags):
    assert main(["preprocess", "--only-source", "--workers", "1", *map(str, flags)]) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """text/, and data folders lm/ and task/{input0,input1,label}."""
    folder = tmp_path_factory.mktemp("masked")
    text = folder / "text"
    for split, number, seed in (("train", 240, 0), ("valid", 40, 1)):
        rows = list(sentences(number, seed))
        write_lines(text / f"{split}.txt", [row for row, _ in rows])
        write_lines(text / f"{split}.label", [label for _, label in rows])
        # Of a pair: are both halves of one mood?
        others = [row for row, _ in sentences(number, seed + 10)]
        write_lines(text / f"{split}.other", others)
        write_lines(text / f"{split}.number", [(label == "pos") - 0.5 for _, label in rows])
    preprocess("--trainpref", text / "train.txt", "--validpref", text / "valid.txt", "--destdir", folder / "lm")
    for name, ending, flags in (("input0", "txt", ["--srcdict", folder / "lm" / "dict.txt"]), ("label", "label", [])):
        preprocess("--trainpref", text / f"train.{ending}", "--validpref", text / f"valid.{ending}", *flags,
                   "--destdir", folder / "task" / name)
    return folder


FINE = ("--task", "sentence_prediction", "--num-classes", "2", "--batch-size", "16", "--lr", "0.003", "--warmup-updates", "10")


def train(data, save_dir, *flags):
    return main(["train", str(data), *TINY_MASKED_FLAGS, "--save-dir", str(save_dir), *map(str, flags)])


def error_of(capsys):
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


# -- sentence classification

@pytest.fixture(scope="module")
def classifier(folder):
    """Trained from scratch, which these sentences are easy enough for."""
    assert train(folder / "task", folder / "cls", *FINE, "--max-epoch", "6", "--best-checkpoint-metric", "accuracy",
                 "--maximize-best-checkpoint-metric", "--no-epoch-checkpoints") == 0
    return folder / "cls" / "checkpoint_best.pt"


def test_a_separable_task_is_learned_and_judged(classifier, folder):
    checkpoint = load_checkpoint(classifier)
    assert checkpoint.task == "sentence_prediction"
    assert checkpoint.metrics["accuracy"] > 0.95
    assert checkpoint.metrics["f1"] > 0.95
    assert checkpoint.languages == ("input", "label")
    assert checkpoint.dictionaries[0].endswith("<mask> 1\n")


def test_predictions_from_python(classifier, folder):
    model = lamina.load(classifier, device="cpu")
    (head,) = model.heads
    found = model.predict(head, "the happy dog slept on the mat .")
    assert found.label == "pos"
    assert found.probability > 0.5
    assert found.probabilities.keys() == {"pos", "neg"}
    assert sum(found.probabilities.values()) == pytest.approx(1.0)
    lines = (folder / "text" / "valid.txt").read_text().splitlines()
    labels = (folder / "text" / "valid.label").read_text().splitlines()
    predicted = [own.label for own in model.predict_all(head, lines, batch_size=7)]
    expected = load_checkpoint(classifier).metrics["accuracy"]
    assert np.mean([one == other for one, other in zip(predicted, labels, strict=True)]) == pytest.approx(expected)
    with pytest.raises(ConfigError, match="no sentence head 'mnli'; its heads are sentence_classification_head"):
        model.predict("mnli", "the dog")
    with pytest.raises(DataError, match="more than the 64 positions"):
        model.predict(head, "the " * 100)


def test_resuming_a_classifier_equals_not_stopping(folder, tmp_path):
    flags = [*FINE, "--dropout", "0.1", "--pooler-dropout", "0.1"]
    assert train(folder / "task", tmp_path / "whole", *flags, "--max-epoch", "2") == 0
    assert train(folder / "task", tmp_path / "parts", *flags, "--max-update", "9") == 0
    assert train(folder / "task", tmp_path / "parts", *flags, "--max-epoch", "2") == 0
    one, other = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "parts"))
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert one.metrics == other.metrics


def test_pairs_of_sentences(folder, tmp_path, capsys):
    text, data = folder / "text", tmp_path / "task"
    shutil.copytree(folder / "task", data)
    given = ["--srcdict", folder / "lm" / "dict.txt", "--destdir", data / "input1"]
    preprocess("--trainpref", text / "train.other", "--validpref", text / "valid.other", *given)
    assert train(data, tmp_path / "out", *FINE, "--init-token", "0", "--separator-token", "2", "--max-update", "2") == 0
    model = lamina.load(tmp_path / "out" / "checkpoint_last.pt", device="cpu")
    assert model.encode("the", "cat").tolist()[0] == 0
    assert model.encode("the", "cat").tolist()[2:4] == [2, 2]
    assert model.predict("sentence_classification_head", "the cat sat .", "the dog ran .").label in ("pos", "neg")
    # Half of a pair is missing.
    write_lines(tmp_path / "short", ["the cat"])
    preprocess("--trainpref", tmp_path / "short", "--validpref", tmp_path / "short", *given)
    capsys.readouterr()
    assert train(data, tmp_path / "out2", *FINE) == 2
    assert "40 inputs and 1 second inputs" in error_of(capsys)


def test_numbers_instead_of_classes(folder, tmp_path, capsys):
    data = tmp_path / "task"
    shutil.copytree(folder / "task", data)
    for split in ("train", "valid"):
        shutil.copy(folder / "text" / f"{split}.number", data / "label" / f"{split}.label")
    flags = [*FINE, "--num-classes", "1", "--regression-target", "--best-checkpoint-metric", "pearson"]
    assert train(data, tmp_path / "out", *flags, "--max-epoch", "6") == 0
    assert re.search(r"valid on 'valid' subset .* mse [\d.]+ \| pearson [\d.]+ \| best_pearson", capsys.readouterr().out)
    checkpoint = load_checkpoint(tmp_path / "out" / "checkpoint_best.pt")
    assert checkpoint.metrics["pearson"] > 0.9
    model = lamina.load(tmp_path / "out" / "checkpoint_best.pt", device="cpu")
    values = [model.predict("sentence_classification_head", f"the {word} dog slept on the mat .").value
              for word in ("happy", "sad")]
    assert values[0] > values[1] + 0.3
    write_lines(data / "label" / "valid.label", ["1.5", "two"])
    capsys.readouterr()
    assert train(data, tmp_path / "out2", *flags) == 2
    assert "valid.label, line 2: expected a number, found 'two'" in error_of(capsys)


@pytest.mark.parametrize(("flags", "message"), [
    (["--task", "sentence_prediction", "--batch-size", "4"], "needs --num-classes"),
    ([*FINE, "--num-classes", "1"], "has 2 labels"),
    ([*FINE, "--criterion", "cross_entropy"], "has --criterion sentence_prediction and no other"),
    ([*FINE, "--f1-label", "neutral"], "--f1-label is 'neutral'"),
    ([*FINE, "--best-checkpoint-metric", "pearson"], "is not measured by this run"),
    ([*FINE, "--regression-target"], "--num-classes is 1, not 2"),
    ([*FINE, "--mask-prob", "0.3"], "--mask-prob has no effect with --task sentence_prediction"),
    ([*FINE, "--no-shuffle"], "--no-shuffle is not supported"),
    ([*FINE, "--arch", "tiny"], "is a preset for --task translation"),
    ([*FINE, "--init-token", "900"], "--init-token is 900, but the dictionary has"),
])
def test_what_cannot_be(folder, tmp_path, capsys, flags, message):
    assert train(folder / "task", tmp_path / "out", *flags) == 2
    assert message in error_of(capsys)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_inputs(folder, tmp_path, capsys):
    assert train(folder / "lm", tmp_path / "out", *FINE) == 2
    assert "there is no" in (line := error_of(capsys))
    assert "input0" in line


def test_labels_that_training_lacks(folder, tmp_path, capsys):
    data = tmp_path / "task"
    shutil.copytree(folder / "task", data)
    write_lines(tmp_path / "valid.label", ["pos"] * 39 + ["neutral"])
    preprocess("--validpref", tmp_path / "valid.label", "--srcdict", data / "label" / "dict.txt", "--destdir", data / "label")
    capsys.readouterr()
    assert train(data, tmp_path / "out", *FINE) == 2
    assert "label 39 of" in error_of(capsys)


def test_a_head_for_other_labels(classifier, folder, tmp_path, capsys):
    data = tmp_path / "task"
    shutil.copytree(folder / "task", data)
    shutil.rmtree(data / "label")
    for split in ("train", "valid"):
        labels = (folder / "text" / f"{split}.label").read_text().replace("pos", "yes").replace("neg", "no").split()
        write_lines(tmp_path / f"{split}.label", labels)
    preprocess("--trainpref", tmp_path / "train.label", "--validpref", tmp_path / "valid.label", "--destdir", data / "label")
    capsys.readouterr()
    begin = ["--finetune-from-model", classifier, "--max-update", "1"]
    assert train(data, tmp_path / "out", *FINE, *begin) == 2
    assert "another --classification-head-name" in error_of(capsys)
    assert train(data, tmp_path / "out", *FINE, *begin, "--classification-head-name", "mood") == 0
    model = lamina.load(tmp_path / "out" / "checkpoint_last.pt", device="cpu")
    assert model.heads == ("mood",)
    assert set(model.labels) == {"yes", "no"}


def test_a_sentence_that_is_too_long(folder, tmp_path, capsys):
    flags = [*FINE, "--max-positions", "8", "--max-update", "1"]
    assert train(folder / "task", tmp_path / "out", *flags) == 2
    assert "nothing that fits" in error_of(capsys)
    assert train(folder / "task", tmp_path / "out", *flags, "--truncate-sequence") == 0


def test_f1_of_one_label(folder, tmp_path, capsys):
    assert train(folder / "task", tmp_path / "out", *FINE, "--max-update", "1", "--f1-label", "pos") == 0
    assert re.search(r"accuracy [\d.]+ \| f1 [\d.]+ \| best_loss", capsys.readouterr().out)

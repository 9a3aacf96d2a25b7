"""`--distill-from`: what a teacher changes, and which one is refused."""

import re
from dataclasses import replace

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint, save_checkpoint
from lamina.cli import main
from lamina.config.train_options import DistillationConfig, OptimizationConfig, PrecisionConfig
from lamina.nn.stack import ALL_LAYERS
from lamina.parts.criteria import CrossEntropy, LabelSmoothedCrossEntropy
from lamina.training.distillation import Distilled
from lamina.training.update import Updater
from tiny import FUSIONS, TINY_FLAGS, batch_of, make_data, tiny_model

ALL = slice(0, 8)


def updater(teacher=None, weight=0.5, **student):
    model = tiny_model(seed=1, **student)
    own = LabelSmoothedCrossEntropy(smoothing=0.1)
    criterion = None if teacher is None else Distilled(own, teacher, DistillationConfig(teacher="x", weight=weight))
    return Updater(model, OptimizationConfig(criterion=own), PrecisionConfig(), criterion=criterion)


@pytest.mark.parametrize("student", [{}, FUSIONS["both"], {"dropout_p": 0.2}], ids=["plain", "fused", "dropout"])
@pytest.mark.parametrize("taught_by", [{"num_layers": 3}, FUSIONS["att hard"]], ids=["deeper", "fused"])
def test_the_loss_is_a_share_of_each(student, taught_by):
    teacher = tiny_model(seed=2, **taught_by)
    before = [parameter.clone() for parameter in teacher.parameters()]
    plain, mixed, all_of_it = (updater(*given, **student) for given in ((), (teacher, 0.25), (teacher, 1.0)))
    found = [one.update([batch_of(ALL)], 1e-3, seed=3).numbers for one in (plain, mixed, all_of_it)]
    torch.testing.assert_close(found[1][0], 0.75 * found[0][0] + 0.25 * found[2][0])
    assert found[0][1] == found[1][1]  # perplexity stays that of the data
    assert all(torch.equal(old, new) for old, new in zip(before, teacher.parameters(), strict=True))
    assert not any(parameter.requires_grad and parameter.grad is not None for parameter in teacher.parameters())


def test_a_student_comes_to_say_what_its_teacher_says():
    teacher, student = tiny_model(seed=2), updater(tiny_model(seed=2), weight=1.0)
    batch = batch_of(ALL)
    entropy = -(probs := teacher.log_probs(*batch.inputs).exp()).mul(probs.log()).sum()
    losses = [student.update([batch], 0.02, seed=number).numbers[0].item() for number in range(60)]
    assert losses[0] - entropy > 2 * (losses[-1] - entropy)
    assert losses[-1] > entropy - 1e-2


# -- the option


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distillation")
    make_data(folder)
    assert train(folder, "teacher", "--decoder-layers", "2") == 0
    return folder


def train(folder, name, *flags, data="data"):
    return main(["train", str(folder / data), *TINY_FLAGS, "--max-update", "2", "--cpu", "--save-dir", str(folder / name),
                 *flags])


def teacher_of(folder):
    return "--distill-from", str(folder / "teacher" / "checkpoint_last.pt")


def test_resuming_equals_not_stopping(folder, capsys):
    assert train(folder, "whole", *teacher_of(folder), "--dropout", "0.1", "--max-update", "4") == 0
    assert "learning from" in capsys.readouterr().out
    for last in ("2", "4"):
        assert train(folder, "resumed", *teacher_of(folder), "--dropout", "0.1", "--max-update", last) == 0
    whole, resumed = (load_checkpoint(folder / name / "checkpoint_last.pt") for name in ("whole", "resumed"))
    assert all(torch.equal(weight, resumed.weights[name]) for name, weight in whole.weights.items())
    assert train(folder, "alone", "--dropout", "0.1", "--max-update", "4") == 0
    alone = load_checkpoint(folder / "alone" / "checkpoint_last.pt")
    assert not all(torch.equal(weight, alone.weights[name]) for name, weight in whole.weights.items())


def test_teachers_that_cannot_teach_are_refused(folder, tmp_path, capsys):
    teacher = load_checkpoint(folder / "teacher" / "checkpoint_last.pt")
    other = tmp_path / "other.pt"
    save_checkpoint(other, replace(teacher, dictionaries=tuple(text + "new 3\n" for text in teacher.dictionaries)))
    for flags, why in (
        (("--distill-from", str(other)), "was trained with the .* dictionary"),
        (("--distill-from", str(tmp_path / "none.pt")), "none.pt"),
        ((*teacher_of(folder), "--max-source-positions", "2000"), "reads 1024 positions .--max-source-positions., and this"),
        (("--distill-weight", "0.3"), "--distill-weight has no effect without --distill-from"),
        ((*teacher_of(folder), "--distill-weight", "1.5"), r"must lie in \(0, 1\]"),
        ((*teacher_of(folder), "--distill-temperature", "0"), "must be above 0"),
    ):
        assert train(tmp_path, "no", *flags, data=folder / "data") == 2, why
        assert re.search(why, capsys.readouterr().err)
        assert not (tmp_path / "no" / "checkpoint_last.pt").exists()


def test_language_models_too(tmp_path, capsys):
    text = make_data(tmp_path).parent / "text"
    assert main(["preprocess", "--only-source", "--trainpref", f"{text}/train.en", "--validpref", f"{text}/valid.en",
                 "--destdir", str(tmp_path / "lm"), "--workers", "1"]) == 0
    small = ["train", str(tmp_path / "lm"), "--task", "language_modeling", "--arch", "transformer_lm", "--decoder-layers", "1",
             "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "32", "--decoder-attention-heads", "2",
             "--tokens-per-sample", "16", "--max-tokens", "64", "--max-update", "1", "--cpu"]
    assert main([*small, "--save-dir", str(tmp_path / "a")]) == 0
    taught = [*small, "--save-dir", str(tmp_path / "b"), "--distill-from", str(tmp_path / "a" / "checkpoint_last.pt")]
    assert main(taught) == 0
    capsys.readouterr()
    assert main([*taught, "--criterion", "adaptive_loss", "--adaptive-softmax-cutoff", "10"]) == 2
    assert "--distill-from compares whole distributions" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "data"), *TINY_FLAGS, "--distill-from", str(tmp_path / "a" / "checkpoint_last.pt"),
                 "--save-dir", str(tmp_path / "c")]) == 2
    assert "was trained for --task language_modeling" in capsys.readouterr().err


def test_a_criterion_of_ones_own_composes():
    teacher = tiny_model(seed=2)
    mixed = Distilled(CrossEntropy(), teacher, DistillationConfig(teacher="x", weight=1.0))
    sums = mixed.loss(tiny_model(seed=1), batch_of(ALL), ALL_LAYERS, is_compiled=False)
    assert sums.loss > 0

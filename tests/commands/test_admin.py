"""Admin through `lamina train`: one command, the references' two steps, and what stays out of their way."""

import math
import re
import shlex

import pytest
import torch

from golden_files import GOLDEN
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data, write_text

LAYERS = ("--encoder-layers", "2", "--decoder-layers", "3")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(make_data(tmp_path_factory.mktemp("admin")))


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path_factory, monkeypatch):
    """Profiles are written to the current folder too."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


def train(data, save_dir, *flags):
    return main(["train", data, *TINY_FLAGS, *LAYERS, "--save-dir", str(save_dir), *flags])


def stored_omegas(save_dir, name="checkpoint_last.pt"):
    return {name: weight for name, weight in load_checkpoint(save_dir / name).weights.items() if name.endswith(".omega")}


def read_profile(path):
    return [tuple(map(float, line.split())) for line in path.read_text().splitlines()]


def test_one_command_profiles_and_trains(data, tmp_path, capsys):
    # A rate at which nothing moves: the checkpoint holds the omegas as they were filled.
    assert train(data, tmp_path, "--init-type", "admin", "--max-update", "1", "--lr", "1e-12") == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "Admin" in line]
    assert len(lines) == 2
    assert re.search(r"Admin: profiled 1 batch of \d+ target tokens in float32, padding left out", lines[0])
    assert re.search(r"omega 1.00 to [\d.]+ over 4 encoder sub-layers, omega 1.00 to [\d.]+ over 9 decoder", lines[1])
    found = stored_omegas(tmp_path)
    assert len(found) == 13
    for side, count in (("encoder", 4), ("decoder", 9)):
        values = [omega for name, omega in found.items() if name.startswith(side)]
        assert len(values) == count
        assert all(torch.allclose(omega, omega[0]) for omega in values)  # one number a sub-layer before training
        firsts = [omega[0].item() for omega in values]
        assert firsts[0] == pytest.approx(1.0)
        assert firsts == sorted(firsts)
        assert firsts[-1] > 1.2


def test_generating_needs_no_profile(data, tmp_path, capsys, monkeypatch):
    assert train(data, tmp_path / "save", "--init-type", "admin", "--max-update", "2") == 0
    monkeypatch.chdir(tmp_path)
    assert main(["generate", data, "--path", str(tmp_path / "save" / "checkpoint_last.pt"), "--gen-subset", "valid"]) == 0
    assert "BLEU4" in capsys.readouterr().out
    assert not list(tmp_path.rglob("profile*"))


def test_profiling_disturbs_neither_data_nor_dropout(data, tmp_path, monkeypatch):
    """With omegas put back to 1, a run that profiled is the run that did not."""
    from lamina.init import admin_profile

    flags = ["--max-update", "4", "--dropout", "0.2"]
    assert train(data, tmp_path / "measured", *flags, "--init-type", "admin", "--admin-profile-batches", "3") == 0
    (tmp_path / "ones").mkdir()
    ones = [f"{number} 1.0" for count in (4, 9) for number in range(1, count + 1)]
    (tmp_path / "ones" / "profile.ratio.init").write_text("\n".join(ones) + "\n")
    assert train(data, tmp_path / "ones", *flags, "--init-type", "adaptive") == 0
    measure = admin_profile.measure_profile

    def measure_and_forget(model, batches, *args, **how):
        found = measure(model, batches, *args, **how)
        return {name: [1.0] * len(ratios) for name, ratios in found.items()}

    monkeypatch.setattr(admin_profile, "measure_profile", measure_and_forget)
    assert train(data, tmp_path / "forgotten", *flags, "--init-type", "admin", "--admin-profile-batches", "3") == 0
    one, other, third = (load_checkpoint(tmp_path / name / "checkpoint_last.pt").weights
                         for name in ("ones", "forgotten", "measured"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], third[name]) for name in one)


def test_resuming_never_profiles_again_and_equals_not_stopping(data, tmp_path, capsys):
    flags = ["--init-type", "admin", "--dropout", "0.2"]
    assert train(data, tmp_path / "whole", *flags, "--max-update", "5") == 0
    assert train(data, tmp_path / "parts", *flags, "--max-update", "2") == 0
    capsys.readouterr()
    assert train(data, tmp_path / "parts", *flags, "--max-update", "5") == 0
    assert "Admin" not in capsys.readouterr().out
    one, other = (load_checkpoint(tmp_path / name / "checkpoint_last.pt").weights for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_finetuning_keeps_the_omegas_of_its_start(data, tmp_path, capsys):
    assert train(data, tmp_path / "a", "--init-type", "admin", "--max-update", "1") == 0
    capsys.readouterr()
    assert train(data, tmp_path / "b", "--init-type", "admin", "--max-update", "1", "--lr", "1e-12", "--finetune-from-model",
                 str(tmp_path / "a" / "checkpoint_last.pt")) == 0
    assert "profiled" not in capsys.readouterr().out
    torch.testing.assert_close(stored_omegas(tmp_path / "a"), stored_omegas(tmp_path / "b"), rtol=0, atol=1e-6)


def test_the_two_steps(data, tmp_path, capsys):
    assert train(data, tmp_path, "--init-type", "adaptive-profiling", "--max-update", "1") == 0
    out = capsys.readouterr().out
    assert f"wrote {tmp_path}/profile.ratio.init" in out
    assert "padding counted" in out
    assert "training stopped: the profile is written" in out
    assert [path.name for path in tmp_path.iterdir()] == ["profile.ratio.init"]
    lines = read_profile(tmp_path / "profile.ratio.init")
    assert [number for number, _ in lines] == [*range(1, 5), *range(1, 10)]
    assert train(data, tmp_path, "--init-type", "adaptive", "--max-update", "1", "--lr", "1e-12") == 0
    assert f"omegas taken from {tmp_path}/profile.ratio.init" in capsys.readouterr().out
    firsts = [omega[0].item() for omega in stored_omegas(tmp_path).values()]
    assert firsts == pytest.approx([ratio for _, ratio in lines])
    # Weights that exist already do not change what a profile is of.
    before = (tmp_path / "profile.ratio.init").read_text()
    assert train(data, tmp_path, "--init-type", "adaptive-profiling") == 0
    assert (tmp_path / "profile.ratio.init").read_text() == before


def test_profiling_over_several_batches(data, tmp_path):
    for number in ("1", "2"):
        assert train(data, tmp_path / number, "--init-type", "adaptive-profiling", "--admin-profile-batches", number) == 0
    one, both = (read_profile(tmp_path / number / "profile.ratio.init") for number in "12")
    assert one != both
    assert all(math.isclose(a, b, rel_tol=0.1) for (_, a), (_, b) in zip(one, both, strict=True))


def test_a_profile_elsewhere(data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(data, "elsewhere", "--init-type", "adaptive-profiling") == 0
    named = ["--init-type", "adaptive", "--max-update", "1", "--admin-profile"]
    assert train(data, "named", *named, "elsewhere/profile.ratio.init") == 0
    assert "omegas taken from elsewhere/profile.ratio.init" in capsys.readouterr().out
    assert train(data, "missing", *named, "nothing") == 2
    assert "there is no file nothing" in capsys.readouterr().err
    (tmp_path / "elsewhere" / "profile.ratio.init").rename(tmp_path / "profile.ratio.init")
    assert train(data, "here", "--init-type", "adaptive", "--max-update", "1") == 0
    assert "taking the one in the current folder" in capsys.readouterr().out


def test_a_loop_over_seeds_shares_one_profile(data, tmp_path, capsys, monkeypatch):
    """As in the references: profiled once, with the first seed, then trained with each."""
    monkeypatch.chdir(tmp_path)
    assert train(data, "save-1", "--init-type", "adaptive-profiling", "--seed", "1", "--restore-file", "x.pt") == 0
    assert "wrote profile.ratio.init to the current folder too" in capsys.readouterr().out
    wanted = [ratio for _, ratio in read_profile(tmp_path / "save-1" / "profile.ratio.init")]
    for seed in "123":
        assert train(data, f"save-{seed}", "--init-type", "adaptive", "--seed", seed, "--max-update", "1", "--lr", "1e-12",
                     "--restore-file", "x.pt") == 0
        assert "profiled" not in capsys.readouterr().out
        assert [omega[0].item() for omega in stored_omegas(tmp_path / f"save-{seed}").values()] == pytest.approx(wanted)


def test_a_current_folder_that_cannot_be_written_is_no_failure(data, tmp_path, capsys, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "profile.ratio.init").mkdir()  # no file can take its place, whoever runs this
    (here / "profile.ratio.init" / "x").touch()
    assert train(data, tmp_path / "save", "--init-type", "adaptive-profiling") == 0
    assert "in the current folder, profile.ratio.init could not be written" in capsys.readouterr().out
    assert (tmp_path / "save" / "profile.ratio.init").is_file()


def test_adaptive_without_any_profile_is_both_steps_at_once(data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(data, "a", "--init-type", "adaptive", "--max-update", "3", "--dropout", "0.2") == 0
    out = capsys.readouterr().out
    assert "profiling now, as --init-type adaptive-profiling does" in out
    assert "padding counted" in out
    assert not list(tmp_path.rglob("profile*"))
    for init in ("adaptive-profiling", "adaptive"):
        assert train(data, "b", "--init-type", init, "--max-update", "3", "--dropout", "0.2") == 0
    one, other = (load_checkpoint(tmp_path / name / "checkpoint_last.pt").weights for name in "ab")
    # The file holds all digits of a ratio.
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("content", "why"), [
    ((GOLDEN / "admin_profiling" / "profile.ratio.init").read_text(),
     "it has ratios for 6 and 9 sub-layers, the model has 4 in the encoder and 9 in the decoder"),
    ("1 1.0\n2 1.1\n3 1.2\n", "it has ratios for 3 sub-layers"),
    ("", "it has ratios for none"),
    ("1 1.0\n2 nan\n", "line 2: expected the number"),
    ("1 1.0\n2\n", "line 2: expected the number"),
    ("1 1.0\n3 1.2\n", "line 2: expected sub-layer 2 or 1, found 3"),
])
def test_a_profile_that_does_not_fit(data, tmp_path, capsys, content, why):
    (tmp_path / "profile.ratio.init").write_text(content)
    assert train(data, tmp_path, "--init-type", "adaptive", "--max-update", "1") == 2
    assert why in capsys.readouterr().err


def test_admin_with_pre_norm_is_refused(data, tmp_path, capsys):
    assert train(data, tmp_path, "--init-type", "admin", "--encoder-normalize-before", "--decoder-normalize-before") == 2
    assert "Pre-LN never normalises their sum" in capsys.readouterr().err


REFERENCE_LINE = """-s en -t xx --arch transformer_iwslt_de_en --share-all-embeddings --user-dir ../radam_fairseq
    --optimizer radam --adam-betas "(0.9,0.98)" --clip-norm 0.0 --lr 7e-4 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7
    --warmup-updates 6000 --max-update 100000 --dropout 0.3 --attention-dropout 0.1 --relu-dropout 0.1 --weight-decay 0.0001
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --save-dir OUT --init-type {init} --max-tokens 4096
    --update-freq 1 --seed 1111 --log-format simple --fp16 --restore-file x.pt --fp16-scale-window 256
    --threshold-loss-scale 0.03125 --log-interval 100"""


def test_the_references_line(data, tmp_path, monkeypatch, capsys):
    """Verbatim but for the languages, the widths and where it stops: this runs on one core."""
    monkeypatch.chdir(tmp_path)
    small = ["--encoder-embed-dim", "16", "--decoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32",
             "--decoder-ffn-embed-dim", "32", "--max-update", "2"]
    for init in ("adaptive-profiling", "adaptive"):
        assert main(["train", data, *shlex.split(REFERENCE_LINE.format(init=init)), *small]) == 0
    out = capsys.readouterr().out
    assert "omegas taken from OUT/profile.ratio.init" in out
    assert "training stopped: 2 updates are done" in out


@pytest.mark.parametrize("init", ["admin-closed-form", "rezero", "rezero_postln", "deepnet"])
def test_kinds_without_a_profile_train(data, tmp_path, init, capsys):
    assert train(data, tmp_path, "--init-type", init, "--max-update", "3") == 0
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").config["init-type"] == init
    assert "profiled" not in capsys.readouterr().out


def test_a_hundred_layers_a_side_profile_and_step(data, tmp_path, capsys):
    """With the schedule, optimizer and warm-up of the deep experiments, and activations computed again."""
    narrow = ["--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8", "--encoder-layers", "100", "--decoder-layers", "100"]
    assert train(data, tmp_path, *narrow, "--init-type", "admin", "--checkpoint-activations", "--optimizer", "radam",
                 "--lr-scheduler", "linear", "--warmup-updates", "1", "--max-update", "2", "--disable-validation",
                 "--no-epoch-checkpoints", "--no-save-optimizer-state") == 0
    assert re.search(r"over 200 encoder sub-layers, .* over 300 decoder sub-layers", capsys.readouterr().out)
    weights = load_checkpoint(tmp_path / "checkpoint_last.pt").weights
    assert all(weight.isfinite().all() for weight in weights.values())
    assert weights["encoder.layers.99.ffn_residual.add.omega"].mean() > 3


@pytest.mark.parametrize(("task", "model", "side"), [
    ("language_modeling", ["--arch", "transformer_lm", "--no-decoder-normalize-before", "--decoder-layers", "3",
                           "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "32", "--decoder-attention-heads", "2"],
     "decoder"),
    ("masked_lm", ["--arch", "roberta_base", "--encoder-layers", "3", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim",
                   "32", "--encoder-attention-heads", "2"], "encoder"),
])
def test_models_of_one_stack(task, model, side, tmp_path, capsys):
    text = write_text(tmp_path / "text")
    assert main(["preprocess", "--only-source", "--trainpref", f"{text}/train.en", "--destdir", str(tmp_path / "data"),
                 "--workers", "1"]) == 0
    line = ["train", str(tmp_path / "data"), "--task", task, *model, "--tokens-per-sample", "24", "--max-tokens", "96",
            "--max-update", "2", "--disable-validation", "--lr", "1e-12", "--init-type"]
    assert main([*line, "admin", "--save-dir", str(tmp_path / "admin")]) == 0
    assert re.search(rf"Admin: omega 1.00 to [\d.]+ over 6 {side} sub-layers$", capsys.readouterr().out, flags=re.MULTILINE)
    firsts = [omega[0].item() for omega in stored_omegas(tmp_path / "admin").values()]
    assert len(firsts) == 6
    assert firsts[-1] > firsts[0]
    for init in ("deepnet", "admin-closed-form", "rezero"):
        assert main([*line, init, "--save-dir", str(tmp_path / init)]) == 0
    assert main([*line, "adaptive-profiling", "--save-dir", str(tmp_path / "steps")]) == 0
    assert main([*line, "adaptive", "--save-dir", str(tmp_path / "steps")]) == 0

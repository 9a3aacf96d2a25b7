"""`lamina.train`: the loop of the command line as a function, with a loss and callbacks of one's own."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from torch.nn import functional as F

import lamina
from lamina.api.keyword_options import given_by
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.config.train_options import TrainConfig
from lamina.distributed.signals import STOPS
from lamina.errors import CheckpointError, ConfigError
from lamina.fields import unique_leaves
from lamina.training.events import Kind
from tiny import TINY_FLAGS, make_data, write_text

OPTIONS = {name.removeprefix("--").replace("-", "_"): value for name, value in
           zip((flag for flag in TINY_FLAGS if flag.startswith("--") and flag != "--share-all-embeddings"),
               (flag for flag in TINY_FLAGS if not flag.startswith("--")), strict=True)}
OPTIONS |= {"share_all_embeddings": True, "cpu": True, "log_format": "none"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return lamina.Data(make_data(tmp_path_factory.mktemp("train")))


def train(data, folder, **options):
    return lamina.train(data, **{**OPTIONS, "save_dir": str(folder), **options})


def last(folder, name="checkpoint_last.pt"):
    return load_checkpoint(folder / name)


def same_weights(one, other):
    return all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.mark.parametrize("more", [{}, {"fusion": "transparent", "residual": "admin", "encoder_layers": 2,
                                       "encoder_layerdrop": 0.2, "criterion": "label_smoothed_cross_entropy",
                                       "label_smoothing": 0.1}])
def test_the_command_line_writes_the_same_weights(data, tmp_path, more):
    more = {**OPTIONS, **more, "dropout": 0.1, "max_update": 7, "update_freq": [2]}
    model = lamina.train(data, **more, save_dir=str(tmp_path / "python"))
    words = [f"--{name.replace('_', '-')}{'' if value is True else f'={value[0] if isinstance(value, list) else value}'}"
             for name, value in more.items()]
    assert main(["train", str(data.path), *words, "--save-dir", str(tmp_path / "shell")]) == 0
    one, other = last(tmp_path / "python"), last(tmp_path / "shell")
    assert same_weights(one, other)
    assert one.config | {"save-dir": ""} == other.config | {"save-dir": ""}
    stored = last(tmp_path / "python", "checkpoint_best.pt").weights
    assert all(torch.equal(stored[name], weight) for name, weight in model.state_dict().items() if name in stored)


def test_a_model_comes_back_that_can_be_used(data, tmp_path):
    model = train(data, tmp_path, max_update=4)
    assert isinstance(model, lamina.Translator)
    assert isinstance(model.translate("a bird", max_len_b=3).text, str)
    assert model.history == [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert [row["num_updates"] for row in model.history if row["where"] == "train"] == [1, 2, 3, 4]


def test_it_resumes(data, tmp_path):
    train(data, tmp_path / "whole", max_epoch=2, dropout=0.1)
    train(data, tmp_path / "parts", max_update=2, dropout=0.1)
    model = train(data, tmp_path / "parts", max_epoch=2, dropout=0.1)
    assert same_weights(last(tmp_path / "whole"), last(tmp_path / "parts"))
    assert [row["num_updates"] for row in model.history if row["where"] == "train"] == [1, 2, 3, 4, 5, 6]


def test_nothing_has_to_be_written(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = lamina.train(data, **OPTIONS, max_update=2, save=False)
    train(data, tmp_path / "out", max_update=2)
    assert os.listdir(tmp_path) == ["out"]
    stored = last(tmp_path / "out").weights
    assert all(torch.equal(stored[name], weight) for name, weight in model.state_dict().items() if name in stored)
    assert len(model.history) == 4


def test_without_a_limit_a_batch_has_4096_tokens(data, tmp_path):
    options = {name: value for name, value in OPTIONS.items() if name != "max_tokens"}
    lamina.train(data, **options, max_update=1, save_dir=str(tmp_path / "a"))
    assert last(tmp_path / "a").config["max-tokens"] == 4096
    lamina.train(data, **options, batch_size=4, max_update=1, save_dir=str(tmp_path / "b"))
    assert last(tmp_path / "b").config["max-tokens"] is None


def test_other_tasks(data, tmp_path):
    text = write_text(tmp_path / "text")
    one_side = lamina.prepare([*map(str.strip, (text / "train.en").open())], valid=["a bird", "the moon"], out=tmp_path / "lm",
                              workers=1)
    small = {"arch": "tiny_lm", "decoder_layers": 1, "max_tokens": 64, "tokens_per_sample": 32, "max_update": 2, "cpu": True,
             "log_format": "none"}
    model = lamina.train(one_side, task="language_modeling", save_dir=str(tmp_path / "out"), **small)
    assert isinstance(model, lamina.LanguageModel)
    model = lamina.train(one_side, task="language_modeling", save_dir=str(tmp_path / "own"), **small,
                         criterion=lambda log_probs, batch: F.nll_loss(log_probs.flatten(0, 1), batch.target.flatten()))
    assert model.generate("a", max_len_b=2)


def test_the_callers_random_numbers_stay(data, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    random.seed(5)
    train(data, tmp_path, max_update=1)
    assert torch.equal(torch.rand(3), expected)


# -- mistakes, as on the command line

@pytest.mark.parametrize(("options", "message"), [
    ({"warmup_update": 3}, "unknown option --warmup-update. Did you mean --warmup-updates?"),
    ({"lr": -1}, "--lr is -1.0; it must be above 0."),
    ({"criterion": "focal"}, "--criterion is 'focal'; it must be one of cross_entropy"),
    ({"max_update": "many"}, "--max-update is 'many'; it must be a whole number."),
    ({"arch": "tinny"}, "--arch is 'tinny'. Did you mean tiny?"),
    ({"distributed_world_size": 2}, "lamina.train is one process: start the script with torchrun"),
    ({"print_config": True}, "print_config is for the command line"),
    ({"callbacks": print}, "callbacks has a builtin_function_or_method; it must be a list of functions of an event"),
    ({"callbacks": [3]}, "callbacks has a int; it must be a list of functions of an event: callbacks=[on_event]."),
    ({"criterion": 3}, "criterion is a int; it must be a name or a function of log-probabilities and batch."),
    ({"max_steps": 3}, "unknown option --max-steps. Did you mean --max-update?"),
    ({"num_train_epochs": 3}, "unknown option --num-train-epochs. Did you mean --max-epoch?"),
    ({"output_dir": "x"}, "unknown option --output-dir. Did you mean --save-dir?"),
])
def test_wrong_options_have_the_errors_of_the_command_line(data, tmp_path, options, message):
    with pytest.raises(ConfigError) as found:
        train(data, tmp_path / "out", **options)
    assert message in str(found.value)
    assert not (tmp_path / "out").exists()


def test_every_option_is_a_keyword():
    from lamina.api.option_types import TrainOptions

    flags = {leaf.name.replace("-", "_") for leaf in unique_leaves(TrainConfig)}
    assert flags - set(TrainOptions.__annotations__) == {"data", "task", "criterion", "print_config", "user_dir"}


# -- a function as the loss

def mean_loss(log_probs, batch):
    return F.nll_loss(log_probs.flatten(0, 1), batch.target.flatten(), ignore_index=1)


def test_a_number_of_layers_to_keep_is_how_many():
    """As for load and prune; text has the flags' meaning."""
    given = given_by("train", TrainConfig, {"encoder_layers_to_keep": 3, "decoder_layers_to_keep": [0, 2]}, ["folder"])
    assert (given["encoder-layers-to-keep"], given["decoder-layers-to-keep"]) == ("even:3", "0,2")
    assert given_by("train", TrainConfig, {"encoder_layers_to_keep": "3"}, ["folder"])["encoder-layers-to-keep"] == "3"


def token_losses(log_probs, batch):
    return -log_probs.gather(-1, batch.target[..., None])[..., 0]


@pytest.mark.parametrize("function", [mean_loss, token_losses])
@pytest.mark.parametrize("more", [{}, {"surfacefusion": "att"}, {
    "fusion": "transparent", "residual": "admin", "decoder_layerdrop": 0.2, "batch_order": "length"}],
    ids=["plain", "surface", "composed"])
def test_cross_entropy_as_a_function(data, tmp_path, function, more, capsys):
    """Padded batches and flat rows, fused, deep and pruned at random: the same loss moves the weights the same way."""
    built_in = train(data, tmp_path / "built-in", max_update=6, **more)
    capsys.readouterr()
    own = train(data, tmp_path / "own", max_update=6, criterion=function, **more)
    assert f"criterion {function.__name__} is a function: updates run eagerly" in capsys.readouterr().out
    for one, other in zip(built_in.history, own.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["nll_loss"] == pytest.approx(other["nll_loss"], rel=1e-4)


def test_a_function_decides_what_is_learned(data, tmp_path):
    def confident(log_probs, batch):
        return token_losses(log_probs, batch) - 0.5 * (log_probs.exp() * log_probs).sum(-1)

    model = train(data, tmp_path, max_update=3, criterion=confident)
    for row in model.history:
        assert row["loss"] > row["nll_loss"] + 0.5


def test_resuming_wants_the_function_again(data, tmp_path, capsys):
    train(data, tmp_path, max_update=2, criterion=mean_loss)
    with pytest.raises(CheckpointError, match=r"was trained with the criterion function mean_loss, .*criterion=mean_loss"):
        train(data, tmp_path, max_update=3)
    capsys.readouterr()
    assert main(["train", str(data.path), *TINY_FLAGS, "--max-update", "3", "--save-dir", str(tmp_path)]) == 2
    assert "was trained with the criterion function mean_loss" in capsys.readouterr().err
    train(data, tmp_path, max_update=3, criterion=mean_loss)
    assert last(tmp_path).training["progress"]["updates"] == 3
    train(data, tmp_path, max_update=4, criterion=token_losses)
    printed = capsys.readouterr().out
    assert "warning: the criterion was the function mean_loss before, and is token_losses now" in printed
    assert "--criterion was mean_loss (a function) and is token_losses (a function)" in printed
    # Another run may begin with the weights.
    train(data, tmp_path / "other", max_update=1, finetune_from_model=str(tmp_path / "checkpoint_last.pt"))


@pytest.mark.parametrize(("function", "message"), [
    (lambda log_probs, batch: 3.0, "gave a float; it must give the losses of the target tokens, here of shape"),
    (lambda log_probs, batch: log_probs.sum(-1)[..., :1], "gave a tensor of shape"),
    (lambda log_probs, batch: log_probs.detach().sum(), "gave a loss that has no gradient"),
])
def test_a_function_that_gives_no_loss(data, tmp_path, function, message):
    with pytest.raises(ConfigError, match=message):
        train(data, tmp_path, max_update=1, criterion=function)


def test_a_function_that_raises_shows_its_own_traceback(data, tmp_path):
    with pytest.raises(ZeroDivisionError) as found:
        train(data, tmp_path, max_update=1, criterion=lambda log_probs, batch: 1 / 0)
    assert found.traceback[-1].path.name == "test_train_function.py"


# -- callbacks

def test_what_callbacks_hear(data, tmp_path):
    told = []
    model = train(data, tmp_path, max_epoch=2, log_interval=2, callbacks=[told.append])
    kinds = [event.kind for event in told]
    assert set(kinds) == set(Kind.__args__)
    assert (kinds[0], kinds[-1]) == ("start", "end")
    updates = [event for event in told if event.kind == "update"]
    assert [event.num_updates for event in updates] == [1, 2, 3, 4, 5, 6]
    assert all(event.figures.keys() >= {"loss", "ppl", "lr", "gnorm", "num_tokens"} for event in updates)
    assert [event.row for event in told if event.kind in ("interval", "epoch", "validation")] == model.history
    (valid, *_) = (event for event in told if event.kind == "validation")
    assert (valid.where, valid.epoch, valid.num_updates) == ("valid", 1, 3)
    saved = [event for event in told if event.kind == "checkpoint"]
    assert saved[-1].num_updates == 6
    assert {"checkpoint_last.pt", "checkpoint2.pt"} <= set(saved[-1].files)
    assert told[-1].reason == "2 epochs are done (--max-epoch)"
    assert sum(weight.numel() for weight in told[0].model.parameters()) == model.num_parameters


@pytest.mark.parametrize(("kind", "expected"), [("start", 0), ("update", 2), ("interval", 4), ("epoch", 3), ("validation", 3)])
def test_callbacks_may_stop_the_run(data, tmp_path, capsys, kind, expected):
    def stop(event):
        if event.kind == kind and event.num_updates >= min(expected, 2):
            event.stop("seen enough")

    model = train(data, tmp_path, max_update=50, log_interval=4, callbacks=[stop])
    assert "training stopped: a callback asked for it: seen enough" in capsys.readouterr().out
    assert last(tmp_path).training["progress"]["updates"] == expected if expected else not (tmp_path / "x").exists()
    if expected:
        assert [row["num_updates"] for row in model.history if row["where"] == "valid"][-1] == expected
    # It was no limit of the run's: the same call without it goes on.
    train(data, tmp_path, max_update=8)
    assert last(tmp_path).training["progress"]["updates"] == 8


def test_a_callback_that_raises_ends_the_run_and_leaves_checkpoints_alone(data, tmp_path):
    def fail(event):
        if event.num_updates == 5:
            raise RuntimeError("mine")

    before = [signal.getsignal(number) for number in STOPS]
    with pytest.raises(RuntimeError, match="mine") as found:
        train(data, tmp_path, max_update=50, callbacks=[fail])
    assert found.traceback[-1].path.name == "test_train_function.py"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("saving")]
    assert [signal.getsignal(number) for number in STOPS] == before
    assert last(tmp_path).training["progress"]["updates"] == 3
    train(data, tmp_path, max_update=6)


# -- signals and processes

@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_saves_restores_the_handlers_and_raises(data, tmp_path, number, error):
    reasons = []

    def interrupt(event):
        if event.kind == "update" and event.num_updates == 2:
            os.kill(os.getpid(), number)
        if event.kind == "end":
            reasons.append(event.reason)

    before = [signal.getsignal(kind) for kind in STOPS]
    with pytest.raises(error) as found:
        train(data, tmp_path, max_update=50, callbacks=[interrupt])
    assert [signal.getsignal(kind) for kind in STOPS] == before
    assert last(tmp_path).training["progress"]["updates"] == 2
    assert reasons == [f"stopped by {number.name}"]
    assert error is KeyboardInterrupt or found.value.code == 128 + number


RANKS = """
import os, sys, lamina
def stop(event):
    if event.kind == "update" and event.num_updates == 4:
        event.stop()
model = lamina.train(sys.argv[1], save_dir="out", max_update=50, callbacks=[stop], **{options!r})
# In one piece: torchrun starts Python unbuffered, where print writes each word by itself, and lines of two ranks mix.
words = ["rank", os.environ["RANK"], str(len(model.history)), model.translate("a bird", max_len_b=3).text]
sys.stdout.write(" ".join(words) + "\\n")
"""


def test_under_torchrun_it_is_one_process_of_several(data, tmp_path):
    (tmp_path / "script.py").write_text(RANKS.replace("{options!r}", repr(OPTIONS)))
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
                           "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "script.py", str(data.path)],
                          cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    said = sorted(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("rank "))
    assert [words[0] for words in said] == ["0", "1"], (done.stdout, done.stderr)
    assert said[0][2:] == said[1][2:]  # both have the model that the first one saved
    assert last(tmp_path / "out").training["progress"]["updates"] == 4
    assert "x 2 ranks)" in done.stdout


# -- a whole script

OWN_LOOP = """
    import itertools
    import torch
    import lamina
    from lamina.models.build import build_model

    words = {"the": "LE", "a": "UN", "old": "VIEUX", "small": "PETIT", "boat": "BATEAU", "moon": "LUNE"}
    sentences = list(itertools.product(("the", "a"), ("old", "small"), ("boat", "moon")))
    pairs = [(" ".join(sentence), " ".join(words[word] for word in sentence)) for sentence in sentences]
    data = lamina.prepare(pairs, valid=pairs, out="data", workers=1)
    config = lamina.register.arch["tiny"]()
    net = build_model(config, *map(len, data.vocabularies)).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    for epoch in range(1, 121):
        for batch in data.batches("train", max_tokens=128, epoch=epoch):
            log_probs = net.log_probs(*batch.inputs)
            loss = torch.nn.functional.nll_loss(log_probs.flatten(0, 1), batch.target.flatten(), ignore_index=net.pad_id)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model = lamina.load(lamina.save(net, "own.pt", config=config, data=data), task="translation", device="cpu")
    text = model.translate("the old boat").text
"""


def test_a_loop_of_ones_own_takes_fewer_than_30_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = textwrap.dedent(OWN_LOOP).strip()
    assert len(script.splitlines()) < 30
    torch.manual_seed(1)
    namespace = {}
    exec(script, namespace)
    assert namespace["text"] == "LE VIEUX BATEAU"

"""What --fsdp does with the weights that it gathers, where the run does not say: chosen by memory, told, not kept in files."""

import json

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.config.parser import parse, resolve, spelled_out
from lamina.config.train_options import TrainConfig
from lamina.distributed.launch import ALWAYS_A_GROUP
from lamina.errors import ConfigError, MemoryShortageError
from lamina.training import resharding as rule
from lamina.training import run_plan
from lamina.training.memory_limit import advise_when_short
from lamina.training.memory_plan import GIB, bytes_of_state
from tiny import TINY_FLAGS, make_data, tiny_model

BY_BATCH = ("--encoder-layerdrop", "0.5", "--layerdrop-draws", "batch")
KEEPS, GIVES_BACK = "--fsdp keeps gathered weights", "--fsdp gathers weights layer by layer"


def config_of(*flags):
    return resolve(TrainConfig, parse("lamina train", TrainConfig, "", ["data", *TINY_FLAGS, "--fsdp", *flags])[0])


def test_a_quarter_of_the_memory_is_the_limit():
    config, model = config_of(), tiny_model()
    held = sum(bytes_of_state(config, model, torch.bfloat16, 8, 8, reshards=False).values())
    fits, does_not = (rule.resharding(config, model, torch.bfloat16, 8, 4 * held - less) for less in (0, 1))
    assert (fits.is_on, does_not.is_on) == (False, True)
    assert fits.why.startswith(KEEPS)
    assert does_not.why.startswith(GIVES_BACK)
    assert f"{held / GIB:.2f} GiB of a GPU's" in does_not.why


def test_more_ranks_share_more():
    config, model = config_of(), tiny_model()
    memory = 4 * sum(bytes_of_state(config, model, torch.bfloat16, 8, 8, reshards=False).values())
    assert [rule.resharding(config, model, torch.bfloat16, size, memory).is_on for size in (2, 8, 64)] == [True, False, False]


@pytest.mark.parametrize(("flags", "memory", "is_on"), [
    ((), None, True), (("--fsdp-size", "2"), 2**60, True), (("--reshard-after-forward",), 2**60, True),
    (("--no-reshard-after-forward",), 1, False), (BY_BATCH, None, False), (("--no-reshard-after-forward",), None, False)])
def test_what_else_decides(flags, memory, is_on):
    found = rule.resharding(config_of(*flags), tiny_model(), torch.bfloat16, 2, memory)
    assert found.is_on is is_on
    assert (not found.why) == any("reshard" in flag for flag in flags)


MIXED = [("--mixing", "lime"), ("--mixing", "attention-residuals", "--encoder-normalize-before", "--decoder-normalize-before")]


@pytest.mark.parametrize("flags", MIXED, ids=lambda flags: flags[1])
def test_weights_that_are_read_ahead_of_their_layer_stay(flags):
    found = rule.resharding(config_of(*flags), tiny_model(), torch.bfloat16, 2, 1)
    assert not found.is_on
    assert found.why == f"--fsdp keeps gathered weights: --mixing {flags[1]} reads a layer's before it runs"
    for other in (("--reshard-after-forward",), ("--fsdp-size", "2")):
        with pytest.raises(ConfigError, match=f"--mixing {flags[1]} reads a layer's weights before the layer runs"):
            config_of(*flags, *other)


@pytest.mark.parametrize("flags", [(), ("--reshard-after-forward",), ("--no-reshard-after-forward",)])
def test_a_switch_with_a_third_position_is_spelled_as_it_was_given(flags):
    words = spelled_out("lamina train", config_of(*flags)).split()
    assert [word for word in words if "reshard" in word] == list(flags)


def test_the_log_and_the_plan_say_it_and_checkpoints_do_not_depend_on_it(tmp_path, monkeypatch, capsys):
    """Half a run on a large GPU and half on a small one, in either order, is a whole one."""
    monkeypatch.setenv(ALWAYS_A_GROUP, "1")
    data = make_data(tmp_path, num_lines=24)

    def train(folder, memory, updates):
        monkeypatch.setattr(rule, "memory_of", lambda device: memory)
        capsys.readouterr()
        assert main(["train", str(data), *TINY_FLAGS, "--cpu", "--fsdp", "--dropout", "0.1", "--max-tokens", "40", "--lr",
                     "0.05", "--optimizer", "nag", "--max-update", str(updates), "--save-dir", str(tmp_path / folder)]) == 0
        said = capsys.readouterr().out
        assert said.count(f"| {KEEPS if memory > GIB else GIVES_BACK}") == 1
        return load_checkpoint(tmp_path / folder / "checkpoint_last.pt")

    large, small = 2**50, 2**10
    whole = train("whole", large, 6)
    assert whole.config["reshard-after-forward"] is None
    for folder, first, then in (("shrinks", large, small), ("grows", small, large)):
        train(folder, first, 3)
        found = train(folder, then, 6)
        assert found.config | {"save-dir": ""} == whole.config | {"save-dir": ""}
        for name, weight in whole.weights.items():
            torch.testing.assert_close(found.weights[name], weight, rtol=0, atol=1e-6, msg=name)


def test_a_plan_says_what_the_run_would_do(tmp_path, capsys):
    data = make_data(tmp_path, num_lines=24)
    words = ["train", str(data), *TINY_FLAGS, "--fsdp", "--plan", "--distributed-world-size", "8", "--no-save", "--log-format",
             "json"]
    told = []
    capsys.readouterr()
    for flags in (("--plan-memory", "80"), ("--plan-memory", "0.0001"), ("--cpu",)):
        assert main([*words, *flags]) == 0
        told.append(json.loads(capsys.readouterr().out))
    keeps, gives_back, without = told
    assert keeps["sharding"].startswith(KEEPS)
    assert gives_back["sharding"].startswith(GIVES_BACK)
    assert "without a GPU" in without["sharding"]
    assert keeps["memory"]["gradients"] > gives_back["memory"]["gradients"]
    assert keeps["sent"] < gives_back["sent"]


def test_a_plan_that_does_not_fit_names_what_is_left_to_try():
    plan = run_plan.RunPlan(memory={"activations": 3 * GIB}, reshards=False)
    assert run_plan.shortage(plan, config_of(), 3 * GIB) == ""
    said = run_plan.shortage(plan, config_of("--checkpoint-activations"), 2 * GIB)
    assert said.startswith("it needs about 3.0 GiB of each GPU's 2.0. Try --reshard-after-forward or a smaller --max-tokens")
    plan.reshards = True
    assert "reshard" not in run_plan.shortage(plan, config_of("--fsdp-size", "2"), GIB)


@pytest.mark.parametrize(("flags", "is_named"), [((), True), (("--reshard-after-forward",), False),
                                                 (("--fsdp-size", "2"), False), (BY_BATCH, False), (MIXED[0], False)])
def test_a_run_that_is_short_of_memory_is_told_of_it(flags, is_named):
    with pytest.raises(MemoryShortageError) as caught, advise_when_short(config_of(*flags)):
        raise torch.OutOfMemoryError
    assert ("--reshard-after-forward" in str(caught.value)) == is_named

"""Admin, recomputed activations and their memory on a GPU."""

import re

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.init.admin import profile_omegas_
from lamina.nn.cross_entropy import label_smoothed_loss
from lamina.nn.stack import stacks_of
from lamina.parts.residuals import Admin
from tiny import TINY_FLAGS, make_data, tiny_model, tiny_pair

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(make_data(tmp_path_factory.mktemp("gpu-admin")))


def omegas(path):
    return {name: weight for name, weight in load_checkpoint(path).weights.items() if name.endswith(".omega")}


def train(data, folder, *flags):
    # A rate at which nothing moves: the checkpoint holds the omegas as they were filled.
    assert main(["train", data, *TINY_FLAGS, "--encoder-layers", "3", "--decoder-layers", "3", "--dropout", "0", "--init-type",
                 "admin", "--max-update", "2", "--lr", "1e-12", "--save-dir", str(folder), *flags]) == 0
    return omegas(folder / "checkpoint_last.pt")


@pytest.mark.parametrize("precision", ["--fp16", "--bf16"])
def test_the_profile_is_float32_whatever_training_computes_in(data, tmp_path, precision, capsys):
    half, full = train(data, tmp_path / "half", precision), train(data, tmp_path / "full")
    assert "in float32" in capsys.readouterr().out
    torch.testing.assert_close(half, full, rtol=0, atol=0)
    # Another order of sums than on the processor.
    torch.testing.assert_close(full, train(data, tmp_path / "cpu", "--cpu"), rtol=1e-4, atol=0)


def test_half_precision_trains_with_it(data, tmp_path, capsys):
    assert main(["train", data, *TINY_FLAGS, "--encoder-layers", "6", "--decoder-layers", "6", "--fp16", "--init-type", "admin",
                 "--max-epoch", "8", "--checkpoint-activations", "--no-save"]) == 0
    losses = [float(loss) for loss in re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", capsys.readouterr().out)]
    assert losses[-1] < losses[0]


def gradients(*, recomputes):
    model = tiny_model(num_layers=3, dropout_p=0.3, init=Admin()).train().cuda()
    source, target = (tensor.cuda() for tensor in tiny_pair())
    profile_omegas_(model, [lambda: model(source, target)])
    for stack in stacks_of(model).values():
        stack.recomputes = recomputes
    torch.manual_seed(3)
    label_smoothed_loss(model(source, target), model.output_weight, target, smoothing=0.1, pad_id=1).loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


def test_recomputing_draws_the_same_dropout():
    plain, found = gradients(recomputes=False), gradients(recomputes=True)
    for name, gradient in plain.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5 * gradient.abs().max().item(), msg=name)


def test_recomputing_saves_memory():
    def peak(*, recomputes):
        model = tiny_model(num_layers=24, dropout_p=0.1).train().cuda()
        for stack in stacks_of(model).values():
            stack.recomputes = recomputes
        source, target = (tensor.cuda() for tensor in tiny_pair(batch=256, source_length=60, target_length=60))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        label_smoothed_loss(model(source, target), model.output_weight, target, smoothing=0.1, pad_id=1).loss.backward()
        return torch.cuda.max_memory_allocated() - before

    assert peak(recomputes=True) < peak(recomputes=False) / 3

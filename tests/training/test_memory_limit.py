"""Activations computed again, and advice when memory runs out."""

import pytest
import torch

from lamina.cli import main
from lamina.nn.cross_entropy import label_smoothed_loss
from lamina.nn.stack import ALL_LAYERS, ActiveLayers, stacks_of
from lamina.parts.residuals import Admin
from lamina.training.update import Updater
from tiny import TINY_FLAGS, make_data, tiny_model, tiny_pair


def gradients(*, recomputes, active=ALL_LAYERS, **changes):
    model = tiny_model(num_layers=3, dropout_p=0.3, **changes).train()
    for stack in stacks_of(model).values():
        stack.recomputes = recomputes
    source, target = tiny_pair()
    torch.manual_seed(3)
    sums = label_smoothed_loss(model(source, target, active), model.output_weight, target, smoothing=0.1, pad_id=1)
    sums.loss.backward()
    return sums.loss.detach(), {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("runs", [ALL_LAYERS, ActiveLayers((True, False, True), (False, True, True))])
@pytest.mark.parametrize("changes", [{}, {"is_pre_norm": True}, {"init": Admin()}])
def test_recomputing_changes_neither_loss_nor_gradients(changes, active):
    """To the bit, under dropout: what is computed again draws the same numbers; a skipped layer stays skipped."""
    plain_loss, plain = gradients(recomputes=False, active=active, **changes)
    loss, found = gradients(recomputes=True, active=active, **changes)
    assert torch.equal(loss, plain_loss)
    for name, gradient in plain.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            assert torch.equal(found[name], gradient), name


def test_recomputing_keeps_less():
    """Counted in tensors that the graph holds: with recomputing, next to none inside a layer."""
    def num_saved(*, recomputes):
        model = tiny_model(num_layers=3, dropout_p=0.3).train()
        for stack in stacks_of(model).values():
            stack.recomputes = recomputes
        count = 0

        def pack(tensor):
            nonlocal count
            count += 1
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(*tiny_pair())
        return count

    assert num_saved(recomputes=True) < num_saved(recomputes=False) / 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(make_data(tmp_path_factory.mktemp("memory")))


def test_training_with_and_without_gives_the_same_weights(data, tmp_path):
    from lamina.checkpoint.format import load_checkpoint

    for name, flags in (("a", []), ("b", ["--checkpoint-activations"])):
        assert main(["train", data, *TINY_FLAGS, "--dropout", "0.2", "--max-update", "3", "--save-dir", str(tmp_path / name),
                     *flags]) == 0
    one, other = (load_checkpoint(tmp_path / name / "checkpoint_last.pt").weights for name in "ab")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("flags", "present", "absent"), [
    ([], ["--checkpoint-activations", "--max-tokens 32 with --update-freq 2", "--bf16"], []),
    (["--checkpoint-activations", "--bf16", "--update-freq", "3"], ["--max-tokens 32 with --update-freq 6"],
     ["Try: --checkpoint-activations", "--bf16"]),
])
def test_advice_when_memory_runs_out(data, tmp_path, monkeypatch, capsys, flags, present, absent):
    def update(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr(Updater, "update", update)
    assert main(["train", data, *TINY_FLAGS, "--save-dir", str(tmp_path), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the GPU's memory ran out. Try: ")
    assert len(error.splitlines()) == 1
    assert all(text in error for text in present)
    assert not any(text in error for text in absent)

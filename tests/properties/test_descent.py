"""What is drawn in the forward pass holds in the backward pass, whatever the parts."""

from dataclasses import replace

import pytest
import torch

from descent import LEAST_KEPT, loss_and_norm, sgd_updater, share_kept
from lamina.config.model import DropoutConfig
from lamina.nn.stack import ALL_LAYERS, ActiveLayers, stacks_of
from lamina.parts.residuals import Admin
from tiny import FUSIONS, batch_of, tiny_config, tiny_model

PARTS = {"plain": {}, "admin": {"init": Admin()}, **FUSIONS}
SOME = ActiveLayers((True, False, True), (True, True, False))


def batches(number=4):
    return [batch_of(slice(0, 8), seed=seed) for seed in range(number)]


@pytest.mark.parametrize("runs", [ALL_LAYERS, SOME], ids=["all layers", "some layers"])
@pytest.mark.parametrize("name", PARTS)
def test_a_gradient_keeps_its_promise(name, active):
    updater = sgd_updater(tiny_model(num_layers=3, dropout_p=0.5, **PARTS[name]))
    assert share_kept(updater, batches(), active) > LEAST_KEPT


@pytest.mark.parametrize("place", ["attention_p", "activation_p"])
def test_so_do_other_places_of_dropout(place):
    model = tiny_model(replace(tiny_config(num_layers=3), dropout=DropoutConfig(dropout_p=0.0, **{place: 0.5})))
    assert share_kept(sgd_updater(model), batches()) > LEAST_KEPT


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_so_does_one_whose_layers_are_computed_again(dtype):
    model = tiny_model(num_layers=3, dropout_p=0.5)
    for stack in stacks_of(model).values():
        stack.recomputes = True
    assert share_kept(sgd_updater(model, dtype), batches()) > LEAST_KEPT


def test_another_draw_of_dropout_would_be_noticed():
    updater, kept = sgd_updater(tiny_model(num_layers=3, dropout_p=0.5)), []
    for batch in batches():
        before, norm = loss_and_norm(updater, batch, 0.0, 1, ALL_LAYERS)
        loss_and_norm(updater, batch, 0.1 / norm**2, 2, ALL_LAYERS)
        kept.append((before - loss_and_norm(updater, batch, 0.0, 1, ALL_LAYERS)[0]) / 0.1)
    assert sum(kept) / len(kept) < LEAST_KEPT / 2

"""BERT's initialisation."""

import pytest
import torch

from lamina.init.bert import STD
from tiny import tiny_masked_model


def test_matrices_are_small_and_normal_and_padding_is_zero():
    model = tiny_masked_model(is_fresh=True, model_dim=64, ffn_dim=256)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        elif parameter.dim() == 1:
            assert (parameter == 0).all(), name
        else:
            assert abs(parameter.std().item() / STD - 1) < 0.15, name
    assert (model.source_embedding.table.weight[1] == 0).all()
    assert (model.source_embedding.positions.weight[1] == 0).all()


def test_an_output_matrix_of_its_own_starts_as_torch_leaves_it():
    model = tiny_masked_model(is_fresh=True, model_dim=64, unties_head=True)
    weight, bound = model.head.table.weight, 64**-0.5
    assert weight is not model.source_embedding.table.weight
    assert float(weight.detach().abs().max()) == pytest.approx(bound, rel=0.02)
    assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert float(weight[1].abs().sum()) > 0


def test_one_seed_one_model():
    one, same, other = (tiny_masked_model(is_fresh=True, seed=seed).source_embedding.table.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)

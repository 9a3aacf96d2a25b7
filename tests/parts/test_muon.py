"""Muon: whole matrices inside layers, Adam for all else; the same on one rank and on several."""

from dataclasses import replace

import pytest
import torch

from lamina.cli import main
from lamina.distributed.weights import FlatWeights
from lamina.parts.muon import Muon, Orthogonal, orthogonal
from lamina.parts.residuals import Admin
from lamina.parts.update_rules import NO_DECAY, Adam
from lamina.training.optimizers import build_optimizer
from tiny import FUSIONS, tiny_language_model, tiny_model

RULE = Muon(betas=(0.9, 0.98), weight_decay=0.01)


def matrices_of(weights, flat):
    """Those that Muon moves, cut where several are fused, as leaves of their own."""
    found = {}
    for parameter, view in zip(weights.described, weights.views(flat), strict=True):
        if parameter.kind == "matrices":
            found |= {f"{parameter.name} {number}": part for number, part in enumerate(view.chunk(parameter.num_matrices))}
    return found


def random_gradients(weights, step):
    generator = torch.Generator().manual_seed(step)
    grad = torch.zeros_like(weights.master)
    for view in weights.views(grad):
        view.copy_(torch.randn(view.shape, generator=generator) * 10.0 ** (step % 3 - 1))
    return grad


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_muon_is_torchs_to_the_bit_and_adam_is_ours(decay):
    weights, others = FlatWeights(tiny_model()), FlatWeights(tiny_model())
    rule = replace(RULE, weight_decay=decay)
    ours = build_optimizer(rule, weights.master, weights)
    adam = build_optimizer(Adam(betas=rule.betas, weight_decay=decay), others.master, others)
    leaves = {name: part.clone().requires_grad_() for name, part in matrices_of(weights, weights.master).items()}
    torchs = torch.optim.Muon(leaves.values(), lr=1.0, weight_decay=decay, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step in range(30):
        lr = 0.02 / (step + 1) ** 0.5
        grad = random_gradients(weights, step)
        for name, part in matrices_of(weights, grad).items():
            leaves[name].grad = part.clone()
        torchs.param_groups[0]["lr"] = lr
        torchs.step()
        adam.step_(grad.clone(), lr)
        ours.step_(grad.clone(), lr)
    assert len(leaves) == 2 * 6 + 2 * 10  # q, k, v, out, fc1, fc2; and q, k, v, out again
    for name, part in matrices_of(weights, weights.master).items():
        assert torch.equal(part, leaves[name]), name
    named = zip(weights.described, weights.views(weights.master), others.views(others.master), strict=True)
    for parameter, own, other in named:
        # The chunks of a vector kernel may end elsewhere.
        if parameter.kind != "matrices":
            torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)


def test_who_moves_what():
    model = tiny_model()
    kinds = {parameter.name: parameter.kind for parameter in FlatWeights(model).described}
    assert kinds["source_embedding.table.weight"] == "embeddings"
    assert kinds["encoder.layers.0.attn_residual.norm.weight"] == kinds["encoder.layers.0.attn_residual.norm.bias"] == "norms"
    assert kinds["encoder.layers.0.ffn.fc1.bias"] == "biases"
    assert kinds["encoder.layers.0.ffn.fc1.weight"] == "matrices"
    optimizer = build_optimizer(RULE, (weights := FlatWeights(tiny_model())).master, weights)
    state = optimizer.pieces()
    moved = {weights.names[number] for number in state["momentum_buffer"]}
    assert moved == {name for name, kind in kinds.items() if kind == "matrices"}
    assert state["exp_avg"].keys() == state["exp_avg_sq"].keys()
    assert {weights.names[number] for number in state["exp_avg"]} == kinds.keys() - moved
    # Momentum alone is kept of a matrix.
    assert sum(map(torch.numel, optimizer.buffers.values())) < 2 * weights.master.numel()


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8)])
def test_a_batch_of_matrices_is_made_orthogonal_as_each_alone(shape):
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(5, *shape, generator=generator).bfloat16()
    together, alone = orthogonal(matrices), torch.stack([orthogonal(matrix) for matrix in matrices])
    torch.testing.assert_close(together, alone, rtol=0.05, atol=0.02)
    values = torch.linalg.svdvals(together.float())
    assert values.min() > 0.3
    assert values.max() < 1.3
    assert orthogonal(torch.zeros(2, *shape, dtype=torch.bfloat16)).eq(0).all()


def test_updates_are_as_large_as_adams():
    rule = Orthogonal(momentum=0.95, weight_decay=0.0)
    for shape in ((64, 64), (64, 256)):
        generator, weights = torch.Generator().manual_seed(1), torch.zeros(shape)
        whole = rule.whole(torch.randn(1, *shape, generator=generator).bfloat16())
        factors = rule.factors(torch.ones(()), torch.tensor(0.01, dtype=torch.float64), None)
        rule.move_([weights], list(whole), shape, factors)
        assert 0.001 < weights.square().mean().sqrt() < 0.003  # 0.2 of the learning rate


@pytest.mark.parametrize("rule", [RULE, replace(RULE, no_decay=("norms", "biases")), Adam(weight_decay=0.1, no_decay=("norms",))
                                  ], ids=["muon", "muon without decay of some", "adam without decay of some"])
def test_steps_that_are_off_change_nothing_and_resuming_equals_not_stopping(rule):
    def start():
        weights = FlatWeights(tiny_language_model())
        return build_optimizer(rule, weights.master, weights)

    plain, skipping, yes, no = start(), start(), torch.tensor(True), torch.tensor(False)
    for step in range(6):
        grad = random_gradients(plain.weights, step)
        plain.step_(grad.clone(), 0.01)
        skipping.step_(grad.clone(), torch.tensor(0.01, dtype=torch.float64), yes)
        skipping.step_(torch.full_like(grad, torch.nan), 0.5, no)
        if step == 2:
            saved = {name: value.clone() for name, value in skipping.state().items()}
            master = skipping.master.clone()
            skipping = start()
            skipping.master.copy_(master)
            skipping.load_state_(saved)
    assert torch.equal(plain.master, skipping.master)
    assert all(torch.equal(value, skipping.state()[name]) for name, value in plain.state().items())


@pytest.mark.parametrize("kinds", [("norms", "biases"), ("embeddings",)])
def test_decay_leaves_out_what_it_is_told_to(kinds):
    weights, without, decayed = (FlatWeights(tiny_model()) for _ in range(3))
    rules = Adam(weight_decay=0.1, no_decay=kinds), Adam(), Adam(weight_decay=0.1)
    for own, rule in zip((weights, without, decayed), rules, strict=True):
        optimizer = build_optimizer(rule, own.master, own)
        for step in range(4):
            optimizer.step_(random_gradients(own, step), 0.01)
    views = (own.views(own.master) for own in (weights, without, decayed))
    for parameter, found, spared, pulled in zip(weights.described, *views, strict=True):
        torch.testing.assert_close(found, spared if parameter.kind in kinds else pulled, rtol=1e-6, atol=1e-7)
        assert not torch.equal(spared, pulled)


def test_kinds_that_are_not_known_are_refused(capsys):
    words = ["train", "data", "--max-tokens", "9", "--weight-decay", "0.1"]
    assert main([*words, "--no-decay", "norms,heads"]) == 2
    assert "--no-decay is 'heads'; it must be one of norms, biases, embeddings, gates, scales" in capsys.readouterr().err
    assert main([*words[:-2], "--no-decay", "norms"]) == 2
    assert "--no-decay has no effect without --weight-decay" in capsys.readouterr().err
    assert main([*words, "--optimizer", "muon", "--muon-momentum", "1"]) == 2
    assert "--muon-momentum is 1.0; it must lie in [0, 1)" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{}, FUSIONS["both"], {"init": Admin()}, {"share_all": False}], ids=str)
def test_every_parameter_has_a_kind_that_fits(changes):
    for parameter in FlatWeights(tiny_model(**changes)).described:
        words = parameter.name.split(".")
        expected = ("norms" if "norm" in words[-2] else "biases" if words[-1] == "bias" else
                    "embeddings" if "table" in words[-2] else "scales" if words[-1] == "omega" else
                    "gates" if words[0] == "memory" or "gate" in words[-1] else
                    "matrices" if ".layers." in parameter.name else "projections")
        assert parameter.kind == expected, parameter.name
        if parameter.kind == "matrices":
            assert parameter.num_matrices == {"in_proj": 3, "kv_proj": 2}.get(words[-2], 1)
        assert parameter.kind in (*NO_DECAY, "matrices", "projections")

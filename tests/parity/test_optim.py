"""Optimizers against trajectories of the references' own, and against torch's."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lamina.config import optim as options
from lamina.fields import build
from lamina.training.optimizers import build_optimizer

GOLDEN = Path(__file__).parents[1] / "golden"
TRAJECTORIES = ["adam_trajectory", "adam_trajectory_eps", "adam2_trajectory", "radam_trajectory",
                "radam_trajectory_eps", "radam_trajectory_lr01"]


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_trajectory_matches_the_reference(name):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    given, expected = (load_file(GOLDEN / name / f"{kind}.safetensors") for kind in ("weights", "expected"))
    hyper = config["hyper"]
    flat = {key.replace("_", "-"): hyper[key] for key in ("adam_betas", "adam_eps", "weight_decay")}
    master = torch.cat([given["w0"], given["b0"]])
    optimizer = build_optimizer(build(options.register.optimizer[config["optimizer"]], flat), master)

    size = given["w0"].numel()
    for step in range(1, max(config["steps"]) + 1):
        leaf = optimizer.master.clone().requires_grad_()
        w, b = leaf[:size], leaf[size:]
        loss = (given["A"] @ w - given["y"]).square().sum() + b.pow(4).sum() + 0.3 * b.square().sum()
        (grad,) = torch.autograd.grad(loss, leaf)
        optimizer.step_(grad, hyper["lr"])
        if step in config["steps"]:
            wanted = {key: expected[f"step{step:04}.{key}"] for key in ("loss", "grad_w", "grad_b", "w", "b")}
            torch.testing.assert_close(loss.detach(), wanted["loss"], rtol=1e-5, atol=0.0)
            # float32: relative to each gradient's largest entry, since the entries are sums that cancel
            for part, gradient in (("grad_w", grad[:size]), ("grad_b", grad[size:])):
                scale = wanted[part].abs().max().item()
                torch.testing.assert_close(gradient, wanted[part], rtol=0.0, atol=1e-5 * scale)
            # each step's rounding feeds the next through the gradient
            torch.testing.assert_close(optimizer.master, torch.cat([wanted["w"], wanted["b"]]), rtol=2e-6, atol=2e-6)


def run_both(config, make_torch, steps=40, lr=0.05):
    """The same random gradients through ours and through a torch optimizer."""
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(300, generator=generator)
    ours = build_optimizer(config, start.clone())
    weights = torch.nn.Parameter(start.clone())
    theirs = make_torch([weights], lr)
    for _ in range(steps):
        grad = torch.randn(300, generator=generator)
        ours.step_(grad, lr)
        weights.grad = grad.clone()
        theirs.step()
    return ours.master, weights.detach()


@pytest.mark.parametrize("eps", [1e-8, 0.05])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_is_torchs(eps, weight_decay):
    config = options.AdamW(betas=(0.9, 0.98), eps=eps, weight_decay=weight_decay)
    ours, theirs = run_both(config, lambda parameters, lr: torch.optim.AdamW(
        parameters, lr=lr, betas=(0.9, 0.98), eps=eps, weight_decay=weight_decay))
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_is_torchs(momentum, weight_decay):
    config = options.Sgd(momentum=momentum, weight_decay=weight_decay)
    ours, theirs = run_both(config, lambda parameters, lr: torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, weight_decay=weight_decay))
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6)


def test_nag_at_a_constant_rate_is_torchs():
    ours, theirs = run_both(options.Nag(momentum=0.99), lambda parameters, lr: torch.optim.SGD(
        parameters, lr=lr, momentum=0.99, nesterov=True))
    # Velocities pile up over 40 steps at 0.99: weights reach 30.
    torch.testing.assert_close(ours, theirs, rtol=5e-6, atol=5e-6)


def test_nag_at_a_changing_rate_keeps_fairseqs_velocity_in_units_of_the_rate():
    momentum, decay = 0.9, 0.01
    generator = torch.Generator().manual_seed(6)
    start = torch.randn(50, generator=generator)
    optimizer = build_optimizer(options.Nag(momentum=momentum, weight_decay=decay), start.clone())
    weights, velocity, last = start.double(), torch.zeros(50, dtype=torch.float64), None
    for lr in [1e-3, 5e-2, 0.2, 0.2, 0.1, 0.01, 0.3]:
        grad = torch.randn(50, generator=generator)
        optimizer.step_(grad, lr)
        velocity = momentum * (lr / (last or lr)) * velocity - lr * grad
        weights = weights * (1 - lr * decay) + momentum * velocity - lr * grad
        last = lr
    torch.testing.assert_close(optimizer.master.double(), weights, rtol=1e-6, atol=1e-6)

"""Why deep models are hard to train: what the Admin paper measures, of any model (Liu et al. 2020, §3 and §4)."""

# B batch, T tokens, N tokens that are no padding, D model_dim

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lamina.analysis.probes import Sum, watch_final, watch_layers, watch_sums
from lamina.config.model import DropoutConfig, ModelConfig
from lamina.data.batching import AnyBatch
from lamina.nn.stack import stacks_of
from lamina.parts.contracts import Residual, TaskKind
from lamina.parts.criteria import CrossEntropy
from lamina.parts.encoder_fusion import NoFusion
from lamina.parts.mixings import NoMixing
from lamina.parts.residuals import Admin, DefaultInit, ProfiledInit
from lamina.parts.surface_fusion import NoSurface
from lamina.training.loss import batch_loss

STEP = 1e-4  # of the parameter change
SUB_LAYERS_A_LAYER = 2  # of the stack whose depth is varied


@torch.no_grad()
def sums_of(model: nn.Module, batch: AnyBatch) -> dict[str, list[Sum]]:
    """Every residual's sum on one batch, by stack."""
    with watch_sums(model) as found:
        model(*batch.inputs)
    return found


@torch.no_grad()
def layer_dependency(sums: Sequence[Sum]) -> Tensor:
    """Row i: how the variance of sub-layer i's output divides among the stack's input and the branches up to i.

    Every output is a sum of the input and the branches before it, each scaled by the norms and shortcuts on its way: Admin
    §4.1. Measured, not derived: the parts are carried along. A norm's own bias belongs to no part and is left out.
    (sub-layers, 1 + sub-layers), rows sum to 1
    """
    shares = torch.zeros(len(sums), len(sums) + 1)
    parts = [sums[0].stream]
    before: list[list[Tensor]] = []  # each sum: the parts of the stream that came in
    for row, one in enumerate(sums):
        before.append(parts)
        if one.returns_input:
            again = before[row + 1 - one.returns_input]
            parts = [part + again[number] if number < len(again) else part for number, part in enumerate(parts)]
        parts = [one.normalised(part * one.shortcut_scale) for part in parts] + [one.normalised(one.branch)]
        spreads = torch.stack([part.var(correction=0) for part in parts])
        shares[row, : len(parts)] = spreads / spreads.sum()
    return shares


@torch.no_grad()
def variances(sums: Sequence[Sum]) -> dict[str, list[float]]:
    """Of what goes into each sum and of what comes out of it."""
    return {
        "shortcut": [one.shortcut.var(correction=0).item() for one in sums],
        "branch": [one.branch.var(correction=0).item() for one in sums],
        "output": [one.output.var(correction=0).item() for one in sums],
    }


def gradient_norms(model: Any, batch: AnyBatch) -> dict[str, dict[str, list[float]]]:
    """By stack: the norm of the loss's gradient by each layer's weights, and by its output."""
    model.zero_grad(set_to_none=True)
    with watch_layers(model) as outputs, torch.enable_grad():
        loss = batch_loss(model, batch, CrossEntropy()).loss / batch.num_target_tokens
        loss.backward()
    norms = {}
    for name, stack in stacks_of(model).items():
        weights = [[weight.grad.norm() for weight in layer.parameters() if weight.grad is not None] for layer in stack.layers]
        norms[name] = {"weights": [torch.stack(layer).norm().item() if layer else 0.0 for layer in weights],
                       "output": [0.0 if output.grad is None else output.grad.norm().item() for output in outputs[name]]}
    model.zero_grad(set_to_none=True)
    return norms


# -- the change of the output


@torch.no_grad()
def output_change(model: nn.Module, stack: nn.Module, batch: AnyBatch, *, step: float = STEP, seed: int = 0) -> float:
    """|F(W) - F(W*)|^2 of the stack's output, a token, where W* = W + step * sign(noise) on its weight matrices alone."""
    generator = torch.Generator().manual_seed(seed)
    matrices = [weight for weight in stack.parameters() if weight.dim() == 2]
    before = [weight.clone() for weight in matrices]
    with watch_final(model, stack) as finals:
        model(*batch.inputs)
        for weight in matrices:
            noise = torch.randn(weight.shape, generator=generator).sign().to(weight)
            weight.add_(noise, alpha=step)
        model(*batch.inputs)
    for weight, value in zip(matrices, before, strict=True):
        weight.copy_(value)
    return (finals[0] - finals[1]).double().square().sum(dim=1).mean().item()


def kinds_to_compare(config: ModelConfig) -> dict[str, tuple[bool, Residual]]:
    """Whether Pre-LN, and the residuals, by name; the configuration's own too, if it is none of the usual three."""
    kinds: dict[str, tuple[bool, Residual]] = {"Post-LN": (False, DefaultInit()), "Pre-LN": (True, DefaultInit()),
                                               "Admin": (False, Admin())}
    if not isinstance(config.init, (DefaultInit, ProfiledInit)):
        # Constants follow the depth here, whatever depth the configuration's own belong to.
        kinds[config.init.name] = (config.encoder.is_pre_norm or config.decoder.is_pre_norm, config.init.compared_as())
    return kinds


def output_change_by_depth(task: TaskKind, config: ModelConfig, vocab_sizes: tuple[int, ...], batch: AnyBatch,
                           sub_layers: Sequence[int], *, step: float = STEP, repeats: int = 1, seed: int = 1,
                           advance: Callable[[int], None] = lambda _: None) -> dict[str, list[float]]:
    """The mean over freshly initialised models of the configuration's widths, by kind of residual and depth."""
    def change(depth: int, kind: tuple[bool, Residual], own_seed: int) -> float:
        torch.manual_seed(own_seed)
        model = task.build_model(at_depth(task, config, depth, *kind), vocab_sizes).to(batch.target.device).eval()
        kind[1].fill_(model, batch)
        advance(1)
        return output_change(model, stacks_of(model)[task.stacks[0]], batch, step=step, seed=own_seed)

    return {name: [sum(change(depth, kind, seed + number) for number in range(repeats)) / repeats for depth in sub_layers]
            for name, kind in kinds_to_compare(config).items()}


def at_depth(task: TaskKind, config: ModelConfig, num_sub_layers: int, is_pre_norm: bool, init: Residual) -> ModelConfig:
    """The configuration with its first stack at this depth and the other one layer deep, without dropout and fusion."""
    depths = {"encoder": 1, "decoder": 1, task.stacks[0]: max(num_sub_layers // SUB_LAYERS_A_LAYER, 1)}
    stacks = {side: replace(getattr(config, side), num_layers=depth, is_pre_norm=is_pre_norm, layer_drop_p=0.0)
              for side, depth in depths.items()}
    return replace(config, **stacks, init=init, dropout=DropoutConfig(dropout_p=0.0), fusion=NoFusion(),
                   surface=NoSurface(), mixing=NoMixing(), layer_drop_schedule="constant")

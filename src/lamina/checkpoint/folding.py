"""Scaled residuals folded into the weights around them: a plain Transformer with the same outputs. Pure: config and weights.

In norm(omega * x + f(x)), x is the output of the norm before. If that norm gives omega * x instead, the shortcut needs no
omega any more, and the weights through which f reads x take its inverse. The first sub-layer of a stack reads the embeddings:
there the norm of the embeddings takes omega, or, where there is none, the token and position tables do, which then cannot be
shared with the other side or the output any more, and sinusoids become a stored table. ReZero's scale is on the branch, so
the branch's last weights take it.
"""

# D model_dim

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lamina.checkpoint.format import Checkpoint
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError
from lamina.fields import flatten
from lamina.init.deepnet import DeepNetConstants
from lamina.models.build import asking_state, layer_wise_reads
from lamina.nn.fusion import FINAL
from lamina.nn.positions import num_rows, sinusoid_table
from lamina.parts.position_kinds import Learned
from lamina.parts.residuals import DeepNet, DefaultInit, OmegaInit, ReZeroInit, ReZeroPostNorm
from lamina.parts.surface_fusion import AttendedFusion, MeanFusion

Weights = dict[str, Tensor]

# What is divided by an omega below this leaves the range that half precision can hold.
MIN_OMEGA = 1e-4


class SubLayer(NamedTuple):
    """By the prefixes of its weights."""

    residual: str
    reads: str  # the weights through which the branch reads the stream
    writes: str  # its last weights


_SUB_LAYERS = (SubLayer("attn_residual", "attention.in_proj", "attention.out_proj"),
               SubLayer("cross_residual", "cross_attention.q_proj", "cross_attention.out_proj"),
               SubLayer("ffn_residual", "ffn.fc1", "ffn.fc2"))
_EMBEDDINGS = {"encoder": "source_embedding", "decoder": "target_embedding"}


def fold(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[ModelConfig, Weights]:
    """The same function of tokens, with plain residuals."""
    # Twice the digits while factors come and go, so that each weight is rounded once.
    folded = {name: weight.double() for name, weight in weights.items()}
    match config.init:
        case DefaultInit():
            raise CheckpointError("the model has plain residuals already: there is nothing to fold.")
        case ReZeroInit():
            raise CheckpointError("a model trained with --init-type rezero has no LayerNorm, so no plain Transformer computes "
                                  "the same. Only rezero_postln, deepnet and the kinds of Admin can be folded.")
        case ReZeroPostNorm():
            _fold_branch_scales_(folded)
        case OmegaInit() | DeepNet():
            scales: dict[str, list[Tensor]] = {}
            for stack in _stacks(folded):
                scales[stack], config = _fold_shortcuts_(config, folded, stack)
            _unscale_readers_(config, folded, scales)
    plain = {name: weight.to(weights[name].dtype if name in weights else torch.float32)
             for name, weight in folded.items() if ".add." not in name}
    return replace(config, init=DefaultInit()), plain


def fold_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """With the folded configuration and weights; what resuming needs belongs to the model as it was, and stays behind."""
    before = checkpoint.model_config()
    config, weights = fold(before, checkpoint.weights)
    old_names = flatten(before).keys() - flatten(config).keys()
    flat = {name: value for name, value in (checkpoint.config | flatten(config)).items() if name not in old_names}
    return replace(checkpoint, config=flat, weights=weights, training={"folded": checkpoint.config["init-type"]})


def _stacks(weights: Weights) -> list[str]:
    return [stack for stack in _EMBEDDINGS if f"{stack}.layers.0.attention.in_proj.weight" in weights]


def _sub_layers(weights: Weights, stack: str) -> Iterator[SubLayer]:
    """In order, with full names."""
    index = 0
    while f"{stack}.layers.{index}.attention.in_proj.weight" in weights:
        prefix = f"{stack}.layers.{index}"
        for part in _SUB_LAYERS:
            if f"{prefix}.{part.reads}.weight" in weights:
                yield SubLayer(*(f"{prefix}.{name}" for name in part))
        index += 1


# -- omega, alpha: on the shortcut


def _fold_shortcuts_(config: ModelConfig, weights: Weights, stack: str) -> tuple[list[Tensor], ModelConfig]:
    """Each sub-layer's scale moves to whatever gives it its input; by what each of the stack's states is scaled from now on."""
    before, scales = None, []
    for part in _sub_layers(weights, stack):
        scale = _shortcut_scale(config, weights, stack, part)
        if part.residual.endswith("attn_residual"):
            scales.append(scale)  # of what the layer before hands on
        if before is None:
            config = _scale_input_(config, weights, stack, scale)
        else:
            _scale_norm_(weights, before, scale)
        _divide_(weights, part.reads, scale)
        before = f"{part.residual}.norm"
    return [*scales, torch.ones_like(scales[0])], config


def _divide_(weights: Weights, linear: str, scale: Tensor) -> None:
    """For a linear map whose input is now scaled."""
    weights[f"{linear}.weight"] = weights[f"{linear}.weight"] / scale


def _shortcut_scale(config: ModelConfig, weights: Weights, stack: str, part: SubLayer) -> Tensor:
    """(D,)"""
    if isinstance(config.init, DeepNet):
        return torch.full_like(weights[f"{part.residual}.norm.weight"], _alpha(config, weights, stack))
    omega = weights[f"{part.residual}.add.omega"]
    smallest = int(omega.abs().argmin())
    if not omega[smallest].abs() >= MIN_OMEGA:
        raise CheckpointError(f"{part.residual}.add.omega is {omega[smallest].item():.2g} in channel {smallest}: folding would "
                              f"divide by it, and needs at least {MIN_OMEGA}. Use the model as it is, or train it further.")
    return omega


def _alpha(config: ModelConfig, weights: Weights, stack: str) -> float:
    num_encoder, num_decoder = config.trained_depths
    if len(_stacks(weights)) == 1:
        return DeepNetConstants.of_single_stack(num_encoder if stack == "encoder" else num_decoder).alpha
    constants = (DeepNetConstants.of_encoder(num_encoder, num_decoder) if stack == "encoder"
                 else DeepNetConstants.of_decoder(num_decoder))
    return constants.alpha


def _unscale_readers_(config: ModelConfig, weights: Weights, scales: dict[str, list[Tensor]]) -> None:
    """Fusion reads states in the middle of a stack: through a linear map it can undo their scale, otherwise it cannot."""
    memory, surface = config.memory, config.surface
    if "encoder" not in scales or "decoder" not in scales:
        return
    if memory.is_transparent:
        raise CheckpointError("--transparent-attention mixes the encoder's states as they are, and folding would scale each of "
                              "them differently: such a model cannot be folded. Use it as it is.")
    if isinstance(surface, MeanFusion):
        raise CheckpointError("--surfacefusion mean and max pool the source embeddings, and folding would scale those: such a "
                              "model cannot be folded. Use it as it is.")
    if memory.is_layer_wise:
        for layer, state in enumerate(layer_wise_reads(config)):
            if state != FINAL:
                _divide_(weights, f"decoder.layers.{layer}.cross_attention.kv_proj", scales["encoder"][state])
    if isinstance(surface, AttendedFusion):
        _divide_(weights, "head.surface.attention.q_proj", scales["decoder"][asking_state(surface, config.decoder)])
        if surface.has_positions or not config.embedding.has_norm:
            # Without positions the values are ahead of the norm, which takes the scale where there is one.
            _divide_(weights, "head.surface.attention.v_proj", scales["encoder"][0])


def _scale_norm_(weights: Weights, norm: str, scale: Tensor) -> None:
    for name in (f"{norm}.weight", f"{norm}.bias"):
        weights[name] = weights[name] * scale


def _scale_input_(config: ModelConfig, weights: Weights, stack: str, scale: Tensor) -> ModelConfig:
    """The stack's first input; the configuration that says what became of the tables."""
    name = _EMBEDDINGS[stack]
    if config.embedding.has_norm:
        _scale_norm_(weights, f"{name}.norm", scale)
        return config
    config = _scale_tokens_(config, weights, name, scale)
    if not config.embedding.has_positions:
        return config
    positions = f"{name}.positions.weight"
    if positions not in weights:
        max_positions = getattr(config.embedding, "max_source_positions" if stack == "encoder" else "max_target_positions")
        weights[positions] = sinusoid_table(num_rows(max_positions), len(scale)).double()
    weights[positions] = weights[positions] * scale
    return replace(config, **{stack: replace(getattr(config, stack), positions=Learned())})


def _scale_tokens_(config: ModelConfig, weights: Weights, embedding: str, scale: Tensor) -> ModelConfig:
    """Where token vectors pass a projection, it takes the scale, and their tables stay shared."""
    projections = [name for name in weights if name.startswith(f"{embedding}.") and name.endswith("project.weight")]
    if not projections:
        config = _untie_(config, weights)
        weights[f"{embedding}.table.weight"] = weights[f"{embedding}.table.weight"] * scale
        return config
    if config.lm.ties_projections:
        for number, name in enumerate(projections[1:]):  # the first band has no tail
            weights[f"head.tails.{number}.project.weight"] = weights[name].t()
        config = replace(config, lm=replace(config.lm, ties_projections=False))
    for name in projections:
        weights[name] = weights[name] * scale[:, None]
    return config


def _untie_(config: ModelConfig, weights: Weights) -> ModelConfig:
    """Source, target and output each with a table of its own."""
    if _stacks(weights) == ["encoder"]:
        raise CheckpointError("the model guesses masked tokens with the table that it reads them with, and folding would "
                              "scale only one of the two. Train with --layernorm-embedding, whose norm can take the scale.")
    source, target, output = "source_embedding.table.weight", "target_embedding.table.weight", "head.table.weight"
    for name, shared in ((target, source), (output, target)):
        if name not in weights:
            weights[name] = weights[shared]
    return replace(config, embedding=replace(config.embedding, share_all=False, share_decoder=False))


# -- ReZero's scale: on the branch


def _fold_branch_scales_(weights: Weights) -> None:
    for stack in _stacks(weights):
        scale = torch.ones(1)
        for part in _sub_layers(weights, stack):
            # One a layer, stored with its first sub-layer.
            scale = weights.get(f"{part.residual}.add.scale", scale)
            for name in (f"{part.writes}.weight", f"{part.writes}.bias"):
                weights[name] = weights[name] * scale

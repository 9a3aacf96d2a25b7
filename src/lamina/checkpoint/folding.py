"""Scaled residuals folded into the weights around them: a plain Transformer with the same outputs. Pure: config and weights.

In norm(omega * x + f(x)), x is the output of the norm before. If that norm gives omega * x instead, the shortcut needs no
omega any more, and the weights through which f reads x take its inverse. The first sub-layer of a stack reads the embeddings:
there the norm of the embeddings takes omega, or, where there is none, the token and position tables do, which then cannot be
shared with the other side or the output any more, and sinusoids become a stored table. ReZero's scale is on the branch, so
the branch's last weights take it.
"""

# D model_dim

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lamina.checkpoint.format import Checkpoint
from lamina.checkpoint.marks import marks_of
from lamina.checkpoint.merging import merged_if_it_can
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError
from lamina.fields import flatten
from lamina.parts.position_kinds import Learned
from lamina.parts.residuals import DefaultInit

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


class Folding:
    """A model while its scales move: what a residual, a fusion and a head use to say how they are folded."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        # Twice the digits while factors come and go, so that each weight is rounded once.
        self.weights: Weights = {name: weight.double() for name, weight in weights.items()}
        self.config = config
        # By stack: what each of its states is scaled by from now on, its input first.
        self.scales: dict[str, list[Tensor]] = {}

    @property
    def stacks(self) -> list[str]:
        return [stack for stack in _EMBEDDINGS if f"{stack}.layers.0.attention.in_proj.weight" in self.weights]

    @property
    def trained_depths(self) -> tuple[int, int]:
        """Of encoder and decoder; 0 where the model has no such stack."""
        encoder, decoder = self.config.trained_depths
        return encoder if "encoder" in self.stacks else 0, decoder if "decoder" in self.stacks else 0

    def sub_layers(self, stack: str) -> Iterator[SubLayer]:
        """In order, with full names."""
        index = 0
        while f"{stack}.layers.{index}.attention.in_proj.weight" in self.weights:
            prefix = f"{stack}.layers.{index}"
            for part in _SUB_LAYERS:
                if f"{prefix}.{part.reads}.weight" in self.weights:
                    yield SubLayer(*(f"{prefix}.{name}" for name in part))
            index += 1

    def divide(self, linear: str, scale: Tensor) -> None:
        """For a linear map whose input is now scaled."""
        self.weights[f"{linear}.weight"] = self.weights[f"{linear}.weight"] / scale

    # -- scales of the shortcut

    def move_shortcuts(self, scale_of: Callable[[SubLayer, str], Tensor]) -> None:
        """Each sub-layer's scale, `scale_of(sub_layer, stack)`, moves to what gives it its input; readers are told."""
        for stack in self.stacks:
            before, scales = None, []
            for part in self.sub_layers(stack):
                scale = scale_of(part, stack)
                if part.residual.endswith("attn_residual"):
                    scales.append(scale)  # of what the layer before hands on
                if before is None:
                    self._scale_input(stack, scale)
                else:
                    self.scale_norm(before, scale)
                self.divide(part.reads, scale)
                before = f"{part.residual}.norm"
            self.scales[stack] = [*scales, torch.ones_like(scales[0])]
        for reader in (self.config.fusion, self.config.surface) if self.stacks == ["encoder", "decoder"] else ():
            reader.unscale(self)
        self.config.mixing.unscale(self)

    def checked_scale(self, name: str) -> Tensor:
        """A scale that is a weight, if it can be divided by. (D,)"""
        omega = self.weights[name]
        smallest = int(omega.abs().argmin())
        if not omega[smallest].abs() >= MIN_OMEGA:
            raise CheckpointError(f"{name} is {omega[smallest].item():.2g} in channel {smallest}: folding would "
                                  f"divide by it, and needs at least {MIN_OMEGA}. Use the model as it is, or train it further.")
        return omega

    def constant_scale(self, part: SubLayer, scale: float) -> Tensor:
        """A scale that is a number, for each channel. (D,)"""
        return torch.full_like(self.weights[f"{part.residual}.norm.weight"], scale)

    def scale_norm(self, norm: str, scale: Tensor | float) -> None:
        """What a norm puts out."""
        for name in (f"{norm}.weight", f"{norm}.bias"):
            self.weights[name] = self.weights[name] * scale

    def _scale_input(self, stack: str, scale: Tensor) -> None:
        """The stack's first input: the norm of the embeddings takes the scale, or the tables do."""
        name, config = _EMBEDDINGS[stack], self.config
        if config.embedding.has_norm:
            self.scale_norm(f"{name}.norm", scale)
            return
        self._scale_tokens(name, scale)
        if not config.embedding.has_positions:
            return
        positions, own = f"{name}.positions.weight", getattr(self.config, stack)
        if positions not in self.weights:
            max_positions = getattr(config.embedding, "max_source_positions" if stack == "encoder" else "max_target_positions")
            table = own.positions.table_of(max_positions, len(scale))
            assert table is not None, "positions that are no weight have a table"
            self.weights[positions] = table.double()
        elif own.positions.table_of(1, len(scale)) is not None:
            raise own.positions.cannot("be folded", "its positions are more than a table")
        self.weights[positions] = self.weights[positions] * scale
        self.config = replace(self.config, **{stack: replace(own, positions=Learned())})

    def _scale_tokens(self, embedding: str, scale: Tensor) -> None:
        """Where token vectors pass a projection, it takes the scale, and their tables stay shared."""
        config, weights = self.config, self.weights
        projections = [name for name in weights if name.startswith(f"{embedding}.") and name.endswith("project.weight")]
        if not projections:
            self._untie()
            weights[f"{embedding}.table.weight"] = weights[f"{embedding}.table.weight"] * scale
            return
        if config.lm.ties_projections:
            for number, name in enumerate(projections[1:]):  # the first band has no tail
                weights[f"head.tails.{number}.project.weight"] = weights[name].t()
            self.config = replace(config, lm=replace(config.lm, ties_projections=False))
        for name in projections:
            weights[name] = weights[name] * scale[:, None]

    def _untie(self) -> None:
        """Source, target and output each with a table of its own."""
        if self.stacks == ["encoder"]:
            raise CheckpointError("the model guesses masked tokens with the table that it reads them with, and folding would "
                                  "scale only one of the two. Train with --layernorm-embedding, whose norm can take the scale.")
        source, target, output = "source_embedding.table.weight", "target_embedding.table.weight", "head.table.weight"
        for name, shared in ((target, source), (output, target)):
            if name not in self.weights:
                self.weights[name] = self.weights[shared]
        self.config = replace(self.config, embedding=replace(self.config.embedding, share_all=False, share_decoder=False))

    # -- scales of the branch

    def scale_branches(self, name: str) -> None:
        """A scale called `name` below the residual, one number or one for each channel, moves into the branch's last weights.

        One that the sub-layers of a layer share is stored with the first of them.
        """
        for stack in self.stacks:
            scale = torch.ones(1)
            for part in self.sub_layers(stack):
                scale = self.weights.get(f"{part.residual}.{name}", scale)
                self.weights[f"{part.writes}.weight"] = self.weights[f"{part.writes}.weight"] * scale[:, None]
                self.weights[f"{part.writes}.bias"] = self.weights[f"{part.writes}.bias"] * scale


def fold(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[ModelConfig, Weights]:
    """The same function of tokens, with plain residuals."""
    folding = Folding(config, weights)
    config.init.fold(folding)
    if not config.adapter.is_plain:
        raise config.adapter.cannot("be folded")
    plain = {name: weight.to(weights[name].dtype if name in weights else torch.float32)
             for name, weight in folding.weights.items() if ".add." not in name}
    return replace(folding.config, init=DefaultInit()), plain


def fold_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """With the folded configuration and weights; what resuming needs belongs to the model as it was, and stays behind."""
    checkpoint = merged_if_it_can(checkpoint)
    before = checkpoint.model_config()
    config, weights = fold(before, checkpoint.weights)
    old_names = flatten(before).keys() - flatten(config).keys()
    flat = {name: value for name, value in (checkpoint.config | flatten(config)).items() if name not in old_names}
    training = {**marks_of(checkpoint), "folded": checkpoint.config["init-type"]}
    return replace(checkpoint, config=flat, weights=weights, training=training)

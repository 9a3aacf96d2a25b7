"""DeepNet's first weights (Wang et al. 2022, §3.2): the deeper the model, the smaller what a branch adds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from lamina.nn.attention import CrossAttention, SelfAttention
from lamina.nn.feed_forward import FeedForward


class DeepNetConstants(NamedTuple):
    """alpha scales the shortcut, beta is the gain of a branch's first weights (Wang et al. 2022, table 1)."""

    alpha: float
    beta: float

    @classmethod
    def of_encoder(cls, num_encoder_layers: int, num_decoder_layers: int) -> DeepNetConstants:
        depth = (num_encoder_layers**4 * num_decoder_layers) ** (1 / 16)
        return cls(0.81 * depth, 0.87 / depth)

    @classmethod
    def of_decoder(cls, num_decoder_layers: int) -> DeepNetConstants:
        return cls((3 * num_decoder_layers) ** 0.25, (12 * num_decoder_layers) ** -0.25)

    @classmethod
    def of_single_stack(cls, num_layers: int) -> DeepNetConstants:
        """Of an encoder or a decoder that stands alone."""
        return cls((2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25)


@torch.no_grad()
def initialise_deepnet_(stack: nn.Module, beta: float) -> None:
    """Xavier normal: gain beta where a branch's size is decided (values, outputs, feed-forward), 1 for queries and keys."""
    for module in stack.modules():
        match module:
            case SelfAttention():
                _blocks_(module.in_proj, (1.0, 1.0, beta))
                _blocks_(module.out_proj, (beta,))
            case CrossAttention():
                _blocks_(module.q_proj, (1.0,))
                _blocks_(module.kv_proj, (1.0, beta))
                _blocks_(module.out_proj, (beta,))
            case FeedForward():
                _blocks_(module.fc1, (beta,))
                _blocks_(module.fc2, (beta,))


def _blocks_(linear: nn.Linear, gains: tuple[float, ...]) -> None:
    """Stacked projections, each as if it stood alone."""
    for block, gain in zip(linear.weight.chunk(len(gains)), gains, strict=True):
        nn.init.xavier_normal_(block, gain=gain)
    nn.init.zeros_(linear.bias)

"""What cross-attention reads of the encoder: the kinds of --fusion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lamina.fields import check, flag
from lamina.parts.contracts import Fusion, FusionPlace
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lamina.checkpoint.folding import Folding
    from lamina.pruning.cut import Cut

FINAL = -1  # in LayerWise.reads: the encoder's output, after its last norm
# The weights of a mix of encoder layers.
MIX = "memory.weight"


@register.fusion("none")
@dataclass(frozen=True, kw_only=True)
class NoFusion(Fusion):
    """Every decoder layer reads the encoder's output."""

    is_plain = True

    def build(self, place: FusionPlace) -> nn.Module:
        from lamina.nn.fusion import LastState

        return LastState()

    def pruned(self, cut: Cut) -> Fusion:
        return self

    def unscale(self, folding: Folding) -> None:
        """The encoder's output keeps its scale."""


class _ReadsLowerLayers(Fusion):
    def not_in(self, toolkit: str) -> str:
        return f"its decoder layers read different states of the encoder, and {toolkit} gives all of them the encoder's output"


@register.fusion("layer-wise")
@dataclass(frozen=True, kw_only=True)
class LayerWiseFusion(_ReadsLowerLayers):
    """Decoder layer i reads encoder layer i."""

    def describe(self) -> str:
        return "layer-wise attention"

    set_by_pruning = ("layer-wise-reads",)

    layer_wise_reads: tuple[int, ...] = flag(
        (), "which encoder state each decoder layer reads: 0 the stack's input, k the output of layer k counted from 1, -1 the "
            "encoder's output (default: spread evenly)")

    def check(self, num_encoder_layers: int, num_decoder_layers: int) -> None:
        check(len(self.layer_wise_reads) in (0, num_decoder_layers),
              f"--layer-wise-reads names {len(self.layer_wise_reads)} states, but there are {num_decoder_layers} decoder "
              "layers; give one for each.")
        wrong = next((state for state in self.layer_wise_reads if not -1 <= state <= num_encoder_layers), None)
        check(wrong is None, f"--layer-wise-reads names state {wrong}, but an encoder of {num_encoder_layers} layers has 0 to "
                             f"{num_encoder_layers}, and -1 for its output.")

    @property
    def reads_final(self) -> bool:  # type: ignore[override]
        return not self.layer_wise_reads or FINAL in self.layer_wise_reads

    def reads(self, num_readers: int, num_layers: int) -> tuple[int, ...]:
        """The encoder state of each decoder layer."""
        return self.layer_wise_reads or spread_evenly(num_readers, num_layers)

    def build(self, place: FusionPlace) -> nn.Module:
        from lamina.nn.fusion import LayerWise

        return LayerWise(self.reads(place.num_readers, place.num_layers))

    def pruned(self, cut: Cut) -> Fusion:
        reads = self.reads(cut.num_decoder, cut.num_encoder)
        return replace(self, layer_wise_reads=tuple(
            reads[reader] if reads[reader] == FINAL else cut.encoder_state(reads[reader]) for reader in cut.decoder))

    def unscale(self, folding: Folding) -> None:
        depths = folding.config.decoder.num_layers, folding.config.encoder.num_layers
        for layer, state in enumerate(self.reads(*depths)):
            if state != FINAL:
                folding.divide(f"decoder.layers.{layer}.cross_attention.kv_proj", folding.scales["encoder"][state])


def spread_evenly(num_readers: int, num_layers: int) -> tuple[int, ...]:
    """With equal depths layer i reads layer i; the last reads the output."""
    states = [-(-(reader + 1) * num_layers // num_readers) for reader in range(num_readers)]
    return tuple(FINAL if state == num_layers else state for state in states)


@register.fusion("transparent")
@dataclass(frozen=True, kw_only=True)
class TransparentFusion(_ReadsLowerLayers):
    """Every decoder layer reads its own learned mix of all encoder layers."""

    set_by_pruning = ("ta-input",)

    is_fine_grained: bool = flag(False, "a weight for each layer and channel instead of one for each layer",
                                 name="fine-grained-ta", paper="Liu et al. 2021")
    reads_embedding: bool = flag(False, "the mix includes the source embedding, without positions", name="ta-source-embedding")
    embedding_has_positions: bool = flag(False, "with positions after all", name="ta-posedemb", needs="ta-source-embedding")
    has_embedding_norm: bool = flag(True, "layer-normalise that embedding (Post-LN models only)", name="ta-embnorm",
                                    needs="ta-source-embedding")
    reads_input: bool = flag(False, "the mix includes the encoder stack's input; pruning the first layer sets this",
                             name="ta-input")
    has_ffn: bool = flag(False, "a feed-forward block on everything that is mixed", name="ta-ffn")
    dropout_p: float = flag(0.1, "dropout probability on the weights of the mix, and on the mix", name="ta-dropout")
    drops_logits: bool = flag(False, "drop weights before their softmax instead of after it", name="ta-dropconnect")

    reads_final = False

    def describe(self) -> str:
        return f"transparent attention{', fine-grained' if self.is_fine_grained else ''}"

    def __post_init__(self) -> None:
        check(0.0 <= self.dropout_p < 1.0, f"--ta-dropout is {self.dropout_p}; it must lie in [0, 1).")

    @property
    def reads_tokens(self) -> bool:  # type: ignore[override]
        return self.reads_embedding and not self.embedding_has_positions

    def build(self, place: FusionPlace) -> nn.Module:
        from torch import nn

        from lamina.nn.fusion import LayerAttention, Transform
        from lamina.nn.residual import Add, PostNorm, PreNorm

        transform = None
        if self.has_ffn:
            order = PreNorm if place.is_pre_norm else PostNorm
            transform = Transform(place.feed_forward(), order(nn.LayerNorm(place.dim), Add(), place.dropout_p))
        has_embedding_norm = self.reads_embedding and self.has_embedding_norm and not place.is_pre_norm
        return LayerAttention(
            num_readers=place.num_readers, num_layers=place.num_layers, dim=place.dim, is_fine_grained=self.is_fine_grained,
            reads_embedding=self.reads_embedding, embedding_has_positions=self.embedding_has_positions,
            reads_input=self.reads_input, embedding_norm=nn.LayerNorm(place.dim) if has_embedding_norm else None,
            transform=transform, dropout_p=place.dropout_p, weight_dropout_p=self.dropout_p, drops_logits=self.drops_logits)

    def pruned(self, cut: Cut) -> Fusion:
        return replace(self, reads_input=self.reads_input or cut.encoder[0] > 0)

    def prune_weights_(self, weights: dict[str, Tensor], cut: Cut) -> None:
        """The logits of the mix, once some layers are gone (LayerAttention in nn/fusion.py).

        What was read of a removed layer is read of the state below it, which that layer passed on: shares add up, so logits
        become the logarithm of the sum of their exponentials.
        """
        import torch

        weight = weights[MIX][list(cut.decoder)] if cut.is_decoder_cut else weights[MIX]
        if cut.is_encoder_cut:
            first = 1 if self.reads_embedding else 0
            below = [0] if self.reads_input else []
            groups: dict[int, list[int]] = {}  # a state of the pruned stack -> columns that read it
            for column, state in enumerate([*below, *range(1, cut.num_encoder + 1)], start=first):
                groups.setdefault(cut.encoder_state(state), []).append(column)
            merged = [weight[:, columns].logsumexp(dim=1) for _, columns in sorted(groups.items())]
            weight = torch.cat([weight[:, :first], torch.stack(merged, dim=1)], dim=1)
        weights[MIX] = weight

    def prune_moments_(self, moments: dict[str, Tensor], cut: Cut) -> None:
        """Of merged logits there is nothing to remember: they are new."""
        if MIX in moments and cut.is_encoder_cut:
            del moments[MIX]
        elif MIX in moments and cut.is_decoder_cut:
            moments[MIX] = moments[MIX][list(cut.decoder)]

    def unscale(self, folding: Folding) -> None:
        raise self.cannot("be folded", "the mix reads the encoder's states as they are, and folding would scale each of them "
                                       "differently. Use it as it is")

"""What the softmax reads: the decoder alone, or the source embeddings as well (the kinds of --surfacefusion)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lamina.fields import check, flag, variant
from lamina.parts.contracts import Head, HeadPlace
from lamina.registry import register

if TYPE_CHECKING:
    from torch import nn

    from lamina.checkpoint.folding import Folding
    from lamina.nn.heads import AttendedSurface, HardMix, PooledSurface, SoftMix
    from lamina.pruning.cut import Cut

# Toolkits, and models of transformers, whose output has a bias for each token.
_WITH_BIAS = ("CTranslate2", "MarianMT", "BART", "mBART")


@register.head("none")
@dataclass(frozen=True, kw_only=True)
class NoSurface(Head):
    """The usual softmax over the decoder's output."""

    is_plain = True

    def build(self, place: HeadPlace, table: nn.Module) -> nn.Module:
        from lamina.nn.heads import LinearHead

        return LinearHead(table)  # type: ignore[arg-type]

    def pruned(self, cut: Cut) -> Head:
        return self

    def unscale(self, folding: Folding) -> None:
        """It reads the decoder's output, whose scale stays."""


@register.head("bias")
@dataclass(frozen=True, kw_only=True)
class OutputBias(Head):
    """The usual softmax with a bias for each token, as Marian's models have it."""

    def build(self, place: HeadPlace, table: nn.Module) -> nn.Module:
        from lamina.nn.heads import BiasedHead

        return BiasedHead(table)  # type: ignore[arg-type]

    def pruned(self, cut: Cut) -> Head:
        return self

    def unscale(self, folding: Folding) -> None:
        """It reads the decoder's output, whose scale stays."""

    def not_in(self, toolkit: str) -> str:
        return "" if toolkit in _WITH_BIAS else f"{toolkit} has no bias at the output (--surfacefusion bias)"

    def describe(self) -> str:
        return "a bias for each token at the output"


@dataclass(frozen=True, kw_only=True)
class _Mode:
    """What the modes share."""

    topic = "Surface fusion"

    dropout: float = flag(0.0, "in training, share of target tokens that are scored by the decoder alone: what the source side "
                               "explains, the decoder does not learn; take 0.5 with soft", name="sf-dropout")

    def __post_init__(self) -> None:
        check(0.0 <= self.dropout < 1.0, f"--sf-dropout is {self.dropout}; it must lie in [0, 1).")

    def advice(self) -> str:
        """What has been seen to go wrong with this choice, or nothing."""
        return ""


@dataclass(frozen=True, kw_only=True)
class HardFusion(_Mode):
    """Scores of both sides, weighed by a gate."""

    gate: float = flag(0.0, "weight of the decoder's own scores; 0 learns one for each token", name="sf-gate",
                       paper="Liu et al. 2021")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0.0 <= self.gate < 1.0, f"--sf-gate is {self.gate}; it must lie in [0, 1), where 0 means a learned gate. "
                                      "For no surface path at all, leave out --surfacefusion.")
        check(not (self.gate and self.dropout),
              f"--sf-dropout is for a learned gate: with --sf-gate {self.gate:g} the decoder learns from each token already. "
              "Leave one of them out.")

    def build(self, dim: int) -> HardMix:
        from lamina.nn.heads import HardMix

        return HardMix(self.gate, dim, self.dropout)

    def advice(self) -> str:
        if self.gate or self.dropout:
            return ""
        return ("the gate of surface fusion is learned (--sf-gate 0): it may close for good early on, and then neither "
                "stack learns any more; --sf-gate 0.8 is the published setting (with --sf-dropout 0.5 it opens for good)")


@dataclass(frozen=True, kw_only=True)
class SoftFusion(_Mode):
    """Scores of both sides added before one softmax."""

    tau: float = flag(1.0, "weight of the source side's scores", name="sf-softmax-tau")

    def build(self, dim: int) -> SoftMix:
        from lamina.nn.heads import SoftMix

        return SoftMix(self.tau, self.dropout)

    def advice(self) -> str:
        if self.dropout:
            return ""
        return ("the decoder learns little of what the source side explains (--sf-mode soft), and such models end far behind "
                "plain ones; --sf-dropout 0.5, which trains the decoder alone on half of the tokens, makes them as good")


@dataclass(frozen=True, kw_only=True)
class PostnormFusion(SoftFusion):
    """The same function under its other published name."""


FusionMode = HardFusion | SoftFusion | PostnormFusion
MODES: dict[str, type] = {"hard": HardFusion, "soft": SoftFusion, "postnorm": PostnormFusion}


@dataclass(frozen=True, kw_only=True)
class SurfaceConfig(Head):
    """What the kinds of SurfaceFusion share."""

    mode: FusionMode = variant(
        "sf-mode", "how the decoder's scores and the source's are combined: hard weighs their log-probabilities (the sum is a "
                   "score, not a distribution), soft and postnorm add their scores before one softmax", MODES, default="hard",
        paper="Liu et al. 2021")
    has_ffn: bool = flag(True, "one feed-forward block for both sides before the softmax", name="sf-ffn")
    has_linear: bool = flag(False, "a matrix of its own for each side before the softmax", name="sf-linear")
    has_positions: bool = flag(False, "fuse the encoder's input, with positions, instead of the embedding alone",
                               name="sf-posedemb", off_aliases=("sf-no-posedemb",))

    @property
    def reads_tokens(self) -> bool:  # type: ignore[override]
        return not self.has_positions

    @property
    def reads_input(self) -> bool:  # type: ignore[override]
        return self.has_positions

    def surface(self, place: HeadPlace) -> AttendedSurface | PooledSurface:
        """What gives each target token its view of the source."""
        raise self.cannot("be built")

    def build(self, place: HeadPlace, table: nn.Module) -> nn.Module:
        from lamina.nn.heads import SurfaceHead
        from lamina.nn.linear import Linear

        source, mix = self.surface(place), self.mode.build(place.dim)
        target_linear, source_linear = (Linear(place.dim, place.dim, bias=False) if self.has_linear else None
                                        for _ in range(2))
        return SurfaceHead(table, source, mix, ffn=place.feed_forward() if self.has_ffn else None,  # type: ignore[arg-type]
                           target_linear=target_linear, source_linear=source_linear, dropout_p=place.dropout_p)

    def describe(self) -> str:
        gate = f", gate {self.mode.gate or 'learned'}" if isinstance(self.mode, HardFusion) else ""
        mode = next(name for name, kind in MODES.items() if kind is type(self.mode))
        return f"SurfaceFusion: {self.name}, {mode}{gate}"

    def not_in(self, toolkit: str) -> str:
        return (f"SurfaceFusion mixes a second distribution, read off the source embeddings, into the softmax, and {toolkit}'s "
                "decoder has one output")

    def advice(self) -> str:
        return self.mode.advice()


@register.head("att")
@dataclass(frozen=True, kw_only=True)
class AttendedFusion(SurfaceConfig):
    """Each target token attends to the source embeddings."""

    set_by_pruning = ("sf-idx",)

    num_heads: int = flag(1, "heads of the attention over the source embeddings", name="sf-attention-heads")
    layer: int = flag(-1, "decoder layer whose output asks, from 0; negative counts from the top", name="sf-idx")

    reads_final = True

    def describe(self) -> str:
        return f"{super().describe()}, asked by decoder layer {self.layer}"

    def check(self, place: HeadPlace) -> None:
        depth = place.num_layers
        check(-depth - 1 <= self.layer < depth,
              f"--sf-idx is {self.layer}, but the decoder has {depth} layers; choose 0 to {depth - 1}, or a negative "
              "number that counts from the top (-1 is the last).")
        check(self.num_heads >= 1 and place.dim % self.num_heads == 0,
              f"--sf-attention-heads is {self.num_heads}; it must divide --decoder-embed-dim {place.dim}.")

    def asking_state(self, num_layers: int) -> int:
        """Of decoder.states, whose first is the stack's input."""
        return self.layer + 1 if self.layer >= 0 else num_layers + 1 + self.layer

    def decoder_states(self, num_layers: int) -> set[int]:
        return {self.asking_state(num_layers)}

    def surface(self, place: HeadPlace) -> AttendedSurface:
        from lamina.nn.attention import SurfaceAttention
        from lamina.nn.heads import AttendedSurface

        attention = SurfaceAttention(place.dim, place.encoder_dim, self.num_heads, place.attention_dropout_p)
        return AttendedSurface(attention, state=self.asking_state(place.num_layers), has_positions=self.has_positions)

    def pruned(self, cut: Cut) -> Head:
        """The same layer, or the nearest kept one below; below the first layer is the stack's input."""
        state = cut.decoder_state(self.asking_state(cut.num_decoder))
        if state == 0:
            return replace(self, layer=-len(cut.decoder) - 1)
        return replace(self, layer=state - 1 if self.layer >= 0 else state - len(cut.decoder) - 1)

    def unscale(self, folding: Folding) -> None:
        asking = self.asking_state(folding.config.decoder.num_layers)
        folding.divide("head.surface.attention.q_proj", folding.scales["decoder"][asking])
        if self.has_positions or not folding.config.embedding.has_norm:
            # Without positions the values are ahead of the norm, which takes the scale where there is one.
            folding.divide("head.surface.attention.v_proj", folding.scales["encoder"][0])


@dataclass(frozen=True, kw_only=True)
class _PooledFusion(SurfaceConfig):
    """One vector for the whole source."""

    first_word_id: int = flag(4, "pool only source tokens with this id or a higher one; those below are special symbols",
                              name="sf-first-word-id")

    is_mean = True

    def check(self, place: HeadPlace) -> None:
        check(place.encoder_dim == place.dim,
              f"--surfacefusion mean and max need one width, but --encoder-embed-dim is {place.encoder_dim} and "
              f"--decoder-embed-dim is {place.dim}. Make them equal, or use --surfacefusion att.")

    def surface(self, place: HeadPlace) -> PooledSurface:
        from lamina.nn.heads import PooledSurface

        return PooledSurface(is_mean=self.is_mean, has_positions=self.has_positions, first_word_id=self.first_word_id,
                             dropout_p=place.dropout_p)

    def pruned(self, cut: Cut) -> Head:
        return self

    def unscale(self, folding: Folding) -> None:
        raise self.cannot("be folded", "it pools the source embeddings, and folding would scale those. Use it as it is")


@register.head("mean")
@dataclass(frozen=True, kw_only=True)
class MeanFusion(_PooledFusion):
    """The mean of the source embeddings."""


@register.head("max")
@dataclass(frozen=True, kw_only=True)
class MaxFusion(_PooledFusion):
    """The maximum of the source embeddings, channel by channel."""

    is_mean = False

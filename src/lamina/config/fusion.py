"""What cross-attention and the softmax read of the encoder: two choices, each with its options."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.fields import check, flag, variant


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """Encoder-layer fusion: what cross-attention reads."""

    is_layer_wise: bool = flag(False, "decoder layer i reads encoder layer i; with unequal depths they are spread evenly, and "
                                      "the last reads the last", name="layer-wise-attention", paper="Liu et al. 2021")
    layer_wise_reads: tuple[int, ...] = flag(
        (), "which encoder state each decoder layer reads: 0 the stack's input, k the output of layer k counted from 1, -1 the "
            "encoder's output (default: spread evenly)", needs=("layer-wise-attention", "!transparent-attention"))
    is_transparent: bool = flag(False, "every decoder layer reads its own learned mix of all encoder layers",
                                name="transparent-attention", paper="Liu et al. 2021")
    is_fine_grained: bool = flag(False, "a weight for each layer and channel instead of one a layer", name="fine-grained-ta",
                                 needs="transparent-attention")
    reads_embedding: bool = flag(False, "the mix includes the source embedding, without positions", name="ta-source-embedding",
                                 needs="transparent-attention")
    embedding_has_positions: bool = flag(False, "with positions after all", name="ta-posedemb", needs="ta-source-embedding")
    has_embedding_norm: bool = flag(True, "layer-normalise that embedding (Post-LN models only)", name="ta-embnorm",
                                    needs="ta-source-embedding")
    reads_input: bool = flag(False, "the mix includes the encoder stack's input; pruning the first layer sets this",
                             name="ta-input", needs="transparent-attention")
    has_ffn: bool = flag(False, "a feed-forward block on everything that is mixed", name="ta-ffn",
                         needs="transparent-attention")
    dropout_p: float = flag(0.1, "dropout probability on the weights of the mix, and on the mix", name="ta-dropout",
                            needs="transparent-attention")
    drops_logits: bool = flag(False, "drop weights before their softmax instead of after it", name="ta-dropconnect",
                              needs="transparent-attention")

    def __post_init__(self) -> None:
        check(0.0 <= self.dropout_p < 1.0, f"--ta-dropout is {self.dropout_p}; it must lie in [0, 1).")


@dataclass(frozen=True, kw_only=True)
class HardFusion:
    """Surface fusion."""

    gate: float = flag(0.0, "weight of the decoder's own scores; 0 learns one for each token", name="sf-gate",
                       paper="Liu et al. 2021")

    def __post_init__(self) -> None:
        check(0.0 <= self.gate < 1.0, f"--sf-gate is {self.gate}; it must lie in [0, 1), where 0 means a learned gate. "
                                      "For no surface path at all, leave out --surfacefusion.")


@dataclass(frozen=True, kw_only=True)
class SoftFusion:
    """Surface fusion."""

    tau: float = flag(1.0, "weight of the source side's scores", name="sf-softmax-tau")


@dataclass(frozen=True, kw_only=True)
class PostnormFusion(SoftFusion):
    """Surface fusion."""


FusionMode = HardFusion | SoftFusion | PostnormFusion
_MODES: dict[str, type] = {"hard": HardFusion, "soft": SoftFusion, "postnorm": PostnormFusion}


@dataclass(frozen=True, kw_only=True)
class NoSurface:
    """Surface fusion."""


@dataclass(frozen=True, kw_only=True)
class SurfaceConfig:
    """Surface fusion."""

    mode: FusionMode = variant(
        "sf-mode", "how the decoder's scores and the source's are combined: hard weighs their log-probabilities (the sum is a "
                   "score, not a distribution), soft and postnorm add their scores before one softmax", _MODES, default="hard",
        paper="Liu et al. 2021")
    has_ffn: bool = flag(True, "one feed-forward block for both sides before the softmax", name="sf-ffn")
    has_linear: bool = flag(False, "a matrix of its own for each side before the softmax", name="sf-linear")
    has_positions: bool = flag(False, "fuse the encoder's input, with positions, instead of the embedding alone",
                               name="sf-posedemb", off_aliases=("sf-no-posedemb",))


@dataclass(frozen=True, kw_only=True)
class AttendedFusion(SurfaceConfig):
    """Surface fusion."""

    num_heads: int = flag(1, "heads of the attention over the source embeddings", name="sf-attention-heads")
    layer: int = flag(-1, "decoder layer whose output asks, from 0; negative counts from the top", name="sf-idx")


@dataclass(frozen=True, kw_only=True)
class MeanFusion(SurfaceConfig):
    """Surface fusion."""

    first_word_id: int = flag(4, "pool only source tokens with this id or a higher one; those below are special symbols",
                              name="sf-first-word-id")


@dataclass(frozen=True, kw_only=True)
class MaxFusion(MeanFusion):
    """Surface fusion."""


Head = NoSurface | AttendedFusion | MeanFusion | MaxFusion
SURFACES: dict[str, type] = {"none": NoSurface, "att": AttendedFusion, "mean": MeanFusion, "max": MaxFusion}

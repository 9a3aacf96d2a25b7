"""Attention residuals: a softmax over the outputs of all sub-layers below, by token, in place of their sum (Kimi 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lamina.errors import ConfigError
from lamina.fields import check, flag
from lamina.parts.contracts import LayerPlace, Mixing, Residual
from lamina.registry import register

if TYPE_CHECKING:
    from torch import nn

    from lamina.pruning.cut import Cut

_HELP = "the block of each layer of the {}, from 1, when training began; even blocks if left out. Pruning sets it"


@register.mixing("attention-residuals")
@dataclass(frozen=True, kw_only=True)
class AttendOverDepth(Mixing):
    """Sub-layer l computes f(norm(h)), h = sum_i a_i v_i over all outputs v_i below, a = softmax(w_l . RMSNorm(v_i))."""

    set_by_pruning = ("attnres-encoder-blocks", "attnres-decoder-blocks")
    output_weights = ("query",)
    reads_layers = True

    num_blocks: int = flag(0, "blocks of layers inside which outputs are summed up, so that only the sums are attended to: "
                              "less memory and time in deep stacks; 0: none, every output is attended to",
                           name="attnres-blocks", paper="Kimi 2026 §3.2")
    encoder_blocks: tuple[int, ...] = flag((), _HELP.format("encoder"), name="attnres-encoder-blocks", metavar="N,..",
                                           needs="attnres-blocks")
    decoder_blocks: tuple[int, ...] = flag((), _HELP.format("decoder"), name="attnres-decoder-blocks", metavar="N,..",
                                           needs="attnres-blocks")

    def __post_init__(self) -> None:
        check(self.num_blocks >= 0, f"--attnres-blocks is {self.num_blocks}; it must be 0 (the full form) or more.")
        for stack in ("encoder", "decoder"):
            blocks = getattr(self, f"{stack}_blocks")
            check(all(block >= 1 for block in blocks) and list(blocks) == sorted(blocks),
                  f"--attnres-{stack}-blocks is {','.join(map(str, blocks))}; the blocks are counted from 1 and must not fall.")

    def check(self, init: Residual, pre_norm_sides: Sequence[str]) -> None:
        check(bool(pre_norm_sides), f"{self.spelled} takes the place of Pre-LN's sums. Add --encoder-normalize-before and "
                                    "--decoder-normalize-before, whichever the model has.")
        check(init.is_sum, f"{self.spelled} takes the place of the sum x + f(x), and {init.spelled} scales that. Leave one of "
                           "them out.")

    def build(self, place: LayerPlace, *, has_output: bool) -> nn.Module:
        from lamina.nn.depth_attention import AttentionResiduals

        blocks = self._blocks(place.stack, place.num_layers) if self.num_blocks else None
        return AttentionResiduals(place.dim, blocks, has_output=has_output)

    def residuals(self, residuals: list[nn.Module], place: LayerPlace) -> list[nn.Module]:
        from lamina.nn.depth_attention import AttendedResidual

        if not place.is_pre_norm:
            raise ConfigError(f"{self.spelled} takes the place of Pre-LN's sums, and the {place.stack} is Post-LN. Add "
                              f"--{place.stack}-normalize-before, or choose the other stack alone with --mixing-stacks.")
        parts: list[Any] = residuals
        return [AttendedResidual(part.norm, place.dim, number, part.dropout_p, is_block=self.num_blocks > 0)
                for number, part in enumerate(parts)]

    def pruned(self, cut: Cut) -> Mixing:
        if not self.num_blocks:
            return self
        return replace(self, encoder_blocks=tuple(self._blocks("encoder", cut.num_encoder)[layer] for layer in cut.encoder),
                       decoder_blocks=tuple(self._blocks("decoder", cut.num_decoder)[layer] for layer in cut.decoder))

    def _blocks(self, stack: str, depth: int) -> tuple[int, ...]:
        given: tuple[int, ...] = getattr(self, f"{stack}_blocks")
        if given and len(given) != depth:
            raise ConfigError(f"--attnres-{stack}-blocks names {len(given)} layers, and there are {depth}. Leave it out: "
                              "pruning sets it.")
        return given or tuple(index * self.num_blocks // depth + 1 for index in range(depth))

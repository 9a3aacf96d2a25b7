"""How branches join the residual stream and which weights they start from: the kinds of --init-type.

The kind of residual is part of the model and travels in its checkpoint. How omegas came about (a profile, a formula) is not:
they are weights like others, so a trained model never needs a profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lamina.fields import check, flag
from lamina.parts.contracts import Beginning, DepthResidual, LayerPlace, Residual, without_pre_norm
from lamina.registry import register

if TYPE_CHECKING:
    from torch import nn

    from lamina.checkpoint.folding import Folding
    from lamina.init.deepnet import DeepNetConstants

_BATCHES_HELP = "batches to profile on; the squares of their ratios, which are sums of variances, are averaged"


@register.residual("default")
@dataclass(frozen=True, kw_only=True)
class DefaultInit(Residual):
    """x + f(x), with fairseq's first weights."""

    is_plain = True
    is_sum = True

    def adds(self, place: LayerPlace) -> list[nn.Module]:
        from lamina.nn.residual import Add

        return [Add() for _ in range(place.num_sub_layers)]

    def fold(self, folding: Folding) -> None:
        raise self.cannot("be folded", "its residuals are plain already, so there is nothing to fold")


class OmegaInit(Residual):
    """omega * x + f(x): Admin (Liu et al. 2020), however its omegas are found."""

    @property
    def computes_as(self) -> str:
        return "omega"

    def check(self, pre_norm_sides: Sequence[str]) -> None:
        check(not pre_norm_sides,
              "Admin's omega balances shortcut and branch ahead of Post-LN's norm; Pre-LN never normalises their sum, so omega "
              f"would only make the stream grow. {without_pre_norm(pre_norm_sides)}, or leave out --init-type: Pre-LN trains "
              "without it.")

    def adds(self, place: LayerPlace) -> list[nn.Module]:
        from lamina.nn.residual import OmegaAdd

        return [OmegaAdd(place.dim) for _ in range(place.num_sub_layers)]

    def fold(self, folding: Folding) -> None:
        folding.move_shortcuts(lambda part, _: folding.checked_scale(f"{part.residual}.add.omega"))


class ProfiledInit(OmegaInit):
    """Admin with omegas measured on data."""

    profile_batches: int
    counts_pads = False

    def begin_(self, beginning: Beginning) -> None:
        from lamina.init.admin_profile import measure_and_fill_

        measure_and_fill_(beginning, num_batches=self.profile_batches, counts_pads=self.counts_pads)

    def fill_(self, model: nn.Module, batch: Any) -> None:
        from lamina.init.admin import profile_omegas_

        profile_omegas_(model, [lambda: model(*batch.inputs)])

    def check_batches(self) -> None:
        check(self.profile_batches >= 1, f"--admin-profile-batches is {self.profile_batches}; it must be at least 1.")


@register.residual("admin")
@dataclass(frozen=True, kw_only=True)
class Admin(ProfiledInit):
    """Admin, profiled before the first update with padding left out."""

    profile_batches: int = flag(1, _BATCHES_HELP, name="admin-profile-batches", paper="Liu et al. 2020 (Admin) §4.3")

    def __post_init__(self) -> None:
        self.check_batches()


@register.residual("adaptive-profiling")
@dataclass(frozen=True, kw_only=True)
class AdaptiveProfiling(ProfiledInit):
    """The fork's first step: write profile.ratio.init, padding counted, and stop."""

    profile_batches: int = flag(1, _BATCHES_HELP, name="admin-profile-batches", paper="Liu et al. 2020 (Admin) §4.3")
    counts_pads = True

    def __post_init__(self) -> None:
        self.check_batches()

    def begin_(self, beginning: Beginning) -> None:
        from lamina.init.admin_profile import measure_and_fill_

        measure_and_fill_(beginning, num_batches=self.profile_batches, counts_pads=True, is_written=True)

    def why_stop(self) -> str:
        return "the profile is written (--init-type adaptive-profiling)"


@register.residual("adaptive")
@dataclass(frozen=True, kw_only=True)
class Adaptive(ProfiledInit):
    """The fork's second step: Admin with the omegas of a profile."""

    profile_batches: int = flag(1, _BATCHES_HELP, name="admin-profile-batches", paper="Liu et al. 2020 (Admin) §4.3")
    profile: str | None = flag(None, "profile to start from; if left out, profile.ratio.init in --save-dir or the current "
                                     "folder, else profiled now, padding counted", name="admin-profile", metavar="FILE")
    counts_pads = True

    def __post_init__(self) -> None:
        self.check_batches()

    def begin_(self, beginning: Beginning) -> None:
        from lamina.init.admin_profile import find_profile, read_and_fill_

        path = find_profile(self.profile, beginning.save_dir, beginning.note)
        if path is None:
            super().begin_(beginning)
        else:
            read_and_fill_(beginning, path)

    def fill_(self, model: nn.Module, batch: Any) -> None:
        from pathlib import Path

        from lamina.init.admin import set_omegas_
        from lamina.init.admin_profile import read_profile

        if self.profile is None:
            super().fill_(model, batch)
        else:
            set_omegas_(model, read_profile(Path(self.profile), model))


@register.residual("admin-closed-form")
@dataclass(frozen=True, kw_only=True)
class AdminClosedForm(OmegaInit):
    """Admin with one omega for all sub-layers of a stack, from their number alone."""

    def initialise_(self, stack: nn.Module, place: LayerPlace) -> None:
        from lamina.init.admin import fill_closed_form_

        fill_closed_form_(stack)


class _ScaledBranch(Residual):
    """x + scale * f(x), one scale per layer, 0 at first (Bachlechner et al. 2020)."""

    def adds(self, place: LayerPlace) -> list[nn.Module]:
        from lamina.nn.residual import ReZero

        return [ReZero()] * place.num_sub_layers  # one object, so that the layer has one scale


@register.residual("rezero")
@dataclass(frozen=True, kw_only=True)
class ReZeroInit(_ScaledBranch):
    """ReZero, one scale per layer and no LayerNorm."""

    def check(self, pre_norm_sides: Sequence[str]) -> None:
        check(not pre_norm_sides,
              f"--init-type rezero has no LayerNorm that could come first. {without_pre_norm(pre_norm_sides)}, or take "
              "--init-type rezero_postln, which keeps the norms where they are.")

    def norm(self, place: LayerPlace) -> nn.Module:
        from torch import nn

        return nn.Identity()

    def can_fold(self) -> bool:
        return False

    def not_in(self, toolkit: str) -> str:
        return f"--init-type rezero has no LayerNorm, which {toolkit}'s layers always apply"

    def fold(self, folding: Folding) -> None:
        raise self.cannot("be folded", "it has no LayerNorm, so no plain Transformer computes the same. Only rezero_postln, "
                                       "deepnet and the kinds of Admin can be folded")


@register.residual("rezero_postln")
@dataclass(frozen=True, kw_only=True)
class ReZeroPostNorm(_ScaledBranch):
    """ReZero beside LayerNorm."""

    def fold(self, folding: Folding) -> None:
        folding.scale_branches("add.scale")


@register.residual("deepnet")
@dataclass(frozen=True, kw_only=True)
class DeepNet(DepthResidual):
    """alpha * x + f(x), alpha and the first weights constants of the depth (Wang et al. 2022)."""

    set_by_pruning = ("deepnet-layers",)
    sets_feed_forward = True

    layers: tuple[int, ...] = flag((), "layers that DeepNet's constants are computed from, encoder and decoder; those of the "
                                       "model if left out. A pruned model keeps the ones it was trained with",
                                   name="deepnet-layers", metavar="N,N", paper="Wang et al. 2022 §3")

    def __post_init__(self) -> None:
        self.check_layers()

    def check(self, pre_norm_sides: Sequence[str]) -> None:
        self.needs_post_norm(pre_norm_sides, "scales the shortcut ahead of Post-LN's norm")

    def adds(self, place: LayerPlace) -> list[nn.Module]:
        from lamina.nn.residual import DeepNorm

        alpha = _constants(place.stack, place.trained_depths).alpha
        return [DeepNorm(alpha) for _ in range(place.num_sub_layers)]

    def initialise_(self, stack: nn.Module, place: LayerPlace) -> None:
        from lamina.init.deepnet import initialise_deepnet_

        initialise_deepnet_(stack, _constants(place.stack, place.trained_depths).beta)

    def fold(self, folding: Folding) -> None:
        folding.move_shortcuts(lambda part, stack: folding.constant_scale(
            part, _constants(stack, folding.trained_depths).alpha))


def _constants(stack: str, depths: tuple[int, int]) -> DeepNetConstants:
    """`depths`: layers of encoder and decoder, 0 where a model has no such stack."""
    from lamina.init.deepnet import DeepNetConstants

    encoder, decoder = depths
    if not (encoder and decoder):
        return DeepNetConstants.of_single_stack(encoder or decoder)
    return DeepNetConstants.of_encoder(encoder, decoder) if stack == "encoder" else DeepNetConstants.of_decoder(decoder)

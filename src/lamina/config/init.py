"""How branches join the residual stream and which weights they start from: the kinds of --init-type.

The kind of residual is part of the model and travels in its checkpoint. How omegas came about (a profile, a formula) is not:
they are weights like others, so whoever uses a trained model never needs a profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.fields import check, flag

_BATCHES_HELP = "batches to profile on; the squares of their ratios, which are sums of variances, are averaged"


@dataclass(frozen=True, kw_only=True)
class DefaultInit:
    """Initialisation: as in the references, with plain residuals."""


@dataclass(frozen=True, kw_only=True)
class OmegaInit:
    """Initialisation: Admin."""


@dataclass(frozen=True, kw_only=True)
class AdminClosedForm(OmegaInit):
    """Initialisation: Admin with one omega for all sub-layers of a stack, from their number alone."""


@dataclass(frozen=True, kw_only=True)
class ProfiledInit(OmegaInit):
    """Initialisation: Admin with omegas measured on data."""

    profile_batches: int = flag(1, _BATCHES_HELP, name="admin-profile-batches", paper="Liu et al. 2020 (Admin) §4.3")

    def __post_init__(self) -> None:
        check(self.profile_batches >= 1, f"--admin-profile-batches is {self.profile_batches}; it must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class Admin(ProfiledInit):
    """Initialisation: Admin, profiled before the first update with padding left out."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveProfiling(ProfiledInit):
    """Initialisation: the references' first step: write profile.ratio.init, padding counted, and stop."""


@dataclass(frozen=True, kw_only=True)
class Adaptive(ProfiledInit):
    """Initialisation: the references' second step: Admin with the omegas of a profile."""

    profile: str | None = flag(None, "profile to start from; if left out, profile.ratio.init in --save-dir or the current "
                                     "folder, else profiled as admin does", name="admin-profile", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class ReZeroInit:
    """Initialisation: ReZero, one scale a layer and no LayerNorm."""


@dataclass(frozen=True, kw_only=True)
class ReZeroPostNorm:
    """Initialisation: ReZero beside LayerNorm."""


@dataclass(frozen=True, kw_only=True)
class DeepNet:
    """Initialisation: DeepNet."""

    layers: tuple[int, ...] = flag((), "layers that DeepNet's constants are computed from, encoder and decoder; those of the "
                                       "model if left out. A pruned model keeps the ones it was trained with",
                                   name="deepnet-layers", metavar="N,N", paper="Wang et al. 2022 §3")

    def __post_init__(self) -> None:
        check(len(self.layers) <= 2 and all(number >= 1 for number in self.layers),
              f"--deepnet-layers is {self.layers}; it must be one number a stack, each at least 1.")


Init = DefaultInit | OmegaInit | ReZeroInit | ReZeroPostNorm | DeepNet

register.residual: Mapping[str, type] = {
    "default": DefaultInit,
    "admin": Admin,
    "adaptive-profiling": AdaptiveProfiling,
    "adaptive": Adaptive,
    "admin-closed-form": AdminClosedForm,
    "rezero": ReZeroInit,
    "rezero_postln": ReZeroPostNorm,
    "deepnet": DeepNet,
}
INIT_HELP = ("residuals and the weights they start from; admin, for deep Post-LN models, profiles on the first batch and then "
             "trains")


def check_order(init: Init, pre_norm_sides: Sequence[str]) -> None:
    """Most of them only make sense after the sum: say why, rather than train something that nobody described."""
    if not pre_norm_sides:
        return
    fix = f"Add {' '.join(f'--no-{side}-normalize-before' for side in pre_norm_sides)}"
    check(not isinstance(init, OmegaInit),
          "Admin's omega balances shortcut and branch ahead of Post-LN's norm; Pre-LN never normalises their sum, so omega "
          f"would only make the stream grow. {fix}, or leave out --init-type: Pre-LN trains without it.")
    check(not isinstance(init, DeepNet), f"--init-type deepnet scales the shortcut ahead of Post-LN's norm. {fix}.")
    check(not isinstance(init, ReZeroInit),
          f"--init-type rezero has no LayerNorm that could come first. {fix}, or take --init-type rezero_postln, which keeps "
          "the norms where they are.")

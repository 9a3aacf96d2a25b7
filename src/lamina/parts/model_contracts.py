"""Parts of a model: residual, fusion, head, mixing, positions, adapter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lamina.fields import check
from lamina.parts.part import ModelPart

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from lamina.checkpoint.folding import Folding
    from lamina.pruning.cut import Cut


# -- residual: how branches join the stream


@dataclass(frozen=True, kw_only=True)
class LayerPlace:
    """Where a layer stands, for the parts that depend on it."""

    stack: str  # "encoder" or "decoder"
    index: int  # from 0
    num_layers: int
    num_sub_layers: int  # 3 where a layer reads a memory besides itself, otherwise 2
    dim: int
    is_pre_norm: bool
    dropout_p: float
    # Layers of encoder and decoder when training began: a pruned model keeps what was derived from them. 0: no such stack.
    trained_depths: tuple[int, int]


class Residual(ModelPart):
    """How a branch joins the residual stream, and which weights the stack starts from (--init-type)."""

    table = "residual"
    option = "init-type"
    topic = "Initialisation"
    is_sum = False  # whether it adds shortcut and branch as they are, so that something else may take the sum's place
    sets_feed_forward = False  # whether `initialise_` decides how feed-forward blocks begin, so that --ffn-init cannot

    def check(self, pre_norm_sides: Sequence[str]) -> None:
        """Raise a ConfigError where it makes no sense with Pre-LN, which these sides have."""

    def needs_post_norm(self, pre_norm_sides: Sequence[str], why: str) -> None:
        """For `check`: refuse Pre-LN, and say what to leave out."""
        check(not pre_norm_sides, f"{self.spelled} {why}. {without_pre_norm(pre_norm_sides)}.")

    def build(self, place: LayerPlace) -> list[nn.Module]:
        """One module for each sub-layer, called as module(x, branch, layer_input): norm and sum in one of two orders.

        `layer_input` is what the whole layer read, for residuals that bring it back.
        """
        from lamina.nn.residual import PostNorm, PreNorm

        order = PreNorm if place.is_pre_norm else PostNorm
        return [order(self.norm(place), add, place.dropout_p) for add in self.adds(place)]

    def adds(self, place: LayerPlace) -> list[nn.Module]:
        """How shortcut and branch are added, one module for each sub-layer: add(x, branch_output)."""
        raise self.cannot("be built")

    def norm(self, place: LayerPlace) -> nn.Module:
        from torch import nn

        return nn.LayerNorm(place.dim)

    def final_norm(self, place: LayerPlace) -> nn.Module | None:
        """After the last layer of a stack: Post-LN normalises as it goes, Pre-LN owes the stream one norm at the end."""
        from torch import nn

        return nn.LayerNorm(place.dim) if place.is_pre_norm else None

    def initialise_(self, stack: nn.Module, place: LayerPlace) -> None:
        """What it changes once all weights have their usual start. `place` is that of the stack's first layer."""

    def begin_(self, beginning: Beginning) -> None:
        """Before the first update of a model whose weights are new: what needs data."""

    def fill_(self, model: nn.Module, batch: Any) -> None:
        """For analyses of a fresh model: what `begin_` does, on this one batch and without dropout."""

    @property
    def computes_as(self) -> str:
        """The same for kinds that differ in their first weights alone: a model of one may continue as a model of the other."""
        return self.name

    def compared_as(self) -> Residual:
        """What stands for it where depths are compared: the same, but for constants of one depth."""
        return self

    def why_stop(self) -> str:
        """Why training ends before its first update, or nothing."""
        return ""

    def with_depths(self, depths: tuple[int, int]) -> Residual:
        """The same, with everything that follows from these depths written down, for a model about to lose layers."""
        return self

    @property
    def trained_depths(self) -> tuple[int, ...]:
        """The depths that were written down, or ()."""
        return ()

    def pruned(self, cut: Cut) -> Residual:
        """The same choice for the layers that stay; where something follows from a layer's number, written down."""
        return self

    def fold(self, folding: Folding) -> None:
        """Change the weights so that plain residuals give the same outputs; raise `self.cannot(..)` if that is impossible."""
        raise self.cannot("be folded into a plain one")

    def can_fold(self) -> bool:
        """Whether `fold` has an answer, for those who would rather say so than try."""
        return not self.is_plain and type(self).fold is not Residual.fold

    def not_in(self, toolkit: str) -> str:
        if self.is_plain:
            return ""
        advice = ". `lamina fold` turns them into plain ones" if self.can_fold() else ""
        return f"{toolkit} has no scaled residuals ({self.spelled}){advice}"

    def describe(self) -> str:
        return "" if self.is_plain else f"residuals: {self.name}"


class DepthResidual(Residual):
    """One with constants of the depth: a model that loses layers keeps those that it was trained with.

    A subclass has the option `layers`, whose flag is its name and "-layers", and lists that flag in `set_by_pruning`.
    """

    layers: tuple[int, ...]

    def check_layers(self) -> None:
        check(len(self.layers) <= 2 and all(number >= 1 for number in self.layers),
              f"--{self.name}-layers is {self.layers}; it must be one number for each stack, each at least 1.")
        check(len(self.layers) in (0, 2),
              f"--{self.name}-layers needs two numbers, the encoder's layers and the decoder's, such as 18,18.")

    @property
    def trained_depths(self) -> tuple[int, ...]:
        return self.layers

    def with_depths(self, depths: tuple[int, int]) -> Residual:
        return replace(self, layers=depths)  # type: ignore[type-var]

    def compared_as(self) -> Residual:
        return replace(self, layers=())  # type: ignore[type-var]


def without_pre_norm(pre_norm_sides: Sequence[str]) -> str:
    """What to do about Pre-LN, for messages."""
    return f"Add {' '.join(f'--no-{side}-normalize-before' for side in pre_norm_sides)}"


class Beginning(NamedTuple):
    """What a residual may look at before the first update."""

    model: nn.Module
    first_batches: Callable[[int], Sequence[Any]]
    save_dir: Path
    seed: int
    note: Callable[[str], None]


# -- fusion: what cross-attention reads


class FusionPlace(NamedTuple):
    num_readers: int  # decoder layers
    num_layers: int  # encoder layers
    dim: int  # of the encoder
    is_pre_norm: bool  # the encoder
    dropout_p: float
    feed_forward: Callable[[], nn.Module]  # a block as the encoder's layers have them


class Fusion(ModelPart):
    """What the cross-attention of each decoder layer reads of the encoder (--fusion).

    `build` gives a module with the contract of nn/fusion.py: `prepare(encoder)` once a batch, then `module(prepared, reader)`
    for each decoder layer; `reads_states` and `reads_final` say what it reads. Its weights are called `memory.*`.
    """

    table = "fusion"
    option = "fusion"
    topic = "Encoder-layer fusion"

    reads_tokens: bool = False  # the source embedding without positions
    reads_final: bool = True  # the encoder's output, after its last norm

    def check(self, num_encoder_layers: int, num_decoder_layers: int) -> None:
        """Raise a ConfigError where it does not fit these depths."""

    @abstractmethod
    def build(self, place: FusionPlace) -> nn.Module: ...

    def pruned(self, cut: Cut) -> Fusion:
        """The same choice for the layers that stay."""
        raise self.cannot("be pruned")

    def prune_weights_(self, weights: dict[str, Tensor], cut: Cut) -> None:
        """Change `memory.*` to what the pruned model holds."""

    def prune_moments_(self, moments: dict[str, Tensor], cut: Cut) -> None:
        """The same for what an optimizer remembers of them; what has no counterpart is removed."""
        for name in [name for name in moments if name.startswith("memory.")]:
            del moments[name]

    def unscale(self, folding: Folding) -> None:
        """Folding scales the encoder's states: divide what reads them, or raise `self.cannot(..)`."""
        raise self.cannot("be folded")


# -- head: what the softmax reads


class HeadPlace(NamedTuple):
    dim: int  # of the decoder
    encoder_dim: int
    num_layers: int  # of the decoder
    dropout_p: float
    attention_dropout_p: float
    feed_forward: Callable[[], nn.Module]  # a block as the decoder's layers have them


class Head(ModelPart):
    """What looks at the output vocabulary of an encoder-decoder (--surfacefusion, --head).

    `build` gives a module with the contract of nn/heads.py: `start(encoder, layout, ids)` once a batch and `terms(decoder,
    source, layout)` for each target token. Its weights are called `head.*`.
    """

    table = "head"
    option = "surfacefusion"
    topic = "Surface fusion"

    reads_tokens: bool = False  # the source embedding without positions
    reads_input: bool = False  # the encoder stack's input, with positions
    reads_final: bool = False  # the encoder's output

    def check(self, place: HeadPlace) -> None:
        """Raise a ConfigError where it does not fit."""

    def decoder_states(self, num_layers: int) -> set[int]:
        """Which states of the decoder it reads besides its output; 0 is the stack's input."""
        return set()

    @abstractmethod
    def build(self, place: HeadPlace, table: nn.Module) -> nn.Module: ...

    def pruned(self, cut: Cut) -> Head:
        """The same choice for the layers that stay."""
        raise self.cannot("be pruned")

    def unscale(self, folding: Folding) -> None:
        """Folding scales states of both stacks: divide what reads them, or raise `self.cannot(..)`."""
        raise self.cannot("be folded")

    def advice(self) -> str:
        """What has been seen to go wrong with this choice, or nothing."""
        return ""


# -- the smaller kinds


class Mixing(ModelPart):
    """What each layer of a stack reads of the layers below it (--mixing).

    `build` gives the stack's module, with the contract of nn/mixing.py: in the simplest case module(states, index) for what
    layer `index` reads of the stack's input and the outputs below it. It works position by position: in decoding it sees the
    newest token alone. Parts of the layers themselves come from `residuals` and `sharing`.
    """

    table = "mixing"
    option = "mixing"
    topic = "Mixing inside a stack"
    output_weights: ClassVar[tuple[str, ...]] = ()  # of the stack's module, those that nobody has where its output is not read
    reads_layers: ClassVar[bool] = False  # the stack's module reads weights of a layer ahead of it: --fsdp must keep them

    def check(self, init: Residual, pre_norm_sides: Sequence[str]) -> None:
        """Raise a ConfigError where it makes no sense with these residuals; these sides have Pre-LN."""

    @abstractmethod
    def build(self, place: LayerPlace, *, has_output: bool) -> nn.Module | None:
        """For the whole stack, `place` being that of its first layer. `has_output`: whether anybody reads its output."""

    def residuals(self, residuals: list[nn.Module], place: LayerPlace) -> list[nn.Module]:
        """The residuals of a layer, one for each sub-layer, or what takes their place."""
        return residuals

    def sharing(self, place: LayerPlace, num_heads: int) -> nn.Module | None:
        """What makes the keys and values of a layer's self-attention: module(entries, lower), nn/mixing.py."""
        return None

    def pruned(self, cut: Cut) -> Mixing:
        """The same choice for the layers that stay."""
        raise self.cannot("be pruned")

    def prune_weights_(self, weights: dict[str, Tensor], cut: Cut) -> None:
        """Change its weights, whose layers have their new numbers already, to what the pruned model holds."""

    def prune_moments_(self, moments: dict[str, Tensor], cut: Cut) -> None:
        """The same for what an optimizer remembers of them; what has no counterpart is removed."""

    def unscale(self, folding: Folding) -> None:
        """Folding scales what layers hand on: divide what reads it, or raise `self.cannot(..)`."""
        raise self.cannot("be folded", "what its layers read of those below would be scaled for the layer just above")


class Positions(ModelPart):
    """How a stack's input knows where its tokens stand (--encoder-positions, --decoder-positions)."""

    table = "positions"
    option = "encoder-positions"
    topic = "Encoder and decoder stacks (defaults shown are those of --arch transformer)"

    @abstractmethod
    def build(self, max_positions: int, dim: int) -> nn.Module:
        """module(position ids) -> vectors; position ids start at packed.FIRST_POSITION."""

    def table_of(self, max_positions: int, dim: int) -> Tensor | None:
        """The table behind them where it is computed and no weight: what folding and exporting write down. None: a weight."""
        raise self.cannot("be folded or exported", "its positions are no table")


class Adapter(ModelPart):
    """Trainable weights beside the model's own (--adapter)."""

    table = "adapter"
    option = "adapter"
    topic = "Adapters"

    needs_trained_model: ClassVar[bool] = False  # whether a run with it has to begin with a checkpoint's weights
    can_merge: ClassVar[bool] = False  # whether `merged` answers

    @abstractmethod
    def attach_(self, model: nn.Module) -> None:
        """Change the finished model; weights that should not move lose their `requires_grad`."""

    def owns(self, name: str) -> bool:
        """Whether the weight of this name is its own: a model without the adapter does not have it."""
        return False

    def merged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a model without the adapter that computes the same, or raise `self.cannot(..)`."""
        raise self.cannot("be merged")

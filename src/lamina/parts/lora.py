"""LoRA: a trained model's matrices stay, and what is added to them, of low rank, is trained (--lora-rank)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lamina.fields import check, flag
from lamina.parts.contracts import Adapter
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

# The matrices of attention and feed-forward blocks by the names of their layers: what they make, rows below rows.
MATRICES = {"in_proj": ("q", "k", "v"), "q_proj": ("q",), "kv_proj": ("k", "v"), "k_proj": ("k",), "v_proj": ("v",),
            "out_proj": ("out",), "fc1": ("fc1",), "fc2": ("fc2",)}
CHOICES = ("q", "k", "v", "out", "fc1", "fc2")
_DOWN, _UP = ".lora.down", ".lora.up"


class _Place(NamedTuple):
    owner: nn.Module
    name: str
    blocks: tuple[bool, ...]


@register.adapter("lora")
@dataclass(frozen=True, kw_only=True)
class Lora(Adapter):
    """W x becomes W x + alpha / rank * B A x, where A and B are thin and W stays (Hu et al. 2022, §4.1)."""

    lora_rank: int = flag(8, "LoRA: train matrices of this rank beside those of a model that --finetune-from-model names, and "
                             "nothing else", paper="Hu et al. 2022 §4.1", chooses=True)
    lora_alpha: float = flag(16.0, "what they add is multiplied by this over the rank")
    lora_dropout: float = flag(0.0, "dropout on what they read")
    lora_matrices: tuple[str, ...] = flag(CHOICES, "the matrices that get them: queries, keys and values of all attention, its "
                                                   "output, and both of the feed-forward blocks", choices=CHOICES,
                                          metavar="NAME[,NAME..]")
    lora_train_also: tuple[str, ...] = flag((), "names or patterns of weights to train as well, such as source_embedding for "
                                                "new types, or '*.norm'", metavar="PATTERN,..", repeats=True)

    needs_trained_model = True
    can_merge = True

    def __post_init__(self) -> None:
        check(self.lora_rank >= 1, f"--lora-rank is {self.lora_rank}; it must be at least 1. For none, leave it out.")
        check(self.lora_alpha > 0, f"--lora-alpha is {self.lora_alpha}; it must be above 0.")
        check(0.0 <= self.lora_dropout < 1.0, f"--lora-dropout is {self.lora_dropout}; it must lie in [0, 1).")
        check(bool(self.lora_matrices), "--lora-matrices names none; it must be some of q, k, v, out, fc1 and fc2.")

    @property
    def scale(self) -> float:
        return self.lora_alpha / self.lora_rank

    def describe(self) -> str:
        return f"LoRA of rank {self.lora_rank} on {', '.join(self.lora_matrices)}"

    def attach_(self, model: nn.Module) -> None:
        from lamina.nn.low_rank import LoraLinear
        from lamina.training.freezing import matching

        model.requires_grad_(False)
        for place in list(self._places(model)):
            linear = getattr(place.owner, place.name)
            setattr(place.owner, place.name, LoraLinear(linear, place.blocks, rank=self.lora_rank, scale=self.scale,
                                                        dropout_p=self.lora_dropout))
        named = dict(model.named_parameters(remove_duplicate=False))
        for pattern in self.lora_train_also:
            for name in matching(pattern, named, "lora-train-also"):
                named[name].requires_grad_(True)

    def _places(self, model: nn.Module) -> Iterator[_Place]:
        from lamina.nn.attention import Attention
        from lamina.nn.feed_forward import FeedForward

        for part in model.modules():
            for name, blocks in MATRICES.items() if isinstance(part, (Attention, FeedForward)) else ():
                if hasattr(part, name) and any(wanted := self._wanted(blocks)):
                    yield _Place(part, name, wanted)

    def _wanted(self, blocks: tuple[str, ...]) -> tuple[bool, ...]:
        return tuple(block in self.lora_matrices for block in blocks)

    def owns(self, name: str) -> bool:
        return name.endswith((_DOWN, _UP))

    def merged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        from lamina.nn.low_rank import merged_weight

        plain = {name: weight for name, weight in weights.items() if not self.owns(name)}
        for name in weights:
            if name.endswith(_DOWN):
                layer = name.removesuffix(_DOWN)
                blocks = self._wanted(MATRICES[layer.rpartition(".")[2]])
                plain[f"{layer}.weight"] = merged_weight(plain[f"{layer}.weight"], weights[name], weights[f"{layer}{_UP}"],
                                                         blocks, self.scale)
        return plain

"""What every model answers, whatever its stacks are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from lamina.nn.cross_entropy import Term
from lamina.nn.heads import VocabularyHead
from lamina.nn.prepacked import Prepacked, unpack_
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts.contracts import StepRule


class Model(nn.Module):
    """Called as model(*batch.inputs, active=...), it gives what its head says of each target (nn/heads.py).

    Models that write text also have `start` and `step` (models/encoder_decoder.py, decoder_only.py), which a search calls.
    """

    head: VocabularyHead
    pad_id: int
    rules: tuple[StepRule, ...] = ()  # that every search with it obeys

    def forward(self, *inputs: Any, active: ActiveLayers = ALL_LAYERS) -> list[Term]:
        raise AssertionError(f"{type(self).__name__} does not say what its head looks at")

    # Where a layout for the CPU's kernels (nn/prepacked.py) would not do, a model becomes a plain one.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Model:
        unpack_(self)
        return super()._apply(fn, recurse)

    def train(self, mode: bool = True) -> Model:
        if mode:
            unpack_(self)
        return super().train(mode)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        unpack_(self)
        return super().load_state_dict(state_dict, strict, assign)

    def named_parameters(self, prefix: str = "", recurse: bool = True,
                         remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        packed = {id(part.packed): part for part in self.modules() if isinstance(part, Prepacked)}
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            part = packed.get(id(parameter))
            yield name, parameter if part is None else nn.Parameter(part.weight, requires_grad=False)

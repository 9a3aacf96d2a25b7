"""A model's first weights, made one after the other: a model that is too large for one device can start on many.

The model is built on the meta device, where tensors have shapes and no numbers, and what its initialisation does to them is
noted down. Done again on the CPU in the same order, this draws the same random numbers and gives the same bits; but a weight is
there from the first call that it keeps something of until the last one, and no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

T = TypeVar("T")

# Calls that replace all that their first tensor held.
OVERWRITES = frozenset(("aten::normal_", "aten::uniform_", "aten::fill_", "aten::zero_", "aten::copy_"))


class _Call(NamedTuple):
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: tuple[Tensor, ...]  # with memory of their own
    read: frozenset[int]  # storages whose numbers count
    overwritten: Tensor | None


class Deferred(TorchDispatchMode):
    """Notes down what is done to tensors without numbers, while a model is built."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        given = _tensors((args, kwargs))
        storages = {_storage(tensor) for tensor in given if tensor.is_meta}
        made = tuple(tensor for tensor in _tensors(out) if tensor.is_meta and _storage(tensor) not in storages)
        if not made and not function._schema.is_mutable:
            return out  # a view
        first = args[0] if args and isinstance(args[0], Tensor) else None
        is_overwrite = function._schema.name in OVERWRITES and first is not None and first.is_contiguous()
        read = frozenset(_storage(tensor) for tensor in (given[1:] if is_overwrite else given) if tensor.is_meta)
        self._calls.append(_Call(function, args, kwargs, made, read, first if is_overwrite else None))
        return out

    def weights(self, wanted: Mapping[str, Tensor], seed: int) -> Iterator[tuple[str, Tensor]]:
        """Each of these tensors as it is when all is done, by name, in the order in which that is so.

        torch's global generator for the CPU is seeded, as it is before a model is built.
        """
        names: dict[int, list[str]] = {}
        for name, tensor in wanted.items():
            names.setdefault(_storage(tensor), []).append(name)
        events = self._events()
        real: dict[int, Tensor] = {}
        torch.manual_seed(seed)
        for number, call in enumerate(self._calls):
            self._run(call, real)
            for storage in _touched(call):
                later = [other for other in events[storage] if other > number]
                if later and not self._is_lost(storage, later):
                    continue
                held = real.pop(storage, None)
                for name in names.pop(storage, ()) if not later else ():
                    assert held is not None, "the last call leaves something"
                    yield name, _seen_as(wanted[name], held)

    def _events(self) -> dict[int, list[int]]:
        """By storage, the numbers of the calls that touch it."""
        found: dict[int, list[int]] = {}
        for number, call in enumerate(self._calls):
            for storage in _touched(call):
                found.setdefault(storage, []).append(number)
        return found

    def _is_lost(self, storage: int, later: Sequence[int]) -> bool:
        """Whether what is there now will be overwritten, in one piece or in several, before anything reads it."""
        pieces: set[tuple[int, int]] = set()
        for number in later:
            call = self._calls[number]
            if storage in call.read:
                return False
            own = call.overwritten
            if own is not None and _storage(own) == storage:
                pieces.add((int(own.storage_offset()), own.numel()))
                end = 0
                for start, length in sorted(pieces):
                    if start > end:
                        break
                    end = max(end, start + length)
                if end * own.element_size() >= own.untyped_storage().nbytes():
                    return True
        return False

    @torch.no_grad()
    def _run(self, call: _Call, real: dict[int, Tensor]) -> None:
        def on_cpu(value: Any) -> Any:
            if isinstance(value, Tensor) and value.is_meta:
                if _storage(value) not in real:  # empty, or lost in between
                    size = value.untyped_storage().nbytes() // value.element_size()
                    real[_storage(value)] = torch.empty(size, dtype=value.dtype)
                return _seen_as(value, real[_storage(value)])
            return torch.device("cpu") if isinstance(value, torch.device) and value.type == "meta" else value

        args, kwargs = tree_map(on_cpu, (call.args, call.kwargs))
        out = call.function(*args, **kwargs)
        for shape, made in zip(call.made, (tensor for tensor in _tensors(out)), strict=False):
            real[_storage(shape)] = torch.empty(0, dtype=made.dtype).set_(made.untyped_storage())


class _NumbersOfPython(TorchFunctionMode):
    """What is made of numbers that the code holds keeps them: on the meta device they would be lost."""

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "cpu"}
        return function(*args, **kwargs)


def deferred(build: Callable[[], T]) -> tuple[T, Deferred]:
    """What `build` makes, on the meta device, and how its weights come about."""
    notes = Deferred()
    with torch.device("meta"), _NumbersOfPython(), notes:
        return build(), notes


def tensors_of_model(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _tensors(value: Any) -> list[Tensor]:
    return [item for item in tree_flatten(value)[0] if isinstance(item, Tensor)]


def _touched(call: _Call) -> set[int]:
    own = {_storage(call.overwritten)} if call.overwritten is not None else set()
    return own | call.read | {_storage(tensor) for tensor in call.made}


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _seen_as(shape: Tensor, held: Tensor) -> Tensor:
    """What a tensor without numbers shows of its memory."""
    return held.as_strided(shape.size(), shape.stride(), shape.storage_offset())

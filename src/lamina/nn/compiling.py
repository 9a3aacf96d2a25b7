"""How parts of training are compiled."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import torch
from torch import nn

# Of one function: layers for which LayerDrop has rates of their own run in so many shapes. torch gives up after 8.
MOST_SHAPES = 64
# Set to 1, what cannot be captured (or compiled) is an error. Otherwise it is a notice, and the work is done eagerly.
STRICT = "LAMINA_STRICT_CUDA_GRAPHS"
# Set to 1, compiled layers compute what norms put out a second time for the gradient, instead of keeping it.
RECOMPUTED_NORMS = "LAMINA_RECOMPUTE_NORMS"
# --tf32 asks for them.
warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores .* available but not enabled")


def is_strict() -> bool:
    return os.environ.get(STRICT, "0") not in ("", "0")


def prepare_compiler() -> Thread:
    """In another thread, while a run is opened: a digest of Triton's files, which it makes once per process to find what it has
    compiled before. Half a gigabyte takes a third of a second, during which Python continues.
    """
    thread = Thread(target=_digest_triton, name="digest of the compiler")
    thread.start()
    return thread


def _digest_triton() -> None:
    with suppress(Exception):  # no Triton, or one that does it elsewhere: then it does it later
        from triton.runtime.cache import triton_key

        triton_key()  # which Triton keeps


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """For one shape at a time, since a captured pass has one. The compiler works when the function is first called."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, MOST_SHAPES)
    keep_less()
    return torch.compile(function, dynamic=False, options=_options())


def keep_less() -> None:
    """Tell torch's partitioner that it may compute again what a matrix product reads, if that follows number by number from
    what is kept anyway: as outputs of norms do. Random numbers and attention are never computed again.

    Off until an H200 has said what it costs: by its bytes, some 1 % of an update's time.
    """
    from torch._functorch import config

    name = "ban_recompute_materialized_backward"
    if os.environ.get(RECOMPUTED_NORMS) == "1" and hasattr(config, name):
        setattr(config, name, False)


def _options() -> dict[str, Any]:
    """Reductions over rows and over columns in one kernel: of a norm's backward pass, three times as slow on an H200."""
    from torch._inductor import config

    name = "mix_order_reduction"  # since torch 2.10
    return {f"triton.{name}": False} if hasattr(config.triton, name) else {}


def parts_to_compile(model: nn.Module) -> list[Any]:
    """A model's layers and embeddings, and what mixes layers."""
    return [part for part in model.modules() if getattr(part, "is_compiled_whole", False)]


def kind_of(part: nn.Module) -> str:
    """What parts share that run the same code: they compile together, or not at all."""
    return type(part).__name__


def compiled_parts(model: nn.Module) -> dict[nn.Module, Any]:
    """What to run instead of them; the compiler works when it is first run."""
    return {part: compiled(part.forward) for part in parts_to_compile(model)}


def is_replaced(part: nn.Module) -> bool:
    """Whether it runs another function than its own now, a compiled one as a rule."""
    return "forward" in vars(part)


@contextmanager
def replaced(forwards: Mapping[nn.Module, Any]) -> Iterator[None]:
    """Inside, these modules run other functions than their own."""
    for part, forward in forwards.items():
        part.forward = forward
    try:
        yield
    finally:
        for part in forwards:
            del part.forward

"""Reading the numerical fixtures in tests/golden."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lamina.interop.fairseq import model_from_fairseq, places

# LAMINA_GOLDEN may name a folder with all the fixtures, of which the repository holds some.
HAS_ALL = "LAMINA_GOLDEN" in os.environ
OWN = Path(__file__).parent / "golden"
GOLDEN = Path(os.environ.get("LAMINA_GOLDEN", OWN))


def place_of(fixture: str) -> Path:
    """In that folder, or where the repository has one that was made from several of its files."""
    return GOLDEN / fixture if (GOLDEN / fixture).exists() else OWN / fixture


def read_json(fixture: str, name: str = "config.json") -> Any:
    return json.loads((place_of(fixture) / name).read_text(encoding="utf-8"))


def read_tensors(fixture: str, name: str) -> dict[str, Tensor]:
    return load_file(place_of(fixture) / f"{name}.safetensors")


def read_model(fixture: str, **args: Any) -> Any:
    """`args` take the place of the fixture's own."""
    config = read_json(fixture)
    size = config.get("tgt_vocab", config.get("vocab"))
    return model_from_fairseq(config["args"] | args, read_tensors(fixture, "weights"), config.get("src_vocab", size), size)


def gradients(model: nn.Module, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """Ours by the reference's names, but for key biases, which have none: what is stored for them is noise.

    A parameter without a place in the model is one that nothing reads.
    """
    ours = dict(model.named_parameters(remove_duplicate=False))
    for name in names:
        if not name.endswith("k_proj.bias") and all(place.name in ours for place in places(name)):
            yield name, torch.cat([place.view(ours[place.name].grad) for place in places(name)])


def without_key_bias(name: str, tensor: Tensor) -> Tensor:
    return torch.cat([tensor.chunk(3)[0], tensor.chunk(3)[2]]) if name.endswith("in_proj_bias") else tensor


def compare_with_fixture(model: nn.Module, fixture: str, share: float = 1e-5) -> None:
    """Against the gradients themselves where the fixture has them, and their norms and sums everywhere."""
    if (place_of(fixture) / "grads.safetensors").is_file():
        compare_gradients(model, read_tensors(fixture, "grads"), share)
    compare_norms(model, read_json(fixture, "gradnorm.json"), share)


def compare_gradients(model: nn.Module, expected: dict[str, Tensor], share: float = 1e-5) -> None:
    """Relative to each tensor's largest gradient."""
    for name, found in gradients(model, expected):
        found, gradient = (without_key_bias(name, tensor) for tensor in (found, expected[name].to(found.dtype)))
        torch.testing.assert_close(found, gradient, rtol=0, atol=share * gradient.abs().max().item(),
                                   msg=lambda text, name=name: f"{name}: {text}")


def compare_norms(model: nn.Module, expected: dict[str, Any], share: float = 1.5e-5) -> None:
    """Norm and sum of every gradient: two numbers that stand for the tensor where the fixture is kept without it."""
    compared = 0
    for name, found in gradients(model, expected):
        norm, total = expected[name]["norm"], expected[name]["sum"]
        if not name.endswith("in_proj_bias"):
            assert found.double().norm().item() == pytest.approx(norm, rel=share), name
            # A sum may cancel: it is as exact as the norm and the number of entries allow.
            assert found.double().sum().item() == pytest.approx(total, abs=share * norm * found.numel() ** 0.5), name
            compared += 1
    assert compared > len(expected) / 2

"""Reading the numerical fixtures in tests/golden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lamina.interop.fairseq import model_from_fairseq, places
from lamina.models.encoder_decoder import EncoderDecoder

GOLDEN = Path(__file__).parent / "golden"


def read_json(fixture: str, name: str = "config.json") -> Any:
    return json.loads((GOLDEN / fixture / name).read_text(encoding="utf-8"))


def read_tensors(fixture: str, name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / fixture / f"{name}.safetensors")


def read_model(fixture: str) -> EncoderDecoder:
    config = read_json(fixture)
    return model_from_fairseq(config["args"], read_tensors(fixture, "weights"), config["src_vocab"], config["tgt_vocab"])


def compare_gradients(model: nn.Module, expected: dict[str, Tensor], share: float = 1e-5) -> None:
    """Relative to each tensor's largest gradient; key biases have none, so what is stored for them is noise."""
    ours = dict(model.named_parameters(remove_duplicate=False))
    for name, gradient in expected.items():
        if name.endswith("k_proj.bias"):
            continue
        found = torch.cat([place.view(ours[place.name].grad) for place in places(name)])
        if name.endswith("in_proj_bias"):
            found, gradient = (torch.cat([part.chunk(3)[0], part.chunk(3)[2]]) for part in (found, gradient))
        atol = share * gradient.abs().max().item()
        torch.testing.assert_close(found, gradient, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")

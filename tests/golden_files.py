"""Reading the numerical fixtures in tests/golden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from lamina.interop.fairseq import model_from_fairseq
from lamina.models.encoder_decoder import EncoderDecoder

GOLDEN = Path(__file__).parent / "golden"


def read_json(fixture: str, name: str = "config.json") -> Any:
    return json.loads((GOLDEN / fixture / name).read_text(encoding="utf-8"))


def read_tensors(fixture: str, name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / fixture / f"{name}.safetensors")


def read_model(fixture: str) -> EncoderDecoder:
    config = read_json(fixture)
    return model_from_fairseq(config["args"], read_tensors(fixture, "weights"), config["src_vocab"], config["tgt_vocab"])

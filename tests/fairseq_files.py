"""Checkpoint files as fairseq writes them, made of the fixtures' weights and arguments."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden_files import read_json, read_tensors
from lamina.checkpoint.format import Checkpoint
from lamina.interop.fairseq import places

TASK_OF_FIXTURE = {"transformer_lm": "language_modeling", "prune_lm": "language_modeling",
                   "fairseq_main_lm": "language_modeling", "roberta": "masked_lm"}


def words(number: int) -> str:
    """A dict.txt of so many symbols, the four special ones included."""
    return "".join(f"word{place} 1\n" for place in range(number - 4))


def fixture_content(fixture: str, *, has_cfg: bool = False, **args: Any) -> dict[str, Any]:
    """What the file of a fixture's model holds; tied tensors stand there under both names, as in a state dict."""
    config = read_json(fixture)
    task = next((task for start, task in TASK_OF_FIXTURE.items() if fixture.startswith(start)), "translation")
    weights: dict[str, Tensor] = read_tensors(fixture, "weights")
    own = {"task": task, "arch": config["args"].get("arch", "transformer"), "source_lang": "en", "target_lang": "xx",
           **config["args"], **args}
    weights |= {name: weights[stored] for name, stored in (config.get("tied") or {}).items()}
    content: dict[str, Any] = {"args": argparse.Namespace(**own), "model": weights, "optimizer_history": [],
                               "extra_state": {"val_loss": 4.5, "train_iterator": {"epoch": 3}}}
    if has_cfg:
        content |= {"args": None, "cfg": {"model": argparse.Namespace(**own), "task": {"_name": task}, "common": {"seed": 1}}}
    return content


def write_dictionaries(folder: Path, fixture: str) -> None:
    config = read_json(fixture)
    folder.mkdir(parents=True, exist_ok=True)
    if "src_vocab" in config:
        (folder / "dict.en.txt").write_text(words(config["src_vocab"]))
        (folder / "dict.xx.txt").write_text(words(config["tgt_vocab"]))
    else:
        # <mask> is added when a masked model is set up.
        (folder / "dict.txt").write_text(words(config["tgt_vocab"] if "tgt_vocab" in config else config["vocab"] - 1))


def write_fixture_file(folder: Path, fixture: str, *, is_legacy: bool = False, **options: Any) -> Path:
    """With dictionaries beside it."""
    write_dictionaries(folder, fixture)
    path = folder / "old.pt"
    torch.save(fixture_content(fixture, **options), path, _use_new_zipfile_serialization=not is_legacy)
    return path


KINDS = ("weight", "bias")


def as_fairseq(checkpoint: Checkpoint) -> dict[str, Any]:
    """What fairseq would have written of a run of TINY_FLAGS with Adam, in its order of parameters, the state included."""
    names = ["encoder.embed_tokens.weight"]
    for side, blocks in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        for block in blocks:
            names += [f"{side}.layers.0.{block}.{one}_proj.{kind}" for one in ("k", "v", "q", "out") for kind in KINDS]
            names += [f"{side}.layers.0.{block}_layer_norm.{kind}" for kind in KINDS]
        names += [f"{side}.layers.0.{part}.{kind}" for part in ("fc1", "fc2", "final_layer_norm") for kind in KINDS]

    def gathered(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: place.view(tensors[place.name]).clone() for name in names for place in places(name)}

    weights, state = gathered(checkpoint.weights), checkpoint.training["optimizer"]
    moments = zip(*(gathered(state[name]).values() for name in ("exp_avg", "exp_avg_sq")), strict=True)
    updates = checkpoint.training["progress"]["updates"]
    args = {name.replace("-", "_"): value for name, value in checkpoint.config.items()
            if name.startswith(("encoder-", "decoder-", "share-", "optimizer"))}
    args |= {"task": "translation", "arch": "transformer", "source_lang": "en", "target_lang": "xx", "dropout": 0.0}
    stored = {number: {"step": updates, "exp_avg": one, "exp_avg_sq": other} for number, (one, other) in enumerate(moments)}
    return {"args": argparse.Namespace(**args), "model": weights | {"decoder.embed_tokens.weight": weights[names[0]]},
            "optimizer_history": [{"num_updates": updates}],
            "extra_state": {"train_iterator": {"epoch": checkpoint.training["progress"]["epoch"]}},
            "last_optimizer_state": {"state": stored, "param_groups": [{"params": list(stored), "lr": 0.001}]}}

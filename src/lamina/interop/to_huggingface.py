"""A checkpoint of ours as a folder of Hugging Face's: the class of transformers that computes the same, and its tokenizer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lamina.checkpoint.folding import fold_checkpoint
from lamina.checkpoint.format import Checkpoint
from lamina.interop.huggingface_classes import ModelClass, class_for, is_tied, masked_config, num_positions, pair_config
from lamina.interop.huggingface_folder import CONFIG_NAME
from lamina.interop.huggingface_generation import GENERATION_NAME, generation_config
from lamina.interop.huggingface_ids import ABSENT_BIAS
from lamina.interop.huggingface_names import (
    BASE,
    FAIRSEQ_OUTPUT,
    OUTPUT_BIAS,
    SHARED,
    masked_from_fairseq,
    seq2seq_from_fairseq,
)
from lamina.interop.huggingface_tokenizers import tokenizer_files
from lamina.interop.to_fairseq import renamed
from lamina.packed import FIRST_POSITION
from lamina.text.vocabulary import UNK

Notice = Callable[[str], object]
WEIGHTS_NAME = "model.safetensors"
_EMBEDDINGS = {"encoder": "source_embedding", "decoder": "target_embedding"}


def write_huggingface(folder: Path, checkpoint: Checkpoint, notice: Notice) -> tuple[Checkpoint, ModelClass]:
    """Write the model; scaled residuals are folded first. The checkpoint that was written, then, and as what."""
    own = class_for(checkpoint)
    if not checkpoint.model_config().init.is_plain:
        notice(f"{checkpoint.config['init-type']} residuals are folded into plain ones")
        checkpoint = fold_checkpoint(checkpoint)
        own = class_for(checkpoint)
    texts = tokenizer_files(checkpoint, own, notice)
    if own.is_masked:
        tensors = masked_tensors(checkpoint, len(texts.unread))
        config = masked_config(own, checkpoint, len(checkpoint.vocabularies()[0]) + len(texts.unread))
    else:
        tensors, config = pair_tensors(own, checkpoint), pair_config(own, checkpoint)
        _write_json(folder / GENERATION_NAME, generation_config(checkpoint))
    _write_json(folder / CONFIG_NAME, config)
    save_file({name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS_NAME,
              metadata={"format": "pt"})
    for name, content in texts.files.items():
        (folder / name).write_bytes(content)
    return checkpoint, own


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", errors="backslashreplace")


def pair_tensors(own: ModelClass, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Of an encoder-decoder, under the names of its class."""
    config, weights = checkpoint.model_config(), checkpoint.weights
    is_fsmt = own.model_type == "fsmt"
    layers = {name: weight for name, weight in weights.items() if ".table." not in name and ".positions." not in name
              and not name.startswith("head.")}
    found = {seq2seq_from_fairseq(name): tensor for name, tensor in renamed(layers).items()}
    if own.stores_positions:
        found |= {f"{BASE}{side}.embed_positions.weight": positions_of(checkpoint, side) for side in _EMBEDDINGS}
    source = weights["source_embedding.table.weight"]
    target = weights.get("target_embedding.table.weight", source)
    output = weights.get("head.table.weight", target)
    if config.embedding.share_all and not is_fsmt:
        found[BASE + SHARED] = source
    else:
        tables = {"encoder.embed_tokens.weight": source, "decoder.embed_tokens.weight": target, FAIRSEQ_OUTPUT: output}
        if own.model_type == "marian" and is_tied(own, config):
            del tables[FAIRSEQ_OUTPUT]
        # A file holds each tensor once: what is tied is written as often as it is named.
        found |= {seq2seq_from_fairseq(name, is_fsmt=is_fsmt): table.clone() for name, table in tables.items()}
        if not own.has_two_dictionaries:
            found[BASE + SHARED] = source.clone()
    if own.has_bias:
        found[OUTPUT_BIAS] = weights.get("head.bias", output.new_zeros(len(output)))[None]
    return found


def positions_of(checkpoint: Checkpoint, side: str) -> Tensor:
    """A stack's positions as a table, as long as both sides' longest text. (P, D)"""
    config = checkpoint.model_config()
    longest, dim = num_positions(checkpoint), getattr(config, side).model_dim
    if not config.embedding.has_positions:
        return torch.zeros(longest + FIRST_POSITION, dim)
    table = checkpoint.weights.get(f"{_EMBEDDINGS[side]}.positions.weight")
    if table is None:
        table = getattr(config, side).positions.table_of(longest, dim)
        assert table is not None, "positions that are no weight have a table"
    missing = longest + FIRST_POSITION - len(table)
    return torch.cat([table, table.new_zeros(missing, dim)]) if missing else table


def masked_tensors(checkpoint: Checkpoint, num_unread: int) -> dict[str, Tensor]:
    """Of a masked language model. So many symbols more are read as <unk> and never said."""
    config, weights = checkpoint.model_config(), checkpoint.weights
    table, bias = weights["source_embedding.table.weight"], weights["head.bias"]
    table, output = (torch.cat([rows, rows[UNK].expand(num_unread, -1)])
                     for rows in (table, weights.get("head.table.weight", table)))
    bias = torch.cat([bias, bias.new_full((num_unread,), ABSENT_BIAS)])
    layers = {name: weight for name, weight in weights.items() if ".table." not in name and ".positions." not in name}
    found = {_masked_name(name): tensor for name, tensor in renamed(layers, is_masked=True).items()}
    scale = math.sqrt(config.encoder.model_dim) if config.embedding.is_scaled else 1.0
    return found | {
        "roberta.embeddings.word_embeddings.weight": table * scale,
        "roberta.embeddings.position_embeddings.weight": positions_of(checkpoint, "encoder"),
        # A second kind of token it never has: its row adds nothing.
        "roberta.embeddings.token_type_embeddings.weight": torch.zeros(1, table.size(1)),
        "lm_head.bias": bias, "lm_head.decoder.bias": bias.clone(), "lm_head.decoder.weight": output.clone()}


def _masked_name(name: str) -> str:
    found = masked_from_fairseq(name.replace("layernorm_embedding", "emb_layer_norm"))
    assert found is not None, name
    return found

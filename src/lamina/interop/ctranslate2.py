"""A checkpoint of ours for CTranslate2, which runs plain Transformers fast and without torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lamina.checkpoint.folding import fold_checkpoint
from lamina.checkpoint.format import Checkpoint
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError
from lamina.packed import FIRST_POSITION
from lamina.text.vocabulary import EOS
from lamina.traits import DECODER_ONLY, PAIRS

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerDecoderModelSpec, TransformerSpec

# By the names of CTranslate2's enumeration.
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_fast": "GELUTanh", "gelu_accurate": "GELUTanh", "silu": "SWISH",
               "tanh": "Tanh"}
NEVER = -1e9  # at the output, of what a model never says
# Its vocabularies call padding so.
_BLANK = {"<pad>": "<blank>"}


def write_ctranslate2(folder: Path, checkpoint: Checkpoint, notice: Callable[[str], object]) -> Checkpoint:
    """Write the model; scaled residuals are folded first. The checkpoint that was written, then."""
    check_representable(checkpoint)
    if not checkpoint.model_config().init.is_plain:
        notice(f"{checkpoint.config['init-type']} residuals are folded into plain ones")
        checkpoint = fold_checkpoint(checkpoint)
    spec = build_spec(checkpoint)
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    return checkpoint


def check_representable(checkpoint: Checkpoint) -> None:
    """Why CTranslate2 could not compute this model, as an error."""
    config, kind = checkpoint.model_config(), checkpoint.kind
    parts = [part for part in config.model_parts() if not (part is config.init and config.init.can_fold())]
    reason = ""
    if not (kind.has(PAIRS) or kind.has(DECODER_ONLY)):
        reason = f"translation and language models are, and this model is of --task {checkpoint.task}"
    elif config.lm.is_adaptive or config.lm.softmax_cutoff:
        reason = "adaptive vocabularies have several tables, and CTranslate2's have one"
    elif ("head.project.weight" in checkpoint.weights) != ("target_embedding.project.weight" in checkpoint.weights):
        reason = ("it narrows input and output together, and this model has only one of --decoder-input-dim and "
                  "--decoder-output-dim")
    elif reasons := [why for part in parts if (why := part.not_in("CTranslate2"))]:
        reason = reasons[0]
    elif reason := config.not_in("CTranslate2", may_start=True):
        pass
    elif config.activation not in ACTIVATIONS:
        reason = f"it has no --activation-fn {config.activation}; it has {', '.join(ACTIVATIONS)}"
    if reason:
        raise CheckpointError(f"the model cannot be exported for CTranslate2: {reason}. Export it as "
                              "safetensors, or use Lamina.")


def build_spec(checkpoint: Checkpoint) -> TransformerSpec | TransformerDecoderModelSpec:
    try:
        from ctranslate2.specs import TransformerDecoderModelSpec, TransformerSpec
        from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
    except ImportError:
        raise CheckpointError("--format ctranslate2 needs the package ctranslate2: pip install "
                              "'lamina[ctranslate2]'.") from None
    config = checkpoint.model_config()
    weights = {name: weight.float().cpu().numpy() for name, weight in checkpoint.weights.items()}
    vocabularies = [[_BLANK.get(symbol, symbol) for symbol in vocabulary.symbols] for vocabulary in checkpoint.vocabularies()]
    is_translation = checkpoint.kind.has(PAIRS)
    decoder = TransformerDecoderSpec(**_options(config, "decoder"), with_encoder_attention=is_translation,
                                     no_final_norm=not is_translation and not config.lm.has_final_norm,
                                     project_in_out="head.project.weight" in weights)
    _fill_stack(decoder, config, weights, "decoder")
    decoder.projection.weight = weights.get("head.table.weight", decoder.embeddings.weight)
    if (bias := _output_bias(config, weights, len(vocabularies[-1]))) is not None:
        decoder.projection.bias = bias
    if not is_translation:
        if "head.project.weight" in weights:
            decoder.project_in.weight = weights["target_embedding.project.weight"]
            decoder.project_out.weight = weights["head.project.weight"]
        spec = TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(*vocabularies)
        spec.config.bos_token = spec.config.eos_token  # what a text begins after, as in training
        return spec
    encoder = TransformerEncoderSpec(**_options(config, "encoder"))
    _fill_stack(encoder, config, weights, "encoder")
    spec = TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(vocabularies[0])
    spec.register_target_vocabulary(vocabularies[1])
    # As in training: a source ends in </s>, and </s> is what the decoder reads first.
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = vocabularies[1][dict(config.decoder.reads_ids).get(EOS, EOS)]
    return spec


def _output_bias(config: ModelConfig, weights: dict[str, np.ndarray], num_symbols: int) -> np.ndarray | None:
    """What the model never says is written into the bias: CTranslate2 has no place of its own for it. (V,)"""
    bias = weights.get("head.bias")
    if config.manners.forbidden:
        bias = np.zeros(num_symbols, np.float32) if bias is None else bias.copy()
        bias[list(config.manners.forbidden)] = NEVER
    return bias


def _options(config: ModelConfig, side: str) -> dict[str, Any]:
    from ctranslate2.specs import common_spec

    stack = getattr(config, side)
    return {"num_layers": stack.num_layers, "num_heads": stack.num_heads, "pre_norm": stack.is_pre_norm,
            "activation": getattr(common_spec.Activation, ACTIVATIONS[config.activation]),
            "layernorm_embedding": config.embedding.has_norm}


def _fill_stack(spec: Any, config: ModelConfig, weights: dict[str, np.ndarray], side: str) -> None:
    embedding = "source_embedding" if side == "encoder" else "target_embedding"
    own = f"{embedding}.table.weight"
    table = weights[own if own in weights else "source_embedding.table.weight"]
    (spec.embeddings[0] if side == "encoder" else spec.embeddings).weight = table
    dim = getattr(config, side).model_dim
    spec.scale_embeddings = math.sqrt(dim) if config.embedding.is_scaled else 1.0
    spec.position_encodings.encodings = _positions(config, weights, side, embedding, dim)
    if config.embedding.has_norm:
        _fill_norm(spec.layernorm_embedding, weights, f"{embedding}.norm")
    if f"{side}.norm.weight" in weights:
        _fill_norm(spec.layer_norm, weights, f"{side}.norm")
    for number, layer in enumerate(spec.layer):
        name = f"{side}.layers.{number}"
        for part, linear in enumerate(("in_proj", "out_proj")):
            _fill_linear(layer.self_attention.linear[part], weights, f"{name}.attention.{linear}")
        _fill_norm(layer.self_attention.layer_norm, weights, f"{name}.attn_residual.norm")
        if f"{name}.cross_residual.norm.weight" in weights:
            for part, linear in enumerate(("q_proj", "kv_proj", "out_proj")):
                _fill_linear(layer.attention.linear[part], weights, f"{name}.cross_attention.{linear}")
            _fill_norm(layer.attention.layer_norm, weights, f"{name}.cross_residual.norm")
        _fill_linear(layer.ffn.linear_0, weights, f"{name}.ffn.fc1")
        _fill_linear(layer.ffn.linear_1, weights, f"{name}.ffn.fc2")
        _fill_norm(layer.ffn.layer_norm, weights, f"{name}.ffn_residual.norm")


def _positions(config: ModelConfig, weights: dict[str, np.ndarray], side: str, embedding: str, dim: int) -> np.ndarray:
    """From the first position of a token on. (P, D)"""
    limit = config.embedding.max_source_positions if side == "encoder" else config.embedding.max_target_positions
    if not config.embedding.has_positions:
        return np.zeros((limit, dim), dtype=np.float32)
    table = weights.get(f"{embedding}.positions.weight")
    if table is None:
        computed = getattr(config, side).positions.table_of(limit, dim)
        assert computed is not None, "positions that are no weight have a table"
        table = computed.numpy()
    return table[FIRST_POSITION:]


def _fill_linear(spec: Any, weights: dict[str, np.ndarray], name: str) -> None:
    spec.weight, spec.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]


def _fill_norm(spec: Any, weights: dict[str, np.ndarray], name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

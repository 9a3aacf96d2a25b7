"""A checkpoint of ours in fairseq's names and layout, for the models that fairseq has too."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lamina.checkpoint.format import Checkpoint
from lamina.checkpoint.marks import layers_as_trained, marks_of
from lamina.config.model import ModelConfig
from lamina.data.data_folder import dictionary_name
from lamina.data.labelled_sentences import FIRST_INPUT, LABEL
from lamina.errors import CheckpointError
from lamina.interop.exported_folder import write_texts
from lamina.interop.fairseq import places
from lamina.interop.fairseq_file import MARKS_KEY
from lamina.parts.position_kinds import Learned
from lamina.text.subword import save_subwords
from lamina.traits import CLASSES, ENCODER_ONLY, PAIRS

# That fairseq knows.
ACTIVATIONS = ("relu", "gelu", "gelu_fast", "gelu_accurate", "tanh", "linear")
# Below 3, fairseq takes a stack for one without its last norm.
_VERSION = 3.0
_SELF, _CROSS = "self_attn", "encoder_attn"
_IN_LAYER = {
    "attention.in_proj": [f"{_SELF}.{which}_proj" for which in "kvq"],
    "attention.out_proj": [f"{_SELF}.out_proj"],
    "attn_residual.norm": [f"{_SELF}_layer_norm"],
    "cross_attention.kv_proj": [f"{_CROSS}.k_proj", f"{_CROSS}.v_proj"],
    "cross_attention.q_proj": [f"{_CROSS}.q_proj"],
    "cross_attention.out_proj": [f"{_CROSS}.out_proj"],
    "cross_residual.norm": [f"{_CROSS}_layer_norm"],
    "ffn.fc1": ["fc1"],
    "ffn.fc2": ["fc2"],
    "ffn_residual.norm": ["final_layer_norm"],
}
_OUTSIDE = {
    "source_embedding.table": "encoder.embed_tokens",
    "source_embedding.positions": "encoder.embed_positions",
    "source_embedding.norm": "encoder.layernorm_embedding",
    "encoder.norm": "encoder.layer_norm",
    "target_embedding.table": "decoder.embed_tokens",
    "target_embedding.positions": "decoder.embed_positions",
    "target_embedding.norm": "decoder.layernorm_embedding",
    "target_embedding.project": "decoder.project_in_dim",
    "decoder.norm": "decoder.layer_norm",
    "head.project": "decoder.project_out_dim",
}
_IN_MASKED_HEAD = {"head.dense": "encoder.lm_head.dense", "head.norm": "encoder.lm_head.layer_norm", "head": "encoder.lm_head",
                   "head.table": "encoder.lm_head"}
_LAYER = re.compile(r"((?:encoder|decoder)\.layers\.\d+)\.(.+)")


def check_plain(checkpoint: Checkpoint) -> None:
    """Why fairseq's own code could not compute this model, as an error."""
    config, kind = checkpoint.model_config(), checkpoint.kind
    reason = ""
    if not kind.fairseq_task:
        reason = f"it has no counterpart of --task {checkpoint.task}"
    elif reasons := [why for part in config.model_parts() if (why := part.not_in("fairseq"))]:
        reason = reasons[0]
    elif reason := config.not_in("fairseq"):
        pass
    elif config.manners.rules():
        reason = "it has no tokens that a model never says or always begins with (--model-forbids, --model-begins-with)"
    elif config.activation not in ACTIVATIONS:
        reason = f"it has no --activation-fn {config.activation}; it has {', '.join(ACTIVATIONS)}"
    elif config.lm.is_adaptive or config.lm.softmax_cutoff:
        reason = "adaptive vocabularies are not written in its layout"
    elif kind.has(ENCODER_ONLY) and not _is_roberta(config):
        reason = "its RoBERTa has learned positions, and token vectors that are normalised and not scaled, whatever it is told"
    if reason:
        raise CheckpointError(f"the model cannot be exported for fairseq: {reason}.")


def _is_roberta(config: ModelConfig) -> bool:
    embedding = config.embedding
    return (isinstance(config.encoder.positions, Learned) and embedding.has_positions and embedding.has_norm
            and not embedding.is_scaled)


def fairseq_content(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint file of fairseq 0.9 holds; later ones read it too."""
    check_plain(checkpoint)
    # fairseq reads what it knows of its extra_state. Pruning is told as a mark, since its own option would prune once more.
    layers = layers_as_trained(checkpoint)
    marks = marks_of(checkpoint) | ({"layers": layers} if layers else {})
    updates = int(checkpoint.training.get("progress", {}).get("updates", 0))
    history = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {},
               "num_updates": updates}
    return {"args": argparse.Namespace(**fairseq_args(checkpoint)), "model": state_dict(checkpoint),
            "optimizer_history": [history], "last_optimizer_state": None,
            "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, MARKS_KEY: marks}}


def write_fairseq_texts(folder: Path, checkpoint: Checkpoint) -> None:
    """Dictionaries where fairseq looks for them: a classifier's in the folders of its inputs and labels."""
    if not checkpoint.kind.has(CLASSES):
        write_texts(folder, checkpoint)
        return
    for name, text, subword in zip((FIRST_INPUT, LABEL), checkpoint.dictionaries, checkpoint.subword_models(), strict=False):
        (folder / name).mkdir()
        (folder / name / dictionary_name(None)).write_bytes(text.encode("utf-8"))
        save_subwords(folder / name, {"": subword})


def state_dict(checkpoint: Checkpoint) -> dict[str, Tensor]:
    is_masked = checkpoint.kind.has(ENCODER_ONLY)
    sides = ("encoder", "decoder") if checkpoint.kind.has(PAIRS) else () if is_masked else ("decoder",)
    found = {f"{side}.version": torch.tensor([_VERSION]) for side in sides}
    found |= renamed(checkpoint.weights, is_masked=is_masked)
    if is_masked:
        return _of_roberta(checkpoint, found)
    config = checkpoint.model_config()
    if config.embedding.share_all:
        found["decoder.embed_tokens.weight"] = found["encoder.embed_tokens.weight"]
    if "head.table.weight" in checkpoint.weights:
        # 0.9's name for an output of its own; later versions rename it on loading.
        found["decoder.embed_out"] = checkpoint.weights["head.table.weight"].clone()
    return found


def renamed(weights: Mapping[str, Tensor], *, is_masked: bool = False) -> dict[str, Tensor]:
    """fairseq's tensors for ours; without the output table, but in an encoder alone (`is_masked`)."""
    found = {}
    for name, weight in weights.items():
        for theirs in _masked_names(name) if is_masked else _names(name):
            (place,) = places(theirs)
            assert place.name == name, (name, place.name)
            found[theirs] = place.view(weight).clone()
    return found


def _names(name: str) -> list[str]:
    """fairseq's for one of our parameters; none for the output table, which depends on what it is shared with."""
    stem, _, kind = name.rpartition(".")
    if stem == "head.table":
        return []
    if match := _LAYER.fullmatch(stem):
        return [f"{match[1]}.{theirs}.{kind}" for theirs in _IN_LAYER[match[2]]]
    return [f"{_OUTSIDE[stem]}.{kind}"]


def _masked_names(name: str) -> list[str]:
    """Of a model that is an encoder alone, as fairseq's main branch names its parameters."""
    stem, _, kind = name.rpartition(".")
    if stem in _IN_MASKED_HEAD:
        return [f"{_IN_MASKED_HEAD[stem]}.{kind}"]
    if stem.startswith("classifiers."):
        return [f"classification_heads.{name.removeprefix('classifiers.')}"]
    return [theirs.replace("encoder.", "encoder.sentence_encoder.", 1) for theirs in _names(name)]


def _of_roberta(checkpoint: Checkpoint, found: dict[str, Tensor]) -> dict[str, Tensor]:
    if "encoder.lm_head.weight" not in found:
        found["encoder.lm_head.weight"] = found["encoder.sentence_encoder.embed_tokens.weight"]
    if checkpoint.model_config().encoder.is_pre_norm:
        return found
    # 0.9's names, which later versions rename on loading. It had no Pre-LN.
    return {re.sub(r"^encoder\.", "decoder.", name).replace("layernorm_embedding", "emb_layer_norm"): weight
            for name, weight in found.items()}


def fairseq_args(checkpoint: Checkpoint) -> dict[str, Any]:
    """The arguments that build the model there, defaults included."""
    config = checkpoint.model_config()
    if checkpoint.kind.has(ENCODER_ONLY):
        return _roberta_args(checkpoint)
    is_translation = checkpoint.kind.has(PAIRS)
    args = _common_args(config) | _stack_args(config, "decoder")
    if is_translation:
        source, target = checkpoint.languages
        args |= {"arch": "transformer", "task": checkpoint.kind.fairseq_task, "source_lang": source, "target_lang": target,
                 "left_pad_source": True, "left_pad_target": False, "share_all_embeddings": config.embedding.share_all,
                 "max_source_positions": config.embedding.max_source_positions,
                 "decoder_input_dim": config.decoder.model_dim, "decoder_output_dim": config.decoder.model_dim,
                 **_stack_args(config, "encoder")}
    else:
        args |= {"arch": "transformer_lm", "task": checkpoint.kind.fairseq_task,
                 "tokens_per_sample": args["max_target_positions"],
                 "decoder_input_dim": config.lm.input_dim or config.decoder.model_dim,
                 "decoder_output_dim": config.lm.output_dim or config.decoder.model_dim,
                 "no_decoder_final_norm": not config.lm.has_final_norm, "character_embeddings": False,
                 "add_bos_token": False, "self_target": False, "future_target": False, "past_target": False,
                 "output_dictionary_size": -1, "sample_break_mode": "none"}
    return args


def _roberta_args(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.model_config()
    embedding, classifier = config.embedding, config.classifier
    args = _common_args(config) | _stack_args(config, "encoder") | {
        "arch": "roberta", "task": checkpoint.kind.fairseq_task, "max_positions": embedding.max_positions,
        "tokens_per_sample": embedding.max_positions, "untie_weights_roberta": embedding.unties_head,
        "pooler_activation_fn": classifier.activation, "pooler_dropout": classifier.dropout_p,
        "spectral_norm_classification_head": False, "criterion": "masked_lm"}
    if not classifier.num_classes:
        return args | {"sample_break_mode": "none", "mask_prob": 0.15, "leave_unmasked_prob": 0.1, "random_token_prob": 0.1,
                       "freq_weighted_replacement": False, "mask_whole_words": False, "shorten_method": "none",
                       "shorten_data_split_list": ""}
    framed = {name: None if number < 0 else number for name, number in (("init_token", classifier.init_token),
                                                                        ("separator_token", classifier.separator_token))}
    return args | framed | {"criterion": "sentence_prediction", "num_classes": classifier.num_classes,
                            "classification_head_name": classifier.name, "regression_target": classifier.num_classes == 1}


def _common_args(config: ModelConfig) -> dict[str, Any]:
    embedding, dropout = config.embedding, config.dropout
    return {"dropout": dropout.dropout_p, "attention_dropout": dropout.attention_p, "activation_dropout": dropout.activation_p,
            "activation_fn": config.activation, "adaptive_input": False, "adaptive_softmax_cutoff": None,
            "adaptive_softmax_dropout": 0, "no_token_positional_embeddings": not embedding.has_positions,
            "no_scale_embedding": not embedding.is_scaled, "layernorm_embedding": embedding.has_norm,
            "share_decoder_input_output_embed": embedding.share_decoder or embedding.share_all,
            "max_target_positions": embedding.max_target_positions, "criterion": "cross_entropy", "optimizer": "adam",
            "no_cross_attention": False, "cross_self_attention": False, "data": ""}


def _stack_args(config: ModelConfig, side: str) -> dict[str, Any]:
    stack = getattr(config, side)
    return {f"{side}_layers": stack.num_layers, f"{side}_embed_dim": stack.model_dim, f"{side}_ffn_embed_dim": stack.ffn_dim,
            f"{side}_attention_heads": stack.num_heads, f"{side}_normalize_before": stack.is_pre_norm,
            f"{side}_learned_pos": isinstance(stack.positions, Learned),
            f"{side}_layerdrop": stack.layer_drop_p,
            f"{side}_layers_to_keep": None, f"{side}_embed_path": None}

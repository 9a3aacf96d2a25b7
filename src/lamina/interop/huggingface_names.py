"""What transformers calls the parameters that fairseq has too, in both directions; interop/fairseq.py knows those as ours."""

from __future__ import annotations

import re

# Encoder-decoders are fairseq's under a prefix.
BASE = "model."
SHARED = "shared.weight"  # what the table of both sides is called
OUTPUT, OUTPUT_BIAS = "lm_head.weight", "final_logits_bias"
FAIRSEQ_OUTPUT = "decoder.output_projection.weight"

# RoBERTa: theirs to fairseq's, `N` for the number of a layer.
_MASKED_LAYER = {
    "attention.self.query": "self_attn.q_proj", "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj", "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm", "intermediate.dense": "fc1", "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
_MASKED = {
    "roberta.embeddings.word_embeddings": "encoder.sentence_encoder.embed_tokens",
    "roberta.embeddings.position_embeddings": "encoder.sentence_encoder.embed_positions",
    "roberta.embeddings.LayerNorm": "encoder.sentence_encoder.emb_layer_norm",
    "lm_head.dense": "encoder.lm_head.dense", "lm_head.layer_norm": "encoder.lm_head.layer_norm",
    "lm_head": "encoder.lm_head",
    "classifier.dense": "classification_heads.HEAD.dense", "classifier.out_proj": "classification_heads.HEAD.out_proj",
}
_THEIR_LAYER = re.compile(r"roberta\.encoder\.layer\.(\d+)\.(.+)")
_FAIRSEQ_LAYER = re.compile(r"encoder\.sentence_encoder\.layers\.(\d+)\.(.+)")
_HEAD = "sentence_classification_head"


def masked_to_fairseq(name: str, head: str = _HEAD) -> str | None:
    """Of a parameter of RobertaForMaskedLM or RobertaForSequenceClassification; None if fairseq has no such one."""
    stem, _, kind = name.rpartition(".")
    if match := _THEIR_LAYER.fullmatch(stem):
        inner = _MASKED_LAYER.get(match[2])
        return None if inner is None else f"encoder.sentence_encoder.layers.{match[1]}.{inner}.{kind}"
    found = _MASKED.get(stem)
    return None if found is None else f"{found.replace('HEAD', head)}.{kind}"


def masked_from_fairseq(name: str) -> str | None:
    """The same the other way; whatever the sentence head is called."""
    stem, _, kind = name.rpartition(".")
    stem = re.sub(r"^classification_heads\.[^.]+", "classification_heads.HEAD", stem)
    if match := _FAIRSEQ_LAYER.fullmatch(stem):
        inner = next((theirs for theirs, own in _MASKED_LAYER.items() if own == match[2]), None)
        return None if inner is None else f"roberta.encoder.layer.{match[1]}.{inner}.{kind}"
    found = next((theirs for theirs, own in _MASKED.items() if own == stem), None)
    return None if found is None else f"{found}.{kind}"


def seq2seq_to_fairseq(name: str) -> str:
    """Of a parameter of BartForConditionalGeneration and its kin, other than the shared table."""
    return FAIRSEQ_OUTPUT if name == OUTPUT else name.removeprefix(BASE)


def seq2seq_from_fairseq(name: str, *, is_fsmt: bool = False) -> str:
    """The same the other way; FSMT's output belongs to its decoder."""
    return OUTPUT if name == FAIRSEQ_OUTPUT and not is_fsmt else BASE + name

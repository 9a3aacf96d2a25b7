"""Classes of transformers that compute what ours compute: which of them holds a model, and what its config.json says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from lamina.checkpoint.format import Checkpoint
from lamina.config.model import ModelConfig, StackConfig
from lamina.errors import CheckpointError
from lamina.packed import FIRST_POSITION
from lamina.text.vocabulary import BOS, EOS, PAD
from lamina.traits import CLASSES, MASKS, PAIRS

# Ours to theirs.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_fast": "gelu_pytorch_tanh", "gelu_accurate": "gelu_pytorch_tanh",
               "silu": "silu", "tanh": "tanh", "linear": "linear"}


@dataclass(frozen=True, kw_only=True)
class ModelClass:
    """One of theirs. Parts are asked by its name whether it has them (`not_in`)."""

    name: str
    model_type: str
    architecture: str
    is_pre_norm: bool = False
    has_norm: bool = False  # of the sum of token and position vectors
    has_two_dictionaries: bool = False
    stores_positions: bool = True  # as a table in its file
    has_bias: bool = True  # at the output
    norms_eps: bool = False  # whether its norms may have any epsilon
    is_masked: bool = False

    def reasons(self, checkpoint: Checkpoint) -> Iterator[str]:
        """Why it cannot hold the model."""
        config, sides = checkpoint.model_config(), _stacks(checkpoint)
        if any(stack.is_pre_norm != self.is_pre_norm for stack in sides.values()):
            yield f"{self.name} is {_order(self.is_pre_norm)} throughout"
        if config.embedding.has_norm != self.has_norm:
            yield f"{self.name} {'has' if self.has_norm else 'lacks'} --layernorm-embedding"
        # What folds is folded before.
        parts = [part for part in config.model_parts() if not (part is config.init and config.init.can_fold())]
        yield from filter(None, (part.not_in(self.name) for part in parts))
        # What stands around a source its tokenizer names as it is read.
        if all(own in (BOS, EOS) for own, _ in config.encoder.reads_ids):
            config = replace(config, encoder=replace(config.encoder, reads=()))
        if why := config.not_in(self.name, may_start=not self.is_masked, has_eps=self.norms_eps):
            yield why
        if config.activation not in ACTIVATIONS:
            yield f"{self.name} has no --activation-fn {config.activation}; it has {', '.join(ACTIVATIONS)}"
        if not (config.embedding.has_positions or self.stores_positions):
            yield f"{self.name} always adds positions"
        yield from self._masked_reasons(config) if self.is_masked else self._pair_reasons(checkpoint, config)

    def _masked_reasons(self, config: ModelConfig) -> Iterator[str]:
        if config.activation != "gelu" and not config.classifier.num_classes:
            yield f"the head of {self.name} has gelu, and this one --activation-fn {config.activation}"
        if config.classifier.num_classes and config.classifier.activation != "tanh":
            yield f"the sentence head of {self.name} has tanh, and this one {config.classifier.activation}"

    def _pair_reasons(self, checkpoint: Checkpoint, config: ModelConfig) -> Iterator[str]:
        if config.encoder.model_dim != config.decoder.model_dim:
            yield (f"{self.name} has one width, and this model's are --encoder-embed-dim {config.encoder.model_dim} and "
                   f"--decoder-embed-dim {config.decoder.model_dim}")
        if not self.has_two_dictionaries and len(set(checkpoint.dictionaries)) > 1:
            yield f"{self.name} has one dictionary for both sides, and this model has two"
        if len(config.manners.first) > 1:
            yield "it forces one token at the beginning of a text, and this model's begin with several"
        if config.manners.first and not config.manners.frees_forced:
            yield "a token that it forces costs nothing, and this model's count (--no-model-frees-forced)"


_SEQ2SEQ = "ForConditionalGeneration"
# Where several could hold a model, the first does.
CLASSES_OF_PAIRS = (
    ModelClass(name="MarianMT", model_type="marian", architecture="MarianMTModel", has_two_dictionaries=True,
               stores_positions=False),
    ModelClass(name="FSMT", model_type="fsmt", architecture=f"FSMT{_SEQ2SEQ}", has_two_dictionaries=True, has_bias=False),
    ModelClass(name="BART", model_type="bart", architecture=f"Bart{_SEQ2SEQ}", has_norm=True),
    ModelClass(name="M2M-100", model_type="m2m_100", architecture=f"M2M100{_SEQ2SEQ}", is_pre_norm=True,
               stores_positions=False, has_bias=False),
    ModelClass(name="mBART", model_type="mbart", architecture=f"MBart{_SEQ2SEQ}", is_pre_norm=True, has_norm=True),
)
CLASSES_OF_ENCODERS = (
    ModelClass(name="RoBERTa", model_type="roberta", architecture="RobertaForMaskedLM", has_norm=True, norms_eps=True,
               is_masked=True),
)


def class_for(checkpoint: Checkpoint) -> ModelClass:
    """The class that holds the model exactly, or the reason why there is none."""
    kind, config = checkpoint.kind, checkpoint.model_config()
    if kind.has(CLASSES) or not (kind.has(PAIRS) or kind.has(MASKS)):
        raise cannot_export(f"models of --task {checkpoint.task} are not written in its layout; translation and masked "
                            "language models are")
    orders = {stack.is_pre_norm for stack in _stacks(checkpoint).values()}
    if len(orders) > 1:
        raise cannot_export("none of its models has Pre-LN in one stack and Post-LN in the other")
    alike = [own for own in (CLASSES_OF_PAIRS if kind.has(PAIRS) else CLASSES_OF_ENCODERS)
             if own.is_masked or ({own.is_pre_norm} == orders and own.has_norm == config.embedding.has_norm)]
    reason = ""
    for own in alike:
        reason = next(own.reasons(checkpoint), "")
        if not reason:
            return own
    raise cannot_export(reason)


def cannot_export(reason: str) -> CheckpointError:
    return CheckpointError(f"the model cannot be exported for transformers: {reason}. Export it as safetensors, or use Lamina.")


def _stacks(checkpoint: Checkpoint) -> dict[str, StackConfig]:
    config = checkpoint.model_config()
    return {side: getattr(config, side) for side in checkpoint.kind.stacks}


def _order(is_pre_norm: bool) -> str:
    return "Pre-LN" if is_pre_norm else "Post-LN"


# -- config.json


def num_positions(checkpoint: Checkpoint) -> int:
    """Of the longest text: both sides have one length."""
    embedding = checkpoint.model_config().embedding
    if not checkpoint.kind.has(PAIRS):
        return embedding.max_positions
    return max(embedding.max_source_positions, embedding.max_target_positions)


def pair_config(own: ModelClass, checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json of an encoder-decoder. Every setting that its class would fill in otherwise is there."""
    config, sizes = checkpoint.model_config(), [len(vocabulary) for vocabulary in checkpoint.vocabularies()]
    embedding, dropout = config.embedding, config.dropout
    start = dict(config.decoder.reads_ids).get(EOS, EOS)
    found: dict[str, Any] = {
        "architectures": [own.architecture], "model_type": own.model_type, "is_encoder_decoder": True, "dtype": "float32",
        "d_model": config.encoder.model_dim, "max_position_embeddings": num_positions(checkpoint),
        "activation_function": ACTIVATIONS[config.activation], "scale_embedding": embedding.is_scaled,
        "dropout": dropout.dropout_p, "attention_dropout": dropout.attention_p, "activation_dropout": dropout.activation_p,
        "tie_word_embeddings": is_tied(own, config), "bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS,
        "decoder_start_token_id": start, "use_cache": True}
    for side, stack in _stacks(checkpoint).items():
        found |= {f"{side}_layers": stack.num_layers, f"{side}_attention_heads": stack.num_heads,
                  f"{side}_ffn_dim": stack.ffn_dim, f"{side}_layerdrop": stack.layer_drop_p}
    if own.model_type == "fsmt":
        return found | {"src_vocab_size": sizes[0], "tgt_vocab_size": sizes[1], "langs": list(checkpoint.languages)}
    if own.model_type == "marian":
        found |= {"decoder_vocab_size": sizes[1], "share_encoder_decoder_embeddings": embedding.share_all}
    return found | {"vocab_size": sizes[0]}


def is_tied(own: ModelClass, config: ModelConfig) -> bool:
    """Its tie_word_embeddings: of all tables, and in MarianMT with two dictionaries of the target's."""
    is_one_side = own.model_type == "marian" and config.embedding.share_decoder
    return config.embedding.share_all or is_one_side


def masked_config(own: ModelClass, checkpoint: Checkpoint, num_symbols: int) -> dict[str, Any]:
    """config.json of an encoder."""
    config = checkpoint.model_config()
    stack, dropout, embedding = config.encoder, config.dropout, config.embedding
    return {
        "architectures": [own.architecture], "model_type": own.model_type, "dtype": "float32", "vocab_size": num_symbols,
        "hidden_size": stack.model_dim, "num_hidden_layers": stack.num_layers, "num_attention_heads": stack.num_heads,
        "intermediate_size": stack.ffn_dim, "hidden_act": ACTIVATIONS[config.activation],
        "hidden_dropout_prob": dropout.dropout_p, "attention_probs_dropout_prob": dropout.attention_p,
        "max_position_embeddings": num_positions(checkpoint) + FIRST_POSITION, "type_vocab_size": 1,
        "layer_norm_eps": config.norm_eps, "tie_word_embeddings": not (embedding.is_scaled or embedding.unties_head),
        "bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}

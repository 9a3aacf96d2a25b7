"""Types of models of Hugging Face's: what their config.json says, in our terms, and what their parameters are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lamina.config.model import DropoutConfig, EmbeddingConfig, ModelConfig, StackConfig
from lamina.errors import CheckpointError
from lamina.interop.huggingface_texts import Texts, Wanted, marian_texts
from lamina.parts.contracts import Positions
from lamina.parts.position_kinds import MarianSinusoids
from lamina.registry import first_task
from lamina.traits import PAIRS

# Theirs to ours.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_fast", "gelu_fast": "gelu_fast",
               "gelu_pytorch_tanh": "gelu_fast", "silu": "silu", "swish": "silu", "tanh": "tanh", "linear": "linear"}


@dataclass(frozen=True)
class Family:
    """What models of one type have in common."""

    task: str
    arch: str  # of ours, to begin from
    texts: Callable[[Wanted], Texts]
    model_config: Callable[[Mapping[str, Any]], ModelConfig]
    vocab_sizes: Callable[[Mapping[str, Any]], tuple[int, ...]]
    parameters: Callable[[Mapping[str, Any], Mapping[str, Tensor]], dict[str, Tensor]]  # with fairseq's names
    only_with: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # anything but these is refused by name


def number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name, default)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"config.json has {name}={value!r}; it must be a number.")
    return value


def share(config: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    value = config.get(name, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise CheckpointError(f"config.json has {name}={value!r}; it must be a number.")
    return float(value)


def activation(config: Mapping[str, Any], name: str = "activation_function", default: str = "gelu") -> str:
    value = config.get(name, default)
    if value not in ACTIVATIONS:
        raise CheckpointError(f"config.json has {name}={value!r}, which Lamina does not have; it has "
                              f"{', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[value]


# -- encoder and decoder, as fairseq's descendants name and number their parts


def _stack(config: Mapping[str, Any], side: str, positions: Positions, *, is_pre_norm: bool) -> StackConfig:
    return StackConfig(num_layers=number(config, f"{side}_layers"), model_dim=number(config, "d_model"),
                       ffn_dim=number(config, f"{side}_ffn_dim"), num_heads=number(config, f"{side}_attention_heads"),
                       is_pre_norm=is_pre_norm, positions=positions, layer_drop_p=share(config, f"{side}_layerdrop"))


def seq2seq_config(config: Mapping[str, Any], positions: Positions, *, is_pre_norm: bool = False, has_norm: bool = False,
                   share_all: bool, share_decoder: bool, default_activation: str = "gelu") -> ModelConfig:
    longest = number(config, "max_position_embeddings", 1024)
    return ModelConfig(
        encoder=_stack(config, "encoder", positions, is_pre_norm=is_pre_norm),
        decoder=_stack(config, "decoder", positions, is_pre_norm=is_pre_norm),
        embedding=EmbeddingConfig(share_all=share_all, share_decoder=share_decoder and not share_all,
                                  is_scaled=bool(config.get("scale_embedding", False)), has_norm=has_norm,
                                  max_source_positions=longest, max_target_positions=longest),
        dropout=DropoutConfig(dropout_p=share(config, "dropout", 0.1), attention_p=share(config, "attention_dropout"),
                              activation_p=share(config, "activation_dropout")),
        activation=activation(config, default=default_activation))


def seq2seq_parameters(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as fairseq has them; what is shared and written once stands in all its places."""
    own = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    shared = own.pop("shared.weight", None)
    tables = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    for table in tables:
        if table not in own and shared is not None:
            own[table] = shared
    head = own.pop("lm_head.weight", None)
    if not config.get("tie_word_embeddings", True):
        if head is None:
            raise CheckpointError("it lacks lm_head.weight, which is not tied to its embeddings.")
        own["decoder.output_projection.weight"] = head
    for table in tables:
        if table not in own:
            raise CheckpointError(f"it lacks {table}, and shared.weight in its place.")
    return own


def _marian_config(config: Mapping[str, Any]) -> ModelConfig:
    is_tied = bool(config.get("tie_word_embeddings", True))
    shares = bool(config.get("share_encoder_decoder_embeddings", True))
    return seq2seq_config(config, MarianSinusoids(), share_all=shares and is_tied, share_decoder=is_tied)


def _marian_sizes(config: Mapping[str, Any]) -> tuple[int, ...]:
    source = number(config, "vocab_size")
    shares = bool(config.get("share_encoder_decoder_embeddings", True))
    return source, source if shares else number(config, "decoder_vocab_size", source)


def _marian_parameters(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Old folders hold the tables of its positions, which follow from their numbers.
    return {name: tensor for name, tensor in seq2seq_parameters(config, tensors).items()
            if not name.endswith("embed_positions.weight")}


FAMILIES: dict[str, Family] = {
    "marian": Family(
        task=first_task(PAIRS), arch="transformer", texts=marian_texts, model_config=_marian_config, vocab_sizes=_marian_sizes,
        parameters=_marian_parameters,
        only_with={"normalize_before": (None, False), "normalize_embedding": (None, False),
                   "add_final_layer_norm": (None, False), "static_position_embeddings": (None, True),
                   "extra_pos_embeddings": (None, 0), "is_decoder": (None, False), "is_encoder_decoder": (None, True)}),
}

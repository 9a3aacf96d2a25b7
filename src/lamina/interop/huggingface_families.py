"""Types of models of Hugging Face's: what their config.json says, in our terms, and what their parameters are called."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lamina.config.model import DropoutConfig, EmbeddingConfig, ModelConfig, StackConfig
from lamina.errors import CheckpointError
from lamina.interop.huggingface_names import BASE, FAIRSEQ_OUTPUT, OUTPUT, SHARED, masked_to_fairseq, seq2seq_to_fairseq
from lamina.nn.positions import sinusoid_table
from lamina.packed import FIRST_POSITION
from lamina.parts.contracts import Positions
from lamina.parts.position_kinds import Learned, MarianSinusoids, Sinusoidal
from lamina.registry import first_task
from lamina.traits import MASKS, PAIRS

# Theirs to ours.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_fast", "gelu_fast": "gelu_fast",
               "gelu_pytorch_tanh": "gelu_fast", "silu": "silu", "swish": "silu", "tanh": "tanh", "linear": "linear"}


@dataclass(frozen=True)
class Family:
    """What models of one type have in common."""

    task: str
    arch: str  # of ours, to begin from
    tokenizer: str  # its class, where a folder does not name one
    model_config: Callable[[Mapping[str, Any], Mapping[str, Tensor]], ModelConfig]  # of config.json and `parameters`
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


TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def seq2seq_parameters(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as fairseq has them; what is shared and written once stands in all its places."""
    own = {seq2seq_to_fairseq(name): tensor for name, tensor in tensors.items()}
    shared = own.pop(SHARED, None)
    if config.get("tie_word_embeddings", True):
        own = _tied(own, shared)
    else:
        if FAIRSEQ_OUTPUT not in own:
            raise CheckpointError(f"it lacks {OUTPUT}, which is not tied to its embeddings.")
        own |= {table: shared for table in TABLES if table not in own and shared is not None}
    return _complete(own)


def _tied(own: dict[str, Tensor], shared: Tensor | None = None) -> dict[str, Tensor]:
    """Of tied tensors, files may keep a single one, under any of their names."""
    kept = [own[name] for name in (*TABLES, FAIRSEQ_OUTPUT) if name in own]
    found = next(iter(kept), None) if shared is None else shared
    tables = {} if found is None else {table: own.get(table, found) for table in TABLES}
    return {name: tensor for name, tensor in own.items() if name != FAIRSEQ_OUTPUT} | tables


def _complete(own: dict[str, Tensor]) -> dict[str, Tensor]:
    for table in TABLES:
        if table not in own:
            raise CheckpointError(f"it lacks {BASE}{table}, and {BASE}{SHARED} in its place.")
    return own


def _computed_positions(parameters: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
    """Some folders hold the tables of positions that follow from their numbers."""
    def without(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in parameters(config, tensors).items()
                if not re.search(r"embed_positions\.weights?$", name)}

    return without


def _marian_config(config: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> ModelConfig:
    is_tied = bool(config.get("tie_word_embeddings", True))
    shares = bool(config.get("share_encoder_decoder_embeddings", True))
    return seq2seq_config(config, MarianSinusoids(), share_all=shares and is_tied, share_decoder=is_tied)


def _marian_sizes(config: Mapping[str, Any]) -> tuple[int, ...]:
    source = number(config, "vocab_size")
    shares = bool(config.get("share_encoder_decoder_embeddings", True))
    return source, source if shares else number(config, "decoder_vocab_size", source)


# -- BART and its kin


def one_size(config: Mapping[str, Any]) -> tuple[int, ...]:
    return (number(config, "vocab_size"),) * 2


def _bart_config(config: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> ModelConfig:
    is_tied = bool(config.get("tie_word_embeddings", True))
    return seq2seq_config(config, Learned(), has_norm=True, share_all=is_tied, share_decoder=is_tied)


def _mbart_config(config: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> ModelConfig:
    is_tied = bool(config.get("tie_word_embeddings", True))
    return seq2seq_config(config, Learned(), is_pre_norm=True, has_norm=True, share_all=is_tied, share_decoder=is_tied)


def _m2m_config(config: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> ModelConfig:
    is_tied = bool(config.get("tie_word_embeddings", True))
    usual = {"scale_embedding": True, "attention_dropout": 0.1, "encoder_layerdrop": 0.05, "decoder_layerdrop": 0.05}
    return seq2seq_config({**usual, **config}, Sinusoidal(), is_pre_norm=True, share_all=is_tied, share_decoder=is_tied,
                          default_activation="relu")


def _fsmt_config(config: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> ModelConfig:
    is_tied = bool(config.get("tie_word_embeddings", False))
    positions = Learned() if any(name.endswith("embed_positions.weight") for name in parameters) else Sinusoidal()
    return seq2seq_config({"scale_embedding": True, **config}, positions, share_all=is_tied,
                          share_decoder=FAIRSEQ_OUTPUT not in parameters, default_activation="relu")


def _fsmt_sizes(config: Mapping[str, Any]) -> tuple[int, ...]:
    return number(config, "src_vocab_size"), number(config, "tgt_vocab_size")


def _fsmt_parameters(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Its tables have no common name, and its output belongs to its decoder: often the target's table once more.

    Files hold its positions. Sinusoids as a rule; where they are others, as in a model with folded residuals, they count.
    """
    own = {seq2seq_to_fairseq(name): tensor for name, tensor in tensors.items()}
    positions = [name for name in own if name.endswith("embed_positions.weight")]
    if all(torch.allclose(own[name], sinusoid_table(*own[name].shape), atol=1e-5) for name in positions):
        own = {name: tensor for name, tensor in own.items() if name not in positions}
    if config.get("tie_word_embeddings", False):
        return _complete(_tied(own))
    output, table = own.get(FAIRSEQ_OUTPUT), own.get(TABLES[1])
    if output is not None and table is not None and torch.equal(output, table):
        del own[FAIRSEQ_OUTPUT]
    return _complete(own)


# -- RoBERTa and its kin


def _roberta_config(config: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> ModelConfig:
    stack = StackConfig(num_layers=number(config, "num_hidden_layers"), model_dim=number(config, "hidden_size"),
                        ffn_dim=number(config, "intermediate_size"), num_heads=number(config, "num_attention_heads"),
                        positions=Learned())
    dropout = share(config, "hidden_dropout_prob", 0.1)
    return ModelConfig(
        encoder=stack, activation=activation(config, "hidden_act"), norm_eps=share(config, "layer_norm_eps", 1e-12),
        embedding=EmbeddingConfig(is_scaled=False, has_norm=True,
                                  max_positions=number(config, "max_position_embeddings", 512) - FIRST_POSITION),
        dropout=DropoutConfig(dropout_p=dropout, attention_p=share(config, "attention_probs_dropout_prob", 0.1)))


# What is derived, unused by a masked model, or stored twice.
_UNREAD_BY_ROBERTA = re.compile(r"roberta\.(pooler\..*|embeddings\.(position|token_type)_ids)|lm_head\.decoder\.weight")


def _roberta_parameters(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The vector of the first kind of token, which every token has, becomes a part of the positions."""
    own = {name if name.startswith(("roberta.", "lm_head.", "classifier.")) else f"roberta.{name}": tensor
           for name, tensor in tensors.items()}
    kinds = own.pop("roberta.embeddings.token_type_embeddings.weight", None)
    if (bias := own.pop("lm_head.decoder.bias", None)) is not None:
        own.setdefault("lm_head.bias", bias)
    if not any(name.startswith("lm_head.") for name in own):
        raise CheckpointError("it holds no lm_head, which fills gaps: of RoBERTa's models those for masked language modelling "
                              "are read (RobertaForMaskedLM).")
    named: dict[str, Tensor] = {}
    for name, tensor in own.items():
        if _UNREAD_BY_ROBERTA.fullmatch(name):
            continue
        if (found := masked_to_fairseq(name)) is None:
            raise CheckpointError(f"it holds {name}, which a masked model of Lamina's has no place for.")
        named[found] = tensor
    positions = "encoder.sentence_encoder.embed_positions.weight"
    if kinds is not None and positions in named:
        named[positions] = named[positions] + kinds[0]
    return named


def _one_text(config: Mapping[str, Any]) -> tuple[int, ...]:
    return (number(config, "vocab_size"),)


_SEQ2SEQ: dict[str, tuple[Any, ...]] = {"is_decoder": (None, False), "is_encoder_decoder": (None, True)}
# Older folders say in words what every model of their type is today.
_IN_WORDS: dict[str, tuple[Any, ...]] = {
    "normalize_before": (None, False), "normalize_embedding": (None, True), "add_final_layer_norm": (None, False),
    "static_position_embeddings": (None, False), "extra_pos_embeddings": (None, 2), "add_bias_logits": (None, False)}
# Positions begin behind the id of the padding symbol: 2 for the first token, as here.
_POSITIONS_FROM_2: dict[str, tuple[Any, ...]] = {"pad_token_id": (1,)}

FAMILIES: dict[str, Family] = {
    "marian": Family(
        task=first_task(PAIRS), arch="transformer", tokenizer="MarianTokenizer", model_config=_marian_config,
        vocab_sizes=_marian_sizes, parameters=_computed_positions(seq2seq_parameters),
        only_with={**_SEQ2SEQ, "normalize_before": (None, False), "normalize_embedding": (None, False),
                   "add_final_layer_norm": (None, False), "static_position_embeddings": (None, True),
                   "extra_pos_embeddings": (None, 0)}),
    "fsmt": Family(
        task=first_task(PAIRS), arch="transformer", tokenizer="FSMTTokenizer", model_config=_fsmt_config,
        vocab_sizes=_fsmt_sizes, parameters=_fsmt_parameters, only_with={**_SEQ2SEQ, **_POSITIONS_FROM_2}),
    "bart": Family(
        task=first_task(PAIRS), arch="transformer", tokenizer="BartTokenizer", model_config=_bart_config, vocab_sizes=one_size,
        parameters=seq2seq_parameters, only_with={**_SEQ2SEQ, **_IN_WORDS}),
    "mbart": Family(
        task=first_task(PAIRS), arch="transformer", tokenizer="MBartTokenizer", model_config=_mbart_config,
        vocab_sizes=one_size, parameters=seq2seq_parameters,
        only_with={**_SEQ2SEQ, **_IN_WORDS, "normalize_before": (None, True), "add_final_layer_norm": (None, True)}),
    "m2m_100": Family(
        task=first_task(PAIRS), arch="transformer", tokenizer="M2M100Tokenizer", model_config=_m2m_config, vocab_sizes=one_size,
        parameters=_computed_positions(seq2seq_parameters), only_with={**_SEQ2SEQ, **_POSITIONS_FROM_2}),
    **{kind: Family(
        task=first_task(MASKS), arch="roberta", tokenizer=tokenizer, model_config=_roberta_config, vocab_sizes=_one_text,
        parameters=_roberta_parameters, only_with={
            **_POSITIONS_FROM_2, "position_embedding_type": (None, "absolute"), "is_decoder": (None, False),
            "add_cross_attention": (None, False), "tie_word_embeddings": (None, True),
            # Its head has this one, whatever the layers have.
            "hidden_act": (None, "gelu")})
       for kind, tokenizer in (("roberta", "RobertaTokenizer"), ("xlm-roberta", "XLMRobertaTokenizer"))},
}

# Types that one might expect here.
WHY_NOT = {
    "gpt2": "its blocks fit, but its dictionary has no <s>, <pad> and <unk>: their places in ours need a bias at the output, "
            "which language models do not have",
    "t5": "its attention has relative positions, and its norms no mean and no bias",
    "mt5": "its attention has relative positions, and its norms no mean and no bias",
    "bert": "its head and its positions are others than RoBERTa's",
    "nllb-moe": "its feed-forward blocks are mixtures of experts",
}

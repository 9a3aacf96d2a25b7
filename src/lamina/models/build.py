"""ModelConfig -> model: the one place where names and numbers become blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from lamina.config.model import ModelConfig, StackConfig
from lamina.errors import ConfigError
from lamina.init.bert import initialise_bert_
from lamina.init.default import initialise_
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.models.masked import MaskedModel
from lamina.nn.attention import CrossAttention, SelfAttention
from lamina.nn.embedding import InputEmbedding, TokenTable
from lamina.nn.encoder_heads import MaskedHead, SentenceHead
from lamina.nn.feed_forward import FeedForward
from lamina.nn.heads import LinearHead
from lamina.nn.positions import LearnedPositions, SinusoidalPositions
from lamina.nn.residual import Add, PostNorm, PreNorm
from lamina.nn.stack import DecoderLayer, EncoderLayer, LayerStack

PAD_ID = 1  # of every vocabulary; text/vocabulary.py says the same, and a test holds the two together


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> EncoderDecoder:
    """A freshly initialised model; torch's global seed decides its weights."""
    source_table, target_table, output_table = _tables(config, source_vocab_size, target_vocab_size)
    embedding = config.embedding
    model = EncoderDecoder(
        source_embedding=_input_embedding(config, config.encoder, source_table, embedding.max_source_positions),
        encoder=_encoder(config),
        target_embedding=_input_embedding(config, config.decoder, target_table, embedding.max_target_positions),
        decoder=_decoder(config),
        head=LinearHead(output_table),
        pad_id=PAD_ID,
        max_source_positions=embedding.max_source_positions,
        max_target_positions=embedding.max_target_positions,
    )
    initialise_(model)
    return model


def build_masked_model(config: ModelConfig, vocab_size: int) -> MaskedModel:
    """Encoder, the head that fills gaps, and the sentence head that the configuration names, if it does."""
    table, classifier = TokenTable(vocab_size, config.encoder.model_dim, PAD_ID), config.classifier
    heads = {classifier.name: SentenceHead(config.encoder.model_dim, classifier.num_classes, classifier.activation,
                                           classifier.dropout_p)} if classifier.num_classes else {}
    model = MaskedModel(
        embedding=_input_embedding(config, config.encoder, table, config.embedding.max_positions),
        encoder=_encoder(config),
        head=MaskedHead(table, config.activation),
        classifiers=heads,
        pad_id=PAD_ID,
        max_positions=config.embedding.max_positions,
    )
    initialise_bert_(model)
    return model


# By the task whose models they are: from a configuration and the sizes of the task's vocabularies.
BUILDERS: dict[str, Callable[[ModelConfig, tuple[int, ...]], Any]] = {
    "translation": lambda config, sizes: build_model(config, *sizes),
}


def _tables(config: ModelConfig, source_size: int, target_size: int) -> tuple[TokenTable, TokenTable, TokenTable]:
    source = TokenTable(source_size, config.encoder.model_dim, PAD_ID)
    if config.embedding.share_all:
        if source_size != target_size:
            raise ConfigError(f"--share-all-embeddings needs one dictionary for both sides, but the source has "
                              f"{source_size} symbols and the target {target_size}. Preprocess with --joined-dictionary.")
        return source, source, source
    target = TokenTable(target_size, config.decoder.model_dim, PAD_ID)
    output = target if config.embedding.share_decoder else TokenTable(target_size, config.decoder.model_dim, PAD_ID)
    return source, target, output


def _input_embedding(config: ModelConfig, stack: StackConfig, table: TokenTable, max_positions: int) -> InputEmbedding:
    embedding, dim = config.embedding, stack.model_dim
    positions = LearnedPositions if stack.has_learned_positions else SinusoidalPositions
    return InputEmbedding(
        table,
        scale=math.sqrt(dim) if embedding.is_scaled else 1.0,
        positions=positions(max_positions, dim) if embedding.has_positions else None,
        norm=nn.LayerNorm(dim) if embedding.has_norm else None,
        dropout_p=config.dropout.dropout_p,
    )


def _residual(config: ModelConfig, stack: StackConfig) -> nn.Module:
    order = PreNorm if stack.is_pre_norm else PostNorm
    return order(nn.LayerNorm(stack.model_dim), Add(), config.dropout.dropout_p)


def _final_norm(stack: StackConfig) -> nn.Module | None:
    # Post-LN normalises as it goes; Pre-LN owes the stream one norm at the end.
    return nn.LayerNorm(stack.model_dim) if stack.is_pre_norm else None


def _self_attention(config: ModelConfig, stack: StackConfig) -> SelfAttention:
    return SelfAttention(stack.model_dim, stack.num_heads, config.dropout.attention_p)


def _feed_forward(config: ModelConfig, stack: StackConfig) -> FeedForward:
    return FeedForward(stack.model_dim, stack.ffn_dim, config.activation, config.dropout.activation_p)


def _encoder(config: ModelConfig) -> LayerStack:
    stack = config.encoder
    layers = [EncoderLayer(_self_attention(config, stack), _residual(config, stack), _feed_forward(config, stack),
                           _residual(config, stack)) for _ in range(stack.num_layers)]
    return LayerStack(layers, _final_norm(stack))


def _decoder(config: ModelConfig) -> LayerStack:
    stack = config.decoder
    layers = [DecoderLayer(_self_attention(config, stack), _residual(config, stack),
                           CrossAttention(stack.model_dim, config.encoder.model_dim, stack.num_heads,
                                          config.dropout.attention_p),
                           _residual(config, stack), _feed_forward(config, stack), _residual(config, stack))
              for _ in range(stack.num_layers)]
    return LayerStack(layers, _final_norm(stack))

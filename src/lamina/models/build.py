"""ModelConfig -> model: the one place where names and numbers become blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from torch import nn

from lamina.config.model import ModelConfig, StackConfig
from lamina.errors import ConfigError
from lamina.init.bert import initialise_bert_
from lamina.init.default import initialise_
from lamina.models.contract import Model
from lamina.models.decoder_only import DecoderOnly
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.models.masked import MaskedModel
from lamina.nn.adaptive import AdaptiveHead, AdaptiveTable, Band, Tail
from lamina.nn.attention import CrossAttention, SelfAttention
from lamina.nn.embedding import InputEmbedding, OutputTable, TokenTable, WordDropout
from lamina.nn.encoder_heads import MaskedHead, SentenceHead
from lamina.nn.feed_forward import FeedForward, Function
from lamina.nn.fusion import Memory
from lamina.nn.heads import LinearHead, VocabularyHead
from lamina.nn.linear import Linear
from lamina.nn.mixing import StackMixing
from lamina.nn.stack import CausalLayer, DecoderLayer, EncoderLayer, LayerStack
from lamina.parts.contracts import FusionPlace, LayerPlace, Mixing
from lamina.registry import register

# Of every vocabulary; text/vocabulary.py says the same, and a test holds the two together.
PAD_ID = 1
UNK_ID = 3
FIRST_WORD_ID = 4


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> EncoderDecoder:
    """A freshly initialised model; torch's global seed decides its weights."""
    source_table, target_table, output_table = _tables(config, source_vocab_size, target_vocab_size)
    embedding, depths = config.embedding, config.trained_depths
    dropout, memory = config.dropout, _memory(config)
    reads_tokens = config.fusion.reads_tokens or config.surface.reads_tokens
    encoder_place, decoder_place = _place(config, "encoder", 2, depths), _place(config, "decoder", 3, depths)
    model = EncoderDecoder(
        source_embedding=_input_embedding(config, config.encoder, source_table, embedding.max_source_positions,
                                          word_dropout_p=dropout.source_word_p, offers_tokens=reads_tokens),
        encoder=_encoder(config, encoder_place, memory),
        target_embedding=_input_embedding(config, config.decoder, target_table, embedding.max_target_positions,
                                          word_dropout_p=dropout.target_word_p),
        decoder=_decoder(config, decoder_place),
        memory=memory,
        head=_head(config, output_table),
        pad_id=PAD_ID,
        max_source_positions=embedding.max_source_positions,
        max_target_positions=embedding.max_target_positions,
    )
    _finish_(model, config)
    initialise_(model, config.ffn_start)
    config.init.initialise_(model.encoder, encoder_place)
    config.init.initialise_(model.decoder, decoder_place)
    config.adapter.attach_(model)
    return model


def build_masked_model(config: ModelConfig, vocab_size: int) -> MaskedModel:
    """Encoder, the head that fills gaps, and the sentence head that the configuration names, if it does."""
    table, classifier = TokenTable(vocab_size, config.encoder.model_dim, PAD_ID), config.classifier
    heads = {classifier.name: SentenceHead(config.encoder.model_dim, classifier.num_classes,
                                           _activation(classifier.activation),
                                           classifier.dropout_p)} if classifier.num_classes else {}
    output = OutputTable(vocab_size, config.encoder.model_dim) if config.embedding.unties_head else table
    place = _place(config, "encoder", 2, (config.trained_depths[0], 0))
    model = MaskedModel(
        embedding=_input_embedding(config, config.encoder, table, config.embedding.max_positions),
        encoder=_encoder(config, place),
        head=MaskedHead(output, _activation(config.activation)),
        classifiers=heads,
        pad_id=PAD_ID,
        max_positions=config.embedding.max_positions,
        frame=(classifier.init_token, classifier.separator_token),
    )
    _finish_(model, config)
    initialise_bert_(model)
    config.init.initialise_(model.encoder, place)
    config.adapter.attach_(model)
    return model


def build_decoder_only(config: ModelConfig, vocab_size: int) -> DecoderOnly:
    """A language model, freshly initialised."""
    stack, embedding = config.decoder, config.embedding
    table = _lm_table(config, vocab_size)
    place = _place(config, "decoder", 2, (0, config.trained_depths[1]))
    layers = []
    for own in _places(place):
        attn_residual, ffn_residual = _residuals(config, own)
        layers.append(CausalLayer(_self_attention(config, stack, own), attn_residual, _feed_forward(config, stack),
                                  ffn_residual))
    final_norm = config.init.final_norm(place) if config.lm.has_final_norm else None
    model = DecoderOnly(
        target_embedding=_input_embedding(config, stack, table, embedding.max_target_positions),
        decoder=LayerStack(layers, final_norm, mixing=_stack_mixing(config, place)),
        head=_lm_head(config, vocab_size, table),
        pad_id=PAD_ID,
        max_target_positions=embedding.max_target_positions,
    )
    _finish_(model, config)
    initialise_(model, config.ffn_start)
    config.init.initialise_(model.decoder, place)
    config.adapter.attach_(model)
    return model


def _finish_(model: Model, config: ModelConfig) -> None:
    """What holds for the whole of a model, whichever blocks it has."""
    model.rules = config.manners.rules()
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = config.norm_eps


def _bands(cutoff: tuple[int, ...], vocab_size: int, name: str) -> list[int]:
    """How many words each band has."""
    if cutoff[-1] > vocab_size:
        raise ConfigError(f"--adaptive-{name}-cutoff ends at {cutoff[-1]}, but the dictionary has {vocab_size} symbols. Give "
                          "smaller ids.")
    edges = [0, *cutoff, vocab_size] if cutoff[-1] < vocab_size else [0, *cutoff]
    return [end - start for start, end in pairwise(edges)]


def _band_dim(dim: int, factor: float, number: int, name: str) -> int:
    narrow = int(dim // factor**number)
    if narrow < 1:
        raise ConfigError(f"band {number} of --adaptive-{name}-cutoff would have no width left: {dim} divided {number} times "
                          f"by --adaptive-{name}-factor {factor:g}. Give fewer bands, or a smaller factor.")
    return narrow


def _lm_table(config: ModelConfig, vocab_size: int) -> TokenTable | AdaptiveTable:
    dim, lm = config.decoder.model_dim, config.lm
    if not lm.is_adaptive:
        return TokenTable(vocab_size, lm.input_dim or dim, PAD_ID)
    bands = []
    for number, size in enumerate(_bands(lm.input_cutoff, vocab_size, "input")):
        narrow = _band_dim(lm.input_dim or dim, lm.input_factor, number, "input")
        bands.append(Band(TokenTable(size, narrow, None if number else PAD_ID), Linear(narrow, dim, bias=False)))
    return AdaptiveTable(bands)


def _lm_head(config: ModelConfig, vocab_size: int, table: TokenTable | AdaptiveTable) -> LinearHead | AdaptiveHead:
    lm, dim = config.lm, config.lm.output_dim or config.decoder.model_dim
    project = Linear(config.decoder.model_dim, dim, bias=False) if dim != config.decoder.model_dim else None
    if not lm.softmax_cutoff:
        shared = isinstance(table, TokenTable) and config.embedding.share_decoder
        return LinearHead(table if shared else TokenTable(vocab_size, dim, PAD_ID), project)  # type: ignore[arg-type]
    frequent, *rare = _bands(lm.softmax_cutoff, vocab_size, "softmax")
    tied = table.bands if isinstance(table, AdaptiveTable) and lm.ties_weights else None
    words = TokenTable(frequent, dim, None) if tied is None else tied[0].table
    tails = []
    for number, size in enumerate(rare, start=1):
        narrow = _band_dim(dim, lm.softmax_factor, number, "softmax")
        own = TokenTable(size, narrow, None) if tied is None else tied[number].table
        is_turned = tied is not None and lm.ties_projections
        narrowing = tied[number].project if tied is not None and is_turned else Linear(dim, narrow, bias=False)
        tails.append(Tail(own, narrowing, is_turned=is_turned, dropout_p=lm.softmax_dropout_p))
    return AdaptiveHead(words, Linear(dim, len(rare), bias=False), tails, project=project, is_tied=tied is not None,
                        dropout_p=lm.softmax_dropout_p)


def _place(config: ModelConfig, stack: str, num_sub_layers: int, trained_depths: tuple[int, int]) -> LayerPlace:
    """Of the first layer of a stack."""
    own: StackConfig = getattr(config, stack)
    return LayerPlace(stack=stack, index=0, num_layers=own.num_layers, num_sub_layers=num_sub_layers, dim=own.model_dim,
                      is_pre_norm=own.is_pre_norm, dropout_p=config.dropout.dropout_p, trained_depths=trained_depths)


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


def _input_embedding(config: ModelConfig, stack: StackConfig, table: TokenTable | AdaptiveTable, max_positions: int, *,
                     word_dropout_p: float = 0.0, offers_tokens: bool = False) -> InputEmbedding:
    embedding, dim = config.embedding, stack.model_dim
    token_dim = table.weight.size(1) if isinstance(table, TokenTable) else dim
    return InputEmbedding(
        table,
        scale=math.sqrt(dim) if embedding.is_scaled else 1.0,
        positions=stack.positions.build(max_positions, dim) if embedding.has_positions else None,
        norm=nn.LayerNorm(dim) if embedding.has_norm else None,
        dropout_p=config.dropout.dropout_p,
        word_dropout=WordDropout(word_dropout_p, UNK_ID, FIRST_WORD_ID) if word_dropout_p else None,
        offers_tokens=offers_tokens,
        project=Linear(token_dim, dim, bias=False) if token_dim != dim else None,
        reads=_checked_reads(stack, table),
    )


def _checked_reads(stack: StackConfig, table: TokenTable | AdaptiveTable) -> tuple[tuple[int, int], ...]:
    if stack.reads and isinstance(table, TokenTable) and max(map(max, stack.reads_ids)) >= len(table.weight):
        raise ConfigError(f"--encoder-reads or --decoder-reads is {','.join(stack.reads)}, but the dictionary has "
                          f"{len(table.weight)} symbols. Give smaller ids.")
    return stack.reads_ids


def _places(first: LayerPlace) -> list[LayerPlace]:
    """Of all layers of a stack."""
    return [replace(first, index=index) for index in range(first.num_layers)]


def _mixing(config: ModelConfig, place: LayerPlace) -> Mixing:
    return config.mixing_of(place.stack)


def _stack_mixing(config: ModelConfig, place: LayerPlace, *, has_output: bool = True) -> StackMixing | None:
    return _mixing(config, place).build(place, has_output=has_output)  # type: ignore[return-value]


def _residuals(config: ModelConfig, place: LayerPlace) -> list[nn.Module]:
    return _mixing(config, place).residuals(config.init.build(place), place)


def _self_attention(config: ModelConfig, stack: StackConfig, place: LayerPlace) -> SelfAttention:
    return SelfAttention(stack.model_dim, stack.num_heads, config.dropout.attention_p,
                         _mixing(config, place).sharing(place, stack.num_heads))


def _feed_forward(config: ModelConfig, stack: StackConfig) -> FeedForward:
    return FeedForward(stack.model_dim, stack.ffn_dim, _activation(config.activation), config.dropout.activation_p)


def _activation(name: str) -> Function:
    return register.activation[name]()


def _encoder(config: ModelConfig, place: LayerPlace, memory: Memory | None = None) -> LayerStack:
    """`memory`: what a decoder reads of it, where there is one."""
    stack, layers = config.encoder, []
    for own in _places(place):
        attn_residual, ffn_residual = _residuals(config, own)
        layers.append(EncoderLayer(_self_attention(config, stack, own), attn_residual, _feed_forward(config, stack),
                                   ffn_residual))
    # The last norm is there for those who read the stack's output: a mix of raw states does not.
    has_output = memory is None or memory.reads_final or config.surface.reads_final
    norm = config.init.final_norm(place) if has_output else None
    mixing = _stack_mixing(config, place, has_output=has_output)
    if memory is None:
        return LayerStack(layers, norm, mixing=mixing)
    kept = memory.reads_states | ({0} if config.surface.reads_input else set())
    return LayerStack(layers, norm, kept_states=kept, mixing=mixing)


def _decoder(config: ModelConfig, place: LayerPlace) -> LayerStack:
    stack, layers = config.decoder, []
    for own in _places(place):
        attn_residual, cross_residual, ffn_residual = _residuals(config, own)
        cross_attention = CrossAttention(stack.model_dim, config.encoder.model_dim, stack.num_heads, config.dropout.attention_p)
        layers.append(DecoderLayer(_self_attention(config, stack, own), attn_residual, cross_attention, cross_residual,
                                   _feed_forward(config, stack), ffn_residual))
    return LayerStack(layers, config.init.final_norm(place), kept_states=config.surface.decoder_states(stack.num_layers),
                      mixing=_stack_mixing(config, place))


def _head(config: ModelConfig, table: TokenTable) -> VocabularyHead:
    place = config.head_place(lambda: _feed_forward(config, config.decoder))
    return config.surface.build(place, table)  # type: ignore[return-value]


def _memory(config: ModelConfig) -> Memory:
    stack = config.encoder
    return config.fusion.build(FusionPlace(  # type: ignore[return-value]
        num_readers=config.decoder.num_layers, num_layers=stack.num_layers, dim=stack.model_dim,
        is_pre_norm=stack.is_pre_norm, dropout_p=config.dropout.dropout_p,
        feed_forward=lambda: _feed_forward(config, stack)))

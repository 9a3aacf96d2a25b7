"""ModelConfig -> model: the one place where names and numbers become blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import nn

from lamina.config.model import ModelConfig, StackConfig
from lamina.errors import ConfigError
from lamina.init.admin import fill_closed_form_
from lamina.init.bert import initialise_bert_
from lamina.init.deepnet import DeepNetConstants, initialise_deepnet_
from lamina.init.default import initialise_
from lamina.models.decoder_only import DecoderOnly
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.models.masked import MaskedModel
from lamina.nn.adaptive import AdaptiveHead, AdaptiveTable, Band, Tail
from lamina.nn.attention import CrossAttention, SelfAttention, SurfaceAttention
from lamina.nn.embedding import InputEmbedding, TokenTable, WordDropout
from lamina.nn.encoder_heads import MaskedHead, SentenceHead
from lamina.nn.feed_forward import FeedForward
from lamina.nn.fusion import LastState, LayerAttention, LayerWise, Memory, Transform
from lamina.nn.heads import AttendedSurface, HardMix, Head, LinearHead, PooledSurface, SoftMix, SurfaceHead
from lamina.nn.positions import LearnedPositions, SinusoidalPositions
from lamina.nn.residual import Add, DeepNorm, OmegaAdd, PostNorm, PreNorm, ReZero
from lamina.nn.stack import CausalLayer, DecoderLayer, EncoderLayer, LayerStack
from lamina.parts.contracts import Residual
from lamina.parts.encoder_fusion import spread_evenly
from lamina.parts.residuals import AdminClosedForm, DeepNet, OmegaInit, ReZeroInit, ReZeroPostNorm
from lamina.parts.surface_fusion import AttendedFusion, HardFusion, MaxFusion, NoSurface, SurfaceConfig

# Of every vocabulary; text/vocabulary.py says the same, and a test holds the two together.
PAD_ID = 1
UNK_ID = 3
FIRST_WORD_ID = 4


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> EncoderDecoder:
    """A freshly initialised model; torch's global seed decides its weights."""
    source_table, target_table, output_table = _tables(config, source_vocab_size, target_vocab_size)
    embedding, (num_encoder, num_decoder) = config.embedding, config.trained_depths
    encoder_constants = DeepNetConstants.of_encoder(num_encoder, num_decoder)
    decoder_constants = DeepNetConstants.of_decoder(num_decoder)
    dropout, memory = config.dropout, _memory(config)
    model = EncoderDecoder(
        source_embedding=_input_embedding(config, config.encoder, source_table, embedding.max_source_positions,
                                          word_dropout_p=dropout.source_word_p, offers_tokens=_reads_tokens(config)),
        encoder=_encoder(config, encoder_constants.alpha, memory),
        target_embedding=_input_embedding(config, config.decoder, target_table, embedding.max_target_positions,
                                          word_dropout_p=dropout.target_word_p),
        decoder=_decoder(config, decoder_constants.alpha),
        memory=memory,
        head=_head(config, output_table),
        pad_id=PAD_ID,
        max_source_positions=embedding.max_source_positions,
        max_target_positions=embedding.max_target_positions,
    )
    initialise_(model)
    _initialise_branches_(config.init, model.encoder, encoder_constants.beta)
    _initialise_branches_(config.init, model.decoder, decoder_constants.beta)
    return model


def build_masked_model(config: ModelConfig, vocab_size: int) -> MaskedModel:
    """Encoder, the head that fills gaps, and the sentence head that the configuration names, if it does."""
    table, classifier = TokenTable(vocab_size, config.encoder.model_dim, PAD_ID), config.classifier
    heads = {classifier.name: SentenceHead(config.encoder.model_dim, classifier.num_classes, classifier.activation,
                                           classifier.dropout_p)} if classifier.num_classes else {}
    constants = DeepNetConstants.of_single_stack(config.trained_depths[0])
    model = MaskedModel(
        embedding=_input_embedding(config, config.encoder, table, config.embedding.max_positions),
        encoder=_encoder(config, constants.alpha, LastState()),
        head=MaskedHead(table, config.activation),
        classifiers=heads,
        pad_id=PAD_ID,
        max_positions=config.embedding.max_positions,
        frame=(classifier.init_token, classifier.separator_token),
    )
    initialise_bert_(model)
    _initialise_branches_(config.init, model.encoder, constants.beta)
    return model


def build_decoder_only(config: ModelConfig, vocab_size: int) -> DecoderOnly:
    """A language model, freshly initialised."""
    stack, embedding = config.decoder, config.embedding
    table = _lm_table(config, vocab_size)
    constants = DeepNetConstants.of_single_stack(config.trained_depths[1])
    layers = []
    for _ in range(stack.num_layers):
        attn_residual, ffn_residual = _residuals(config, stack, 2, constants.alpha)
        layers.append(CausalLayer(_self_attention(config, stack), attn_residual, _feed_forward(config, stack), ffn_residual))
    model = DecoderOnly(
        target_embedding=_input_embedding(config, stack, table, embedding.max_target_positions),
        decoder=LayerStack(layers, _final_norm(stack) if config.lm.has_final_norm else None),
        head=_lm_head(config, vocab_size, table),
        pad_id=PAD_ID,
        max_target_positions=embedding.max_target_positions,
    )
    initialise_(model)
    _initialise_branches_(config.init, model.decoder, constants.beta)
    return model


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
        bands.append(Band(TokenTable(size, narrow, None if number else PAD_ID), nn.Linear(narrow, dim, bias=False)))
    return AdaptiveTable(bands)


def _lm_head(config: ModelConfig, vocab_size: int, table: TokenTable | AdaptiveTable) -> LinearHead | AdaptiveHead:
    lm, dim = config.lm, config.lm.output_dim or config.decoder.model_dim
    project = nn.Linear(config.decoder.model_dim, dim, bias=False) if dim != config.decoder.model_dim else None
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
        narrowing = tied[number].project if tied is not None and is_turned else nn.Linear(dim, narrow, bias=False)
        tails.append(Tail(own, narrowing, is_turned=is_turned, dropout_p=lm.softmax_dropout_p))
    return AdaptiveHead(words, nn.Linear(dim, len(rare), bias=False), tails, project=project, is_tied=tied is not None,
                        dropout_p=lm.softmax_dropout_p)


# By the task whose models they are: from a configuration and the sizes of the task's vocabularies.
BUILDERS: dict[str, Callable[[ModelConfig, tuple[int, ...]], Any]] = {
    "translation": lambda config, sizes: build_model(config, *sizes),
    "language_modeling": lambda config, sizes: build_decoder_only(config, *sizes),
    "masked_lm": lambda config, sizes: build_masked_model(config, *sizes),
    "sentence_prediction": lambda config, sizes: build_masked_model(config, sizes[0]),
}


def _initialise_branches_(init: Residual, stack: LayerStack, beta: float) -> None:
    """What --init-type changes once the rest has its first weights; a profile comes later, with the data."""
    match init:
        case DeepNet():
            initialise_deepnet_(stack, beta)
        case AdminClosedForm():
            fill_closed_form_(stack)


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
    positions = LearnedPositions if stack.has_learned_positions else SinusoidalPositions
    return InputEmbedding(
        table,
        scale=math.sqrt(dim) if embedding.is_scaled else 1.0,
        positions=positions(max_positions, dim) if embedding.has_positions else None,
        norm=nn.LayerNorm(dim) if embedding.has_norm else None,
        dropout_p=config.dropout.dropout_p,
        word_dropout=WordDropout(word_dropout_p, UNK_ID, FIRST_WORD_ID) if word_dropout_p else None,
        offers_tokens=offers_tokens,
        project=nn.Linear(token_dim, dim, bias=False) if token_dim != dim else None,
    )


def _residuals(config: ModelConfig, stack: StackConfig, number: int, alpha: float) -> list[nn.Module]:
    """Those of one layer, one a sub-layer; alpha is DeepNet's."""
    order = PreNorm if stack.is_pre_norm else PostNorm
    return [order(_norm(config, stack), add, config.dropout.dropout_p)
            for add in _adds(config.init, number, stack.model_dim, alpha)]


def _adds(init: Residual, number: int, dim: int, alpha: float) -> list[nn.Module]:
    match init:
        case OmegaInit():
            return [OmegaAdd(dim) for _ in range(number)]
        case ReZeroInit() | ReZeroPostNorm():
            return [ReZero()] * number  # one object, so that the layer has one scale
        case DeepNet():
            return [DeepNorm(alpha) for _ in range(number)]
    return [Add() for _ in range(number)]


def _norm(config: ModelConfig, stack: StackConfig) -> nn.Module:
    return nn.Identity() if isinstance(config.init, ReZeroInit) else nn.LayerNorm(stack.model_dim)


def _final_norm(stack: StackConfig) -> nn.Module | None:
    # Post-LN normalises as it goes; Pre-LN owes the stream one norm at the end.
    return nn.LayerNorm(stack.model_dim) if stack.is_pre_norm else None


def _self_attention(config: ModelConfig, stack: StackConfig) -> SelfAttention:
    return SelfAttention(stack.model_dim, stack.num_heads, config.dropout.attention_p)


def _feed_forward(config: ModelConfig, stack: StackConfig) -> FeedForward:
    return FeedForward(stack.model_dim, stack.ffn_dim, config.activation, config.dropout.activation_p)


def _encoder(config: ModelConfig, alpha: float, memory: Memory) -> LayerStack:
    stack, layers = config.encoder, []
    for _ in range(stack.num_layers):
        attn_residual, ffn_residual = _residuals(config, stack, 2, alpha)
        layers.append(EncoderLayer(_self_attention(config, stack), attn_residual, _feed_forward(config, stack), ffn_residual))
    surface = config.surface
    # The last norm is there for those who read the stack's output: a mix of raw states does not.
    norm = _final_norm(stack) if memory.reads_final or isinstance(surface, AttendedFusion) else None
    reads_input = isinstance(surface, SurfaceConfig) and surface.has_positions
    return LayerStack(layers, norm, kept_states=memory.reads_states | ({0} if reads_input else set()))


def _decoder(config: ModelConfig, alpha: float) -> LayerStack:
    stack, layers = config.decoder, []
    for _ in range(stack.num_layers):
        attn_residual, cross_residual, ffn_residual = _residuals(config, stack, 3, alpha)
        cross_attention = CrossAttention(stack.model_dim, config.encoder.model_dim, stack.num_heads, config.dropout.attention_p)
        layers.append(DecoderLayer(_self_attention(config, stack), attn_residual, cross_attention, cross_residual,
                                   _feed_forward(config, stack), ffn_residual))
    surface = config.surface
    return LayerStack(layers, _final_norm(stack),
                      kept_states={asking_state(surface, stack)} if isinstance(surface, AttendedFusion) else ())


def _reads_tokens(config: ModelConfig) -> bool:
    """Whether anybody reads the source embedding without positions."""
    memory, surface = config.memory, config.surface
    mixes = memory.is_transparent and memory.reads_embedding and not memory.embedding_has_positions
    return mixes or (isinstance(surface, SurfaceConfig) and not surface.has_positions)


def _memory(config: ModelConfig) -> Memory:
    memory, stack = config.memory, config.encoder
    num_readers = config.decoder.num_layers
    if not memory.is_transparent:
        if not memory.is_layer_wise:
            return LastState()
        return LayerWise(layer_wise_reads(config))
    has_embedding_norm = memory.reads_embedding and memory.has_embedding_norm and not stack.is_pre_norm
    transform = None
    if memory.has_ffn:
        order = PreNorm if stack.is_pre_norm else PostNorm
        transform = Transform(_feed_forward(config, stack),
                              order(nn.LayerNorm(stack.model_dim), Add(), config.dropout.dropout_p))
    return LayerAttention(
        num_readers=num_readers, num_layers=stack.num_layers, dim=stack.model_dim, is_fine_grained=memory.is_fine_grained,
        reads_embedding=memory.reads_embedding, embedding_has_positions=memory.embedding_has_positions,
        reads_input=memory.reads_input, embedding_norm=nn.LayerNorm(stack.model_dim) if has_embedding_norm else None,
        transform=transform, dropout_p=config.dropout.dropout_p, weight_dropout_p=memory.dropout_p,
        drops_logits=memory.drops_logits)


def layer_wise_reads(config: ModelConfig) -> tuple[int, ...]:
    """The encoder state that each decoder layer reads (nn/fusion.py)."""
    return config.memory.layer_wise_reads or spread_evenly(config.decoder.num_layers, config.encoder.num_layers)


def _head(config: ModelConfig, table: TokenTable) -> Head:
    surface, stack = config.surface, config.decoder
    if isinstance(surface, NoSurface):
        return LinearHead(table)
    dim, dropout = stack.model_dim, config.dropout
    source: AttendedSurface | PooledSurface
    if isinstance(surface, AttendedFusion):
        attention = SurfaceAttention(dim, config.encoder.model_dim, surface.num_heads, dropout.attention_p)
        source = AttendedSurface(attention, state=asking_state(surface, stack), has_positions=surface.has_positions)
    else:
        source = PooledSurface(is_mean=not isinstance(surface, MaxFusion), has_positions=surface.has_positions,
                               first_word_id=surface.first_word_id, dropout_p=dropout.dropout_p)
    mode = surface.mode
    target_linear, source_linear = (nn.Linear(dim, dim, bias=False) if surface.has_linear else None for _ in range(2))
    return SurfaceHead(table, source, HardMix(mode.gate, dim) if isinstance(mode, HardFusion) else SoftMix(mode.tau),
                       ffn=_feed_forward(config, stack) if surface.has_ffn else None, target_linear=target_linear,
                       source_linear=source_linear, dropout_p=dropout.dropout_p)


def asking_state(surface: AttendedFusion, stack: StackConfig) -> int:
    """Of decoder.states, whose first is the stack's input."""
    return surface.layer + 1 if surface.layer >= 0 else stack.num_layers + 1 + surface.layer

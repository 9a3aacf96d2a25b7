"""Named architectures: functions that return a whole ModelConfig, each derived from the one it builds on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lamina.config.model import (
    EOS_ID,
    DropoutConfig,
    EmbeddingConfig,
    LanguageModelConfig,
    MannersConfig,
    ModelConfig,
    StackConfig,
)
from lamina.fields import flatten
from lamina.parts.position_kinds import Learned, MarianSinusoids
from lamina.parts.surface_fusion import AttendedFusion, HardFusion, OutputBias
from lamina.registry import register
from lamina.traits import DECODER_ONLY, ENCODER_ONLY


@register.arch("transformer", follows_encoder=True)
def transformer() -> ModelConfig:
    """Transformer base (Vaswani et al. 2017, table 3)."""
    return ModelConfig()


def _with_stacks(config: ModelConfig, **changes: Any) -> ModelConfig:
    return replace(config, encoder=replace(config.encoder, **changes), decoder=replace(config.decoder, **changes))


@register.arch("transformer_iwslt_de_en")
def transformer_iwslt_de_en() -> ModelConfig:
    return _with_stacks(transformer(), ffn_dim=1024, num_heads=4)


@register.arch("transformer_wmt_en_de", follows_encoder=True)
def transformer_wmt_en_de() -> ModelConfig:
    return transformer()


@register.arch("transformer_vaswani_wmt_en_de_big")
def transformer_vaswani_wmt_en_de_big() -> ModelConfig:
    """Transformer big (Vaswani et al. 2017, table 3)."""
    wide = StackConfig(model_dim=1024, ffn_dim=4096, num_heads=16)
    return replace(transformer(), encoder=wide, decoder=wide, dropout=DropoutConfig(dropout_p=0.3))


@register.arch("transformer_vaswani_wmt_en_fr_big")
def transformer_vaswani_wmt_en_fr_big() -> ModelConfig:
    return replace(transformer_vaswani_wmt_en_de_big(), dropout=DropoutConfig(dropout_p=0.1))


@register.arch("transformer_wmt_en_de_big")
def transformer_wmt_en_de_big() -> ModelConfig:
    return replace(transformer_vaswani_wmt_en_de_big(), dropout=DropoutConfig(dropout_p=0.3, attention_p=0.1))


@register.arch("transformer_wmt_en_de_big_t2t")
def transformer_wmt_en_de_big_t2t() -> ModelConfig:
    config = _with_stacks(transformer_vaswani_wmt_en_de_big(), is_pre_norm=True)
    return replace(config, dropout=DropoutConfig(dropout_p=0.3, attention_p=0.1, activation_p=0.1))


@register.arch("transformer_surface_fusion", follows_encoder=True)
def transformer_surface_fusion() -> ModelConfig:
    """Transformer base with the setting that the authors of SurfaceFusion publish (Liu et al. 2021)."""
    return replace(transformer(), dropout=DropoutConfig(attention_p=0.1),
                   surface=AttendedFusion(mode=HardFusion(gate=0.8)))


@register.arch("marian", follows_encoder=True)
def marian() -> ModelConfig:
    """OPUS-MT, as it is after import: Marian's Transformer base, whose decoder starts from its padding symbol, here <s>."""
    base = _with_stacks(transformer(), positions=MarianSinusoids())
    embedding = replace(base.embedding, share_all=True, max_source_positions=512, max_target_positions=512)
    return replace(base, decoder=replace(base.decoder, reads=(f"{EOS_ID}:0",)), embedding=embedding, activation="silu",
                   surface=OutputBias(), manners=MannersConfig(forbidden=(0,), frees_forced=True))


@register.arch("tiny", follows_encoder=True)
def tiny() -> ModelConfig:
    """Small enough to train on a laptop's CPU while one waits."""
    return _with_stacks(transformer(), num_layers=2, model_dim=128, ffn_dim=256, num_heads=4)


@register.arch("roberta_base", wants=(ENCODER_ONLY,))
def roberta_base() -> ModelConfig:
    return roberta()


@register.arch("roberta_large", wants=(ENCODER_ONLY,))
def roberta_large() -> ModelConfig:
    return _with_encoder(roberta(), num_layers=24, model_dim=1024, ffn_dim=4096, num_heads=16)


@register.arch("roberta", wants=(ENCODER_ONLY,))
def roberta() -> ModelConfig:
    """An encoder alone (Liu et al. 2019, §3.1 and §5; the sizes are BERT base's, Devlin et al. 2019, §3)."""
    stack = StackConfig(num_layers=12, model_dim=768, ffn_dim=3072, num_heads=12, positions=Learned())
    return ModelConfig(encoder=stack, embedding=EmbeddingConfig(is_scaled=False, has_norm=True), activation="gelu",
                       dropout=DropoutConfig(dropout_p=0.1, attention_p=0.1))


@register.arch("xlm", wants=(ENCODER_ONLY,))
def xlm() -> ModelConfig:
    """As fairseq sizes it for masked language models."""
    return _with_encoder(roberta(), num_layers=16, model_dim=1280, ffn_dim=5120, num_heads=16)


def _with_encoder(config: ModelConfig, **changes: Any) -> ModelConfig:
    return replace(config, encoder=replace(config.encoder, **changes))


@register.arch("tiny_masked", wants=(ENCODER_ONLY,))
def tiny_masked() -> ModelConfig:
    """Small enough to train on a laptop's CPU while one waits."""
    return _with_encoder(roberta(), num_layers=2, model_dim=128, ffn_dim=256, num_heads=4)


@register.arch("transformer_lm", wants=(DECODER_ONLY,))
def transformer_lm() -> ModelConfig:
    """A decoder alone, Pre-LN, as fairseq builds it."""
    return replace(transformer(), decoder=StackConfig(is_pre_norm=True))


@register.arch("transformer_lm_big", wants=(DECODER_ONLY,))
def transformer_lm_big() -> ModelConfig:
    wide = StackConfig(num_layers=12, model_dim=1024, ffn_dim=4096, num_heads=16, is_pre_norm=True)
    return replace(transformer_lm(), decoder=wide)


@register.arch("transformer_lm_wiki103", wants=(DECODER_ONLY,))
def transformer_lm_wiki103() -> ModelConfig:
    """Baevski and Auli 2019, §4.1: 247M parameters at WikiText-103's 267,744 words."""
    config, cutoff = transformer_lm_big(), (20000, 60000)
    return replace(config, decoder=replace(config.decoder, num_layers=16, num_heads=8),
                   dropout=DropoutConfig(dropout_p=0.3, attention_p=0.1, activation_p=0.1),
                   lm=LanguageModelConfig(is_adaptive=True, input_cutoff=cutoff, softmax_cutoff=cutoff, softmax_dropout_p=0.2,
                                          ties_weights=True, ties_projections=True, has_final_norm=False))


@register.arch("transformer_lm_baevski_wiki103", wants=(DECODER_ONLY,))
def transformer_lm_baevski_wiki103() -> ModelConfig:
    return transformer_lm_wiki103()


@register.arch("transformer_lm_gbw", wants=(DECODER_ONLY,))
def transformer_lm_gbw() -> ModelConfig:
    """Baevski and Auli 2019, for the Billion Word benchmark; its cutoffs are options."""
    config = transformer_lm_big()
    return replace(config, decoder=replace(config.decoder, model_dim=512), lm=LanguageModelConfig(has_final_norm=False),
                   dropout=DropoutConfig(dropout_p=0.1, attention_p=0.1))


@register.arch("transformer_lm_gpt", wants=(DECODER_ONLY,))
def transformer_lm_gpt() -> ModelConfig:
    """The size of GPT (Radford et al. 2018, §4.1)."""
    stack = StackConfig(num_layers=12, model_dim=768, ffn_dim=3072, num_heads=12, is_pre_norm=True)
    return replace(transformer_lm(), decoder=stack, activation="gelu", dropout=DropoutConfig(dropout_p=0.1, attention_p=0.1))


@register.arch("tiny_lm", wants=(DECODER_ONLY,))
def tiny_lm() -> ModelConfig:
    """Small enough to train on a laptop's CPU while one waits."""
    stack = StackConfig(num_layers=2, model_dim=128, ffn_dim=256, num_heads=4, is_pre_norm=True)
    return replace(transformer_lm(), decoder=stack)


def preset_values(arch: str, task: str, explicit: dict[str, Any]) -> dict[str, Any]:
    """The preset in its flat form, as a basis for the values that a person gave."""
    values = flatten(register.arch[arch]())
    if register.arch.follows_encoder(arch):
        for width in ("embed-dim", "ffn-embed-dim"):
            if f"encoder-{width}" in explicit:
                values[f"decoder-{width}"] = explicit[f"encoder-{width}"]
    register.task[task]().complete_(values, explicit)
    return values

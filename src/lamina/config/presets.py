"""Named architectures: functions that return a whole ModelConfig, each derived from the one it builds on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lamina.config.model import DropoutConfig, EmbeddingConfig, LanguageModelConfig, ModelConfig, StackConfig
from lamina.fields import flatten
from lamina.parts.position_kinds import Learned
from lamina.parts.surface_fusion import AttendedFusion, HardFusion


def transformer() -> ModelConfig:
    """Transformer base (Vaswani et al. 2017, table 3)."""
    return ModelConfig()


def _with_stacks(config: ModelConfig, **changes: Any) -> ModelConfig:
    return replace(config, encoder=replace(config.encoder, **changes), decoder=replace(config.decoder, **changes))


def transformer_iwslt_de_en() -> ModelConfig:
    return _with_stacks(transformer(), ffn_dim=1024, num_heads=4)


def transformer_wmt_en_de() -> ModelConfig:
    return transformer()


def transformer_vaswani_wmt_en_de_big() -> ModelConfig:
    """Transformer big (Vaswani et al. 2017, table 3)."""
    wide = StackConfig(model_dim=1024, ffn_dim=4096, num_heads=16)
    return replace(transformer(), encoder=wide, decoder=wide, dropout=DropoutConfig(dropout_p=0.3))


def transformer_vaswani_wmt_en_fr_big() -> ModelConfig:
    return replace(transformer_vaswani_wmt_en_de_big(), dropout=DropoutConfig(dropout_p=0.1))


def transformer_wmt_en_de_big() -> ModelConfig:
    return replace(transformer_vaswani_wmt_en_de_big(), dropout=DropoutConfig(dropout_p=0.3, attention_p=0.1))


def transformer_wmt_en_de_big_t2t() -> ModelConfig:
    config = _with_stacks(transformer_vaswani_wmt_en_de_big(), is_pre_norm=True)
    return replace(config, dropout=DropoutConfig(dropout_p=0.3, attention_p=0.1, activation_p=0.1))


def transformer_surface_fusion() -> ModelConfig:
    """Transformer base with the setting that the authors of SurfaceFusion publish (Liu et al. 2021)."""
    return replace(transformer(), dropout=DropoutConfig(attention_p=0.1),
                   surface=AttendedFusion(mode=HardFusion(gate=0.8)))


def tiny() -> ModelConfig:
    """Small enough to train on a laptop's processor while one waits."""
    return _with_stacks(transformer(), num_layers=2, model_dim=128, ffn_dim=256, num_heads=4)


def roberta() -> ModelConfig:
    """An encoder alone (Liu et al. 2019, §3.1 and §5; the sizes are BERT base's, Devlin et al. 2019, §3)."""
    stack = StackConfig(num_layers=12, model_dim=768, ffn_dim=3072, num_heads=12, positions=Learned())
    return ModelConfig(encoder=stack, embedding=EmbeddingConfig(is_scaled=False, has_norm=True), activation="gelu",
                       dropout=DropoutConfig(dropout_p=0.1, attention_p=0.1))


def roberta_base() -> ModelConfig:
    return roberta()


def roberta_large() -> ModelConfig:
    return _with_encoder(roberta(), num_layers=24, model_dim=1024, ffn_dim=4096, num_heads=16)


def xlm() -> ModelConfig:
    """As the references size it for masked language models."""
    return _with_encoder(roberta(), num_layers=16, model_dim=1280, ffn_dim=5120, num_heads=16)


def _with_encoder(config: ModelConfig, **changes: Any) -> ModelConfig:
    return replace(config, encoder=replace(config.encoder, **changes))


def tiny_masked() -> ModelConfig:
    """Small enough to train on a laptop's processor while one waits."""
    return _with_encoder(roberta(), num_layers=2, model_dim=128, ffn_dim=256, num_heads=4)


def transformer_lm() -> ModelConfig:
    """A decoder alone, Pre-LN, as the references build it."""
    return replace(transformer(), decoder=StackConfig(is_pre_norm=True))


def transformer_lm_big() -> ModelConfig:
    wide = StackConfig(num_layers=12, model_dim=1024, ffn_dim=4096, num_heads=16, is_pre_norm=True)
    return replace(transformer_lm(), decoder=wide)


def transformer_lm_wiki103() -> ModelConfig:
    """Baevski and Auli 2019, §4.1: 247M parameters at WikiText-103's 267,744 words."""
    config, cutoff = transformer_lm_big(), (20000, 60000)
    return replace(config, decoder=replace(config.decoder, num_layers=16, num_heads=8),
                   dropout=DropoutConfig(dropout_p=0.3, attention_p=0.1, activation_p=0.1),
                   lm=LanguageModelConfig(is_adaptive=True, input_cutoff=cutoff, softmax_cutoff=cutoff, softmax_dropout_p=0.2,
                                          ties_weights=True, ties_projections=True, has_final_norm=False))


def transformer_lm_baevski_wiki103() -> ModelConfig:
    return transformer_lm_wiki103()


def transformer_lm_gbw() -> ModelConfig:
    """Baevski and Auli 2019, for the Billion Word benchmark; its cutoffs are options."""
    config = transformer_lm_big()
    return replace(config, decoder=replace(config.decoder, model_dim=512), lm=LanguageModelConfig(has_final_norm=False),
                   dropout=DropoutConfig(dropout_p=0.1, attention_p=0.1))


def transformer_lm_gpt() -> ModelConfig:
    """The size of GPT (Radford et al. 2018, §4.1)."""
    stack = StackConfig(num_layers=12, model_dim=768, ffn_dim=3072, num_heads=12, is_pre_norm=True)
    return replace(transformer_lm(), decoder=stack, activation="gelu", dropout=DropoutConfig(dropout_p=0.1, attention_p=0.1))


def tiny_lm() -> ModelConfig:
    """Small enough to train on a laptop's processor while one waits."""
    stack = StackConfig(num_layers=2, model_dim=128, ffn_dim=256, num_heads=4, is_pre_norm=True)
    return replace(transformer_lm(), decoder=stack)


TRANSLATION_PRESETS: dict[str, Callable[[], ModelConfig]] = {
    preset.__name__: preset
    for preset in (transformer, transformer_iwslt_de_en, transformer_wmt_en_de, transformer_vaswani_wmt_en_de_big,
                   transformer_vaswani_wmt_en_fr_big, transformer_wmt_en_de_big, transformer_wmt_en_de_big_t2t,
                   transformer_surface_fusion, tiny)
}

LANGUAGE_MODEL_PRESETS: dict[str, Callable[[], ModelConfig]] = {
    preset.__name__: preset
    for preset in (transformer_lm, transformer_lm_big, transformer_lm_wiki103, transformer_lm_baevski_wiki103,
                   transformer_lm_gbw, transformer_lm_gpt, tiny_lm)
}
MASKED_PRESETS: dict[str, Callable[[], ModelConfig]] = {
    preset.__name__: preset for preset in (roberta_base, roberta_large, roberta, xlm, tiny_masked)
}

# What a task takes where nothing is given and the option's own default is another task's.
TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "masked_lm": {"criterion": "masked_lm", "tokens-per-sample": 512, "sample-break-mode": "complete"},
    "sentence_prediction": {"criterion": "sentence_prediction"},
}

# By the task that they are made for, whose default is the first. The keys are the names of all tasks: tasks/ has a class and
# models/build.py a builder for each, and a test compares the three.
TASK_PRESETS: dict[str, dict[str, Callable[[], ModelConfig]]] = {
    "translation": TRANSLATION_PRESETS,
    "language_modeling": LANGUAGE_MODEL_PRESETS,
    "masked_lm": MASKED_PRESETS,
    "sentence_prediction": MASKED_PRESETS,
}
register.arch: dict[str, Callable[[], ModelConfig]] = {
    name: preset for presets in TASK_PRESETS.values() for name, preset in presets.items()}

# Only these let the decoder follow the encoder's widths where the decoder's are not given, as in the references.
_FOLLOWING = ("transformer", "transformer_wmt_en_de", "transformer_surface_fusion", "tiny")


def preset_values(arch: str, explicit: dict[str, Any]) -> dict[str, Any]:
    """The preset in its flat form, as a basis for the values that a person gave."""
    values = flatten(register.arch[arch]())
    if arch in _FOLLOWING:
        for width in ("embed-dim", "ffn-embed-dim"):
            if f"encoder-{width}" in explicit:
                values[f"decoder-{width}"] = explicit[f"encoder-{width}"]
    if arch in LANGUAGE_MODEL_PRESETS and "tokens-per-sample" in explicit:
        values["max-target-positions"] = explicit["tokens-per-sample"]
    if arch in MASKED_PRESETS:
        # Whichever of the two is given, the other follows.
        if "tokens-per-sample" in explicit:
            values["max-positions"] = explicit["tokens-per-sample"]
        elif "max-positions" in explicit and explicit.get("task") == "masked_lm":
            values["tokens-per-sample"] = explicit["max-positions"]
    return values

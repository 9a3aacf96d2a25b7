"""A folder of Hugging Face's as a checkpoint of ours, in memory: the same function, with dictionaries and segmentation inside.

Nothing in the folder is run: tensors come from safetensors, or from a pickle in which nothing but tensors is allowed, and code
that a configuration names (`auto_map`) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lamina.checkpoint.format import Checkpoint
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError, ConfigError, LaminaError
from lamina.fields import flatten
from lamina.interop.fairseq import check_size, load_parameters_
from lamina.interop.huggingface_families import FAMILIES, WHY_NOT, Family
from lamina.interop.huggingface_folder import CONFIG_NAME, read_described, read_tensors
from lamina.interop.huggingface_generation import generation_settings, manners_of, tell_flags
from lamina.interop.huggingface_ids import ABSENT_BIAS, IdPlan, plan_ids
from lamina.interop.huggingface_names import FAIRSEQ_OUTPUT, OUTPUT_BIAS
from lamina.interop.huggingface_segmentation import texts_of
from lamina.interop.huggingface_texts import Texts, Wanted
from lamina.parts.surface_fusion import OutputBias
from lamina.registry import register
from lamina.text.subword import subword_to_dict
from lamina.traits import DECODER

Notice = Callable[[str], object]


def checkpoint_from_huggingface(folder: Path, *, source_lang: str | None = None, target_lang: str | None = None,
                                notice: Notice = lambda _: None) -> Checkpoint:
    try:
        return _converted(folder, read_described(folder, CONFIG_NAME), source_lang, target_lang, notice)
    except LaminaError as error:
        text = str(error)
        raise type(error)(text if str(folder) in text else f"{folder} (Hugging Face): {text}") from None
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # Its files are a stranger's: of another type than they should be, their values may fail anywhere.
        what = (str(error).strip().splitlines() or [""])[0][:200]
        raise CheckpointError(f"{folder} (Hugging Face) is damaged or of an unknown kind ({type(error).__name__}: {what}). "
                              "Download it again.") from None


def _converted(folder: Path, config: Mapping[str, Any], source_lang: str | None, target_lang: str | None,
               notice: Notice) -> Checkpoint:
    family = _family(config)
    sizes = family.vocab_sizes(config)
    generates = register.task[family.task]().has(DECODER)
    settings = generation_settings(folder, config) if generates else {}
    texts = texts_of(Wanted(folder, sizes, source_lang, target_lang, config, settings), family.tokenizer)
    starts = settings.get("decoder_start_token_id", config.get("decoder_start_token_id"))
    plans = [plan_ids(pieces, _special(config, unknown), _start(starts, pieces, texts))
             for pieces, unknown in zip(texts.pieces, texts.unknown, strict=True)]
    plan = plans[-1]
    first = None if texts.first is None else plan.vocabulary.id(texts.first)
    tensors = read_tensors(folder)
    bias = tensors.pop(OUTPUT_BIAS, None)
    named = family.parameters(config, tensors)
    model_config = family.model_config(config, named)
    if generates:
        needs_bias = plan.has_absent or (bias is not None and bool(bias.ne(0).any()))
        model_config = replace(
            model_config, decoder=replace(model_config.decoder, reads=plan.reads),
            encoder=replace(model_config.encoder, reads=_source_reads(texts, plans[0])),
            manners=manners_of(settings, plan, first), surface=OutputBias() if needs_bias else model_config.surface)
        tell_flags(settings, notice)
    weights = _weights(family, model_config, _arranged(named, plans), plans, bias)
    return Checkpoint(
        config={"task": family.task, "arch": family.arch, **flatten(model_config)}, languages=texts.languages,
        dictionaries=tuple(plan.vocabulary.to_text() for plan in plans), subwords=tuple(map(subword_to_dict, texts.subwords)),
        weights=weights, training={"from": "Hugging Face"})


def _family(config: Mapping[str, Any]) -> Family:
    kind = config.get("model_type")
    if kind in WHY_NOT:
        raise CheckpointError(f"it is of model_type {kind!r}: {WHY_NOT[kind]}. Lamina reads {', '.join(FAMILIES)}.")
    if kind not in FAMILIES:
        raise CheckpointError(f"it is of model_type {kind!r}, which Lamina does not read; it reads {', '.join(FAMILIES)}.")
    if config.get("auto_map"):
        raise CheckpointError("its config.json names code of its own (auto_map), and code from files is never run. Models of "
                              f"{', '.join(FAMILIES)} need none.")
    if config.get("quantization_config"):
        raise CheckpointError("its weights are quantized (quantization_config). Download the model that they were made from.")
    family = FAMILIES[kind]
    for name, accepted in family.only_with.items():
        if config.get(name) not in accepted:
            raise CheckpointError(f"config.json has {name}={config[name]!r}, which Lamina cannot build in a model of "
                                  f"model_type {kind}.")
    return family


def _special(config: Mapping[str, Any], unknown: int | None) -> dict[str, Any]:
    return {"bos": config.get("bos_token_id"), "pad": config.get("pad_token_id"), "eos": config.get("eos_token_id"),
            "unk": unknown}


def _start(stated: int | None, pieces: list[str | None], texts: Texts) -> int | None:
    if texts.starts is not None and texts.starts in pieces:
        return pieces.index(texts.starts)
    return stated


def _source_reads(texts: Texts, plan: IdPlan) -> tuple[str, ...]:
    return tuple(f"{plan.vocabulary.id(own)}:{plan.vocabulary.id(other)}" for own, other in texts.source_end)


def _arranged(parameters: Mapping[str, Tensor], plans: list[IdPlan]) -> dict[str, Tensor]:
    """Tables of tokens in the order of our ids."""
    tables = {"encoder.embed_tokens.weight": plans[0], "decoder.embed_tokens.weight": plans[-1], FAIRSEQ_OUTPUT: plans[-1],
              "encoder.sentence_encoder.embed_tokens.weight": plans[0], "encoder.lm_head.bias": plans[0]}
    arranged = dict(parameters)
    for name, plan in tables.items():
        if name in arranged:
            if arranged[name].size(0) < len([row for row in plan.rows if row is not None]):
                raise CheckpointError(f"{name} has {arranged[name].size(0)} rows, but config.json speaks of more symbols.")
            arranged[name] = plan.arranged(arranged[name], ABSENT_BIAS if name.endswith("bias") else 0.0)
    return arranged


def _weights(family: Family, config: ModelConfig, parameters: dict[str, Tensor], plans: list[IdPlan],
             bias: Tensor | None) -> dict[str, Tensor]:
    sizes = tuple(len(plan.vocabulary) for plan in plans)
    check_size(config, sizes, parameters)
    try:
        model = register.task[family.task]().build_model(config, sizes)
    except ConfigError as error:
        raise CheckpointError(str(error)) from None
    if isinstance(config.surface, OutputBias):
        plan = plans[-1]
        theirs = next(iter(parameters.values())).new_zeros(max(row for row in plan.rows if row is not None) + 1)
        parameters = {**parameters, "decoder.output_bias": plan.arranged(theirs if bias is None else bias.flatten(),
                                                                         absent=ABSENT_BIAS)}
    load_parameters_(model, parameters)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}

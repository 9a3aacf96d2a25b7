"""The model card: a README.md of what a checkpoint says about its model."""

from __future__ import annotations

from collections.abc import Iterator

from lamina import __version__
from lamina.checkpoint.format import Checkpoint
from lamina.config.model import ModelConfig, StackConfig
from lamina.fields import flatten
from lamina.parts.residuals import DefaultInit
from lamina.parts.surface_fusion import AttendedFusion, HardFusion, SurfaceConfig
from lamina.pruning.cut import stack_depths

_KINDS = {"translation": "an encoder-decoder Transformer", "language_modeling": "a Transformer language model",
          "masked_lm": "a masked language model", "sentence_prediction": "a sentence classifier"}


def model_card(checkpoint: Checkpoint, name: str, usage: str) -> str:
    """Markdown; `usage` says how to load the folder it lies in."""
    config, flat = checkpoint.model_config(), checkpoint.config
    what = _KINDS.get(checkpoint.task, checkpoint.task)
    direction = f" from {checkpoint.languages[0]} to {checkpoint.languages[1]}" if checkpoint.task == "translation" else ""
    sections = [f"# {name}", f"This is {what}{direction}, written by Lamina {__version__}.",
                "## Model", _table([("architecture", str(flat.get("arch", "unknown"))), *_sizes(checkpoint, config)]),
                "## Techniques", "\n".join(f"- {line}" for line in techniques(checkpoint)) or "A plain Transformer.",
                "## Figures", _figures(checkpoint), "## Use", usage]
    return "\n\n".join(sections) + "\n"


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def _sizes(checkpoint: Checkpoint, config: ModelConfig) -> Iterator[tuple[str, str]]:
    yield "parameters", f"{sum(weight.numel() for weight in checkpoint.weights.values()):,}"
    for side, depth in stack_depths(checkpoint).items():
        if depth:
            yield side, _stack(getattr(config, side))
    yield "activation", config.activation
    for language, vocabulary, subword in zip(checkpoint.languages, checkpoint.vocabularies(), checkpoint.subwords, strict=True):
        kind = subword["kind"] if subword["kind"] != "moses" else f"moses, {subword['inner']['kind']}"
        yield f"dictionary [{language}]", f"{len(vocabulary):,} symbols, {kind}"


def _stack(stack: StackConfig) -> str:
    return (f"{stack.num_layers} layers, width {stack.model_dim}, inner width {stack.ffn_dim}, {stack.num_heads} heads, "
            f"{'Pre-LN' if stack.is_pre_norm else 'Post-LN'}")


def techniques(checkpoint: Checkpoint) -> Iterator[str]:
    """What is not a plain Transformer's, one line each."""
    config, flat, training = checkpoint.model_config(), checkpoint.config, checkpoint.training
    if isinstance(config.surface, SurfaceConfig):
        mode = config.surface.mode
        gate = f", gate {mode.gate or 'learned'}" if isinstance(mode, HardFusion) else ""
        layer = f", asked by decoder layer {config.surface.layer}" if isinstance(config.surface, AttendedFusion) else ""
        yield f"SurfaceFusion: {flat['surfacefusion']}, {flat['sf-mode']}{gate}{layer}"
    if config.memory.is_transparent:
        yield f"transparent attention{', fine-grained' if config.memory.is_fine_grained else ''}"
    elif config.memory.is_layer_wise:
        yield "layer-wise attention"
    if not isinstance(config.init, DefaultInit):
        yield f"residuals: {flatten(config)['init-type']}"
    if "folded" in training:
        yield f"residuals of {training['folded']}, folded into plain ones"
    for side, depth in stack_depths(checkpoint).items():
        if depth and getattr(config, side).layer_drop_p:
            yield f"LayerDrop in the {side}, {getattr(config, side).layer_drop_p}"
        if kept := flat.get(f"{side}-layers-to-keep"):
            yield f"{side} pruned to layers {kept}"
    if averaged := training.get("averaged"):
        yield f"mean of {len(averaged)} checkpoints"


def _figures(checkpoint: Checkpoint) -> str:
    progress = checkpoint.training.get("progress", {})
    rows = [(f"validation {name}", f"{value:.4g}") for name, value in checkpoint.metrics.items()]
    rows += [(name, str(progress[name])) for name in ("updates", "epoch") if name in progress]
    if origin := checkpoint.training.get("from"):
        rows.append(("trained with", str(origin)))
    rows += [(f"{name} that wrote the checkpoint", version) for name, version in checkpoint.versions.items()]
    return _table(rows)

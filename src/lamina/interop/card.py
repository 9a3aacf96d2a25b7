"""The model card: a README.md of what a checkpoint says about its model."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from lamina import __version__
from lamina.checkpoint.format import Checkpoint
from lamina.config.model import ModelConfig, StackConfig
from lamina.interop.downloads import hub_name
from lamina.pruning.cut import stack_depths
from lamina.traits import PAIRS

# Among our metrics, those that the hub knows by these names.
_METRICS_OF_HUB = ("bleu", "chrf", "ter", "rouge", "accuracy", "f1", "perplexity")


def front_matter(checkpoint: Checkpoint, *, license: str | None, base_model: str | None) -> str:
    """What the hub reads at the top of a card: lines of YAML between two rulers."""
    languages = [code for language in dict.fromkeys(checkpoint.languages)
                 if re.fullmatch(r"[a-z]{2,3}", code := re.split(r"[_-]", language)[0])]
    is_translation = checkpoint.kind.has(PAIRS)
    told: dict[str, object] = {
        "language": list(dict.fromkeys(languages)), "license": license or "unknown", "library_name": "transformers",
        "pipeline_tag": "translation" if is_translation else "fill-mask",
        "tags": [*(["translation"] if is_translation else []), "lamina"],
        "metrics": [name for name in _METRICS_OF_HUB if any(figure.startswith(name) for figure in checkpoint.metrics)],
        "base_model": base_model or _beginning(checkpoint)}
    lines = yaml.safe_dump({name: value for name, value in told.items() if value}, sort_keys=False, allow_unicode=True)
    return f"---\n{lines}---\n\n"


def _beginning(checkpoint: Checkpoint) -> str | None:
    """The model on the hub that training began with, as far as the checkpoint says so."""
    return hub_name(str(checkpoint.config.get("finetune-from-model") or ""))


def model_card(checkpoint: Checkpoint, name: str, usage: str) -> str:
    """Markdown; `usage` says how to load the folder it lies in."""
    config, flat = checkpoint.model_config(), checkpoint.config
    what = checkpoint.kind.about_model
    direction = f" from {checkpoint.languages[0]} to {checkpoint.languages[1]}" if checkpoint.kind.has(PAIRS) else ""
    sections = [f"# {name}", f"This is {what}{direction}, written by Lamina {__version__}.",
                "## Model", _table([("architecture", str(flat.get("arch", "unknown"))), *_sizes(checkpoint, config)]),
                "## Techniques", "\n".join(f"- {line}" for line in techniques(checkpoint)) or "A plain Transformer.",
                "## Figures", _figures(checkpoint), *_training(checkpoint), "## Use", usage]
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
    yield from filter(None, (part.describe() for part in (config.surface, config.fusion, config.mixing, config.init,
                                                          config.adapter)))
    if "folded" in training:
        yield f"residuals of {training['folded']}, folded into plain ones"
    for side, depth in stack_depths(checkpoint).items():
        if depth and getattr(config, side).layer_drop_p:
            yield f"LayerDrop in the {side}, {getattr(config, side).layer_drop_p}"
        if kept := flat.get(f"{side}-layers-to-keep"):
            yield f"{side} pruned to layers {kept}"
    if averaged := training.get("averaged"):
        yield f"mean of {len(averaged)} checkpoints{', trained further' if 'progress' in training else ''}"


def _training(checkpoint: Checkpoint) -> list[str]:
    """The command that wrote the checkpoint, and what it read, where they are known."""
    command, data = checkpoint.origin.get("command"), checkpoint.config.get("data")
    if not command:
        return []
    return ["## Training", f"```sh\n{command}\n```", *([f"Data: `{data}`."] if data else [])]


def _figures(checkpoint: Checkpoint) -> str:
    progress, signatures = checkpoint.training.get("progress", {}), checkpoint.training.get("signatures", {})
    rows = [(f"validation {name}", f"{value:.4g}" + (f" ({signatures[name]})" if name in signatures else ""))
            for name, value in checkpoint.metrics.items()]
    rows += [(name, str(progress[name])) for name in ("updates", "epoch") if name in progress]
    if origin := checkpoint.training.get("from"):
        rows.append(("trained with", str(origin)))
    rows += [(f"{name} that wrote the checkpoint", version) for name, version in checkpoint.versions.items()]
    return _table(rows)

"""Models of fairseq and its forks: their arguments and parameter names, as ours."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lamina.checkpoint.format import load_weights_
from lamina.config.keep import kept_layers
from lamina.config.model import ClassifierConfig, ModelConfig
from lamina.errors import CheckpointError
from lamina.fields import build, unique_leaves, with_positive_names
from lamina.models.decoder_only import DecoderOnly
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.models.masked import MaskedModel
from lamina.parts.position_kinds import Learned
from lamina.pruning.cut import Keep, prune
from lamina.registry import first_task, register
from lamina.traits import CLASSES, DECODER_ONLY, MASKS, PAIRS

# Arguments that change what a model computes and that we do not build: anything but these values is refused by name.
_ONLY_WITH: dict[str, tuple[Any, ...]] = {
    "no_cross_attention": (False, None),
    "cross_self_attention": (False, None),
    "adaptive_input": (False, None),
    "adaptive_softmax_cutoff": (None, "", []),
    "character_embeddings": (False, None),
    "surfacefusion": (None, "", "att", "mean", "max"),
    "sf_mode": (None, "hard", "soft", "postnorm"),
    "addtional_source_output": (None, ""),
    "no_encoder_fnn": (False, None),
    "no_decoder_fnn": (False, None),
    "no_decoder_final_norm": (False, None),
    "use_alibi": (False, None),
    "merge_src_tgt_embed": (False, None),
}

# Of those, what a language model may have.
_IN_LANGUAGE_MODELS = ("adaptive_input", "adaptive_softmax_cutoff", "no_decoder_final_norm")

# Buffers that nothing reads: version marks, and the device tracers of tables.
_DEAD = re.compile(r"(encoder|decoder)\.(sentence_encoder\.)?(version|embed_positions\._float_tensor)$"
                   r"|decoder\.(embed_tokens|adaptive_softmax\.head)\._float_tensor$|decoder\.adaptive_softmax\.version$")
# What the surface-fusion fork creates whether the configuration reads it or not: dropped where our model has no place for it.
_PERHAPS_DEAD = re.compile(r"decoder\.(meanmaxweight|sf_attn|fc[12]|tgt_out_dim|src_out_dim|ta_weight|ta_final_layernorm)"
                           r"(\..+)?$|encoder\.(layernorm_srcemb|layernorm_allsource|fc[12])\..+$")
# The pooling of the fork passes over ids below this number.
_FIRST_POOLED_ID = 50


def is_buffer(name: str) -> bool:
    """Of the entries of a state dict, those that are no parameters."""
    return _DEAD.fullmatch(name) is not None


class Described(NamedTuple):
    """What a reference's arguments and parameters say about its model, in our terms."""

    task: str
    config: ModelConfig  # of the parameters as they are stored
    keep: Keep  # the layers of them that the arguments ask for
    state_dict: Mapping[str, Tensor]  # with the names that `places` knows

    def build(self, sizes: tuple[int, ...]) -> Any:
        """The stored model, with vocabularies of these sizes."""
        check_size(self.config, sizes, self.state_dict)
        model = register.task[self.task]().build_model(self.config, sizes)
        load_parameters_(model, self.state_dict)
        return model


# Tied tensors and those that a fork left unused make a difference, but not one of this size.
MOST_TIMES_STORED, SPARE_PARAMETERS = 8, 10**6
MAX_POSITIONS = 10**7


def check_size(config: ModelConfig, sizes: tuple[int, ...], state_dict: Mapping[str, Tensor]) -> None:
    """Arguments of a few bytes could describe a model that no machine holds: it has to be about as large as what is stored."""
    described = sum(stack.num_layers * (4 * stack.model_dim**2 + 2 * stack.model_dim * stack.ffn_dim)
                    for side in ("encoder", "decoder") if any(name.startswith(f"{side}.") for name in state_dict)
                    for stack in (getattr(config, side),))
    if not config.lm.is_adaptive:
        described += max(sizes) * config.decoder.model_dim
    stored = sum(tensor.numel() for tensor in state_dict.values())
    if described > MOST_TIMES_STORED * stored + SPARE_PARAMETERS:
        raise CheckpointError(f"its arguments describe a model of more than {described:,} parameters, but it holds {stored:,}.")
    embedding = config.embedding
    if max(embedding.max_source_positions, embedding.max_target_positions) > MAX_POSITIONS:
        raise CheckpointError(f"its arguments ask for more than {MAX_POSITIONS:,} positions.")


def describe_model(args: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> Described:
    """An encoder with a decoder, a decoder alone, or RoBERTa: by the names of the parameters."""
    if any(".sentence_encoder." in name for name in state_dict):
        return _describe_masked(args, state_dict)
    if not any(name.startswith("encoder.") for name in state_dict):
        return _described(first_task(DECODER_ONLY), language_model_config(args), args, state_dict)
    return _described(first_task(PAIRS), config_from_args(args), args, state_dict)


def _described(task: str, config: ModelConfig, args: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> Described:
    return Described(task, _with_depth_of(state_dict, config), _layers_to_keep(args, state_dict), state_dict)


def model_from_fairseq(args: Mapping[str, Any], state_dict: Mapping[str, Tensor], source_vocab_size: int,
                       target_vocab_size: int) -> EncoderDecoder | MaskedModel | DecoderOnly:
    """The Lamina model that computes what the reference's `args` and `state_dict` compute: what build_model builds.

    Where `args` name layers to keep, the model is pruned to them, unless the weights are those of a pruned model already.
    """
    described = describe_model(args, state_dict)
    kind = register.task[described.task]()
    sizes = (source_vocab_size, target_vocab_size) if kind.has(PAIRS) else (
        (target_vocab_size,) if kind.has(DECODER_ONLY) else (source_vocab_size,))
    model = described.build(sizes)
    if described.keep == Keep():
        return model
    config, weights = prune(described.config, dict(model.named_parameters()), described.keep)
    pruned = kind.build_model(config, sizes)
    load_weights_(pruned, weights)
    return pruned


_IN_STACK = re.compile(r"(encoder|decoder)\.(?:sentence_encoder\.)?layers\.(\d+)\.")


def _with_depth_of(state_dict: Mapping[str, Tensor], config: ModelConfig) -> ModelConfig:
    """fairseq writes the number of kept layers into the arguments, also where the weights are still whole."""
    for side, depth in _depths(state_dict).items():
        config = replace(config, **{side: replace(getattr(config, side), num_layers=depth)})
    return config


def _depths(state_dict: Mapping[str, Tensor]) -> dict[str, int]:
    depths: dict[str, int] = {}
    for match in filter(None, map(_IN_STACK.match, state_dict)):
        depths[match[1]] = max(depths.get(match[1], 0), int(match[2]) + 1)
    return depths


def _layers_to_keep(args: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> Keep:
    chosen = {}
    for side, depth in _depths(state_dict).items():
        text = args.get(f"{side}_layers_to_keep")
        layers = kept_layers(text, depth, side) if text and text.count(",") + 1 != depth else None
        if layers is not None and len(layers) < depth:
            chosen[side] = layers
    return Keep(**chosen)


def _describe_masked(args: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> Described:
    """RoBERTa, with the sentence head that its state dict holds, if any."""
    # Up to 0.9 the reference calls its only stack the decoder.
    state_dict = {re.sub(r"^decoder\.", "encoder.", name): tensor for name, tensor in state_dict.items()}
    kept = args.get("encoder_layers_to_keep") or args.get("decoder_layers_to_keep")
    args = {**args, "encoder_layers_to_keep": kept, "decoder_layers_to_keep": None}
    # Its default is no token, ours that of its recipes.
    args |= {name: -1 for name in ("init_token", "separator_token") if args.get(name, 0) is None}
    config = config_from_args(args)
    # Fixed in the reference, whatever its arguments say: up to 0.9 they say nothing, or what nothing read.
    is_old = any(name.endswith("sentence_encoder.emb_layer_norm.weight") for name in state_dict)
    stack = replace(config.encoder, positions=Learned(), is_pre_norm=config.encoder.is_pre_norm and not is_old)
    config = replace(config, encoder=stack, embedding=replace(config.embedding, is_scaled=False, has_norm=True),
                     classifier=_classifier(config.classifier, state_dict))
    return _described(first_task(CLASSES if config.classifier.num_classes else MASKS), config, args, state_dict)


def language_model_config(args: Mapping[str, Any]) -> ModelConfig:
    # Both are what the reference fills in where its arguments are silent.
    positions = args.get("max_target_positions") or args.get("tokens_per_sample")
    filled = {"decoder_normalize_before": True} | dict(args) | {"max_target_positions": positions}
    if "no_tie_adaptive_proj" in args:  # of the time when no language model had a final norm
        filled["no_decoder_final_norm"] = True
    return config_from_args(filled, _IN_LANGUAGE_MODELS)


def _classifier(config: ClassifierConfig, state_dict: Mapping[str, Tensor]) -> ClassifierConfig:
    found = {match[1]: tensor.size(0) for name, tensor in state_dict.items()
             if (match := re.fullmatch(r"classification_heads\.([^.]+)\.out_proj\.weight", name))}
    if len(found) > 1:
        raise CheckpointError(f"this model has {len(found)} sentence heads ({', '.join(found)}); Lamina builds one. "
                              "Remove the others from the state dict.")
    return next((replace(config, name=name, num_classes=size) for name, size in found.items()), config)


def config_from_args(args: Mapping[str, Any], allowed: Collection[str] = ()) -> ModelConfig:
    """Our flat names are fairseq's argument names, so most of the work is refusing what we cannot build."""
    for name, accepted in _ONLY_WITH.items():
        if name not in allowed and args.get(name) not in accepted:
            raise CheckpointError(f"this model was trained with {name}={args[name]!r}, which Lamina cannot build.")
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if not allowed and args.get(name) not in (None, args.get("decoder_embed_dim")):
            raise CheckpointError(f"this model has {name}={args[name]}, unlike its decoder_embed_dim "
                                  f"{args.get('decoder_embed_dim')}, which Lamina cannot build.")
    names = with_positive_names({name.replace("_", "-"): value for name, value in args.items() if value not in (None, "")},
                                ModelConfig)
    names |= _fusion_values(names)
    # Files of pretrained embeddings mattered before training; the checkpoint holds what became of them. Word dropout of the
    # fork is another thing under the name of ours, and touches training only.
    leaves = [leaf for leaf in unique_leaves(ModelConfig) if not leaf.name.endswith(("embed-path", "word-dropout"))]
    return build(ModelConfig, {leaf.name: names[leaf.name] for leaf in leaves if leaf.name in names})


def _fusion_values(names: Mapping[str, Any]) -> dict[str, Any]:
    """Where the fork's fusion options depend on each other and ours do not."""
    # One variable holds the embedding that both fusions read, so either switch puts positions into it.
    has_positions = bool(names.get("sf-posedemb", False) or names.get("ta-posedemb", False))
    reads_embedding = names.get("surfacefusion") or names.get("ta-source-embedding")
    if reads_embedding and has_positions and names.get("layernorm-embedding"):
        raise CheckpointError("this model fuses embeddings with positions under layernorm_embedding, which Lamina cannot "
                              "build.")
    return {
        "sf-posedemb": has_positions,
        "ta-posedemb": has_positions,
        "sf-first-word-id": _FIRST_POOLED_ID,
        # The mix is computed only where layers are read at all.
        "transparent-attention": bool(names.get("transparent-attention") and names.get("layer-wise-attention")),
    }


class Place(NamedTuple):
    """Where a reference's parameter lives in ours: `block` of `num_blocks` equal groups of rows."""

    name: str
    block: int = 0
    num_blocks: int = 1
    span: int = 1

    def view(self, tensor: Tensor) -> Tensor:
        rows = tensor.size(0) // self.num_blocks
        return tensor[self.block * rows : (self.block + self.span) * rows]


_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)")
# Three spellings: q_proj.weight, the DeepNet fork's q_proj_weight, and the fused in_proj_weight.
_PROJECTION = re.compile(r"(self_attn|encoder_attn)\.(?:([qkv])_proj[._]|in_proj_)(weight|bias)")
_IN_LAYER = {
    "self_attn.out_proj": "attention.out_proj",
    "encoder_attn.out_proj": "cross_attention.out_proj",
    "self_attn_layer_norm": "attn_residual.norm",
    "encoder_attn_layer_norm": "cross_residual.norm",
    "final_layer_norm": "ffn_residual.norm",
    "fc1": "ffn.fc1",
    "fc2": "ffn.fc2",
}
# The residuals of the Admin fork. ReZero's one scale of a layer is stored under the first residual that uses it.
_OF_LAYER = {
    "attention_ratio_change": "attn_residual.add.omega",
    "self_ratio_change": "attn_residual.add.omega",
    "encoder_ratio_change": "cross_residual.add.omega",
    "fc_ratio_change": "ffn_residual.add.omega",
    "rezero_weight": "attn_residual.add.scale",
}
_OUTSIDE = {
    "encoder.embed_tokens.weight": "source_embedding.table.weight",
    "decoder.embed_tokens.weight": "target_embedding.table.weight",
    "decoder.output_projection.weight": "head.table.weight",
    "decoder.embed_out": "head.table.weight",
    "decoder.output_bias": "head.bias",
    "decoder.meanmaxweight": "head.mix.gate_weight",
    "decoder.ta_weight": "memory.weight",
    "decoder.project_in_dim.weight": "target_embedding.project.weight",
    "decoder.project_out_dim.weight": "head.project.weight",
    "decoder.adaptive_softmax.head.word_proj.weight": "head.table.weight",
    "decoder.adaptive_softmax.head.class_proj.weight": "head.clusters.weight",
    "encoder.embed_positions.weight": "source_embedding.positions.weight",
    "decoder.embed_positions.weight": "target_embedding.positions.weight",
}
_STEMS = {
    "encoder.layer_norm": "encoder.norm",
    "decoder.layer_norm": "decoder.norm",
    "encoder.layernorm_embedding": "source_embedding.norm",
    "decoder.layernorm_embedding": "target_embedding.norm",
    "decoder.ta_final_layernorm": "memory.norm",
    "encoder.layernorm_srcemb": "memory.embedding_norm",
    "encoder.layernorm_allsource": "memory.transform.residual.norm",
    "encoder.fc1": "memory.transform.ffn.fc1",
    "encoder.fc2": "memory.transform.ffn.fc2",
    "decoder.fc1": "head.ffn.fc1",
    "decoder.fc2": "head.ffn.fc2",
    "decoder.tgt_out_dim": "head.target_linear",
    "decoder.src_out_dim": "head.source_linear",
    "decoder.sf_attn.q_proj": "head.surface.attention.q_proj",
    "decoder.sf_attn.k_proj": "head.surface.attention.k_proj",
    "decoder.sf_attn.v_proj": "head.surface.attention.v_proj",
    "decoder.sf_attn.out_proj": "head.surface.attention.out_proj",
}


_SENTENCE_ENCODER = re.compile(r"encoder\.sentence_encoder\.(.+)")
_MASKED_HEAD = re.compile(r"encoder\.lm_head\.(?:(dense|layer_norm)\.)?(weight|bias)")
_SENTENCE_HEAD = re.compile(r"classification_heads\.([^.]+\.(?:dense|out_proj)\.(?:weight|bias))")
_IN_MASKED_HEAD = {"dense": "head.dense.", "layer_norm": "head.norm.", None: "head."}


# Bands of rarer words, at the input and at the output.
_BAND = re.compile(r"decoder\.embed_tokens\.embeddings\.(\d+)\.([01])\.weight")
_TAIL = re.compile(r"decoder\.adaptive_softmax\.tail\.(\d+)\.([02])\.weight")


def places(name: str) -> list[Place]:
    """Where the reference's parameter `name` goes; a fused projection of cross-attention goes to two of ours."""
    if match := _SENTENCE_ENCODER.fullmatch(name):
        name = "encoder." + match[1].replace("emb_layer_norm", "layernorm_embedding")
    elif match := _MASKED_HEAD.fullmatch(name):
        part, kind = match.groups()
        return [Place("head.table.weight" if (part, kind) == (None, "weight") else f"{_IN_MASKED_HEAD[part]}{kind}")]
    elif match := _SENTENCE_HEAD.fullmatch(name):
        return [Place(f"classifiers.{match[1]}")]
    if name == "decoder.adaptive_softmax.head.weight":
        return [Place("head.table.weight"), Place("head.clusters.weight")]
    if match := _BAND.fullmatch(name):
        return [Place(f"target_embedding.table.bands.{match[1]}.{'project' if match[2] == '1' else 'table'}.weight")]
    if match := _TAIL.fullmatch(name):
        return [Place(f"head.tails.{match[1]}.{'project' if match[2] == '0' else 'table'}.weight")]
    if name in _OUTSIDE:
        return [Place(_OUTSIDE[name])]
    stem, _, kind = name.rpartition(".")
    if stem in _STEMS:
        return [Place(f"{_STEMS[stem]}.{kind}")]
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return []
    prefix, inner = f"{layer[1]}.layers.{layer[2]}.", layer[3]
    projection = _PROJECTION.fullmatch(inner)
    if projection:
        return [place._replace(name=prefix + place.name) for place in _projection_places(*projection.groups())]
    if inner in _OF_LAYER:
        return [Place(prefix + _OF_LAYER[inner])]
    stem, _, kind = inner.rpartition(".")
    return [Place(f"{prefix}{_IN_LAYER[stem]}.{kind}")] if stem in _IN_LAYER else []


def _projection_places(attention: str, which: str | None, kind: str) -> list[Place]:
    if attention == "self_attn":
        block = 0 if which is None else "qkv".index(which)
        return [Place(f"attention.in_proj.{kind}", block, 3, span=3 if which is None else 1)]
    query, key_value = f"cross_attention.q_proj.{kind}", f"cross_attention.kv_proj.{kind}"
    match which:
        case "q":
            return [Place(query)]
        case "k" | "v":
            return [Place(key_value, "kv".index(which), 2)]
    return [Place(query), Place(key_value, 0, 2, span=2)]


def _is_unread_norm(name: str, model: nn.Module) -> bool:
    """A mix of encoder layers reads them raw, so nothing reads the encoder's last norm."""
    return name.startswith("encoder.layer_norm.") and not getattr(getattr(model, "memory", None), "reads_final", True)


@torch.no_grad()
def load_parameters_(model: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Copy every parameter to its place; anything left over or left out is an error that names it."""
    absent = copy_parameters_(model, state_dict)
    if absent:
        raise CheckpointError(f"the checkpoint lacks the parameters behind {absent[0]}"
                              f"{f' and {len(absent) - 1} more' if len(absent) > 1 else ''}.")


@torch.no_grad()
def copy_parameters_(model: nn.Module, state_dict: Mapping[str, Tensor]) -> list[str]:
    """Copy every parameter to its place; which of the model's are not filled by then. What has no place is an error."""
    ours = dict(model.named_parameters(remove_duplicate=False))
    canonical = {id(parameter): name for name, parameter in model.named_parameters()}
    missing = {name: parameter.size(0) for name, parameter in model.named_parameters()}
    filled: set[tuple[str, int]] = set()
    for name, tensor in state_dict.items():
        if is_buffer(name):
            continue
        targets = places(name)
        has_place = bool(targets) and all(place.name in ours for place in targets)
        if not has_place and (_PERHAPS_DEAD.fullmatch(name) or _is_unread_norm(name, model)):
            continue
        if not has_place:
            raise CheckpointError(f"the checkpoint holds the parameter {name}, which this model has no place for.")
        views = [place.view(ours[place.name]) for place in targets]
        if sum(view.size(0) for view in views) != tensor.size(0) or views[0].shape[1:] != tensor.shape[1:]:
            raise CheckpointError(f"the parameter {name} has shape {tuple(tensor.shape)}, which does not fit the model; "
                                  "do the dictionaries belong to this checkpoint?")
        for place, view, source in zip(targets, views, tensor.split([view.size(0) for view in views]), strict=True):
            view.copy_(source)
            owner = canonical[id(ours[place.name])]
            if (owner, place.block) not in filled:
                filled.add((owner, place.block))
                missing[owner] -= view.size(0)
    return [name for name, rows in missing.items() if rows]

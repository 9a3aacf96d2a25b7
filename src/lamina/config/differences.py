"""What a command line would have to say for a checkpoint's model to be the run's."""

from __future__ import annotations

import re

from lamina.config.model import ModelConfig
from lamina.config.parser import as_flag
from lamina.fields import flatten, unique_leaves

# What a run may choose for weights that were trained otherwise: the model computes with them what it did.
_FREE = re.compile(r".*dropout|.*layerdrop.*|ta-dropconnect|max-.*positions|.*-embed-path|admin-profile.*|num-classes|"
                   r"classification-head-name|share-.*|"
                   r"lora-train-also")


def flags_for(stored: ModelConfig, own: ModelConfig, *, is_free_included: bool = False) -> str:
    """`use --encoder-positions learned and leave out --sf-idx`; nothing where the two models compute the same.

    With `is_free_included` also what says nothing of what a model computes, but may be of its weights: shapes, sharing.
    """
    theirs, ours = flatten(stored), flatten(own)
    if stored.init.computes_as == own.init.computes_as:
        theirs["init-type"] = ours["init-type"]  # different ways to the same kind of residual
    use, leave_out = [], []
    for leaf in unique_leaves(ModelConfig):
        name = leaf.name
        is_free = "dropout" in name or name == "ffn-init" or (_FREE.fullmatch(name) and not is_free_included)
        if is_free or theirs.get(name) == ours.get(name):
            continue
        if theirs.get(name) is not None:
            use.append(as_flag(leaf, theirs[name]))
        elif ours[name] != (list(leaf.default) if isinstance(leaf.default, tuple) else leaf.default):
            leave_out.append(f"--{name}")
    return " and ".join(f"{word} {' '.join(flags)}" for word, flags in (("use", use), ("leave out", leave_out)) if flags)

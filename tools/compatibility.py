"""What goes with what: every task with every technique through every step of a model's life.

`tests/test_compatibility.py` tries each cell, and docs/compatibility.md is written from here, so that the page says what is so.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

# Flags of `lamina train` that choose each value.
FUSIONS = {
    "plain": "",
    "SurfaceFusion": "--surfacefusion att --sf-gate 0.8 --sf-mode hard",
    "transparent": "--transparent-attention",
}
RESIDUALS = {
    "Post-LN": "--no-{stack}-normalize-before",
    "Pre-LN": "--{stack}-normalize-before",
    "Admin": "--no-{stack}-normalize-before --init-type admin",
}
LAYER_DROPS = {"no": "", "yes": "--{stack}-layerdrop 0.3"}
# The stacks of a task's models, which take the flags above.
STACKS = {
    "translation": ("encoder", "decoder"),
    "language_modeling": ("decoder",),
    "masked_lm": ("encoder",),
    "sentence_prediction": ("encoder",),
}
STEPS = {
    "train": "`lamina train`, with validation and checkpoints",
    "resume": "the same command again, with more updates",
    "prune": "`lamina prune`, one layer of each stack kept",
    "average": "`lamina average` of two checkpoints",
    "use": "what the model is for: `generate` (translation), `eval-lm` and `interactive` with a prompt (language models), "
           "`fill_mask` and `predict` in Python (the others)",
    "safetensors": "`lamina export --format safetensors`, and using what it wrote",
    "fairseq": "`lamina export --format fairseq`, and `lamina convert` back",
    "CTranslate2": "`lamina export --format ctranslate2`",
}


class Cell(NamedTuple):
    task: str
    fusion: str
    residual: str
    layer_drop: str

    @property
    def flags(self) -> str:
        texts = [FUSIONS[self.fusion]]
        for text, stack in product((RESIDUALS[self.residual], LAYER_DROPS[self.layer_drop]), STACKS[self.task]):
            texts.append(text.replace("{stack}", stack))  # a flag that names no stack is given twice, which changes nothing
        return " ".join(text for text in texts if text)


def cells() -> list[Cell]:
    return [Cell(*values) for values in product(STACKS, FUSIONS, RESIDUALS, LAYER_DROPS)]


class Refusal(NamedTuple):
    """What a command says to a cell, in part, and what there is to do about it."""

    message: str
    remark: str


NO_ENCODER_AND_DECODER = Refusal("it belongs to --task translation",
                                 "fusion is what a decoder reads of an encoder; models of this task have but one of them")
NO_FUSION_IN_FAIRSEQ_TEXT = "there is no fusion in fairseq itself; checkpoints of the fork that has it can be read"
NO_SURFACE_IN_FAIRSEQ = Refusal("SurfaceFusion mixes a second distribution", NO_FUSION_IN_FAIRSEQ_TEXT)
NO_MIX_IN_FAIRSEQ = Refusal("its decoder layers read different states of the encoder", NO_FUSION_IN_FAIRSEQ_TEXT)
NO_SCALES_IN_FAIRSEQ = Refusal("`lamina fold` turns them into plain ones",
                               "there are no scaled residuals in fairseq itself: run `lamina fold` first")
NO_SURFACE_IN_CTRANSLATE2 = Refusal("SurfaceFusion mixes a second distribution", "CTranslate2's decoder has one output")
NO_MIX_IN_CTRANSLATE2 = Refusal("its decoder layers read different states of the encoder",
                                "CTranslate2 gives all decoder layers the encoder's output")
NO_MASKED_IN_CTRANSLATE2 = Refusal("translation and language models are",
                                   "only translation and language models are written for CTranslate2")


def refusal(cell: Cell, step: str) -> Refusal | None:
    """None where the step works. Without training, there is no later step."""
    if cell.fusion != "plain" and cell.task != "translation":
        return NO_ENCODER_AND_DECODER
    if step == "fairseq":
        if cell.fusion != "plain" and cell.residual != "Admin":
            return NO_SURFACE_IN_FAIRSEQ if cell.fusion == "SurfaceFusion" else NO_MIX_IN_FAIRSEQ
        return NO_SCALES_IN_FAIRSEQ if cell.residual == "Admin" else None
    if step == "CTranslate2":
        if cell.task not in ("translation", "language_modeling"):
            return NO_MASKED_IN_CTRANSLATE2
        return {"plain": None, "SurfaceFusion": NO_SURFACE_IN_CTRANSLATE2, "transparent": NO_MIX_IN_CTRANSLATE2}[cell.fusion]
    return None

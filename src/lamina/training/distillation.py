"""A model that learns from another one as well as from data: word-level distillation (Kim and Rush 2016, §3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from lamina.config.train_options import DistillationConfig, TrainConfig
from lamina.data.batching import AnyBatch
from lamina.errors import CheckpointError
from lamina.interop.any_format import load_any
from lamina.interop.fairseq_file import DictionaryPlaces
from lamina.models.contract import Model
from lamina.nn.compiling import compiled_parts, replaced
from lamina.nn.cross_entropy import LossSums, Term
from lamina.nn.soft_cross_entropy import Scored, soft_cross_entropy
from lamina.nn.stack import ActiveLayers
from lamina.parts.contracts import Criterion
from lamina.tasks.base import Task

# A teacher has to read whatever its student reads.
_LIMITS = ("max_source_positions", "max_target_positions", "max_positions")


def criterion_of(config: TrainConfig, own: Criterion, task: Task, dtype: torch.dtype, device: torch.device,
                 note: Callable[[str], object]) -> Criterion:
    """What a run minimises: its own criterion, and also the distance from a teacher where there is one."""
    options = config.distillation
    return own if options.teacher is None else Distilled(own, open_teacher(config, task, dtype, device, note), options)


class Distilled(Criterion):
    """(1 - weight) * another criterion + weight * cross entropy against the teacher's distribution.

    The teacher's pass is part of the student's, and captured with it: it never synchronizes with the CPU.
    """

    def __init__(self, own: Criterion, teacher: Model, options: DistillationConfig) -> None:
        self.own = own
        self.teacher = teacher
        self.options = options

    def loss(self, model: Any, batch: AnyBatch, active: ActiveLayers, *, is_compiled: bool) -> LossSums:
        with _heard(model) as said:
            sums = self.own.loss(model, batch, active, is_compiled=is_compiled)
        with torch.no_grad(), replaced(self._compiled) if is_compiled else nullcontext():
            taught = _scored(self.teacher, self.teacher(*batch.inputs))
        student = _scored(model, said[0])
        counts = batch.target.flatten().ne(model.pad_id).float()
        soft = soft_cross_entropy(student, taught, counts, temperature=self.options.temperature, is_compiled=is_compiled)
        return sums._replace(loss=(1.0 - self.options.weight) * sums.loss + self.options.weight * soft)

    @cached_property
    def _compiled(self) -> dict[Any, Any]:
        return compiled_parts(self.teacher)


def _scored(model: Any, terms: list[Term]) -> Scored:
    return Scored(terms, model.head.output_weight, model.head.output_bias)


@contextmanager
def _heard(model: Any) -> Iterator[list[list[Term]]]:
    """What the model says while it lasts, so that one pass serves both losses."""
    said: list[list[Term]] = []
    hook = model.register_forward_hook(lambda _, __, terms: said.append(terms))
    try:
        yield said
    finally:
        hook.remove()


def open_teacher(config: TrainConfig, task: Task, dtype: torch.dtype, device: torch.device,
                 note: Callable[[str], object]) -> Model:
    """In the student's precision, with no dropout and nothing to learn; one that cannot teach it is refused."""
    path, data = Path(config.distillation.teacher or ""), config.data
    checkpoint = load_any(path, places=DictionaryPlaces.of(data.data, source_lang=data.source_lang,
                                                           target_lang=data.target_lang), notice=note)
    if checkpoint.task != config.task:
        raise CheckpointError(f"--distill-from {path} was trained for --task {checkpoint.task}, and this run is for --task "
                              f"{config.task}. Give a teacher of the same task.")
    for side, theirs, ours in zip(checkpoint.sides, checkpoint.vocabularies(), task.vocabularies, strict=True):
        task.check_dictionary(side, theirs, ours, path)
    if checkpoint.model_config().lm.softmax_cutoff:
        raise CheckpointError(f"--distill-from {path} has an adaptive softmax, which never has the whole distribution that a "
                              "student learns. Give a teacher without --adaptive-softmax-cutoff.")
    teacher: Any = checkpoint.build_model().to(device).eval().requires_grad_(False)
    for name in _LIMITS:
        least, most = getattr(teacher, name, None), getattr(config.model.embedding, name)
        if least is not None and least < most:
            flag = name.replace("_", "-")
            raise CheckpointError(f"--distill-from {path} reads {least} positions (--{flag}), and this model {most}. Give "
                                  f"--{flag} {least}, or another teacher.")
    for parameter in teacher.parameters():
        parameter.data = parameter.data.to(dtype)  # weights alone, as of the model that is trained
    note(f"learning from {path}: {config.distillation.weight:g} of the loss is the distance from its distributions")
    return teacher  # type: ignore[no-any-return]

"""What training minimises: the kinds of --criterion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lamina.fields import check, flag
from lamina.parts.contracts import Criterion, TaskKind
from lamina.registry import register
from lamina.traits import CLASSES, MASKS

if TYPE_CHECKING:
    from lamina.nn.cross_entropy import LossSums
    from lamina.nn.stack import ActiveLayers


class TokenLoss(Criterion):
    """Cross entropy of each target token, label-smoothed where `smoothing` says so."""

    smoothing: float = 0.0

    def check(self, task: TaskKind, model: Any) -> None:
        check(not task.has(CLASSES), f"--task {task.name} has --criterion {task.defaults.get('criterion')} and no other. Leave "
                                     "--criterion out.")
        check(not (model.lm.softmax_cutoff and self.smoothing),
              "--label-smoothing would need every word's probability, which an adaptive softmax is there to avoid. Take "
              "--criterion adaptive_loss, or leave out --adaptive-softmax-cutoff.")

    def loss(self, model: Any, batch: Any, active: ActiveLayers, *, is_compiled: bool) -> LossSums:
        return model.head.loss(model(*batch.inputs, active=active), batch.target, smoothing=self.smoothing, pad_id=model.pad_id,
                               is_compiled=is_compiled, target_on_host=getattr(batch, "target_on_host", None))


@register.criterion("cross_entropy")
@dataclass(frozen=True, kw_only=True)
class CrossEntropy(TokenLoss):
    """The negative log-likelihood of the targets."""


@register.criterion("label_smoothed_cross_entropy")
@dataclass(frozen=True, kw_only=True)
class LabelSmoothedCrossEntropy(TokenLoss):
    """Cross entropy against targets that leave some probability to every word."""

    smoothing: float = flag(0.0, "share of the probability spread evenly over the vocabulary, eps/V each; 0.1 is usual",
                            name="label-smoothing", paper="Szegedy et al. 2016 §7")

    def __post_init__(self) -> None:
        check(0.0 <= self.smoothing < 1.0, f"--label-smoothing is {self.smoothing}; it must lie in [0, 1).")


@register.criterion("adaptive_loss")
@dataclass(frozen=True, kw_only=True)
class AdaptiveLoss(TokenLoss):
    """Cross entropy under fairseq's name for models with an adaptive softmax."""

    def check(self, task: TaskKind, model: Any) -> None:
        check(bool(model.lm.softmax_cutoff),
              "--criterion adaptive_loss needs an adaptive softmax: add --adaptive-softmax-cutoff, such as 20000,60000, or "
              "take --criterion cross_entropy.")
        super().check(task, model)


@register.criterion("masked_lm")
@dataclass(frozen=True, kw_only=True)
class MaskedLmLoss(TokenLoss):
    """Cross entropy of the words under masks."""

    def check(self, task: TaskKind, model: Any) -> None:
        check(task.has(MASKS),
              f"--criterion {self.name} belongs to tasks that mask words, and the task is {task.name}. Leave it out.")


@register.criterion("sentence_prediction")
@dataclass(frozen=True, kw_only=True)
class SentenceLoss(Criterion):
    """Cross entropy of the classes, or the squared error of numbers."""

    def check(self, task: TaskKind, model: Any) -> None:
        check(task.has(CLASSES),
              f"--criterion {self.name} belongs to tasks with classes, and the task is {task.name}. Leave it out.")

    def loss(self, model: Any, batch: Any, active: ActiveLayers, *, is_compiled: bool) -> LossSums:
        from lamina.nn.cross_entropy import sentence_loss

        return sentence_loss(model.classify(*batch.inputs, active=active), batch.target)

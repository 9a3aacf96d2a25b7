"""A function of one's own as a criterion: `lamina.train(..., criterion=my_loss)`. It runs eagerly; no checkpoint holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lamina.config.train_options import TrainConfig
from lamina.data.batching import AnyBatch
from lamina.errors import CheckpointError, ConfigError
from lamina.nn.cross_entropy import LossSums
from lamina.nn.heads import normalise
from lamina.nn.stack import ActiveLayers
from lamina.parts.contracts import Criterion, TaskKind
from lamina.training.restore import StartingPoint
from lamina.traits import CLASSES

# Log-probabilities of each next token, (B, T, V), and the batch, whose `target` is (B, T). It gives the losses of the tokens,
# (B, T), or their mean.
CriterionFunction = Callable[[Tensor, AnyBatch], Tensor]

MARK = "criterion_function"  # under `training` of a checkpoint: its name


class FunctionLoss(Criterion):
    def __init__(self, function: CriterionFunction) -> None:
        self.function = function
        self.called = getattr(function, "__name__", type(function).__name__)

    @property
    def name(self) -> str:
        return f"{self.called} (a function)"

    def check(self, task: TaskKind, model: Any) -> None:
        if task.has(CLASSES):
            raise ConfigError(f"criterion is a function of log-probabilities of words, and task {task.name} has classes. "
                              "Register a criterion instead (docs/extending.md).")

    def loss(self, model: Any, batch: AnyBatch, active: ActiveLayers, *, is_compiled: bool) -> LossSums:
        terms = model(*batch.inputs, active=active)
        log_probs = model.head.log_probs(terms)  # (B, T, V)
        is_padding = batch.target.eq(model.pad_id)
        with torch.no_grad():  # weighted terms are no distribution, which a perplexity needs
            own = log_probs if model.training else normalise(log_probs, terms)
        nll = -own.gather(-1, batch.target[..., None])[..., 0].masked_fill(is_padding, 0.0).sum()
        loss = self._checked(self.function(log_probs, batch), batch)
        loss = loss * batch.num_target_tokens if loss.dim() == 0 else loss.masked_fill(is_padding, 0.0).sum()
        return LossSums(loss.float(), nll.detach())

    def _checked(self, loss: object, batch: AnyBatch) -> Tensor:
        shape = tuple(batch.target.shape)
        if not isinstance(loss, Tensor) or loss.shape not in ((), shape):
            found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise ConfigError(f"criterion {self.called} gave {found}; it must give the losses of the target tokens, here of "
                              f"shape {shape}, or their mean, a tensor without dimensions.")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ConfigError(f"criterion {self.called} gave a loss that has no gradient: compute it from the "
                              "log-probabilities, without .item() or .detach().")
        return loss


def criterion_in_force(config: TrainConfig, function: FunctionLoss | None, start: StartingPoint | None,
                       note: Callable[[str], object]) -> Criterion:
    """The configuration's, or the function.

    A run that was trained with a function continues with one, or it would silently learn something else.
    """
    before = None if start is None or not start.is_resumed else start.checkpoint.training.get(MARK)
    if function is None:
        if start is not None and before is not None:
            raise CheckpointError(f"{start.path} was trained with the criterion function {before}, which no checkpoint can "
                                  f"hold. Resume with lamina.train(..., criterion={before}), or begin another run with "
                                  "--finetune-from-model and another --save-dir.")
        return config.optimization.criterion
    function.check(config.kind, config.model)
    if before not in (None, function.called):
        note(f"warning: the criterion was the function {before} before, and is {function.called} now")
    note(f"criterion {function.called} is a function: updates run eagerly, since it may ask the device anything, and "
         "checkpoints hold its name alone. A registered criterion is captured in CUDA graphs, up to eight times as fast, and "
         "resumed by name (docs/extending.md)")
    return function

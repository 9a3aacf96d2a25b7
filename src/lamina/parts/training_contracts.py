"""Parts of training: criterion, optimizer, schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from lamina.errors import ConfigError
from lamina.parts.part import Part

if TYPE_CHECKING:

    from torch import Tensor

    from lamina.nn.cross_entropy import LossSums
    from lamina.nn.parameter_kinds import Parameter
    from lamina.nn.stack import ActiveLayers
    from lamina.parts.task_contracts import TaskKind


class Criterion(Part):
    """What training minimises (--criterion)."""

    table = "criterion"
    option = "criterion"
    topic = "Loss"

    def check(self, task: TaskKind, model: Any) -> None:
        """Raise a ConfigError where it does not fit a task or a config.model.ModelConfig."""

    @abstractmethod
    def loss(self, model: Any, batch: Any, active: ActiveLayers, *, is_compiled: bool) -> LossSums:
        """Sums over the tokens that count. `model` is a models.contract.Model, `batch` a data.batching.AnyBatch."""


class Optimizer(Part):
    """How weights move (--optimizer): element by element, over flat float32 tensors that hold many of them.

    `rule_for` may give some parameters a rule of their own: one like this with other options, or one of whole matrices.

    A step is compiled and captured: no method may wait for the device or branch on its data. `ok`, where there is one, is a
    0-dim boolean tensor; where it is False nothing may change (parts.update_rules.unless).
    """

    table = "optimizer"
    option = "optimizer"
    topic = "Optimizer"

    weight_decay: float = 0.0
    buffers: tuple[str, ...] = ()  # names of what is kept for each weight, in the order in which `update_` gets them

    def rule_for(self, parameter: Parameter) -> Optimizer | MatrixRule:
        """What moves this parameter. Those with equal rules are moved together, and have the buffers of that rule."""
        return self

    @abstractmethod
    def factors(self, step: Tensor, lr: Tensor, ok: Tensor | None) -> tuple[Any, ...]:
        """The numbers that all weights share, as float32 or Python floats; `step` counts from 1, both are 0-dim float64."""

    @abstractmethod
    def update_(self, weights: Tensor, grad: Tensor, buffers: list[Tensor], factors: tuple[Any, ...],
                scratch: Tensor) -> None:
        """Move one chunk of the weights and of the buffers, in place; `scratch` is as long and free to use."""


class MatrixRule(ABC):
    """How whole matrices move, for Optimizer.rule_for: a frozen dataclass, so that equal ones are found.

    Sharded weights have a few rows of each matrix on each rank. What looks at elements gets those; `whole` alone gets matrices.
    """

    buffers: tuple[str, ...] = ()

    @abstractmethod
    def factors(self, step: Tensor, lr: Tensor, ok: Tensor | None) -> tuple[Any, ...]:
        """As an Optimizer's."""

    @abstractmethod
    def direction(self, grad: Tensor, buffers: list[Tensor], factors: tuple[Any, ...]) -> Tensor:
        """What `whole` is to have of these gradients, element by element; moves the buffers in place."""

    @abstractmethod
    def whole(self, directions: Tensor) -> Tensor:
        """The same of whole matrices of one shape. (N, R, C) in and out, of one type"""

    @abstractmethod
    def move_(self, weights: list[Tensor], steps: list[Tensor], shape: tuple[int, int], factors: tuple[Any, ...]) -> None:
        """Move rows of matrices of this shape (R, C) in place, along what `whole` made of them; `steps` may be overwritten."""


class Rates(NamedTuple):
    """What a schedule is made from besides its own options."""

    lr: tuple[float, ...]
    min_lr: float
    max_update: int  # 0: training has no set end

    def only(self, schedule: Schedule) -> float:
        if len(self.lr) != 1:
            raise ConfigError(f"--lr lists {len(self.lr)} rates, but --lr-scheduler {schedule.name} starts from exactly one. "
                              "Give one number, or use --lr-scheduler fixed for a rate per epoch.")
        return self.lr[0]

    def known_end(self, what: str) -> int:
        if self.max_update <= 0:
            raise ConfigError(f"--max-update is not set, but --lr-scheduler {what} decays until then. Add --max-update with "
                              "the number of updates you plan to train.")
        return self.max_update


class Curve(Protocol):
    """The rate in force for the next update, once `updates_done` are finished; epochs count from 1."""

    def __call__(self, updates_done: int, epoch: int = 1) -> float: ...


class ValidatedCurve(ABC):
    """A curve that also depends on what validation said. All it remembers is in `state`, which checkpoints hold.

    An entry named `best` or `stale` is of a score, and goes when the run is measured by another one.
    """

    state: dict[str, float]  # empty at first; the run may put another one in its place, and then `validated` changes that

    @abstractmethod
    def __call__(self, updates_done: int, epoch: int = 1) -> float:
        """As of any curve."""

    @abstractmethod
    def validated(self, score: float, updates_done: int, *, larger_is_better: bool) -> None:
        """An epoch ended with this score of --best-checkpoint-metric."""


class Schedule(Part):
    """How the learning rate moves (--lr-scheduler)."""

    table = "schedule"
    option = "lr-scheduler"
    topic = "Learning rate"

    uses_min_lr: ClassVar[bool] = False  # whether --min-lr is the end of its line rather than a reason to stop
    needs_validation: ClassVar[bool] = False  # whether `build` returns a ValidatedCurve

    @abstractmethod
    def build(self, rates: Rates) -> Curve:
        """The rate for the next update, once so many are done, in an epoch that counts from 1: a pure function, or a
        `ValidatedCurve`.
        """

"""What all parts have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from lamina.errors import CheckpointError, LaminaError
from lamina.registry import register

if TYPE_CHECKING:


    pass


class Part:
    """What all parts have in common."""

    topic: ClassVar[str] = ""  # the heading of its options in --help; the first line of its docstring if left out
    option: ClassVar[str]  # the option that chooses among the parts of its kind

    @property
    def name(self) -> str:
        return getattr(register, self.table).name_of(self)

    table: ClassVar[str]  # of the registry

    @property
    def spelled(self) -> str:
        """As one types it: `--init-type admin`."""
        return f"--{self.option} {self.name}"

    def cannot(self, what: str, why: str = "") -> LaminaError:
        """The refusal of a question that has no answer: `raise self.cannot("be folded")`."""
        return CheckpointError(f"a model with {self.spelled} cannot {what}: "
                               f"{why or f'the part {self.name!r} does not say how'}.")


class ModelPart(Part):
    """A part of a model, which travels in its checkpoint."""

    set_by_pruning: ClassVar[tuple[str, ...]] = ()  # its options that pruning changes, by flag
    is_plain: ClassVar[bool] = False  # whether a Transformer with it is the one of Vaswani et al. (2017), pre- or post-norm

    def not_in(self, toolkit: str) -> str:
        """Why another toolkit cannot hold a model with this part; nothing if it can. Asked by every exporter.

        `toolkit`: fairseq, CTranslate2, or a model of transformers, such as BART (interop/huggingface_classes.py).
        """
        return "" if self.is_plain else f"{toolkit} has no {self.spelled}"

    def describe(self) -> str:
        """A line for model cards; nothing where there is nothing to say."""
        return "" if self.is_plain else self.spelled.removeprefix("--").replace(" ", ": ", 1)

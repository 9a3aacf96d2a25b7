"""A kind of problem."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from lamina.parts.part import Part
from lamina.parts.text_contracts import Figure

if TYPE_CHECKING:


    pass


class TaskKind(Part):
    """A kind of problem: its data, its model and its figures (--task). What it is, without torch; `open` brings the rest."""

    table = "task"
    option = "task"
    topic = "Start here"

    traits: ClassVar[frozenset[str]] = frozenset()  # of traits.py: which options mean something
    stacks: ClassVar[tuple[str, ...]] = ()  # of its models
    defaults: ClassVar[Mapping[str, Any]] = {}  # of options whose own default was made for another task
    about_model: ClassVar[str] = "a Transformer"  # how a model card calls its models
    begins_from: ClassVar[tuple[str, ...]] = ()  # other tasks, whose models may lend this one's their weights
    fairseq_task: ClassVar[str] = ""  # what fairseq calls it, where it has it
    figures: ClassVar[Mapping[str, Figure]] = {}  # what it measures at validation besides losses and --metric's

    def has(self, *traits: str) -> bool:
        return set(traits) <= self.traits

    def sides(self, languages: tuple[str, ...]) -> tuple[str, ...]:
        """What messages call its vocabularies."""
        return languages

    def complete_(self, values: dict[str, Any], explicit: Mapping[str, Any]) -> None:
        """Let values of the preset follow options that a person gave."""

    def check(self, config: Any) -> None:
        """Raise a ConfigError where a config.train_options.TrainConfig does not fit."""

    def vocab_sizes(self, size: int) -> tuple[int, ...]:
        """What `build_model` wants where every vocabulary has `size` symbols."""
        return (size,)

    @abstractmethod
    def open(self, data: Any, model: Any) -> Any:
        """The tasks.base.Task of a data folder (config.batches.DataConfig) and a configuration of the model."""

    @abstractmethod
    def build_model(self, config: Any, vocab_sizes: tuple[int, ...]) -> Any:
        """A models.contract.Model, freshly initialised from a ModelConfig."""

    def made_up_batch(self, vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> Any:
        """A batch of random tokens, for `lamina analyze depth` without a data folder."""
        raise self.cannot("be looked at with made-up tokens")

    def load_api(self) -> Any:
        """The class that lamina.load gives for its checkpoints."""
        raise self.cannot("be loaded for use", "the task does not say what its models are used for")

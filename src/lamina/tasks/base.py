"""What every task has in common: the contract that a training run relies on.

A task is data, model and figures. To add one (docs/extending.md shows it from scratch):

1. A `TaskKind` (parts/contracts.py), registered under its name, says what it is without importing torch: its traits
   (traits.py), which decide what options mean something, its defaults, and what opens its data and builds its model.
   Presets that want one of its traits are its own.
2. Its class, the `Task` below, opens a data folder and says which corpora, vocabularies and figures there are.
3. Its corpora are `data.corpus.Corpus`: sizes to plan by, and `batch` to make a `data.batching.AnyBatch`. A batch knows what
   goes into the model (`inputs`) and what should come out (`target`, padded where nothing counts).
4. Its model (`models.contract.Model`) is called as `model(*batch.inputs, active=ActiveLayers(...))`, which says what layers to
   skip (nn/stack.py), and returns the terms of its `head` (nn/heads.py) for each target; a loss that is no cross entropy over
   those is a criterion of its own (parts/criteria.py).

The rest, from the feed over the loss to resuming, is the same for all. Checkpoints record the task's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lamina.checkpoint.format import Checkpoint
from lamina.config.batches import DataConfig
from lamina.config.model import ModelConfig
from lamina.config.train_options import ValidationConfig
from lamina.data.batching import AnyBatch
from lamina.data.corpus import Corpus
from lamina.errors import CheckpointError, DataError
from lamina.parts.contracts import TaskKind
from lamina.text.subword import Subword
from lamina.text.vocabulary import Vocabulary

Gather = Callable[[list[Any]], list[Any]]


class Task(ABC):
    """An opened data folder (or several that take turns), and what to make of it."""

    # One of each for every vocabulary, in the order in which the model's builder wants their sizes.
    languages: tuple[str, ...]
    vocabularies: tuple[Vocabulary, ...]
    subwords: tuple[Subword, ...]

    def __init__(self, kind: TaskKind, data: DataConfig, model: ModelConfig) -> None:
        self.kind = kind
        self.data = data
        self.signatures: dict[str, str] = {}  # of the figures that metrics gave so far: what to quote beside them
        self.model_config = model
        self.folders = tuple(Path(name) for name in data.data.split(":") if name)
        if not self.folders:
            raise DataError("the data folder has an empty name; give the folder that `lamina preprocess` made.")

    def data_parts(self, folders: Iterable[Path]) -> list[Path]:
        """The folders in which the files of these data folders lie."""
        return list(folders)

    @property
    def language_pair(self) -> tuple[str, ...]:
        """Of a folder that may hold several: the languages in the names of this task's files."""
        return ()

    @property
    @abstractmethod
    def max_positions(self) -> tuple[int, ...]:
        """The longest example that the model takes, for each of a corpus's `sizes`."""

    def train_corpus(self, epoch: int) -> Corpus:
        """Several folders are read in turn, one an epoch."""
        return self.open_split(self.folders[(epoch - 1) % len(self.folders)], self.data.train_subset, is_training=True)

    def corpus(self, split: str) -> Corpus:
        return self.open_split(self.folders[0], split, is_training=False)

    @abstractmethod
    def open_split(self, folder: Path, split: str, *, is_training: bool) -> Corpus:
        """In training, NAME1, NAME2, .. beside the split are added."""

    @property
    def valid_splits(self) -> tuple[str, ...]:
        return tuple(name for name in self.data.valid_subset.split(",") if name)

    @property
    def name(self) -> str:
        return self.kind.name

    def build_model(self) -> Any:
        """Freshly initialised; torch's global seed decides its weights."""
        return self.kind.build_model(self.model_config, tuple(map(len, self.vocabularies)))

    def starting_weights(self, model: nn.Module, checkpoint: Checkpoint, path: Path) -> dict[str, Tensor]:
        """What a checkpoint gives the model to begin with, by name; an error where the two do not belong together."""
        self.check_origin(checkpoint, path)
        for side, theirs, ours in zip(checkpoint.sides, checkpoint.vocabularies(), self.vocabularies, strict=True):
            self.check_dictionary(side, theirs, ours, path)
        return checkpoint.weights

    def check_origin(self, checkpoint: Checkpoint, path: Path) -> None:
        if checkpoint.task not in (self.name, *self.kind.begins_from):
            raise CheckpointError(f"{path} was trained with --task {checkpoint.task}, not {self.name}. Give that task, or "
                                  "another --save-dir for a new run.")

    def check_dictionary(self, side: str, theirs: Vocabulary, ours: Vocabulary, path: Path) -> None:
        if theirs != ours:
            raise CheckpointError(f"{path} was trained with the {side} dictionary {theirs.digest}, but {self.folders[0]} has "
                                  f"{ours.digest}. Pass the matching data folder, preprocess again with that dictionary "
                                  "(--srcdict, --tgtdict), or begin a new run with its weights (--finetune-from-model).")

    def describe_figures(self, config: ValidationConfig) -> Iterable[str]:
        """Lines to show ahead of the first epoch: what `figures` will measure; what it lacks is an error."""
        return ()

    def needs_whole_model(self, config: ValidationConfig) -> bool:
        """Whether `figures` runs the model, which ranks then cannot share in pieces: each runs it in its own time."""
        return type(self).figures is not Task.figures

    def figures(self, model: nn.Module, batches: Iterable[AnyBatch], config: ValidationConfig, note: Callable[[str], Any],
                gather: Gather) -> dict[str, float]:
        """What validation reports besides loss and perplexity; `note` shows a line to the person who watches.

        `batches` may be a share, one rank's; `gather` makes a list of what all ranks found out, one item a batch.
        """
        return {}

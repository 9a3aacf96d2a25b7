"""Sentence classification: which class, or which number, belongs to a sentence or a pair of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lamina.checkpoint.format import Checkpoint
from lamina.config.batches import DataConfig
from lamina.config.model import ModelConfig
from lamina.config.train_options import ValidationConfig
from lamina.data.batching import AnyBatch
from lamina.data.labelled_sentences import (
    FIRST_INPUT,
    LABEL,
    SECOND_INPUT,
    Frame,
    SentenceBatch,
    SentenceCorpus,
    SentencePart,
    read_classes,
    read_numbers,
)
from lamina.data.verify import load_dictionary, load_folder_subwords
from lamina.errors import CheckpointError, ConfigError, DataError
from lamina.init.pretrained import fill_table_
from lamina.metrics.classes import accuracy, f1, pearson
from lamina.models.masked import MaskedModel
from lamina.parts.contracts import TaskKind
from lamina.tasks.base import Gather, Task
from lamina.text.subword import Whitespace
from lamina.text.vocabulary import FIRST_WORD_ID, Vocabulary


class SentencePrediction(Task):
    """Labelled sentences; a sentence head on a (usually pretrained) encoder; accuracy and F1, or correlation, judge."""

    def __init__(self, kind: TaskKind, data: DataConfig, model: ModelConfig) -> None:
        super().__init__(kind, data, model)
        classifier, folder = model.classifier, self.folders[0]
        if not classifier.num_classes:
            raise ConfigError("--task sentence_prediction needs --num-classes (1 with --regression-target).")
        if data.sentences.is_regression and classifier.num_classes != 1:
            raise ConfigError(f"--regression-target predicts one number: --num-classes is 1, not {classifier.num_classes}.")
        if not (folder / FIRST_INPUT).is_dir():
            raise DataError(f"there is no {folder / FIRST_INPUT}. Make {folder}/{FIRST_INPUT} and {folder}/{LABEL} (and "
                            f"{folder}/input1 for pairs) with `lamina preprocess --only-source`, one run each.")
        self.frame = Frame(classifier.init_token, classifier.separator_token)
        self.inputs = load_dictionary(folder / FIRST_INPUT, None).with_mask()
        stored = load_folder_subwords(folder / FIRST_INPUT)
        self.languages, self.vocabularies = ("input",), (self.inputs,)
        self.subwords = (stored.get("", Whitespace()),)
        if not data.sentences.is_regression:
            self.languages, self.subwords = ("input", "label"), (*self.subwords, Whitespace())
            self.vocabularies = (self.inputs, self._load_labels(folder))
        self._check_tokens()

    def _load_labels(self, folder: Path) -> Vocabulary:
        labels = load_dictionary(folder / LABEL, None)
        names = [symbol for symbol in labels.symbols[FIRST_WORD_ID:] if not symbol.startswith("madeupword")]
        number = self.model_config.classifier.num_classes
        if len(names) > number:
            raise ConfigError(f"{folder / LABEL} has {len(names)} labels ({', '.join(names[:5])}{', ...' if names[5:] else ''})"
                              f", but --num-classes is {number}.")
        wanted = self.data.sentences.f1_label
        if wanted is not None and wanted not in names:
            raise ConfigError(f"--f1-label is {wanted!r}, which is no label of {folder / LABEL}: those are {', '.join(names)}.")
        return labels

    def _check_tokens(self) -> None:
        for name, token in (("init-token", self.frame.init_id), ("separator-token", self.frame.separator_id)):
            if token >= len(self.inputs):
                raise ConfigError(f"--{name} is {token}, but the dictionary has {len(self.inputs)} symbols.")

    def data_parts(self, folders: Iterable[Path]) -> list[Path]:
        return [folder / name for folder in folders for name in (FIRST_INPUT, SECOND_INPUT, LABEL)]

    @property
    def max_positions(self) -> tuple[int]:
        return (self.model_config.embedding.max_positions,)

    def open_split(self, folder: Path, split: str, *, is_training: bool) -> SentenceCorpus:
        parts = [self._open_part(folder, split)] * (self.data.upsample_primary if is_training else 1)
        number = 1
        while is_training and (folder / FIRST_INPUT / f"{split}{number}.idx").exists():
            parts.append(self._open_part(folder, f"{split}{number}"))
            number += 1
        return SentenceCorpus(parts, self.inputs, self.frame,
                              max_length=self.max_positions[0] if self.data.sentences.is_truncated else None)

    def _open_part(self, folder: Path, split: str) -> SentencePart:
        if self.data.sentences.is_regression:
            return SentencePart(folder, split, read_numbers(folder, split))
        num_classes = self.model_config.classifier.num_classes
        return SentencePart(folder, split, read_classes(folder, split, self.vocabularies[1], num_classes))

    def build_model(self) -> Any:
        model = super().build_model()
        path = self.model_config.encoder.embed_path
        if path is not None:
            assert isinstance(model, MaskedModel)
            fill_table_(model.source_embedding.table, Path(path), self.inputs)
        return model

    def starting_weights(self, model: nn.Module, checkpoint: Checkpoint, path: Path) -> dict[str, Tensor]:
        """A head that the checkpoint lacks, or that has another number of classes there, begins as the model's own."""
        self.check_origin(checkpoint, path)
        self.check_dictionary("input", checkpoint.vocabularies()[0], self.inputs, path)
        theirs = {name: weight for name, weight in checkpoint.weights.items() if name.startswith("classifiers.")}
        ours = {name: parameter.detach() for name, parameter in model.named_parameters() if name.startswith("classifiers.")}
        rest = {name: weight for name, weight in checkpoint.weights.items() if name not in theirs}
        if any(name not in theirs or theirs[name].shape != weight.shape for name, weight in ours.items()):
            return rest | ours
        before, now = ([vocabulary.symbols for vocabulary in several[1:]] for several in
                       (checkpoint.vocabularies(), self.vocabularies))
        if before != now:
            head = self.model_config.classifier.name
            raise CheckpointError(f"{path} has a head {head} for other labels than those of {self.folders[0]}. Give the new "
                                  "one another --classification-head-name.")
        return rest | theirs

    @torch.no_grad()
    def figures(self, model: nn.Module, batches: Iterable[AnyBatch], config: ValidationConfig, note: Callable[[str], Any],
                gather: Gather) -> dict[str, float]:
        """Accuracy and F1 of the likeliest classes; of numbers, the mean squared error and the correlation."""
        assert isinstance(model, MaskedModel)
        model.eval()
        is_regression = self.data.sentences.is_regression
        results = []  # guesses and answers, one pair a batch
        for batch in batches:
            assert isinstance(batch, SentenceBatch)
            scores = model.classify(*batch.inputs).float()
            results.append(((scores[:, 0] if is_regression else scores.argmax(dim=1)).tolist(), batch.target.tolist()))
        predicted, correct = (list(chain.from_iterable(side)) for side in zip(*gather(results), strict=True))
        if is_regression:
            error = sum((guess - answer) ** 2 for guess, answer in zip(predicted, correct, strict=True)) / len(correct)
            return {"mse": error, "pearson": pearson(predicted, correct)}
        label = self.data.sentences.f1_label
        one = None if label is None else self.vocabularies[1].id(label) - FIRST_WORD_ID
        return {"accuracy": accuracy(predicted, correct), "f1": f1(predicted, correct, one)}

"""The table of tasks: what each is, free of torch. Its data and figures are in the module of its name.

To add a task from outside, read docs/extending.md. Only this package tests a task's name: others ask for its traits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from lamina.fields import check
from lamina.parts.contracts import Figure, TaskKind
from lamina.registry import register
from lamina.traits import (
    BLOCKS,
    CLASSES,
    DECODER,
    DECODER_ONLY,
    ENCODER,
    ENCODER_ONLY,
    MASKS,
    PAIRS,
    WRITES,
)

if TYPE_CHECKING:
    from lamina.config.batches import DataConfig
    from lamina.config.model import ModelConfig
    from lamina.config.train_options import TrainConfig
    from lamina.models.contract import Model
    from lamina.tasks.base import Task


@register.task("translation")
@dataclass(frozen=True, kw_only=True)
class TranslationKind(TaskKind):
    """From a source text to a target text: translation, summarization, correction."""

    traits = frozenset({PAIRS, ENCODER, DECODER, WRITES})
    stacks = ("encoder", "decoder")
    about_model = "an encoder-decoder Transformer"
    fairseq_task = "translation"

    def sides(self, languages: tuple[str, ...]) -> tuple[str, ...]:
        return ("source", "target")

    def vocab_sizes(self, size: int) -> tuple[int, ...]:
        return (size, size)

    def open(self, data: DataConfig, model: ModelConfig) -> Task:
        from lamina.tasks.translation import Translation

        return Translation(self, data, model)

    def build_model(self, config: ModelConfig, vocab_sizes: tuple[int, ...]) -> Model:
        from lamina.models.build import build_model

        return build_model(config, *vocab_sizes)

    def made_up_batch(self, vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> Any:
        from lamina.tasks.made_up import made_up_pairs

        return made_up_pairs(vocab_sizes, num_sentences, length, seed)

    def load_api(self) -> Any:
        from lamina.api.translator import Translator

        return Translator


@register.task("language_modeling")
@dataclass(frozen=True, kw_only=True)
class LanguageModelingKind(TaskKind):
    """What comes next in a running text."""

    traits = frozenset({DECODER, DECODER_ONLY, BLOCKS, WRITES})
    stacks = ("decoder",)
    about_model = "a Transformer language model"
    fairseq_task = "language_modeling"

    def complete_(self, values: dict[str, Any], explicit: Mapping[str, Any]) -> None:
        if "tokens-per-sample" in explicit:
            values["max-target-positions"] = explicit["tokens-per-sample"]

    def open(self, data: DataConfig, model: ModelConfig) -> Task:
        from lamina.tasks.language_modeling import LanguageModeling

        return LanguageModeling(self, data, model)

    def build_model(self, config: ModelConfig, vocab_sizes: tuple[int, ...]) -> Model:
        from lamina.models.build import build_decoder_only

        return build_decoder_only(config, *vocab_sizes)

    def made_up_batch(self, vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> Any:
        from lamina.tasks.made_up import made_up_text

        return made_up_text(vocab_sizes, num_sentences, length, seed)

    def load_api(self) -> Any:
        from lamina.api.language_model import LanguageModel

        return LanguageModel


@register.task("masked_lm")
@dataclass(frozen=True, kw_only=True)
class MaskedLmKind(TaskKind):
    """Which words stand in the gaps of a running text."""

    traits = frozenset({ENCODER, ENCODER_ONLY, BLOCKS, MASKS})
    stacks = ("encoder",)
    defaults: ClassVar[Mapping[str, Any]] = {"criterion": "masked_lm", "tokens-per-sample": 512,
                                             "sample-break-mode": "complete"}
    about_model = "a masked language model"
    fairseq_task = "masked_lm"

    def complete_(self, values: dict[str, Any], explicit: Mapping[str, Any]) -> None:
        # Whichever of the two is given, the other follows.
        if "tokens-per-sample" in explicit:
            values["max-positions"] = explicit["tokens-per-sample"]
        elif "max-positions" in explicit:
            values["tokens-per-sample"] = explicit["max-positions"]

    def open(self, data: DataConfig, model: ModelConfig) -> Task:
        from lamina.tasks.masked_lm import MaskedLm

        return MaskedLm(self, data, model)

    def build_model(self, config: ModelConfig, vocab_sizes: tuple[int, ...]) -> Model:
        from lamina.models.build import build_masked_model

        return build_masked_model(config, *vocab_sizes)

    def made_up_batch(self, vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> Any:
        from lamina.tasks.made_up import made_up_gaps

        return made_up_gaps(vocab_sizes, num_sentences, length, seed)

    def load_api(self) -> Any:
        from lamina.api.masked_model import MaskedLanguageModel

        return MaskedLanguageModel


@register.task("sentence_prediction")
@dataclass(frozen=True, kw_only=True)
class SentencePredictionKind(TaskKind):
    """Which class, or which number, belongs to a sentence or a pair of them."""

    traits = frozenset({ENCODER, ENCODER_ONLY, CLASSES})
    stacks = ("encoder",)
    defaults: ClassVar[Mapping[str, Any]] = {"criterion": "sentence_prediction"}
    about_model = "a sentence classifier"
    fairseq_task = "sentence_prediction"
    begins_from = ("masked_lm",)
    figures: ClassVar[Mapping[str, Figure]] = {"accuracy": Figure("accuracy", 4), "f1": Figure("F1", 4),
                                               "mse": Figure("mean squared error", 4, larger_is_better=False),
                                               "pearson": Figure("Pearson's r", 4)}

    def complete_(self, values: dict[str, Any], explicit: Mapping[str, Any]) -> None:
        if "tokens-per-sample" in explicit:
            values["max-positions"] = explicit["tokens-per-sample"]

    def check(self, config: TrainConfig) -> None:
        metric = config.validation.best_metric
        is_measured = (metric in ("mse", "pearson")) == config.data.sentences.is_regression
        check(metric not in self.figures or is_measured,
              f"--best-checkpoint-metric {metric} is not measured by this run: accuracy and f1 are figures of classes, pearson "
              "and mse of --regression-target.")

    def open(self, data: DataConfig, model: ModelConfig) -> Task:
        from lamina.tasks.sentence_prediction import SentencePrediction

        return SentencePrediction(self, data, model)

    def build_model(self, config: ModelConfig, vocab_sizes: tuple[int, ...]) -> Model:
        from lamina.models.build import build_masked_model

        return build_masked_model(config, vocab_sizes[0])

    def made_up_batch(self, vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> Any:
        from lamina.tasks.made_up import made_up_gaps

        return made_up_gaps(vocab_sizes, num_sentences, length, seed)

    def load_api(self) -> Any:
        from lamina.api.masked_model import MaskedLanguageModel

        return MaskedLanguageModel

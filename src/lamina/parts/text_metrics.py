"""Text against text: the kinds of --metric. What they compute lies in lamina.metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from lamina.fields import check, flag
from lamina.parts.contracts import EDITS, REFERENCES, SOURCES, Figure, Metric, MetricInputs, Score
from lamina.registry import register

if TYPE_CHECKING:
    from lamina.metrics.bleu import Bleu, BleuScore
    from lamina.metrics.chrf_ter import Chrf, Ter
    from lamina.metrics.rouge import Rouge, RougeScore

Texts = Sequence[str]


@register.metric("bleu")
@dataclass(frozen=True, kw_only=True)
class BleuMetric(Metric):
    """BLEU through sacreBLEU."""

    figures: ClassVar[Mapping[str, Figure]] = {"bleu": Figure("BLEU")}
    cuts_words = True

    order: int = flag(4, "longest n-gram of BLEU", aliases=("-o",))

    def __post_init__(self) -> None:
        check(self.order >= 1, f"--order is {self.order}; it must be at least 1.")

    def corpus(self, hypotheses: Texts, references: Sequence[Texts], inputs: MetricInputs) -> Score:
        return self._shown(self._scorer(inputs).corpus(hypotheses, references))

    def sentences(self, hypotheses: Texts, references: Sequence[Texts], inputs: MetricInputs) -> Iterator[Score]:
        scorer = self._scorer(inputs)
        for hypothesis, *answers in zip(hypotheses, *references, strict=True):
            yield self._shown(scorer.sentence(hypothesis, answers))

    def of_sacrebleu(self, inputs: MetricInputs) -> Any:
        return self._scorer(inputs).of_sacrebleu

    def _scorer(self, inputs: MetricInputs) -> Bleu:
        from lamina.metrics.bleu import Bleu

        return Bleu(is_tokenized=inputs.is_tokenized, order=self.order, ignore_case=inputs.ignore_case)

    def _shown(self, found: BleuScore) -> Score:
        return self.score({"bleu": found.score}, found.text, found.signature)


class SacreBleuMetric(Metric):
    """One figure of sacreBLEU."""

    def corpus(self, hypotheses: Texts, references: Sequence[Texts], inputs: MetricInputs) -> Score:
        found = self._scorer(inputs).corpus(hypotheses, references)
        return self.score({self.name: found.score}, found.text, found.signature)

    def sentences(self, hypotheses: Texts, references: Sequence[Texts], inputs: MetricInputs) -> Iterator[Score]:
        scorer = self._scorer(inputs)
        for hypothesis, *answers in zip(hypotheses, *references, strict=True):
            found = scorer.sentence(hypothesis, answers)
            yield self.score({self.name: found.score}, found.text, found.signature)

    def of_sacrebleu(self, inputs: MetricInputs) -> Any:
        return self._scorer(inputs).of_sacrebleu

    def _scorer(self, inputs: MetricInputs) -> Chrf | Ter:
        raise self.cannot("be measured")


@register.metric("chrf")
@dataclass(frozen=True, kw_only=True)
class ChrfMetric(SacreBleuMetric):
    """F2 of character n-grams."""

    figures: ClassVar[Mapping[str, Figure]] = {"chrf": Figure("chrF")}

    def _scorer(self, inputs: MetricInputs) -> Chrf:
        from lamina.metrics.chrf_ter import Chrf

        return Chrf(ignore_case=inputs.ignore_case)


@register.metric("ter")
@dataclass(frozen=True, kw_only=True)
class TerMetric(SacreBleuMetric):
    """Edits per reference word, in any case."""

    figures: ClassVar[Mapping[str, Figure]] = {"ter": Figure("TER", larger_is_better=False)}

    def _scorer(self, inputs: MetricInputs) -> Ter:
        from lamina.metrics.chrf_ter import Ter

        return Ter()


@register.metric("rouge")
@dataclass(frozen=True, kw_only=True)
class RougeMetric(Metric):
    """F1 of n-grams and subsequences that a summary shares with a reference."""

    figures: ClassVar[Mapping[str, Figure]] = {"rouge1": Figure("ROUGE-1"), "rouge2": Figure("ROUGE-2"),
                                               "rougeL": Figure("ROUGE-L"), "rougeLsum": Figure("ROUGE-Lsum")}

    uses_stemmer: bool = flag(False, "ROUGE on Porter's word stems", name="rouge-stemmer")
    separator: str | None = flag(None, "what separates the sentences of a summary, for ROUGE-Lsum; without it, they end at . ! "
                                 "or ? before white space", name="rouge-separator", metavar="TEXT")

    def __post_init__(self) -> None:
        check(self.separator != "", "--rouge-separator is empty; give the text that separates sentences, such as '<q>'.")

    def corpus(self, hypotheses: Texts, references: Sequence[Texts], inputs: MetricInputs) -> Score:
        return self._shown(self._scorer().corpus(hypotheses, references))

    def sentences(self, hypotheses: Texts, references: Sequence[Texts], inputs: MetricInputs) -> Iterator[Score]:
        scorer = self._scorer()
        for hypothesis, *answers in zip(hypotheses, *references, strict=True):
            yield self._shown(scorer.sentence(hypothesis, answers))

    def announce(self) -> str:
        return f"ROUGE at validation: {self._scorer().signature(num_references=1)}"

    def _scorer(self) -> Rouge:
        from lamina.metrics.rouge import Rouge

        return Rouge(uses_stemmer=self.uses_stemmer, separator=self.separator)

    def _shown(self, found: RougeScore) -> Score:
        return self.score(found.f1, found.text, found.signature)


@register.metric("gleu")
@dataclass(frozen=True, kw_only=True)
class GleuMetric(Metric):
    """BLEU for corrections, against what should have been changed."""

    figures: ClassVar[Mapping[str, Figure]] = {"gleu": Figure("GLEU")}
    needs = frozenset({REFERENCES, SOURCES})

    def corpus(self, hypotheses: Texts, references: Sequence[Texts], inputs: MetricInputs) -> Score:
        from lamina.metrics.gleu import Gleu

        found = Gleu(inputs.sources).corpus(hypotheses, references)
        return self.score({"gleu": found.score}, found.text, found.signature)


@register.metric("m2")
@dataclass(frozen=True, kw_only=True)
class M2Metric(Metric):
    """F0.5 of a correction's edits against those of annotators."""

    figures: ClassVar[Mapping[str, Figure]] = {"m2": Figure("M2")}
    needs = frozenset({EDITS})

    def corpus(self, hypotheses: Texts, references: Sequence[Texts], inputs: MetricInputs) -> Score:
        from lamina.metrics.m2 import MaxMatch

        found = MaxMatch(inputs.edits).corpus(hypotheses)
        return self.score({"m2": found.score}, found.text, found.signature)


@register.metric("errant")
@dataclass(frozen=True, kw_only=True)
class ErrantMetric(Metric):
    """F0.5 of the edits that ERRANT's rules find."""

    figures: ClassVar[Mapping[str, Figure]] = {"errant": Figure("ERRANT")}
    needs = frozenset({EDITS})

    def corpus(self, hypotheses: Texts, references: Sequence[Texts], inputs: MetricInputs) -> Score:
        from lamina.metrics.errant import Errant

        found = Errant(inputs.edits).corpus(hypotheses)
        return self.score({"errant": found.score}, found.text, found.signature)

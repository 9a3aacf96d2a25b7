"""Parts that see text: metrics and subword libraries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lamina.errors import ConfigError, LaminaError
from lamina.parts.part import Part
from lamina.registry import register

if TYPE_CHECKING:


    from lamina.text.subword import Subword


class Figure(NamedTuple):
    """A number that something is judged by."""

    label: str  # in print and in tables
    decimals: int = 2
    larger_is_better: bool = True

    def shown(self, value: float) -> str:
        return f"{value:.{self.decimals}f}"


@dataclass(frozen=True, kw_only=True)
class MetricInputs:
    """What a metric may read besides its options, hypotheses and references."""

    sources: Sequence[str] = ()  # what was translated or corrected, a text per hypothesis
    edits: Sequence[Any] = ()  # metrics.m2.Annotated, one per hypothesis
    is_tokenized: bool = False  # words are what white space separates, and no metric should cut them further
    ignore_case: bool = False


@dataclass(frozen=True)
class Score:
    """The figures of one metric."""

    values: Mapping[str, float]  # by the names that the metric's `figures` have
    text: str  # one line for people
    signature: str  # what to quote beside the figures


# What a metric compares with.
REFERENCES, SOURCES, EDITS = "references", "sources", "edits"


class Metric(Part):
    """How good texts are (--metric). A metric with one figure needs no more than `corpus`."""

    table = "metric"
    option = "metric"
    topic = "Score"

    needs: ClassVar[frozenset[str]] = frozenset({REFERENCES})  # which of REFERENCES, SOURCES and EDITS it cannot do without
    figures: ClassVar[Mapping[str, Figure]] = {}  # by unique names; left out: one, named as the metric, with two decimals
    cuts_words: ClassVar[bool] = False  # whether it tokenizes what is not `is_tokenized`

    @abstractmethod
    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], inputs: MetricInputs) -> Score:
        """Of all texts. `references` holds one list for each reference file, as long as `hypotheses`; use `self.score`."""

    def sentences(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]],
                  inputs: MetricInputs) -> Iterator[Score]:
        """One for each text, in order, for metrics that can judge a text by itself."""
        raise self.cannot("judge sentences one by one")

    def of_sacrebleu(self, inputs: MetricInputs) -> Any:
        """The same as a metric of sacreBLEU, which resampling (`lamina score --baseline`) is done by."""
        raise self.cannot("be resampled")

    def announce(self) -> str:
        """For the log of a run whose validation it serves, or nothing. Raise a ConfigError where a package is missing."""
        return ""

    def cannot(self, what: str, why: str = "") -> LaminaError:
        return ConfigError(f"{self.spelled} cannot {what}: {why or f'the metric {self.name!r} does not say how'}.")

    def score(self, values: Mapping[str, float], text: str = "", signature: str = "") -> Score:
        """Checked and, where that is left out, put into words."""
        figures = self.own_figures()
        if set(values) != set(figures):
            raise ConfigError(f"{self.spelled} gave the figures {', '.join(values) or 'nothing'}, where its `figures` are "
                              f"{', '.join(figures)}.")
        text = text or ", ".join(f"{figures[name].label} = {figures[name].shown(value)}" for name, value in values.items())
        return Score(dict(values), text, signature or f"metric:{self.name}")

    @classmethod
    def own_figures(cls) -> Mapping[str, Figure]:
        if cls.figures:
            return cls.figures
        name = register.metric.name_of(cls)
        return {name: Figure(name)}

    @classmethod
    def judges_sentences(cls) -> bool:
        return cls.sentences is not Metric.sentences

    @classmethod
    def is_of_sacrebleu(cls) -> bool:
        return cls.of_sacrebleu is not Metric.of_sacrebleu


class SubwordLibrary(Part):
    """What cuts words into pieces (--subword): how a model is learned and loaded, and how its pieces make words.

    A model is a text.subword.Subword, whose `kind` is the name under which the library is registered: data folders and
    checkpoints keep it by that name and as bytes.
    """

    table = "subword"
    option = "subword"
    topic = "Raw text: tokenization and subwords; without them lines are split at white space"

    file_ending: ClassVar[str] = ""  # of a model in a data folder, subword.LANG.ENDING; "": models are not written as files
    model_option: ClassVar[str] = ""  # its option, without dashes, that names models to apply; "": it has none
    about_model: ClassVar[str] = "a subword model"  # how messages call a file with one
    shows_words: ClassVar[bool] = False  # whether its pieces tell where words begin

    @property
    def models(self) -> tuple[str, ...]:
        """The value of `model_option`: no file, one, or one each for source and target."""
        return ()

    def check(self, *, is_learned: bool) -> None:
        """Raise a ConfigError where its options do not fit; `is_learned`: --subword names it."""

    @classmethod
    def can_learn(cls) -> bool:
        return cls.learn is not SubwordLibrary.learn

    def learn(self, lines: Iterable[str], vocab_size: int) -> Subword:
        """A model of about so many pieces. --subword names libraries with this method; others apply models that are given."""
        raise ConfigError(f"{self.spelled} cannot be learned from text.")

    @abstractmethod
    def load(self, data: bytes, name: str) -> Subword:
        """A model from its bytes; a DataError that begins with `name` if they are damaged."""

    def is_marked(self, piece: str) -> bool:
        """Whether a piece gives away that this library made it: for dictionaries that do not say where they come from."""
        return False

    def begins_word(self, piece: str) -> bool:
        """Whether a word may begin with this piece; it does, unless the piece before it continues."""
        return True

    def continues(self, piece: str) -> bool:
        """Whether the piece after it belongs to the same word."""
        return False

    def spell(self, pieces: Sequence[str]) -> str:
        """The pieces of one word as text."""
        return "".join(pieces)

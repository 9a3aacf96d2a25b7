"""`lamina score`: translations, summaries or corrections against references."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lamina import console
from lamina.config.score_options import OF_EDITS, STANDARD_INPUT, ScoreConfig
from lamina.errors import DataError
from lamina.metrics.bleu import Bleu
from lamina.metrics.chrf_ter import Chrf, Ter
from lamina.metrics.errant import Errant
from lamina.metrics.gleu import Gleu
from lamina.metrics.m2 import MaxMatch, read_m2
from lamina.metrics.rouge import Rouge
from lamina.metrics.significance import paired_bootstrap

SHOWN_CHARACTERS = 40  # of a line, in an error


class Score(Protocol):
    @property
    def text(self) -> str: ...

    @property
    def signature(self) -> str: ...


class Scorer(Protocol):
    """`references` holds one list for each reference file, as long as `hypotheses`."""

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score: ...


class SentenceScorer(Scorer, Protocol):
    def sentence(self, hypothesis: str, references: Sequence[str]) -> Score: ...


def run(config: ScoreConfig) -> None:
    hypotheses = read_sentences(config.hypotheses)
    references = [read_sentences(path) for path in config.references]
    for path, texts in zip(config.references, references, strict=True):
        check_alignment((config.hypotheses, hypotheses), (path, texts))
    if config.is_by_sentence:
        _print_by_sentence([build_scorer(metric, config) for metric in config.metrics], hypotheses, references)
        return
    for scorer in [build_file_scorer(metric, config, hypotheses) for metric in config.metrics]:
        score = scorer.corpus(hypotheses, references)
        print(score.text)
        print(score.signature)
    if config.baseline is not None:
        _compare(config, hypotheses, references)


def _compare(config: ScoreConfig, hypotheses: list[str], references: list[list[str]]) -> None:
    assert config.baseline is not None, "the caller has looked"
    baseline = read_sentences(config.baseline)
    check_alignment((config.hypotheses, hypotheses), (config.baseline, baseline))
    metrics = {name: build_scorer(name, config).of_sacrebleu for name in config.metrics}  # type: ignore[attr-defined]
    for found in paired_bootstrap(hypotheses, baseline, references, metrics, config.num_samples):
        print(f"compared: {found.text}")
    print(f"paired-bootstrap|samples:{config.num_samples}|baseline:{config.baseline}")


def _print_by_sentence(scorers: Sequence[SentenceScorer], hypotheses: list[str], references: list[list[str]]) -> None:
    signatures: list[str] = []
    for number, (hypothesis, *answers) in enumerate(zip(hypotheses, *references, strict=True)):
        scores = [scorer.sentence(hypothesis, answers) for scorer in scorers]
        # Counted from 0, as the references do and as their H-0 lines are.
        print(number, "\t".join(score.text for score in scores))
        signatures = [score.signature for score in scores]
    for signature in signatures:
        # Not on stdout, where line N belongs to sentence N.
        console.notice(signature)


def build_file_scorer(metric: str, config: ScoreConfig, hypotheses: list[str]) -> Scorer:
    """One of those that read a file beside, or any other; `hypotheses` have to fit that file."""
    read = (config.hypotheses, hypotheses)
    if metric == "gleu":
        assert config.source is not None, "the configuration has checked it"
        sources = read_sentences(config.source)
        check_alignment(read, (config.source, sources))
        return Gleu(sources)
    if metric in OF_EDITS:
        assert config.m2 is not None, "the configuration has checked it"
        sentences = read_m2(read_sentences(config.m2), _name(config.m2))
        check_alignment(read, (config.m2, [" ".join(sentence.source) for sentence in sentences]))
        return MaxMatch(sentences) if metric == "m2" else Errant(sentences)
    return build_scorer(metric, config)


def build_scorer(metric: str, config: ScoreConfig) -> SentenceScorer:
    match metric:
        case "bleu":
            return Bleu(is_tokenized=not config.is_detokenized, order=config.order, ignore_case=config.ignore_case)
        case "chrf":
            return Chrf(ignore_case=config.ignore_case)
        case "rouge":
            return Rouge(uses_stemmer=config.uses_stemmer, separator=config.separator)
        case _:
            return Ter()


def read_sentences(path: str) -> list[str]:
    """The lines of a file, a pipe or standard input; a line ends at a line feed and nowhere else."""
    name = _name(path)
    try:
        if path == STANDARD_INPUT:
            if sys.stdin.isatty():
                console.notice("reading translations from the keyboard; end with Ctrl-D")
            data = sys.stdin.buffer.read()
        else:
            data = Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no file {name}.") from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}.") from None
    if not data:
        raise DataError(f"{name} is empty; expected one sentence a line.")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {line}: byte {error.start} of the text (0x{data[error.start]:02x}) is not valid UTF-8. "
                        "Convert it to UTF-8, for example with iconv.") from None
    if lines[-1] == "":
        lines.pop()
    return lines


def check_alignment(one: tuple[str, list[str]], other: tuple[str, list[str]]) -> None:
    """Each is a path and its lines."""
    (short_path, short), (long_path, long) = sorted((one, other), key=lambda item: len(item[1]))
    if len(short) == len(long):
        return
    raise DataError(f"{_name(one[0])} has {_lines(one[1])} and {_name(other[0])} has {_lines(other[1])}; line N of one must "
                    f"belong to line N of the other. {_name(short_path)} ends with {_shown(short[-1])}, where "
                    f"{_name(long_path)} has {_shown(long[len(short) - 1])} and goes on with {_shown(long[len(short)])}.")


def _name(path: str) -> str:
    return "standard input" if path == STANDARD_INPUT else path


def _lines(texts: list[str]) -> str:
    return f"{len(texts)} line{'s' if len(texts) != 1 else ''}"


def _shown(line: str) -> str:
    return repr(line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "...")

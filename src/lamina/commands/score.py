"""`lamina score`: translations, summaries or corrections against references."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lamina import console
from lamina.config.score_options import STANDARD_INPUT, ScoreConfig
from lamina.errors import DataError
from lamina.metrics.bleu import TOKENIZED_TWICE
from lamina.metrics.figures_file import write_scores
from lamina.metrics.m2 import Annotated, read_m2
from lamina.metrics.significance import Comparison, paired_bootstrap
from lamina.parts import Metric, MetricInputs
from lamina.text.tokenizer import looks_tokenized

SHOWN_CHARACTERS = 40  # of a line, in an error


def run(config: ScoreConfig) -> None:
    hypotheses = read_sentences(config.hypotheses)
    references = [read_sentences(path) for path in config.references]
    for path, texts in zip(config.references, references, strict=True):
        check_alignment((config.hypotheses, hypotheses), (path, texts))
    if config.is_detokenized and any(metric.cuts_words for metric in config.chosen) and any(map(looks_tokenized, references)):
        console.warn(TOKENIZED_TWICE)
    inputs = _read_inputs(config, hypotheses)
    if config.is_by_sentence:
        _print_by_sentence(config.chosen, hypotheses, references, inputs)
        return
    scores = {metric.name: metric.corpus(hypotheses, references, inputs) for metric in config.chosen}
    for score in scores.values():
        print(score.text)
        print(score.signature)
    compared = [] if config.baseline is None else _compare(config, hypotheses, references, inputs)
    if config.json is not None:
        write_scores(config.json, scores, compared={found.metric: found.figures for found in compared})


def _read_inputs(config: ScoreConfig, hypotheses: list[str]) -> MetricInputs:
    """The files beside hypotheses and references, which have to fit them."""
    read = (config.hypotheses, hypotheses)
    sources: list[str] = []
    edits: list[Annotated] = []
    if config.source is not None:
        sources = read_sentences(config.source)
        check_alignment(read, (config.source, sources))
    if config.m2 is not None:
        edits = read_m2(read_sentences(config.m2), _name(config.m2))
        check_alignment(read, (config.m2, [" ".join(sentence.source) for sentence in edits]))
    return MetricInputs(sources=sources, edits=edits, is_tokenized=not config.is_detokenized, ignore_case=config.ignore_case)


def _compare(config: ScoreConfig, hypotheses: list[str], references: list[list[str]], inputs: MetricInputs) -> list[Comparison]:
    assert config.baseline is not None, "the caller has looked"
    baseline = read_sentences(config.baseline)
    check_alignment((config.hypotheses, hypotheses), (config.baseline, baseline))
    metrics = {metric.name: metric.of_sacrebleu(inputs) for metric in config.chosen}
    compared = paired_bootstrap(hypotheses, baseline, references, metrics, config.num_samples)
    for found in compared:
        print(f"compared: {found.text}")
    print(f"paired-bootstrap|samples:{config.num_samples}|baseline:{config.baseline}")
    return compared


def _print_by_sentence(metrics: Sequence[Metric], hypotheses: list[str], references: list[list[str]],
                       inputs: MetricInputs) -> None:
    signatures: list[str] = []
    found = [metric.sentences(hypotheses, references, inputs) for metric in metrics]
    for number, scores in enumerate(zip(*found, strict=True)):
        # Counted from 0, as fairseq does and as their H-0 lines are.
        print(number, "\t".join(score.text for score in scores))
        signatures = [score.signature for score in scores]
    for signature in signatures:
        # Not on stdout, where line N belongs to sentence N.
        console.notice(signature)


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
        raise DataError(f"{name} is empty; expected one sentence per line.")
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
                    f"{_name(long_path)} has {_shown(long[len(short) - 1])} and continues with {_shown(long[len(short)])}.")


def _name(path: str) -> str:
    return "standard input" if path == STANDARD_INPUT else path


def _lines(texts: list[str]) -> str:
    return f"{len(texts)} line{'s' if len(texts) != 1 else ''}"


def _shown(line: str) -> str:
    return repr(line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "...")

"""`lamina generate`: translate a split of a data folder and score the translations."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import torch

from lamina import console
from lamina.api.from_flags import load_cascade, load_translator
from lamina.api.translated_split import TranslatedSplit
from lamina.config.generate_options import GenerateConfig
from lamina.config.metric_options import chosen_metrics
from lamina.config.ranks_options import RanksConfig
from lamina.distributed.launch import joined
from lamina.distributed.ranks import Ranks
from lamina.errors import DataError
from lamina.metrics.bleu import TOKENIZED_TWICE
from lamina.metrics.figures_file import write_scores
from lamina.parts import MetricInputs, Score
from lamina.text.tokenizer import looks_tokenized

# Ranks meet at the end only, and some have longer sentences than others.
MINUTES_TO_MEET = 30.0


def run(config: GenerateConfig) -> None:
    """Alone, or as one of several ranks (torchrun), which share the batches; the first prints what all found."""
    is_on_gpu = torch.cuda.is_available() and not config.files.cpu
    with joined(RanksConfig(timeout=MINUTES_TO_MEET), is_on_gpu=is_on_gpu) as ranks, console.silence(is_on=not ranks.is_first):
        _generate(config, ranks)


def _generate(config: GenerateConfig, ranks: Ranks) -> None:
    # On standard output, unlike other notices: that is where fairseq says it, between results that all carry a mark.
    translator = load_translator(config.files, config.data, say=lambda text: print(f"| {text}"),
                                 measures=config.score_reference)
    cascade = load_cascade(config.cascade, config.files, translator, config.search)
    split = TranslatedSplit(config, translator, cascade=cascade)
    hypotheses, references = [], []
    started, num_tokens, num_repeated = time.perf_counter(), 0, 0
    results = split.results(ranks)
    if not ranks.is_first:
        list(results)
        return
    with _open_output(config) as output:
        for result in results:
            hypotheses.append(result.hypothesis)
            references.append(result.reference)
            num_tokens += result.num_tokens
            num_repeated += result.is_repeated
            if not config.is_quiet:
                output.write(result.lines)
        number, seconds = len(split.examples), time.perf_counter() - started
        console.notice(f"translated {number} sentences ({num_tokens} tokens) in {seconds:.1f} s "
                       f"({number / seconds:.2f} sentences/s, {num_tokens / seconds:.2f} tokens/s)")
        more = {}
        if cascade is not None:
            more = {"repeated": num_repeated}
            console.notice(f"the cascade kept {number - num_repeated} translations of few layers, and translated "
                           f"{num_repeated} sentences again with all")
        if not config.score_reference:
            scores = _scores(config, hypotheses, references)
            for score in scores.values():
                # A figure, then the signature to quote with it.
                output.write(f"Generate {config.data.subset} with beam={config.search.beam}: {score.text}\n")
                output.write(f"| {score.signature}\n")
            if config.json is not None:
                write_scores(config.json, scores, sentences=number, tokens=num_tokens, seconds=seconds, **more)


@contextmanager
def _open_output(config: GenerateConfig) -> Iterator[TextIO]:
    if config.results_path is None:
        yield sys.stdout
        return
    path = Path(config.results_path, f"generate-{config.data.subset}.txt")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        raise DataError(f"{path} could not be written: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)
    console.notice(f"wrote {path}")


def _scores(config: GenerateConfig, hypotheses: list[str], references: list[str]) -> dict[str, Score]:
    """Of each metric, by name."""
    metrics = chosen_metrics(config.metrics, config.parts)
    if config.is_detokenized and any(metric.cuts_words for metric in metrics) and looks_tokenized(references):
        console.warn(TOKENIZED_TWICE)
    inputs = MetricInputs(is_tokenized=not config.is_detokenized)
    return {metric.name: metric.corpus(hypotheses, [references], inputs) for metric in metrics}

"""`lamina generate`: translate a split of a data folder and score the translations."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch

from lamina import console
from lamina.api import DTYPES, Translator, load
from lamina.api.outputs import warn_of_lost
from lamina.config.generate_options import GenerateConfig, ModelFiles, SplitData
from lamina.config.metric_options import chosen_metrics
from lamina.config.ranks_options import RanksConfig
from lamina.data.batching import DEFAULT_BATCH_SIZE
from lamina.data.corpus import Example, Languages, ParallelCorpus, load_dictionaries, open_corpus
from lamina.data.verify import verify_splits
from lamina.decode.backtrace import Hypothesis
from lamina.decode.batched_search import search_rows
from lamina.decode.output_lines import Describer
from lamina.decode.scoring import score_rows
from lamina.decode.search import Search
from lamina.decode.source_text import SourceText
from lamina.distributed.launch import joined
from lamina.distributed.ranks import Ranks
from lamina.errors import CheckpointError, DataError
from lamina.metrics.bleu import TOKENIZED_TWICE
from lamina.metrics.figures_file import write_scores
from lamina.parts import MetricInputs, Score
from lamina.text.pieces import warn_of_joiner
from lamina.text.tokenizer import looks_tokenized
from lamina.text.vocabulary import UNK

# As in the references, where neither limit is given.
DEFAULT_MAX_TOKENS = 12000
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
    corpus = open_split(config.data, translator, config.files.paths[0],
                        max_source_length=translator.max_source_positions if config.data.truncate_source else None)
    numbers, examples = _fitting(config, translator, corpus)
    describer = Describer(translator.vocabularies, translator.subwords, config.output)
    warn_of_joiner(config.output.remove_bpe, translator.vocabularies[1], console.warn)
    source_text = None
    if config.source_text is not None:
        source_text = SourceText(config.source_text, corpus.name, len(corpus), translator.subwords[0],
                                 translator.vocabularies[0])
    elif config.output.replace_unk is not None:
        _warn_of_unknown(examples)
    hypotheses, references = [], []
    started, num_tokens = time.perf_counter(), 0
    results = (_described(config, describer, translator, source_text, *found)
               for found in _searched(config, translator, examples, numbers, describer, ranks))
    if ranks.size > 1:
        results = (Result(*result) for own in ranks.gather([list(results)]) for result in own)
    if not ranks.is_first:
        return
    with _open_output(config) as output:
        for result in _in_order(results):
            hypotheses.append(result.hypothesis)
            references.append(result.reference)
            num_tokens += result.num_tokens
            if not config.is_quiet:
                output.write(result.lines)
        seconds = time.perf_counter() - started
        console.notice(f"translated {len(examples)} sentences ({num_tokens} tokens) in {seconds:.1f} s "
                       f"({len(examples) / seconds:.2f} sentences/s, {num_tokens / seconds:.2f} tokens/s)")
        if not config.score_reference:
            scores = _scores(config, hypotheses, references)
            for score in scores.values():
                # A figure, then the signature to quote with it.
                output.write(f"Generate {config.data.subset} with beam={config.search.beam}: {score.text}\n")
                output.write(f"| {score.signature}\n")
            if config.json is not None:
                write_scores(config.json, scores, sentences=len(examples), tokens=num_tokens, seconds=seconds)


class Result(NamedTuple):
    """What is printed and scored of one sentence; plain values, which travel between ranks."""

    place: int  # among the sentences translated
    lines: str
    hypothesis: str
    reference: str
    num_tokens: int


def _warn_of_unknown(examples: Sequence[Example]) -> None:
    numbers = [int((example.source == UNK).sum()) for example in examples]
    if any(numbers):
        console.warn(f"{sum(numbers)} source words of {sum(map(bool, numbers))} sentences are not in the dictionary, and a "
                     "data folder does not keep them: --replace-unk leaves <unk> where it would copy one. Name the source "
                     "lines with --source-text FILE, or use `lamina interactive`.")


def _described(config: GenerateConfig, describer: Describer, translator: Translator, source_text: SourceText | None,
               place: int, number: int, example: Example, found: list[Hypothesis]) -> Result:
    source, target = example.source.tolist(), example.target.tolist()
    pieces = None if source_text is None else source_text.pieces(number, source)
    described = [describer.hypothesis(number, hypothesis, source, pieces) for hypothesis in found]
    rows = [f"S-{number}\t{describer.join(translator.vocabularies[0].decode(source) if pieces is None else pieces[:-1])}",
            f"T-{number}\t{describer.reference(target)}", *(line for item in described for line in item.lines)]
    return Result(place, "\n".join(rows) + "\n", described[0].text if config.is_detokenized else described[0].tokens,
                  describer.reference_text(target) if config.is_detokenized else describer.reference(target),
                  len(found[0].ids))


# What a checkpoint of another kind is for.
USES = {"Translator": "translates: use `lamina generate`, `interactive` or `rescore`",
        "LanguageModel": "is a language model: `lamina eval-lm` measures it on a data folder, `lamina interactive` continues "
                         "prompts",
        "MaskedLanguageModel": "is a masked language model: it fills gaps or classifies, which is done from Python, by "
                               "fill_mask() and predict() of lamina.load(FILE)"}


def load_model(files: ModelFiles, *kinds: type[Any], data: str | None = None, languages: Sequence[str | None] = (None, None),
               say: Callable[[str], object] = console.notice, says_size: bool = False, measures: bool = False) -> Any:
    """The models that the flags name, of one of these kinds. `say` prints what scripts look for when layers are left out.

    A checkpoint of fairseq may have its dictionaries in the `data` folder, and its languages told by flags. `measures`: the
    command is asked for probabilities, not for texts, and computes in float32 unless it is told otherwise.
    """
    device = "cuda" if torch.cuda.is_available() and not files.cpu else "cpu"
    dtype = next((name for name in DTYPES if getattr(files, name)), "fp32" if measures else None)
    if files.fp16 and device == "cpu":
        console.notice("--fp16 has no effect without a GPU: computing in float32")
        dtype = "fp32"
    quantize = files.quantize
    if quantize and device == "cuda":
        console.notice(f"--quantize {quantize} has no effect on a GPU; --cpu stays on the processor")
        quantize = None
    said: list[str] = []
    model = load(files.paths, device=device, dtype=dtype, overrides=files.override_values(), notice=console.notice,
                 say=said.append, dict_dir=[folder for folder in (files.dict_dir, data) if folder],
                 source_lang=languages[0], target_lang=languages[1], quantize=quantize)
    if not isinstance(model, kinds):
        raise CheckpointError(f"{files.paths[0]} {USES[type(model).__name__]}.")
    if said:
        say(said[0])  # one line for all models of an ensemble
    if said or says_size:
        say(f"num. model params: {sum(parameter.numel() for parameter in model.models[0].parameters())}")
    return model


def load_translator(files: ModelFiles, data: SplitData | None = None, say: Callable[[str], object] = console.notice, *,
                    measures: bool = False) -> Translator:
    if data is None:
        return load_model(files, Translator, say=say, measures=measures)
    return load_model(files, Translator, data=data.data, languages=(data.source_lang, data.target_lang), say=say,
                      measures=measures)


def open_split(data: SplitData, translator: Translator, path: str,
               max_source_length: int | None = None) -> ParallelCorpus:
    """The split that the flags name, in the languages and with the dictionaries of the checkpoint `path`."""
    folder = Path(data.data.split(":")[0])
    languages = Languages(data.source_lang or translator.languages[0], data.target_lang or translator.languages[1])
    if languages[::-1] == translator.languages != languages:
        console.warn(f"{path} translates from {languages.target} to {languages.source}, and is given {languages.source} to "
                     f"translate into {languages.target}. Is that meant?")
    if not folder.is_dir():
        raise DataError(f"there is no data folder {folder}. Make one with `lamina preprocess --destdir {folder} ...`.")
    for side, own, theirs in zip(("source", "target"), load_dictionaries(folder, languages), translator.vocabularies,
                                 strict=True):
        if own.symbols != theirs.symbols:
            raise CheckpointError(f"{folder} was made with the {side} dictionary {own.digest}, but {path} expects "
                                  f"{theirs.digest}. Pass the matching data folder, or preprocess with its dictionary.")
    sizes = (len(translator.vocabularies[0]), len(translator.vocabularies[1]))
    verify_splits([folder], [data.subset], "once", pair=languages, note=console.notice)
    return open_corpus(folder, data.subset, languages, sizes, max_source_length=max_source_length)


def _fitting(config: GenerateConfig, translator: Translator, corpus: ParallelCorpus) -> tuple[list[int], list[Example]]:
    """The pairs to translate, and their numbers in the split."""
    data = config.data
    limits = (translator.max_source_positions, translator.max_target_positions)
    too_long = np.flatnonzero((corpus.source_sizes > limits[0]) | (corpus.target_sizes > limits[1]))
    if len(too_long):
        what = (f"{len(too_long)} of {len(corpus)} pairs of {corpus.name} are longer than {limits[0]} source or {limits[1]} "
                f"target positions: {', '.join(map(str, too_long[:10].tolist()))}{', ...' if len(too_long) > 10 else ''}")
        if not data.skip_invalid:
            skip = "--skip-invalid-size-inputs-valid-test to leave them out"
            if (corpus.target_sizes > limits[1]).any():
                # A reference is not cut: that would be another one.
                raise DataError(f"{what}. References are too long among them: add {skip}.")
            raise DataError(f"{what}. Add --truncate-source, or {skip}.")
        console.notice(f"{what}; they are left out")
    skipped = set(too_long.tolist())
    numbers = [number for number in range(len(corpus)) if number not in skipped][data.shard_id :: data.num_shards]
    return numbers, [corpus[number] for number in numbers]


def _searched(config: GenerateConfig, translator: Translator, examples: list[Example], numbers: list[int],
              describer: Describer, ranks: Ranks) -> Iterator[tuple[int, int, Example, list[Hypothesis]]]:
    """Place, number, pair and hypotheses of this rank's batches, in the order in which they finish."""
    limits = {"max_tokens": config.data.max_tokens, "batch_size": config.data.max_sentences}
    if limits == {"max_tokens": None, "batch_size": None}:
        # A result does not depend on its batch, unless it is told to, and a processor's caches hold few sentences.
        is_on_cpu = translator.device.type == "cpu" and not config.search.uses_padded_width
        limits["batch_size" if is_on_cpu else "max_tokens"] = DEFAULT_BATCH_SIZE if is_on_cpu else DEFAULT_MAX_TOKENS
    with console.progress("translating", len(examples)) as advance:
        if config.score_reference:
            rows = [(example.source, example.target) for example in examples]
            for index, own in score_rows(translator.models, rows, device=translator.device, max_tokens=limits["max_tokens"],
                                         batch_size=limits["batch_size"], choose=ranks.share):
                ids = examples[index].target.tolist()
                yield index, numbers[index], examples[index], [Hypothesis(ids, sum(own) / len(ids), own)]
                advance(ranks.size)  # the others are about as far
            return
        search, num_lost = Search(translator.models, config.search, vocabulary=translator.vocabularies[1]), 0
        prefixes = [example.target[: config.prefix_size] for example in examples] if config.prefix_size else None
        for found in search_rows(search, [example.source for example in examples], device=translator.device, prefixes=prefixes,
                                 seed=config.files.seed, numbers=numbers, with_attention=describer.needs_attention,
                                 max_tokens=limits["max_tokens"], batch_size=limits["batch_size"], choose=ranks.share):
            yield found.index, numbers[found.index], examples[found.index], found.hypotheses
            num_lost += found.hypotheses[0].is_lost
            advance(ranks.size)
    warn_of_lost(num_lost, len(examples), console.warn)


def _in_order(results: Iterator[Result]) -> Iterator[Result]:
    """Batches come by length; lines go out in the order of the file, each as soon as all before it are done."""
    waiting: dict[int, Result] = {}
    place = 0
    for result in results:
        waiting[result.place] = result
        while place in waiting:
            yield waiting.pop(place)
            place += 1


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

"""The pairs of a data folder's split, translated or scored by one of several ranks, as lines in fairseq's form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lamina import console
from lamina.api.from_flags import DEFAULT_MAX_TOKENS, open_split
from lamina.api.outputs import warn_of_lost
from lamina.api.translator import Translator
from lamina.config.generate_options import GenerateConfig
from lamina.data.batching import DEFAULT_BATCH_SIZE
from lamina.data.corpus import Example, ParallelCorpus
from lamina.decode.backtrace import Hypothesis
from lamina.decode.batched_search import Found
from lamina.decode.cascade import Cascade, confidence, searched, searches_of
from lamina.decode.output_lines import Describer
from lamina.decode.scoring import score_rows
from lamina.decode.search import Search
from lamina.decode.search_workers import search_workers, shared_batch_size
from lamina.decode.source_text import SourceText
from lamina.distributed.ranks import Ranks
from lamina.errors import DataError
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.text.pieces import warn_of_joiner
from lamina.text.vocabulary import UNK


class Result(NamedTuple):
    """What is printed and scored of one sentence; plain values, which travel between ranks."""

    place: int  # among the sentences translated
    lines: str
    hypothesis: str
    reference: str
    num_tokens: int
    confidence: float
    is_repeated: bool  # a cascade asked the whole model


class TranslatedSplit:
    """The split that the flags name, of the pairs that fit and that --shard-id asks for."""

    def __init__(self, config: GenerateConfig, translator: Translator, *, cascade: Cascade | None = None) -> None:
        self.config = config
        self.translator = translator
        self.cascade = cascade
        corpus = open_split(config.data, translator, config.files.paths[0],
                            max_source_length=translator.max_source_positions if config.data.truncate_source else None)
        self.numbers, self.examples = _fitting(config, translator, corpus)
        self._describer = Describer(translator.vocabularies, translator.subwords, config.output)
        warn_of_joiner(config.output.remove_bpe, translator.vocabularies[1], console.warn)
        self._source_text = None
        if config.source_text is not None:
            self._source_text = SourceText(config.source_text, corpus.name, len(corpus), translator.subwords[0],
                                           translator.vocabularies[0])
        elif config.output.replace_unk is not None:
            _warn_of_unknown(self.examples)

    def results(self, ranks: Ranks, *, active: ActiveLayers = ALL_LAYERS) -> Iterator[Result]:
        """In the order of the file, what all ranks found; only the first rank gets it."""
        results = (self._described(found) for found in self._searched(ranks, active))
        if ranks.size > 1:
            results = (Result(*result) for own in ranks.gather([list(results)]) for result in own)
        if ranks.is_first:
            yield from _in_order(results)

    def _described(self, result: Found) -> Result:
        place, found = result.index, result.hypotheses
        number, example = self.numbers[place], self.examples[place]
        describer, source_text, is_text = self._describer, self._source_text, self.config.is_detokenized
        source, target = example.source.tolist(), example.target.tolist()
        pieces = None if source_text is None else source_text.pieces(number, source)
        words = self.translator.vocabularies[0].decode(source) if pieces is None else pieces[:-1]
        described = [describer.hypothesis(number, hypothesis, source, pieces) for hypothesis in found]
        rows = [f"S-{number}\t{describer.join(words)}", f"T-{number}\t{describer.reference(target)}",
                *(line for item in described for line in item.lines)]
        return Result(place, "\n".join(rows) + "\n", described[0].text if is_text else described[0].tokens,
                      describer.reference_text(target) if is_text else describer.reference(target),
                      len(found[0].ids), confidence(found[0]), result.is_repeated)

    def _searched(self, ranks: Ranks, active: ActiveLayers) -> Iterator[Found]:
        """This rank's batches, sentence by sentence, in the order in which they finish."""
        config, translator, numbers = self.config, self.translator, self.numbers
        sources = [example.source for example in self.examples]
        if config.score_reference:
            yield from self._scored(ranks)
            return
        search = Search(translator.models, config.search, active, vocabulary=translator.vocabularies[1])
        searches, num_lost = searches_of(self.cascade, search), 0
        prefixes = [example.target[: config.prefix_size] for example in self.examples] if config.prefix_size else None
        # Workers are forked: before there is a progress bar.
        with search_workers(searches, len(sources)) as workers, console.progress("translating", len(sources)) as advance:
            max_tokens, batch_size = self._limits(is_shared=workers is not None)
            for found in searched(self.cascade, searches, sources, device=translator.device, prefixes=prefixes,
                                  seed=config.files.seed, numbers=numbers, with_attention=self._describer.needs_attention,
                                  choose=ranks.share, workers=workers, max_tokens=max_tokens, batch_size=batch_size):
                yield found
                num_lost += found.hypotheses[0].is_lost
                advance(ranks.size)  # the others are about as far
        warn_of_lost(num_lost, len(sources), console.warn)

    def _scored(self, ranks: Ranks) -> Iterator[Found]:
        """As `_searched`, of the reference translations."""
        rows = [(example.source, example.target) for example in self.examples]
        max_tokens, batch_size = self._limits()
        with console.progress("translating", len(rows)) as advance:
            for index, own in score_rows(self.translator.models, rows, device=self.translator.device, choose=ranks.share,
                                         max_tokens=max_tokens, batch_size=batch_size):
                ids = self.examples[index].target.tolist()
                yield Found(index, [Hypothesis(ids, sum(own) / len(ids), own)])
                advance(ranks.size)

    def _limits(self, *, is_shared: bool = False) -> tuple[int | None, int | None]:
        """Tokens and sentences of a batch, at most."""
        max_tokens, batch_size = self.config.data.max_tokens, self.config.data.max_sentences
        if max_tokens is None and batch_size is None:
            # A result does not depend on its batch, unless it is told to, and a CPU's caches hold few sentences.
            if self.translator.device.type != "cpu" or self.config.search.uses_padded_width:
                max_tokens = DEFAULT_MAX_TOKENS
            else:
                batch_size = shared_batch_size(len(self.examples), DEFAULT_BATCH_SIZE) if is_shared else DEFAULT_BATCH_SIZE
        return max_tokens, batch_size


def _warn_of_unknown(examples: Sequence[Example]) -> None:
    numbers = [int((example.source == UNK).sum()) for example in examples]
    if any(numbers):
        console.warn(f"{sum(numbers)} source words of {sum(map(bool, numbers))} sentences are not in the dictionary, and a "
                     "data folder does not keep them: --replace-unk leaves <unk> where it would copy one. Name the source "
                     "lines with --source-text FILE, or use `lamina interactive`.")


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


def _in_order(results: Iterator[Result]) -> Iterator[Result]:
    """Batches come by length; lines go out in the order of the file, each as soon as all before it are done."""
    waiting: dict[int, Result] = {}
    place = 0
    for result in results:
        waiting[result.place] = result
        while place in waiting:
            yield waiting.pop(place)
            place += 1

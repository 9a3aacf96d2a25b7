"""Translation and its kin (summarization, correction): one text into another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from lamina.config.batches import DataConfig
from lamina.config.model import ModelConfig
from lamina.config.search_options import SearchConfig
from lamina.config.train_options import ValidationConfig
from lamina.data.batching import AnyBatch, Batch
from lamina.data.corpus import Languages, ParallelCorpus, find_languages, load_dictionaries, open_corpus
from lamina.data.verify import load_folder_subwords
from lamina.decode.batched_search import search_rows
from lamina.decode.requests import rows_of
from lamina.decode.search import Search
from lamina.errors import ConfigError
from lamina.init.pretrained import fill_table_
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.parts.contracts import MetricInputs, TaskKind
from lamina.registry import register
from lamina.tasks.base import Gather, Task
from lamina.text.pieces import UNKNOWN_WORD_IN_REFERENCE, hide_unknown, join_pieces, warn_of_joiner
from lamina.text.subword import Subword, Whitespace
from lamina.text.tokenizer import Moses, detokenizer, looks_tokenized
from lamina.text.vocabulary import Vocabulary

# A model that has learned little yet would fill the 200 tokens of `generate`; a translation seldom needs twice its source.
GREEDY = SearchConfig(beam=1, max_length_factor=2.0, max_length_offset=20)
# References, to tell whether a text came tokenized.
LOOKED_AT = 1000


class Translation(Task):
    """Sentence pairs of two languages; BLEU or ROUGE judges, where it is asked for."""

    languages: Languages
    vocabularies: tuple[Vocabulary, Vocabulary]
    subwords: tuple[Subword, Subword]

    def __init__(self, kind: TaskKind, data: DataConfig, model: ModelConfig) -> None:
        super().__init__(kind, data, model)
        self.languages = find_languages(self.folders[0], data.train_subset, data.source_lang, data.target_lang)
        self.vocabularies = load_dictionaries(self.folders[0], self.languages)
        stored = load_folder_subwords(self.folders[0])
        self.subwords = (stored.get(self.languages.source, Whitespace()), stored.get(self.languages.target, Whitespace()))

    @property
    def language_pair(self) -> tuple[str, ...]:
        return self.languages

    @property
    def max_positions(self) -> tuple[int, int]:
        embedding = self.model_config.embedding
        return embedding.max_source_positions, embedding.max_target_positions

    def open_split(self, folder: Path, split: str, *, is_training: bool) -> ParallelCorpus:
        source, target = self.vocabularies
        return open_corpus(folder, split, self.languages, (len(source), len(target)), adds_numbered=is_training,
                           upsample_primary=self.data.upsample_primary if is_training else 1,
                           max_source_length=self.max_positions[0] if self.data.truncate_source else None)

    def build_model(self) -> Any:
        source, target = self.vocabularies
        if self.model_config.embedding.share_all and source != target:
            raise ConfigError("--share-all-embeddings needs one dictionary for both sides, but those of "
                              f"{self.folders[0]} differ. Preprocess with --joined-dictionary.")
        model = super().build_model()
        assert isinstance(model, EncoderDecoder)
        config = self.model_config
        for path, embedding, vocabulary in ((config.encoder.embed_path, model.source_embedding, self.vocabularies[0]),
                                            (config.decoder.embed_path, model.target_embedding, self.vocabularies[1])):
            if path is not None:
                fill_table_(embedding.table, Path(path), vocabulary)
        return model

    def describe_figures(self, config: ValidationConfig) -> Iterator[str]:
        said: list[str] = []
        warn_of_joiner(config.remove_bpe, self.vocabularies[1], said.append, "eval-bleu-remove-bpe")
        yield from (f"warning: {text}" for text in said)
        self._detokenizer(config)  # complains now if sacremoses is not there
        metrics = [register.metric[name]() for name in config.metrics]
        for metric in metrics:
            if news := metric.announce():  # complains now if its package is not there
                why = ("; the text looks tokenized (--eval-bleu-detok moses detokenizes it)" if config.detokenizer is None
                       and self.looks_tokenized(self.valid_splits[0], config.remove_bpe) else "")
                yield news + why
        for metric in metrics:
            if metric.cuts_words:
                is_tokenized = self._counts_tokens(config)
                why = ("; the text looks tokenized, so tokens count as they stand (--eval-bleu-detok moses detokenizes it)"
                       if is_tokenized and not config.is_tokenized else "")
                yield f"{metric.name.upper()} at validation: tok:{'none' if is_tokenized else '13a'}{why}"

    def _detokenizer(self, config: ValidationConfig) -> Callable[[str], str]:
        is_done = config.remove_bpe is None and isinstance(self.subwords[1], Moses)
        if config.detokenizer != "moses" or is_done:
            return lambda text: text
        return detokenizer(self.languages.target)

    def _counts_tokens(self, config: ValidationConfig) -> bool:
        """Whether BLEU takes texts for tokens: sacreBLEU's tokenizer would split what a tokenizer made, such as &apos;."""
        if config.is_tokenized or config.detokenizer is not None:
            return config.is_tokenized
        return self.looks_tokenized(self.valid_splits[0], config.remove_bpe)

    def looks_tokenized(self, split: str, joiner: str | None) -> bool:
        corpus = self.open_split(self.folders[0], split, is_training=False)
        return looks_tokenized(self.target_text(corpus[number].target.tolist(), joiner)
                               for number in range(min(len(corpus), LOOKED_AT)))

    def needs_whole_model(self, config: ValidationConfig) -> bool:
        return bool(config.metrics)

    def figures(self, model: nn.Module, batches: Iterable[AnyBatch], config: ValidationConfig, note: Callable[[str], Any],
                gather: Gather) -> dict[str, float]:
        """What metrics say of greedy translations, if asked for, and a sample of them."""
        if not config.metrics:
            return {}
        assert isinstance(model, EncoderDecoder)
        search = Search([model.eval()], GREEDY)
        known = list(batches)
        results = self.translated(search, known, config.remove_bpe, self._detokenizer(config))
        if config.print_samples and known:
            assert isinstance(known[0], Batch)
            note(f"source:      {self.subwords[0].decode(self.vocabularies[0].decode(known[0].source[0].tolist()))}")
            note(f"translation: {results[0][0][0]}")
            note(f"reference:   {results[0][1][0]}")
        hypotheses, references = (list(chain.from_iterable(side)) for side in zip(*gather(results), strict=True))
        figures: dict[str, float] = {}
        inputs = MetricInputs(is_tokenized=self._counts_tokens(config))
        for name in config.metrics:
            score = register.metric[name]().corpus(hypotheses, [references], inputs)
            figures |= score.values
            self.signatures |= dict.fromkeys(score.values, score.signature)
        return figures

    def translated(self, search: Search, batches: Sequence[AnyBatch], joiner: str | None,
                   finish: Callable[[str], str] = lambda text: text) -> list[tuple[list[str], list[str]]]:
        """What a search makes of each batch, and its references, as text. All of them are searched in one go."""
        padded = [batch for batch in batches if isinstance(batch, Batch)]
        assert len(padded) == len(batches), "translations are made of padded rows"
        if not padded:
            return []
        sources = [row for batch in padded for row in rows_of(batch.source)]
        texts = [""] * len(sources)
        for found in search_rows(search, sources, device=padded[0].source.device):
            texts[found.index] = finish(self.target_text(found.hypotheses[0].ids, joiner))
        left = iter(texts)
        return [([next(left) for _ in batch.indices],
                 [finish(self.target_text(row, joiner, is_reference=True)) for row in batch.target_out.tolist()])
                for batch in padded]

    def target_text(self, ids: Iterable[int], joiner: str | None = None, *, is_reference: bool = False) -> str:
        """A translation as a reader wants it: subwords joined by their model, or at `joiner`."""
        pieces = self.vocabularies[1].decode(ids)
        if is_reference:
            pieces = hide_unknown(pieces, UNKNOWN_WORD_IN_REFERENCE)
        return join_pieces(pieces, self.subwords[1], joiner)

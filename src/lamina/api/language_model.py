"""Prompts in, texts out: what `lamina.load` returns for a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from lamina.api.outputs import (
    Score,
    TooLong,
    Translation,
    default_device,
    fitted,
    only_one,
    warn_in_python,
    warn_of_lost,
)
from lamina.config.search_options import SearchConfig
from lamina.decode.batched_search import search_rows
from lamina.decode.scoring import score_rows
from lamina.decode.search import Search
from lamina.errors import ConfigError
from lamina.models.decoder_only import DecoderOnly
from lamina.text.pieces import join_pieces, warn_of_joiner
from lamina.text.subword import Subword
from lamina.text.vocabulary import EOS, Vocabulary


class LanguageModel:
    """One model, or several whose probabilities are averaged, with dictionary and segmentation."""

    def __init__(self, models: Sequence[DecoderOnly], vocabularies: tuple[Vocabulary, ...], subwords: tuple[Subword, ...], *,
                 languages: tuple[str, ...] = ("text",), device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        self.device = default_device(device)
        self.models = [model.to(device=self.device, dtype=dtype).eval() for model in models]
        (self.vocabulary,) = vocabularies
        (self.subword,) = subwords
        (self.language,) = languages
        self.max_positions = min(model.max_target_positions for model in models)

    def generate(self, prompts: Iterable[str], beam: int | None = None, *, search: SearchConfig | None = None,
                 max_tokens: int | None = None, batch_size: int | None = None, seed: int = 1, first_number: int = 0,
                 remove_bpe: str | None = None, too_long: TooLong = "truncate",
                 warn: Callable[[str], object] | None = None, **options: Any) -> list[Translation]:
        """A text for each prompt, in order: the prompt and what follows it, up to `</s>`.

        How to search is said by `search`, or by the options of `lamina interactive`, as flags or as SearchConfig's fields:
        `sampling=True, sampling_topp=0.9, max_len_b=50`. Lengths count what follows the prompt; scores count all of the
        text. An empty prompt lets the model begin by itself. Of a prompt that leaves no room in the model's positions the end
        is kept, or it is skipped, and `warn` is told (Python's warnings, if left out). The other arguments are those of
        `Translator.translate`.
        """
        if isinstance(prompts, str):
            raise ConfigError("generate() takes a list of prompts, not one string. Write generate([prompt]).")
        config = only_one(search, beam=beam, **options)
        if config.constraint_order is not None:
            raise ConfigError("--constraints is for translations: a language model continues its prompt freely. Leave it out.")
        searcher, warn = Search(self.models, config, vocabulary=self.vocabulary), warn or warn_in_python
        if first_number == 0:
            warn_of_joiner(remove_bpe, self.vocabulary, warn)
        lines = list(prompts)
        results = [Translation("", 0.0, [], [], [], is_skipped=True) for _ in lines]
        rows: list[np.ndarray] = []
        places: list[int] = []
        for place, line in enumerate(lines):
            ids = self._fitted_prompt(self.encode(line)[:-1], config, first_number + place, too_long, warn)
            if ids is not None:
                rows.append(ids)
                places.append(place)
        # A search measures its sources with </s>; what comes before a text's first token is that very </s>.
        sources = [np.append(ids, EOS) for ids in rows]
        num_lost = 0
        for found in search_rows(searcher, sources, device=self.device, prefixes=rows, max_tokens=max_tokens,
                                 batch_size=batch_size, seed=seed, numbers=[first_number + place for place in places]):
            best, *rest = (self._text(hypothesis.ids, hypothesis.score, hypothesis.token_scores, remove_bpe)
                           for hypothesis in found.hypotheses)
            best.alternatives = rest
            results[places[found.index]] = best
            num_lost += found.hypotheses[0].is_lost
        warn_of_lost(num_lost, len(rows), warn)
        return results

    def stream(self, prompts: Iterable[str], beam: int | None = None, *, buffer_size: int = 1000,
               **options: Any) -> Iterator[Translation]:
        """`generate`, with all its options, for any number of prompts: `buffer_size` of them are in memory at a time."""
        if buffer_size < 1:
            raise ConfigError(f"--buffer-size is {buffer_size}; it must be at least 1.")
        lines, number = iter(prompts), options.pop("first_number", 0)
        while buffer := list(islice(lines, buffer_size)):
            yield from self.generate(buffer, beam, first_number=number, **options)
            number += len(buffer)

    def score(self, texts: Iterable[str], *, max_tokens: int | None = None, batch_size: int | None = None,
              too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None) -> list[Score]:
        """The log-probability of each token of each text, given those before it in the text; several models by their mean.

        Where a text is too long and `too_long` is "skip", the score has no tokens but `</s>`, at -inf.
        """
        if isinstance(texts, str):
            raise ConfigError("score() takes a list of texts, not one string. Write score([text]).")
        lines = list(texts)
        results = [Score([EOS], ["</s>"], [-np.inf]) for _ in lines]
        rows: list[tuple[np.ndarray]] = []
        places: list[int] = []
        for place, line in enumerate(lines):
            ids = fitted(self.encode(line), self.max_positions, place, too_long, warn or warn_in_python)
            if ids is not None:
                rows.append((ids,))
                places.append(place)
        for index, own in score_rows(self.models, rows, device=self.device, max_tokens=max_tokens, batch_size=batch_size):
            ids = rows[index][0].tolist()
            results[places[index]] = Score(ids, [self.vocabulary.symbols[token] for token in ids], own)
        return results

    def encode(self, line: str) -> np.ndarray:
        """Ids, `</s>` last."""
        return self.vocabulary.encode(self.subword.encode(line))

    def _fitted_prompt(self, ids: np.ndarray, config: SearchConfig, number: int, too_long: TooLong,
                       warn: Callable[[str], object]) -> np.ndarray | None:
        # Room for what was asked for, but never more than half of the positions.
        limit = max(0, self.max_positions - 1 - min(max(config.max_length_offset, 1), self.max_positions // 2))
        if len(ids) <= limit:
            return ids
        if too_long not in ("truncate", "skip"):
            raise ConfigError(f"too_long is {too_long!r}; it must be truncate or skip.")
        what = "skipped" if too_long == "skip" else f"cut to its last {limit}"
        warn(f"prompt {number + 1} has {len(ids)} tokens, which leaves no room to go on within the {self.max_positions} "
             f"positions of the model; it was {what}.")
        return None if too_long == "skip" else ids[len(ids) - limit :]

    def _text(self, ids: list[int], score: float, token_scores: list[float], remove_bpe: str | None) -> Translation:
        tokens = self.vocabulary.decode(ids)
        return Translation(join_pieces(tokens, self.subword, remove_bpe), score, tokens, token_scores, ids)

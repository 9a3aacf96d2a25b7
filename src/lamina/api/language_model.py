"""Prompts in, texts out: what `lamina.load` returns for a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, overload

import numpy as np
import torch

from lamina.api.given_texts import many_texts, one_text, texts_of
from lamina.api.loaded_model import Layers, LoadedModel, States, in_turn
from lamina.api.outputs import Score, TooLong, Translation, fitted, only_one, warn_in_python, warn_of_lost
from lamina.config.search_options import SearchConfig
from lamina.decode.batched_search import search_rows
from lamina.decode.scoring import score_rows
from lamina.decode.search import Search
from lamina.decode.token_stream import stream_text
from lamina.errors import ConfigError
from lamina.models.decoder_only import DecoderOnly
from lamina.text.pieces import join_pieces, warn_of_joiner
from lamina.text.subword import Subword
from lamina.text.vocabulary import EOS, Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lamina.api.option_types import SearchOptions


class LanguageModel(LoadedModel[DecoderOnly]):
    """A language model, with dictionary and segmentation. `model(prompt)` is `model.generate(prompt)`."""

    def __init__(self, models: Sequence[DecoderOnly], vocabularies: tuple[Vocabulary, ...], subwords: tuple[Subword, ...], *,
                 languages: tuple[str, ...] = ("text",), device: torch.device | str | None = None,
                 dtype: torch.dtype | str | None = None) -> None:
        super().__init__(models, languages, device, dtype)
        (self.vocabulary,) = vocabularies
        (self.subword,) = subwords
        (self.language,) = languages
        self.max_positions = min(model.max_target_positions for model in models)

    @overload
    def generate(  # type: ignore[overload-overlap]
            self, prompts: str, beam: int | None = None, *, search: SearchConfig | None = None,
                 max_tokens: int | None = None, batch_size: int | None = None, seed: int = 1, first_number: int = 0,
                 remove_bpe: str | None = None, too_long: TooLong = "truncate",
                 warn: Callable[[str], object] | None = None, **options: Unpack[SearchOptions]) -> Translation: ...

    @overload
    def generate(self, prompts: Iterable[str], beam: int | None = None, *, search: SearchConfig | None = None,
                 max_tokens: int | None = None, batch_size: int | None = None, seed: int = 1, first_number: int = 0,
                 remove_bpe: str | None = None, too_long: TooLong = "truncate",
                 warn: Callable[[str], object] | None = None, **options: Unpack[SearchOptions]) -> list[Translation]: ...

    def generate(self, prompts: str | Iterable[str], beam: int | None = None, *, search: SearchConfig | None = None,
                 max_tokens: int | None = None, batch_size: int | None = None, seed: int = 1, first_number: int = 0,
                 remove_bpe: str | None = None, too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None,
                 **options: Unpack[SearchOptions]) -> Translation | list[Translation]:
        """Continue a prompt, or several: a text is the prompt and what follows it, up to `</s>`.

        Lengths count what follows the prompt; scores count all of the text. An empty prompt lets the model begin.

        Arguments:
            prompts: raw text, one prompt or any number of them. Of one that leaves no room in the model's positions the end is
                kept, or it is skipped (`too_long="skip"`), and `warn` is told.
            beam: hypotheses kept at each step; 1 is greedy.
            options: those of `lamina interactive`, as flags with underscores or as SearchConfig's fields:
                `sampling=True, sampling_topp=0.9, max_len_b=50`. The other arguments are those of `Translator.translate`.

        Returns:
            One text for one prompt, a list in their order for several.

        >>> model.generate("the old", beam=1, max_len_b=5).text.startswith("the old")
        True
        """
        config, is_one = only_one(search, beam=beam, **options), isinstance(prompts, str)
        with self._turn():
            found = self._generate(texts_of(prompts, "prompts"), config, max_tokens, batch_size, seed, first_number, remove_bpe,
                                   too_long, warn or warn_in_python)
        return found[0] if is_one else found

    def _generate(self, lines: list[str], config: SearchConfig, max_tokens: int | None, batch_size: int | None, seed: int,
                  first_number: int, remove_bpe: str | None, too_long: TooLong,
                  warn: Callable[[str], object]) -> list[Translation]:
        if config.constraint_order is not None:
            raise ConfigError("--constraints is for translations: a language model continues its prompt freely. Leave it out.")
        searcher = Search(self.models, config, vocabulary=self.vocabulary)
        if first_number == 0:
            warn_of_joiner(remove_bpe, self.vocabulary, warn)
        results = [Translation("", 0.0, [], [], [], is_skipped=True) for _ in lines]
        rows: list[np.ndarray] = []
        places: list[int] = []
        for place, line in enumerate(lines):
            ids = self._fitted_prompt(self.token_ids(line)[:-1], config, first_number + place, too_long, warn)
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

    __call__ = generate

    def stream(self, prompts: Iterable[str], beam: int | None = None, *, buffer_size: int = 1000,
               search: SearchConfig | None = None, max_tokens: int | None = None, batch_size: int | None = None, seed: int = 1,
               first_number: int = 0, remove_bpe: str | None = None, too_long: TooLong = "truncate",
               warn: Callable[[str], object] | None = None, **options: Unpack[SearchOptions]) -> Iterator[Translation]:
        """`generate`, with all its options, for any number of prompts: `buffer_size` of them are in memory at a time.

        Returns:
            An iterator over texts, in order.

        >>> [found.text for found in model.stream(["the old"], max_len_b=5)] == [model("the old", max_len_b=5).text]
        True
        """
        if buffer_size < 1:
            raise ConfigError(f"--buffer-size is {buffer_size}; it must be at least 1.")
        lines, number = many_texts(prompts, "prompts"), first_number
        while buffer := list(islice(lines, buffer_size)):
            yield from self.generate(buffer, beam, search=search, max_tokens=max_tokens, batch_size=batch_size, seed=seed,
                                     first_number=number, remove_bpe=remove_bpe, too_long=too_long, warn=warn, **options)
            number += len(buffer)

    def stream_tokens(self, prompt: str, *, seed: int = 1, too_long: TooLong = "truncate",
                      warn: Callable[[str], object] | None = None, **options: Unpack[SearchOptions]) -> Iterator[str]:
        """The greedy text, or with `sampling=True` a random one, piece by piece while the model writes it, prompt first.

        Arguments:
            prompt: raw text.
            seed: decides what sampling draws; that of `generate(..., beam=1)` with the same seed.
            options: as for `generate`.

        Returns:
            An iterator over pieces of text. Put together, they are the text of `generate(prompt, beam=1)`.

        >>> "".join(model.stream_tokens("the old", max_len_b=5)) == model.generate("the old", beam=1, max_len_b=5).text
        True
        """
        config = only_one(None, **{"beam": 1, **options})
        ids = self._fitted_prompt(self.token_ids(one_text(prompt, "prompt"))[:-1], config, 0, too_long, warn or warn_in_python)
        if ids is None:
            return
        searcher = Search(self.models, config, vocabulary=self.vocabulary)
        yield from stream_text(searcher, np.append(ids, EOS), ids, (seed, 0), self.device, self._turn,
                               lambda own: join_pieces(self.vocabulary.decode(own), self.subword, None))

    @overload
    def score(  # type: ignore[overload-overlap]
            self, texts: str, *, max_tokens: int | None = None, batch_size: int | None = None,
              too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None) -> Score: ...

    @overload
    def score(self, texts: Iterable[str], *, max_tokens: int | None = None, batch_size: int | None = None,
              too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None) -> list[Score]: ...

    def score(self, texts: str | Iterable[str], *, max_tokens: int | None = None, batch_size: int | None = None,
              too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None) -> Score | list[Score]:
        """The log-probability of each token of each text, given those before it in the text; several models by their mean.

        Arguments:
            texts: raw text, one or several. Of one that is too long the beginning counts; with `too_long="skip"` its score has
                no tokens but `</s>`, at -inf.

        Returns:
            One Score for one text, a list in their order for several.

        >>> len(model.score("the old boat").tokens)
        4
        """
        with self._turn():
            found = self._score(texts_of(texts), max_tokens, batch_size, too_long, warn or warn_in_python)
        return found[0] if isinstance(texts, str) else found

    def _score(self, lines: list[str], max_tokens: int | None, batch_size: int | None, too_long: TooLong,
               warn: Callable[[str], object]) -> list[Score]:
        results = [Score([EOS], ["</s>"], [-np.inf]) for _ in lines]
        rows: list[tuple[np.ndarray]] = []
        places: list[int] = []
        for place, line in enumerate(lines):
            ids = fitted(self.token_ids(line), self.max_positions, place, too_long, warn)
            if ids is not None:
                rows.append((ids,))
                places.append(place)
        for index, own in score_rows(self.models, rows, device=self.device, max_tokens=max_tokens, batch_size=batch_size):
            ids = rows[index][0].tolist()
            results[places[index]] = Score(ids, [self.vocabulary.symbols[token] for token in ids], own)
        return results

    @in_turn
    def encode(self, texts: str | Iterable[str], layers: Layers = "last", *, batch_size: int | None = None,
               warn: Callable[[str], object] | None = None) -> States:
        """The model's states after reading each token of texts, as tensors on its device; `</s>` is the last token.

        Arguments:
            texts: raw text, one or several.
            layers: as for `Translator.encode`.

        Returns:
            States: `final`, `layers` and a `mask` that is True where there is a token.

        >>> model.encode("the old boat", layers=[0, 1]).layers[1].shape[:2]
        torch.Size([1, 4])
        """
        rows = [fitted(self.token_ids(line), self.max_positions, number, "truncate", warn or warn_in_python)
                for number, line in enumerate(texts_of(texts))]
        # A text's first token is predicted from </s>; what is asked for here is what reading each token led to.
        ids = [row for row in rows if row is not None]
        return self._states(ids, [[self.vocabulary.symbols[token] for token in row.tolist()] for row in ids], layers,
                            lambda model, batch: model(batch), batch_size)

    def token_ids(self, line: str) -> np.ndarray:
        """The ids of a text, `</s>` last.

        >>> model.token_ids("the old boat").tolist()[-1]
        2
        """
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
        warn(f"prompt {number + 1} has {len(ids)} tokens, which leaves no room to continue within the {self.max_positions} "
             f"positions of the model; it was {what}.")
        return None if too_long == "skip" else ids[len(ids) - limit :]

    def _text(self, ids: list[int], score: float, token_scores: list[float], remove_bpe: str | None) -> Translation:
        tokens = self.vocabulary.decode(ids)
        return Translation(join_pieces(tokens, self.subword, remove_bpe), score, tokens, token_scores, ids)

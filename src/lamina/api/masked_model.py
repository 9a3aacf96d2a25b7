"""Gaps filled and sentences classified: what `lamina.load` returns for masked language models and classifiers."""

# B batch, T tokens, V vocabulary, C classes

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
import torch
from torch import Tensor

from lamina.api.given_texts import texts_of
from lamina.api.loaded_model import Layers, LoadedModel, States, in_turn
from lamina.data.batching import length_batches, pad_rows
from lamina.data.labelled_sentences import Frame
from lamina.errors import ConfigError, DataError
from lamina.models.masked import MaskedModel
from lamina.text.subword import Subword, library_behind, library_of
from lamina.text.tokenizer_json import TokenizerJson
from lamina.text.vocabulary import BOS, EOS, FIRST_WORD_ID, MASK_SYMBOL, Vocabulary


@dataclass
class Filling:
    """One way to fill a gap."""

    text: str  # the sentence with the gap filled
    token: str  # the piece that fills it, as the dictionary spells it
    probability: float


@dataclass
class Prediction:
    """What a sentence head says of a text. A head trained with --regression-target gives a value alone."""

    label: str = ""
    probability: float = 1.0
    probabilities: dict[str, float] = field(default_factory=dict)  # of all labels
    value: float | None = None


class MaskedLanguageModel(LoadedModel[MaskedModel]):
    """A masked language model or classifier, with its dictionaries. `model(text)` is `model.fill_mask(text)`."""

    def __init__(self, models: Sequence[MaskedModel], vocabularies: tuple[Vocabulary, ...], subwords: tuple[Subword, ...], *,
                 languages: tuple[str, ...] = ("text",), device: torch.device | str | None = None,
                 dtype: torch.dtype | str | None = None) -> None:
        super().__init__(models, languages, device, dtype)
        self.vocabularies = vocabularies
        self.subwords = subwords
        self.max_positions = min(model.max_positions for model in models)
        own_text, own = subwords[0], library_of(subwords[0])
        # Of the space in front of a gap; elsewhere it is a part of what fills it.
        self._keeps_space = isinstance(own_text, TokenizerJson) and own_text.keeps_space_before(MASK_SYMBOL)
        self._library = own if own.shows_words else library_behind(vocabularies[0].symbols)

    # -- gaps

    @overload
    def fill_mask(  # type: ignore[overload-overlap]
            self, text: str, topk: int = 5) -> list[Filling]: ...

    @overload
    def fill_mask(self, text: Iterable[str], topk: int = 5) -> list[list[Filling]]: ...

    def fill_mask(self, text: str | Iterable[str], topk: int = 5) -> list[Filling] | list[list[Filling]]:
        """The likeliest ways to fill the one `<mask>` of a text, best first: each is one piece of the dictionary.

        Arguments:
            text: a text with one `<mask>`, or several such texts.
            topk: how many ways. Probabilities are those of the whole vocabulary; special symbols are no candidates.

        Returns:
            Fillings; for several texts a list of them for each.

        >>> len(model.fill_mask("the <mask> boat", topk=3))
        3
        """
        with self._turn():
            found = [self._fill_mask(own, topk) for own in texts_of(text)]
        return found[0] if isinstance(text, str) else found

    @torch.no_grad()
    def _fill_mask(self, text: str, topk: int) -> list[Filling]:
        vocabulary = self.vocabularies[0]
        if topk < 1:
            raise ConfigError(f"topk is {topk}; it must be at least 1.")
        number = text.count(MASK_SYMBOL)
        if number != 1:
            advice = (f"Write {MASK_SYMBOL} where the gap is." if not number else
                      "Fill one gap at a time: put a word in place of the others, or the best one found so far.")
            raise DataError(f"the text has {number or 'no'} {MASK_SYMBOL}{'s' if number > 1 else ''}: {text!r}. {advice}")
        before, after = text.split(MASK_SYMBOL)
        left = [BOS, *self._ids(before if self._keeps_space else before.rstrip())]
        right = [*self._ids(after, follows_gap=True), EOS]
        gap = len(left)
        tokens = self._checked(np.array([*left, vocabulary.id(MASK_SYMBOL), *right]))[None].to(self.device)
        probabilities = torch.stack([model.logits(tokens)[0, gap].float().softmax(dim=-1) for model in self.models]).mean(dim=0)
        candidates = torch.arange(FIRST_WORD_ID, len(vocabulary), device=self.device)
        candidates = candidates[candidates != vocabulary.id(MASK_SYMBOL)]
        best = probabilities[candidates].topk(min(topk, len(candidates)))
        pieces = [vocabulary.symbols[token] for token in candidates[best.indices].tolist()]
        return [Filling(self._filled(before, piece, after), piece, probability)
                for piece, probability in zip(pieces, best.values.tolist(), strict=True)]

    __call__ = fill_mask

    def _ids(self, text: str, *, follows_gap: bool = False) -> list[int]:
        pieces = self.subwords[0].encode(text)
        # Sentencepiece begins every text like a word; what follows the gap without a space, such as a full stop, is none.
        if follows_gap and pieces and not text[:1].isspace() and self._opens_word(pieces[0]):
            rest = self._library.spell(pieces[:1])
            pieces = [rest, *pieces[1:]] if rest in self.vocabularies[0] else pieces if rest else pieces[1:]
        return self.vocabularies[0].ids(pieces)

    def _filled(self, before: str, piece: str, after: str) -> str:
        """The marks of a piece decide about the spaces around it."""
        word = self._library.spell([piece])
        if self._library.continues(piece):
            return before + word + after.lstrip()
        if not self._library.begins_word(piece):
            return before.rstrip() + word + after
        space = " " if self._opens_word(piece) and before and not before[-1].isspace() else ""
        return before + space + word + after

    def _opens_word(self, piece: str) -> bool:
        """Whether a mark says that a word begins here."""
        library = self._library
        return library.is_marked(piece) and library.begins_word(piece) and not library.continues(piece)

    # -- sentences

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the sentence heads; none for a model that was only pretrained.

        >>> model.heads
        ('sentence_classification_head',)
        """
        return tuple(name for name in self.models[0].classifiers if all(name in model.classifiers for model in self.models))

    @property
    def labels(self) -> list[str]:
        """In the order of the head's scores; none where a number is predicted.

        >>> len(model.labels)
        2
        """
        if len(self.vocabularies) < 2 or not self.heads:
            return []
        return self.vocabularies[1].symbols[FIRST_WORD_ID:][: self._num_classes(self.heads[0])]

    def predict(self, head: str, text: str, text2: str | None = None) -> Prediction:
        """What the head of this name says of a text, or of a pair of texts.

        >>> model.predict("sentence_classification_head", "the old boat").label in model.labels
        True
        """
        return self.predict_all(head, [text if text2 is None else (text, text2)])[0]

    @in_turn
    @torch.no_grad()
    def predict_all(self, head: str, texts: Iterable[str | tuple[str, str]], *, max_tokens: int | None = None,
                    batch_size: int | None = None) -> list[Prediction]:
        """`predict` for many texts or pairs, in batches; one prediction each, in order.

        >>> len(model.predict_all("sentence_classification_head", ["the old boat", "a bird"]))
        2
        """
        if isinstance(texts, str):
            raise ConfigError("predict_all() takes a list of texts, not one string. Write predict(head, text).")
        if head not in self.heads:
            known = f"its heads are {', '.join(self.heads)}" if self.heads else (
                "it has none: fine-tune it first, with --task sentence_prediction")
            raise ConfigError(f"the model has no sentence head {head!r}; {known}.")
        rows = [self.token_ids(*((text,) if isinstance(text, str) else text)) for text in texts]
        results = [Prediction() for _ in rows]
        for indices in length_batches(rows, max_tokens, batch_size):
            tokens = torch.from_numpy(pad_rows([rows[index] for index in indices])).to(self.device)
            scores = [model.classify(tokens, head).float() for model in self.models]
            for index, own in zip(indices, self._predictions(scores), strict=True):
                results[index] = own
        return results

    def _predictions(self, scores: list[Tensor]) -> list[Prediction]:
        if not self.labels:
            return [Prediction(value=value) for value in torch.stack(scores).mean(dim=0)[:, 0].tolist()]
        predictions = []
        for row in torch.stack([own.softmax(dim=-1) for own in scores]).mean(dim=0).tolist():
            probabilities = dict(zip(self.labels, row, strict=True))
            best = max(probabilities, key=probabilities.__getitem__)
            predictions.append(Prediction(best, probabilities[best], probabilities))
        return predictions

    def _num_classes(self, head: str) -> int:
        return self.models[0].classifiers[head].out_proj.out_features  # type: ignore[union-attr, return-value]

    @in_turn
    def encode(self, texts: str | Iterable[str | tuple[str, str]], layers: Layers = "last", *,
               batch_size: int | None = None) -> States:
        """The encoder's states for texts, or pairs of them, as tensors on its device.

        Arguments:
            texts: raw text, one or several; or a list with pairs.
            layers: as for `Translator.encode`.

        Returns:
            States: `final`, `layers` and a `mask` that is True where there is a token.

        >>> model.encode(["the old boat", ("a bird", "sings")]).final.dim()
        3
        """
        given: list[str | tuple[str, str]] = [texts] if isinstance(texts, str) else list(texts)
        rows = [self.token_ids(*((text,) if isinstance(text, str) else text)) for text in given]
        return self._states(rows, [[self.vocabularies[0].symbols[token] for token in row.tolist()] for row in rows], layers,
                            lambda model, batch: model.encode(batch), batch_size)

    def token_ids(self, text: str, text2: str | None = None) -> np.ndarray:
        """The ids of `<s> text </s>`, or of `<s> text </s> </s> text2 </s>`: as the sentence head was trained.

        >>> model.token_ids("the old boat").tolist()[-1]
        2
        """
        first, second = (None if own is None else np.array([*self._ids(own), EOS]) for own in (text, text2))
        assert first is not None
        return self._checked(Frame(*self.models[0].frame).join(first, second)).numpy()

    def _checked(self, ids: np.ndarray) -> Tensor:
        if len(ids) > self.max_positions:
            raise DataError(f"the text has {len(ids)} tokens, more than the {self.max_positions} positions of the model. "
                            "Shorten it.")
        return torch.from_numpy(ids)

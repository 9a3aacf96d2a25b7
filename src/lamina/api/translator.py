"""Raw text in, translations out: what `lamina.load` returns for a translation model, and what the commands use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch

from lamina.analysis.fusion_weights import FusionWeights, Gates, fusion_weights, gates, mixes_hard, source_attention
from lamina.api.given_texts import is_pair, many_texts, one_text, pairs_of, texts_of
from lamina.api.loaded_model import Layers, LoadedModel, States, in_turn
from lamina.api.outputs import Attention, Score, TooLong, Translation, fitted, only_one, warn_in_python, warn_of_lost
from lamina.config.chosen_depth import DepthText
from lamina.config.search_options import SearchConfig
from lamina.data.batching import DEFAULT_BATCH_SIZE, collate
from lamina.data.corpus import Example
from lamina.decode.alignment import alignment_of, attention_weights
from lamina.decode.backtrace import Hypothesis
from lamina.decode.cascade import Cascade, searched, searches_of
from lamina.decode.scoring import score_rows
from lamina.decode.search import Search
from lamina.decode.token_stream import stream_text
from lamina.errors import ConfigError, DataError
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.stack import ALL_LAYERS
from lamina.text.pieces import join_pieces, warn_of_joiner
from lamina.text.subword import Subword
from lamina.text.vocabulary import EOS, PAD, UNK, Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lamina.api.option_types import SearchOptions


class Translator(LoadedModel[EncoderDecoder]):
    """A translation model, or whatever turns one text into another, with its dictionaries and segmentations.

    `model(text)` is `model.translate(text)`.
    """

    def __init__(self, models: Sequence[EncoderDecoder], vocabularies: tuple[Vocabulary, ...],
                 subwords: tuple[Subword, ...], *, languages: tuple[str, ...] = ("source", "target"),
                 device: torch.device | str | None = None, dtype: torch.dtype | str | None = None) -> None:
        super().__init__(models, languages, device, dtype)
        self.vocabularies = vocabularies
        self.subwords = subwords
        self.max_source_positions = min(model.max_source_positions for model in models)
        self.max_target_positions = min(model.max_target_positions for model in models)

    @overload
    def translate(  # type: ignore[overload-overlap]
            self, sentences: str, beam: int | None = None, *, search: SearchConfig | None = None,
                  constraints: Sequence[str] | None = None, max_tokens: int | None = None, batch_size: int | None = None,
                  seed: int = 1, first_number: int = 0, remove_bpe: str | None = None, with_alignment: bool = False,
                  too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None, depth: DepthText = None,
                  cascade: Cascade | str | Path | None = None, **options: Unpack[SearchOptions]) -> Translation: ...

    @overload
    def translate(self, sentences: Iterable[str], beam: int | None = None, *, search: SearchConfig | None = None,
                  constraints: Iterable[Sequence[str]] | None = None, max_tokens: int | None = None,
                  batch_size: int | None = None, seed: int = 1, first_number: int = 0, remove_bpe: str | None = None,
                  with_alignment: bool = False, too_long: TooLong = "truncate",
                  warn: Callable[[str], object] | None = None, depth: DepthText = None,
                  cascade: Cascade | str | Path | None = None, **options: Unpack[SearchOptions]) -> list[Translation]: ...

    def translate(self, sentences: str | Iterable[str], beam: int | None = None, *, search: SearchConfig | None = None,
                  constraints: Sequence[str] | Iterable[Sequence[str]] | None = None,
                  max_tokens: int | None = None, batch_size: int | None = None, seed: int = 1, first_number: int = 0,
                  remove_bpe: str | None = None, with_alignment: bool = False, too_long: TooLong = "truncate",
                  warn: Callable[[str], object] | None = None, depth: DepthText = None,
                  cascade: Cascade | str | Path | None = None,
                  **options: Unpack[SearchOptions]) -> Translation | list[Translation]:
        """Translate a sentence, or several in batches.

        An empty line gives an empty translation without asking the model. A result does not depend on the batch it is in.

        Arguments:
            sentences: raw text, one sentence or any number of them.
            beam: hypotheses kept at each step; 1 is greedy search.
            search: how to search, as a SearchConfig, in place of `beam` and the options.
            constraints: for each sentence (of one sentence: for it) target phrases in raw text that the translation contains,
                in this order unless `constraint_order="unordered"`. A maximum length that is too short for them gives way;
                a phrase that the dictionary does not know is an error.
            max_tokens: source tokens of a batch at most, with padding.
            batch_size: sentences of a batch at most.
            seed: with the number of a sentence it decides what sampling draws.
            first_number: the number of the first sentence, where these are part of a longer text.
            remove_bpe: joins pieces at a mark such as "@@ ", where the checkpoint carries no subword model of its own.
            with_alignment: look up which source piece each target piece attends to most.
            too_long: what becomes of a source longer than the model's positions: "truncate" or "skip".
            warn: hears of such lines; Python's warnings, if left out.
            depth: the layers that run: "full", "half", "6-3" (encoder and decoder layers, spread evenly) or {"encoder": 6,
                "decoder": [0, 2, 4]}; or "auto", what a cascade does. For models trained with LayerDrop; the model itself
                stays as it is.
            cascade: for the depth "auto", the file that `lamina calibrate` wrote for this model.
            options: those of `lamina generate`, as flags with underscores or as SearchConfig's fields: `lenpen=0.6, nbest=3`.

        Returns:
            One Translation for one sentence, a list in their order for several.

        >>> model.translate(["a bird", "the old boat"], beam=2, lenpen=0.6)[1].text == model.translate("the old boat", 2).text
        True
        """
        config, is_one = only_one(search, beam=beam, **options), isinstance(sentences, str)
        wanted = [constraints] if is_one and constraints is not None else constraints
        with self._turn():
            found = self._translate(texts_of(sentences, "sentences"), config, wanted,  # type: ignore[arg-type]
                                    max_tokens, batch_size, seed, first_number, remove_bpe, with_alignment, too_long,
                                    warn or warn_in_python, depth, cascade)
        return found[0] if is_one else found

    def _translate(self, lines: list[str], config: SearchConfig, constraints: Iterable[Sequence[str]] | None,
                   max_tokens: int | None, batch_size: int | None, seed: int, first_number: int, remove_bpe: str | None,
                   with_alignment: bool, too_long: TooLong, warn: Callable[[str], object],
                   depth: DepthText, cascade: Cascade | str | Path | None) -> list[Translation]:
        chosen = self.cascade_of(depth, cascade)
        searcher = Search(self.models, config, ALL_LAYERS if chosen else self.active_layers(depth),
                          vocabulary=self.vocabularies[1])
        if first_number == 0:  # of the parts of a longer text, the first says it for all
            warn_of_joiner(remove_bpe, self.vocabularies[1], warn)
        results = [Translation("", 0.0, [], [], []) for _ in lines]
        rows: list[np.ndarray] = []
        places: list[int] = []
        phrases = None if constraints is None else self.phrase_ids(constraints, len(lines), first_number)
        for place, line in enumerate(lines):
            ids = fitted(self.encode_source(line), self.max_source_positions, first_number + place, too_long, warn)
            if ids is None:
                results[place].is_skipped = True
            elif len(ids) > 1 or (phrases is not None and phrases[place]):
                rows.append(ids)
                places.append(place)
        # A draw belongs to the line, wherever the lines around it end up: numbers count all lines, not those searched.
        numbers = [first_number + place for place in places]
        num_lost = 0
        for found in searched(chosen, searches_of(chosen, searcher), rows, device=self.device, max_tokens=max_tokens,
                              batch_size=batch_size, seed=seed, numbers=numbers, with_attention=with_alignment,
                              constraints=None if phrases is None else [phrases[place] for place in places]):
            results[places[found.index]] = self.translation(found.hypotheses, rows[found.index].tolist(), remove_bpe)
            num_lost += found.hypotheses[0].is_lost
        warn_of_lost(num_lost, len(rows), warn)
        return results

    __call__ = translate

    def stream(self, sentences: Iterable[str], beam: int | None = None, *, buffer_size: int = 1000,
               search: SearchConfig | None = None, constraints: Iterable[Sequence[str]] | None = None,
               max_tokens: int | None = None, batch_size: int | None = None, seed: int = 1, first_number: int = 0,
               remove_bpe: str | None = None, with_alignment: bool = False, too_long: TooLong = "truncate",
               warn: Callable[[str], object] | None = None, depth: DepthText = None,
               cascade: Cascade | str | Path | None = None, **options: Unpack[SearchOptions]) -> Iterator[Translation]:
        """`translate`, with all its options, for any number of sentences, such as the lines of a file.

        Arguments:
            sentences: any iterable of raw text.
            buffer_size: how many are in memory at a time.

        Returns:
            An iterator over Translations, in order.

        >>> [found.text for found in model.stream(iter(["a bird"]))] == [model("a bird").text]
        True
        """
        if buffer_size < 1:
            raise ConfigError(f"--buffer-size is {buffer_size}; it must be at least 1.")
        lines, number = many_texts(sentences, "sentences"), first_number
        phrases = None if constraints is None else iter(constraints)
        while buffer := list(islice(lines, buffer_size)):
            own = None if phrases is None else list(islice(phrases, len(buffer)))
            yield from self.translate(buffer, beam, search=search, constraints=own, max_tokens=max_tokens,
                                      batch_size=batch_size, seed=seed, first_number=number, remove_bpe=remove_bpe,
                                      with_alignment=with_alignment, too_long=too_long, warn=warn, depth=depth,
                                      cascade=cascade, **options)
            number += len(buffer)

    def stream_tokens(self, sentence: str, *, seed: int = 1, too_long: TooLong = "truncate",
                      warn: Callable[[str], object] | None = None, **options: Unpack[SearchOptions]) -> Iterator[str]:
        """The greedy translation, or with `sampling=True` a random one, piece by piece while the model writes it.

        Arguments:
            sentence: raw text.
            seed: decides what sampling draws; that of `translate(..., beam=1)` with the same seed.
            options: as for `translate`; a beam has no one text that only grows.

        Returns:
            An iterator over pieces of text. Put together, they are the text of `translate(sentence, beam=1)`.

        >>> "".join(model.stream_tokens("a bird")) == model.translate("a bird", beam=1).text
        True
        """
        config = only_one(None, **{"beam": 1, **options})
        ids = fitted(self.encode_source(one_text(sentence, "sentence")), self.max_source_positions, 0, too_long,
                     warn or warn_in_python)
        if ids is None or len(ids) <= 1:
            return
        searcher = Search(self.models, config, vocabulary=self.vocabularies[1])
        yield from stream_text(searcher, ids, None, (seed, 0), self.device, self._turn,
                               lambda own: self.join_target(self.vocabularies[1].decode(own)))

    @overload
    def score(self, pairs: tuple[str, str], *, max_tokens: int | None = None, batch_size: int | None = None,
              too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None, first_number: int = 0) -> Score: ...

    @overload
    def score(self, pairs: Iterable[tuple[str, str]], *, max_tokens: int | None = None, batch_size: int | None = None,
              too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None,
              first_number: int = 0) -> list[Score]: ...

    def score(self, pairs: tuple[str, str] | Iterable[tuple[str, str]], *, max_tokens: int | None = None,
              batch_size: int | None = None, too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None,
              first_number: int = 0) -> Score | list[Score]:
        """The log-probability of each given translation, and of each of its tokens; several models count by their mean.

        Arguments:
            pairs: a source and its translation as a tuple, or any number of such tuples.
            too_long: as for `translate`, like the other arguments. Of a pair that is skipped, the score
                has no tokens but `</s>`, at -inf.

        Returns:
            One Score for one pair, a list in their order for several.

        >>> model.score(("a bird", "BIRD A")).total < 0
        True
        """
        with self._turn():
            found = self._score(pairs_of(pairs), max_tokens, batch_size, too_long, warn, first_number)
        return found[0] if is_pair(pairs) else found

    def _score(self, pairs: Iterable[tuple[str, str]], max_tokens: int | None, batch_size: int | None, too_long: TooLong,
               warn: Callable[[str], object] | None, first_number: int) -> list[Score]:
        sides = [(self.encode_source(source), self.encode_target(target)) for source, target in pairs]
        limits = {"source": self.max_source_positions, "target": self.max_target_positions}
        rows: list[tuple[np.ndarray, np.ndarray]] = []
        places: list[int] = []
        results: list[Score] = [Score([EOS], ["</s>"], [-np.inf]) for _ in sides]
        for number, pair in enumerate(sides):
            source, target = (fitted(ids, limit, first_number + number, too_long, warn or warn_in_python, side)
                              for ids, (side, limit) in zip(pair, limits.items(), strict=True))
            if source is not None and target is not None:
                rows.append((source, target))
                places.append(number)
        for index, own in score_rows(self.models, rows, device=self.device, max_tokens=max_tokens, batch_size=batch_size):
            ids = rows[index][1].tolist()
            results[places[index]] = Score(ids, [self.vocabularies[1].symbols[token] for token in ids], own)
        return results

    # -- inside

    @in_turn
    def encode(self, texts: str | Iterable[str], layers: Layers = "last", *, batch_size: int | None = None,
               warn: Callable[[str], object] | None = None) -> States:
        """What the encoder makes of texts, as tensors on the model's device.

        Arguments:
            texts: source text, one or several.
            layers: which layers' outputs to give as well as the final states: "all", "last" (no others), a number or
                several; 0 is the encoder's input, 1 the output of its first layer.
            batch_size: texts at a time.
            warn: hears of texts that are cut to the model's positions.

        Returns:
            States: `final`, `layers` and a `mask` that is True where there is a token.

        >>> states = model.encode(["a bird", "the old boat sings"], layers="all")
        >>> states.final.shape[:2] == states.mask.shape, len(states.layers), states.mask.sum(dim=1).tolist()
        (True, 2, [3, 5])
        """
        lines = texts_of(texts)
        rows = [fitted(self.encode_source(line), self.max_source_positions, number, "truncate", warn or warn_in_python)
                for number, line in enumerate(lines)]
        ids = [row for row in rows if row is not None]
        symbols = self.vocabularies[0].symbols
        return self._states(ids, [[symbols[token] for token in row.tolist()] for row in ids], layers,
                            lambda model, batch: model.encode(batch), batch_size)

    @in_turn
    def attention(self, source: str, target: str | None = None, *, layer: int | Literal["all", "surface"] = -1) -> Attention:
        """How much each token of a translation looks at each source token: the mean of a layer's heads.

        Arguments:
            source: a source sentence.
            target: its translation; what the model itself says greedily, if left out.
            layer: a decoder layer's number, from 0 or from the end; "all", for all of them; or "surface", for the head of
                SurfaceFusion that attends to source embeddings (--surfacefusion att).

        Returns:
            Attention: `weights` (target, source), or (layers, target, source) of all, and the tokens on both sides.

        >>> found = model.attention("a bird", "BIRD A")
        >>> tuple(found.weights.shape) == (len(found.target), len(found.source))
        True
        """
        model = self._only("attention")
        source_ids = self._fitted(source, self.encode_source(one_text(source, "source")), self.max_source_positions)
        target_ids = (np.array(self.translate(source, beam=1).ids) if target is None else
                      self._fitted(target, self.encode_target(one_text(target, "target")), self.max_target_positions))
        batch = collate([Example(source_ids, target_ids)], [0]).to(self.device)
        if layer == "surface":
            found = source_attention(model, *batch.inputs)
            if not found.is_of_head:
                raise ConfigError("the softmax of this model does not attend to the source; that is what --surfacefusion att "
                                  "brings. Name a decoder layer.")
            weights = torch.from_numpy(found.weights)
        else:
            depth = len(model.decoder.layers)
            if layer != "all" and (not isinstance(layer, int) or not -depth <= layer < depth):
                raise ConfigError(f"layer is {layer!r}; the decoder has {depth} layers, 0 to {depth - 1}. \"all\" gives all of "
                                  "them, \"surface\" the attention of SurfaceFusion.")
            chosen = range(depth) if layer == "all" else [layer]
            parts: list[Any] = [model.decoder.layers[number] for number in chosen]
            each = [attention_weights(model, part.cross_attention, *batch.inputs)[0].cpu() for part in parts]
            weights = torch.stack(each) if layer == "all" else each[0]
        sides = ([vocabulary.symbols[token] for token in ids.tolist()]
                 for vocabulary, ids in zip(self.vocabularies, (source_ids, target_ids), strict=True))
        return Attention(weights, *sides)

    def fusion_weights(self) -> FusionWeights | None:
        """How much of each encoder layer every decoder layer reads: the mix that layer fusion has learned.

        Returns:
            FusionWeights: the names of the `columns`, `shares` (decoder layers, columns) whose rows sum to 1, and the `spread`
            over channels; None where every decoder layer reads the encoder's output and nothing else.

        >>> model.fusion_weights() is None
        True
        """
        return fusion_weights(self._only("fusion_weights"))

    @in_turn
    def gates(self, pairs: tuple[str, str] | Iterable[tuple[str, str]], *, batch_size: int | None = None) -> Gates:
        """The gate of hard SurfaceFusion at each target token: the weight of the decoder's own scores against the source's.

        Arguments:
            pairs: a source and its translation, or several such pairs.
            batch_size: pairs at a time.

        Returns:
            Gates: the ids of the `tokens`, of all pairs one behind the other, and the gate's `values` there.

        >>> model.gates([("a bird", "BIRD A")])
        Traceback (most recent call last):
        lamina.errors.ConfigError: this model has no gate: --surfacefusion with --sf-mode hard brings one.
        """
        model = self._only("gates")
        if not mixes_hard(model):
            raise ConfigError("this model has no gate: --surfacefusion with --sf-mode hard brings one.")
        examples = [Example(self._fitted(source, self.encode_source(source), self.max_source_positions),
                            self._fitted(target, self.encode_target(target), self.max_target_positions))
                    for source, target in pairs_of(pairs)]
        size = batch_size or DEFAULT_BATCH_SIZE
        return gates(model, (collate(examples[start : start + size], range(start, start + size)).to(self.device)
                             for start in range(0, len(examples), size)))

    def _fitted(self, text: str, ids: np.ndarray, limit: int) -> np.ndarray:
        if len(ids) > limit:
            raise DataError(f"{text[:40]!r} has {len(ids)} tokens, more than the {limit} positions of the model. Shorten it.")
        return ids

    def encode_source(self, line: str) -> np.ndarray:
        """The ids of a source sentence, `</s>` last.

        >>> model.encode_source("a bird").tolist()[-1]
        2
        """
        return self.vocabularies[0].encode(self.subwords[0].encode(line))

    def encode_target(self, line: str) -> np.ndarray:
        """The ids of a target sentence, `</s>` last.

        >>> model.encode_target("BIRD").tolist()[-1]
        2
        """
        return self.vocabularies[1].encode(self.subwords[1].encode(line))

    def phrase_ids(self, constraints: Iterable[Sequence[str]], number: int, first_number: int = 0) -> list[list[list[int]]]:
        """The ids of each sentence's phrases.

        >>> [len(phrase) for phrase in model.phrase_ids([["BIRD", "A BIRD"]], 1)[0]]
        [1, 2]
        """
        texts = list(constraints)
        if any(isinstance(own, str) for own in texts):
            raise ConfigError("constraints has a string where a list of phrases belongs. Write [phrase] for a single one.")
        if len(texts) != number:
            raise ConfigError(f"there are {number} sentences, but {len(texts)} lists of constraints. Give each sentence one; "
                              "an empty list asks for nothing.")
        for place, own in enumerate(texts):
            for phrase in own:
                problem = self.phrase_problem(phrase)
                if problem:
                    raise DataError(f"line {first_number + place + 1}, constraint {phrase!r}: {problem}")
        return [[self.encode_target(phrase)[:-1].tolist() for phrase in own] for own in texts]

    def phrase_problem(self, phrase: str) -> str:
        """Why a phrase cannot be asked of a translation, or nothing."""
        pieces = self.subwords[1].encode(phrase)
        if not pieces:
            return "there is nothing in it. Leave it out."
        unknown = [piece for piece in pieces if self.vocabularies[1].id(piece) <= UNK]
        if unknown:
            return (f"the target dictionary has no {', '.join(map(repr, unknown))}, so the model cannot say it. Choose other "
                    "words, and segment them like the training data.")
        return ""

    def join_target(self, pieces: Sequence[str], remove_bpe: str | None = None) -> str:
        """Pieces as text: by the subword model, or at a mark such as "@@ "."""
        return join_pieces(list(pieces), self.subwords[1], remove_bpe)

    def translation(self, hypotheses: Sequence[Hypothesis], source_ids: Sequence[int],
                    remove_bpe: str | None = None) -> Translation:
        """What a search found, as text."""
        best, *rest = (self._translation(hypothesis, source_ids, remove_bpe) for hypothesis in hypotheses)
        best.alternatives = rest
        return best

    def _translation(self, hypothesis: Hypothesis, source_ids: Sequence[int], remove_bpe: str | None) -> Translation:
        tokens = self.vocabularies[1].decode(hypothesis.ids)
        alignment = (None if hypothesis.attention is None else
                     alignment_of(hypothesis.attention, source_ids, skipped=(EOS, PAD)))
        return Translation(self.join_target(tokens, remove_bpe), hypothesis.score, tokens,
                           hypothesis.token_scores, hypothesis.ids, alignment)

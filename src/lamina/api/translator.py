"""Raw text in, translations out: what the commands use and what a script imports as `lamina.load`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
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
    silent,
    warn_in_python,
    warn_of_lost,
    writing_dtype,
)
from lamina.config.search_options import SearchConfig
from lamina.decode.alignment import alignment_of
from lamina.decode.backtrace import Hypothesis
from lamina.decode.batched_search import search_rows
from lamina.decode.scoring import score_rows
from lamina.decode.search import Search
from lamina.errors import CheckpointError, ConfigError, DataError
from lamina.interop.any_format import load_any
from lamina.interop.fairseq_file import DictionaryPlaces
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.prepacked import Int8Linear, Prepacked, PrepackedLinear, can_prepack, prepack_
from lamina.plug_ins import import_paths, load_installed
from lamina.pruning.on_loading import made_ready
from lamina.text.pieces import join_pieces, warn_of_joiner
from lamina.text.subword import Subword
from lamina.text.vocabulary import EOS, PAD, UNK, Vocabulary
from lamina.traits import WRITES

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def load(path: str | Path | Sequence[str | Path], device: torch.device | str | None = None,
         dtype: torch.dtype | str | None = None, *, encoder_layers_to_keep: str | int | Sequence[int] | None = None,
         decoder_layers_to_keep: str | int | Sequence[int] | None = None, overrides: Mapping[str, Any] | None = None,
         dict_dir: str | Path | Sequence[str | Path] | None = None, source_lang: str | None = None,
         target_lang: str | None = None, quantize: str | None = None,
         user_dir: str | Path | Sequence[str | Path] = (),
         notice: Callable[[str], object] | None = None, say: Callable[[str], object] | None = None) -> Any:
    """The model of a checkpoint, or an ensemble of several: a list, or `a.pt:b.pt`.

    It runs on a GPU if there is one, unless `device` says otherwise. There, models that write texts compute in float16 unless
    `dtype` ("fp32", "bf16") says otherwise; everything else is float32.
    `encoder_layers_to_keep` and `decoder_layers_to_keep` prune every model: a list of layers, a number of them, or text as for
    the flags. `overrides` replaces settings of the stored models, by flag, and may hold these two; `notice` hears of those that
    models do not have and of doubtful pruning, and `say` the line about pruning that scripts read.
    A checkpoint of fairseq is taken as it is. Its dictionaries are looked for in `dict_dir` (a folder, or several) and beside
    it, and its languages, where it does not say them, are `source_lang` and `target_lang`.
    On a processor, matrices are laid out for its kernels: models are then there to be used, not to be moved, copied or saved.
    There, `quantize="int8"` rounds the matrices of linear layers, and what they are multiplied with, to 8 bits:
    faster, and not quite the same scores.
    `user_dir` names files or folders that register parts of your own, as --user-dir does; a checkpoint imports nothing itself.
    The task of the checkpoint decides what comes back: a Translator, a LanguageModel or a MaskedLanguageModel.
    """
    load_installed(notice or warn_in_python)
    missing = import_paths([user_dir] if isinstance(user_dir, (str, Path)) else user_dir, notice or warn_in_python)
    if missing:
        raise ConfigError(f"user_dir {', '.join(missing)} does not exist.")
    paths = [Path(name) for name in (path.split(":") if isinstance(path, str) else [path] if isinstance(path, Path) else path)]
    if not paths:
        raise CheckpointError("there is no checkpoint to load: the list of paths is empty.")
    if isinstance(dtype, str) and dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    device = default_device(device)
    dtype = DTYPES[dtype] if isinstance(dtype, str) else dtype
    prepacking = _prepacking(quantize, device, dtype or writing_dtype(device) or torch.float32)
    models = []
    overrides = {"encoder-layers-to-keep": encoder_layers_to_keep, "decoder-layers-to-keep": decoder_layers_to_keep,
                 **(overrides or {})}
    folders = [dict_dir] if isinstance(dict_dir, (str, Path)) else dict_dir or ()
    places = DictionaryPlaces.of(*folders, source_lang=source_lang, target_lang=target_lang)
    for number, place in enumerate(paths):
        # One at a time: what a checkpoint holds for training may be three times the model.
        whole = load_any(place, places=places, notice=notice or warn_in_python, is_resumable=False)
        checkpoint = made_ready(whole, place, overrides, notice=notice or warn_in_python, say=say or silent)
        del whole
        if number == 0:
            kind, vocabularies, subwords = checkpoint.kind, checkpoint.vocabularies(), checkpoint.subword_models()
            languages = checkpoint.languages
        if checkpoint.kind != kind:
            raise CheckpointError(f"{place} was trained for {checkpoint.task} and {paths[0]} for {kind.name}: no ensemble.")
        for side, own, first in zip(checkpoint.sides, checkpoint.vocabularies(), vocabularies, strict=True):
            if own.symbols != first.symbols:
                raise CheckpointError(f"{place} has another {side} dictionary ({own.digest}) than {paths[0]} ({first.digest}). "
                                      "An ensemble needs models trained on the same data folder.")
        models.append(checkpoint.build_model())
        if prepacking is not None:
            prepack_(models[-1], prepacking)
    if dtype is None and kind.has(WRITES):
        dtype = writing_dtype(device)
    return kind.load_api()(models, vocabularies, subwords, languages=languages, device=device, dtype=dtype)


def _prepacking(quantize: str | None, device: torch.device, dtype: torch.dtype) -> type[Prepacked] | None:
    """How the matrices of a model are laid out ahead, if they are."""
    if quantize is None:
        return PrepackedLinear if device.type == "cpu" and dtype == torch.float32 and can_prepack() else None
    if quantize != "int8":
        raise ConfigError(f"quantize is {quantize!r}; it must be int8, or left out.")
    if device.type != "cpu" or dtype != torch.float32:
        raise ConfigError("quantize='int8' is for a processor, with float32 between its products of integers. Choose "
                          "device='cpu' and no dtype, or leave quantize out.")
    if not can_prepack():
        raise ConfigError("quantize='int8' needs an x86 processor and a torch with oneDNN, and this is not both. Leave it out.")
    return Int8Linear


class Translator:
    """Models with their dictionaries and segmentations."""

    def __init__(self, models: Sequence[EncoderDecoder], vocabularies: tuple[Vocabulary, ...],
                 subwords: tuple[Subword, ...], *, languages: tuple[str, ...] = ("source", "target"),
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        self.device = default_device(device)
        self.models = [model.to(device=self.device, dtype=dtype).eval() for model in models]
        self.vocabularies = vocabularies
        self.subwords = subwords
        self.languages = languages
        self.max_source_positions = min(model.max_source_positions for model in models)
        self.max_target_positions = min(model.max_target_positions for model in models)

    def translate(self, sentences: Iterable[str], beam: int | None = None, *, search: SearchConfig | None = None,
                  constraints: Iterable[Sequence[str]] | None = None,
                  max_tokens: int | None = None, batch_size: int | None = None, seed: int = 1, first_number: int = 0,
                  remove_bpe: str | None = None, with_alignment: bool = False, too_long: TooLong = "truncate",
                  warn: Callable[[str], object] | None = None, **options: Any) -> list[Translation]:
        """One translation a sentence, in order.

        How to search is said by `search`, or by the options of `lamina generate`, as flags or as SearchConfig's fields:
        `beam=5, lenpen=0.6, nbest=3`. Batches hold up to `batch_size` sentences and `max_tokens` source tokens with
        padding. An empty line gives an empty translation without asking the model. A source longer than the model's
        positions is cut or skipped, and `warn` is told (Python's warnings, if left out). `remove_bpe` joins pieces at a mark
        such as "@@ ", where the checkpoint carries no subword model of its own. Sentences that are part of a longer text
        count from `first_number` in warnings and in what sampling draws.

        `constraints` has a list of target phrases for each sentence, in raw text like the sentences, or an empty one: the
        translation contains them, in this order unless `constraint_order="unordered"`. A maximum length that is too short
        for them gives way; a phrase that the dictionary does not know is an error.
        """
        if isinstance(sentences, str):
            raise ConfigError("translate() takes a list of sentences, not one string. Write translate([sentence]).")
        searcher = Search(self.models, only_one(search, beam=beam, **options), vocabulary=self.vocabularies[1])
        warn = warn or warn_in_python
        if first_number == 0:  # of the parts of a longer text, the first says it for all
            warn_of_joiner(remove_bpe, self.vocabularies[1], warn)
        lines = list(sentences)
        results = [Translation("", 0.0, [], [], []) for _ in lines]
        rows: list[np.ndarray] = []
        places: list[int] = []
        phrases = None if constraints is None else self._phrases(constraints, len(lines), first_number)
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
        for found in search_rows(searcher, rows, device=self.device, max_tokens=max_tokens, batch_size=batch_size, seed=seed,
                                 numbers=numbers, with_attention=with_alignment,
                                 constraints=None if phrases is None else [phrases[place] for place in places]):
            results[places[found.index]] = self.translation(found.hypotheses, rows[found.index].tolist(), remove_bpe)
            num_lost += found.hypotheses[0].is_lost
        warn_of_lost(num_lost, len(rows), warn)
        return results

    def stream(self, sentences: Iterable[str], beam: int | None = None, *, buffer_size: int = 1000,
               constraints: Iterable[Sequence[str]] | None = None, **options: Any) -> Iterator[Translation]:
        """`translate`, with all its options, for any number of sentences: `buffer_size` of them are in memory at a time."""
        if buffer_size < 1:
            raise ConfigError(f"--buffer-size is {buffer_size}; it must be at least 1.")
        lines, number = iter(sentences), options.pop("first_number", 0)
        phrases = None if constraints is None else iter(constraints)
        while buffer := list(islice(lines, buffer_size)):
            own = None if phrases is None else list(islice(phrases, len(buffer)))
            yield from self.translate(buffer, beam, first_number=number, constraints=own, **options)
            number += len(buffer)

    def score(self, pairs: Iterable[tuple[str, str]], *, max_tokens: int | None = None, batch_size: int | None = None,
              too_long: TooLong = "truncate", warn: Callable[[str], object] | None = None,
              first_number: int = 0) -> list[Score]:
        """The log-probability of each given translation, and of each of its tokens; several models count by their mean.

        Where a side is too long and `too_long` is "skip", the score has no tokens but `</s>`, at -inf.
        """
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

    def encode_source(self, line: str) -> np.ndarray:
        """Ids, `</s>` last."""
        return self.vocabularies[0].encode(self.subwords[0].encode(line))

    def encode_target(self, line: str) -> np.ndarray:
        return self.vocabularies[1].encode(self.subwords[1].encode(line))

    def _phrases(self, constraints: Iterable[Sequence[str]], number: int, first_number: int) -> list[list[list[int]]]:
        """The ids of each sentence's phrases."""
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

"""`lamina analyze fusion`: what a model's decoder and softmax read of its encoder, as figures on a page."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from lamina import __version__, console
from lamina.analysis import fusion_page
from lamina.analysis.embeddings import aligned_words, similarity, spectrum, token_tables
from lamina.analysis.fusion_weights import by_frequency, fusion_weights, gates, mixes_hard, source_attention
from lamina.analysis.hiding import SURFACE, Judge, masks_of, measure_masks
from lamina.analysis.page import PAGE_NAME, Section, figures_of, open_folder, write_page
from lamina.api import Translator
from lamina.api.from_flags import DEFAULT_MAX_TOKENS, open_split
from lamina.checkpoint.format import Checkpoint
from lamina.checkpoint.marks import marks_of
from lamina.config.analyze_options import AnalyzedData, AnalyzeFusionConfig
from lamina.config.parser import spelled_out
from lamina.data.batching import Batch, collate, length_batches
from lamina.data.corpus import Example
from lamina.decode.scoring import pad_targets
from lamina.decode.search import Search
from lamina.errors import CheckpointError, ConfigError, DataError
from lamina.interop.any_format import load_any
from lamina.interop.fairseq_file import DictionaryPlaces
from lamina.metrics.bleu import Bleu
from lamina.metrics.figures_file import write_figures
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.tasks.translation import GREEDY
from lamina.text.pieces import UNKNOWN_WORD_IN_REFERENCE, hide_unknown, warn_of_joiner
from lamina.text.subword import Whitespace
from lamina.text.tokenizer import looks_tokenized
from lamina.traits import PAIRS

FEWEST_BATCHES = 20


def run(config: AnalyzeFusionConfig) -> None:
    subject = open_subject(config.checkpoint, config.data, seed=config.seed, cpu=config.cpu)
    # All of it before the first file: what fails leaves an earlier page as it was. And what the flags may have wrong, a
    # sentence that is too long, before what takes a while.
    attention, weights = _attention(config, subject), _weights(subject)
    folder = open_folder(config.out)
    sections = [weights, _gate(subject), _masking(config, subject), _spectrum(subject), _similarity(config, subject),
                attention]
    written = write_page(folder, title=f"Layer fusion in {config.checkpoint}", about=_about(config, subject),
                         command=spelled_out("lamina analyze fusion", config), sections=sections)
    if config.json:
        write_figures(config.json, figures_of(sections))
    console.notice(f"wrote {len(written)} files to {folder}; open {folder / PAGE_NAME}")


class Subject(NamedTuple):
    """What is looked at: a model, and sentence pairs."""

    checkpoint: Checkpoint
    translator: Translator
    examples: list[Example]
    batches: list[Batch]

    @property
    def model(self) -> EncoderDecoder:
        return self.translator.models[0]


def open_subject(path: str, data: AnalyzedData, *, seed: int, cpu: bool) -> Subject:
    places = DictionaryPlaces.of(data.data, source_lang=data.source_lang, target_lang=data.target_lang)
    checkpoint = load_any(path, places=places, notice=console.notice)
    if not checkpoint.kind.has(PAIRS):
        raise CheckpointError(f"{path} was trained for --task {checkpoint.task}, and its model is no encoder with a decoder. "
                              "Pass the checkpoint of a translation model.")
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    model = checkpoint.build_model()
    assert isinstance(model, EncoderDecoder), "a task of pairs has an encoder and a decoder"
    translator = Translator([model], checkpoint.vocabularies(), checkpoint.subword_models(),
                            languages=checkpoint.languages, device=device)
    examples = _drawn(data, translator, path, seed)
    longest = [max(example, key=len) for example in examples]
    max_tokens = data.max_tokens or (None if data.max_sentences else _tokens_of_a_batch([len(side) for side in longest]))
    batches = [collate([examples[index] for index in indices], indices).to(device)
               for indices in length_batches(longest, max_tokens, data.max_sentences)]
    return Subject(checkpoint, translator, examples, batches)


def _tokens_of_a_batch(lengths: list[int]) -> int:
    """Small enough that batches differ, which says what is noise; a sentence fits."""
    return min(DEFAULT_MAX_TOKENS, max(sum(lengths) // FEWEST_BATCHES, *lengths))


def _drawn(data: AnalyzedData, translator: Translator, path: str, seed: int) -> list[Example]:
    corpus = open_split(data, translator, path)
    fitting = np.flatnonzero((corpus.source_sizes <= translator.max_source_positions)
                             & (corpus.target_sizes <= translator.max_target_positions))
    if not len(fitting):
        raise DataError(f"{corpus.name} holds no pair that fits the model's {translator.max_source_positions} source and "
                        f"{translator.max_target_positions} target positions. Pass other data.")
    if len(fitting) < len(corpus):
        console.notice(f"{len(corpus) - len(fitting)} of {len(corpus)} pairs of {corpus.name} are longer than the model's "
                       "positions and are left out")
    if data.max_pairs and data.max_pairs < len(fitting):
        fitting = np.sort(np.random.default_rng(seed).choice(fitting, data.max_pairs, replace=False))
    return [corpus[int(number)] for number in fitting]


def _about(config: AnalyzeFusionConfig, subject: Subject) -> dict[str, str]:
    model = subject.model
    depth = [len(stack.layers) for stack in (model.encoder, model.decoder)]
    width = model.source_embedding.table.weight.size(1)
    return {"model": f"{depth[0]} encoder and {depth[1]} decoder layers, width {width}, "
                     f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters",
            "cross-attention reads": fusion_page.memory_in_words(model), "the softmax reads": fusion_page.head_in_words(model),
            "data": f"{config.data.data}, {config.data.subset}: {len(subject.examples)} sentence pairs, "
                    f"{'-'.join(subject.translator.languages)}", "made by": f"Lamina {__version__}"}


# -- the sections, in the order of the page


def _weights(subject: Subject) -> Section:
    return fusion_page.weights_section(subject.model, fusion_weights(subject.model))


def _gate(subject: Subject) -> Section:
    if not mixes_hard(subject.model):
        return fusion_page.gate_section(subject.model, None, [])
    with console.progress("reading gates", len(subject.examples)) as advance:
        found = gates(subject.model, subject.batches, advance)
    return fusion_page.gate_section(subject.model, found,
                                    by_frequency(found.tokens, found.values, subject.translator.vocabularies[1].counts))


def _masking(config: AnalyzeFusionConfig, subject: Subject) -> Section:
    translator = subject.translator

    def text_of(ids: list[int], *, is_reference: bool = False) -> str:
        pieces = translator.vocabularies[1].decode(ids)
        return translator.join_target(hide_unknown(pieces, UNKNOWN_WORD_IN_REFERENCE) if is_reference else pieces,
                                      config.remove_bpe)

    is_folded = "folded" in marks_of(subject.checkpoint)
    # In a folded model a layer's input is scaled for that layer alone: handed on past it, it would be read wrongly.
    masks = [mask for mask in masks_of(subject.model) if not is_folded or mask.name == SURFACE]
    if not masks:
        return fusion_page.masking_section(subject.model, None, is_folded=is_folded)
    warn_of_joiner(config.remove_bpe, translator.vocabularies[1], console.warn)
    references = [text_of(example.target.tolist(), is_reference=True) for example in subject.examples]
    bleu = Bleu(is_tokenized=isinstance(translator.subwords[1], Whitespace) or looks_tokenized(references))
    with console.progress("masking encoder layers", (1 + len(masks)) * len(subject.examples)) as advance:
        judge = Judge(subject.model, subject.batches, beam=config.beam if config.is_of_texts else 0, bleu=bleu,
                      text_of=text_of, advance=advance, figure=config.metric)
        return fusion_page.masking_section(subject.model, measure_masks(masks, judge.quality), config.metric)


def _spectrum(subject: Subject) -> Section:
    return fusion_page.spectrum_section({uses: spectrum(table) for uses, table in token_tables(subject.model).items()})


def _similarity(config: AnalyzeFusionConfig, subject: Subject) -> Section:
    model = subject.model
    if model.source_embedding.table.weight.size(1) != model.target_embedding.table.weight.size(1):
        return fusion_page.similarity_section(model, None)
    with console.progress("aligning words", len(subject.examples)) as advance:
        pairs = aligned_words(model, subject.batches, advance)
    return fusion_page.similarity_section(model, similarity(model, pairs, config.seed) if len(pairs) else None)


def _attention(config: AnalyzeFusionConfig, subject: Subject) -> Section:
    model, translator = subject.model, subject.translator
    source, target, whose = _sentence(config, subject)
    for name, ids, limit in (("sentence", source, translator.max_source_positions),
                             ("target", target, translator.max_target_positions)):
        if len(ids) > limit:
            raise ConfigError(f"--{name} has {len(ids)} tokens, more than the {limit} positions of the model. Shorten it.")
    found = source_attention(model, _row(source, translator), pad_targets([target], translator.device)[0])
    source_tokens, target_tokens = ([vocabulary.symbols[token] for token in ids] for vocabulary, ids in
                                    zip(translator.vocabularies, (source, target), strict=True))
    return fusion_page.attention_section(model, found, source_tokens, target_tokens, whose=whose)


def _sentence(config: AnalyzeFusionConfig, subject: Subject) -> tuple[list[int], list[int], str]:
    """Source and target ids, and where they come from."""
    translator = subject.translator
    if config.sentence is None:
        # Neither the shortest nor one that fills a poster.
        source = sorted(subject.examples, key=lambda example: len(example.source))[len(subject.examples) // 2].source.tolist()
        whose = "The sentence is one of the data, of middling length"
    else:
        source = translator.encode_source(config.sentence).tolist()
        whose = "The sentence was given"
    if config.target is not None:
        return source, translator.encode_target(config.target).tolist(), f"{whose}, and so was its translation."
    if len(source) > translator.max_source_positions:
        return source, [], whose
    (found,) = Search([subject.model], replace(GREEDY, beam=config.beam)).run(_row(source, translator))
    return source, found[0].ids, f"{whose}; the translation is the model's own."


def _row(ids: list[int], translator: Translator) -> torch.Tensor:
    return torch.tensor([ids], device=translator.device)

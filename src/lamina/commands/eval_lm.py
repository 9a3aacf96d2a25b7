"""`lamina eval-lm`: the perplexity of a language model on a split of a data folder."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from lamina import console
from lamina.api.from_flags import load_model
from lamina.api.language_model import LanguageModel
from lamina.config.eval_lm_options import EvalLmConfig
from lamina.data.blocks import TokenBlocks, find_language, open_blocks
from lamina.data.verify import load_dictionary, verify_splits
from lamina.decode.perplexity import Tally, WordMarks, marks_named, perplexity_line, perplexity_of, score_blocks, words_of
from lamina.errors import CheckpointError, ConfigError, DataError
from lamina.metrics.figures_file import write_figures
from lamina.pruning.cut import PRUNING_LINE
from lamina.text.pieces import warn_of_joiner
from lamina.text.subword import library_of

# As in fairseq, where neither limit is given.
DEFAULT_MAX_TOKENS = 36000


def run(config: EvalLmConfig) -> None:
    model: LanguageModel = load_model(config.files, LanguageModel, data=config.data.data, say=_say, says_size=True,
                                      measures=True)
    data = config.data
    max_length = data.block_size or model.max_positions
    corpus = _open_blocks(config, model, max_length)
    indices = _fitting(config, model, corpus)
    # As --remove-bpe says, or as the checkpoint's own segmentation marks pieces.
    marks = marks_named(config.remove_bpe) if config.remove_bpe else library_of(model.subword)
    warn_of_joiner(config.remove_bpe, model.vocabulary, console.warn)
    tally = Tally(WordMarks(model.vocabulary, marks))
    started = time.perf_counter()
    limit = DEFAULT_MAX_TOKENS if data.max_tokens is None and data.max_sentences is None else data.max_tokens
    with console.progress("evaluating", len(indices)) as advance:
        for block in score_blocks(model.models, corpus, indices, device=model.device, context=data.context_window,
                                  max_length=max_length, max_tokens=limit, batch_size=data.max_sentences,
                                  softmax_batch=config.softmax_batch):
            tally.add(block)
            if config.has_word_probs or config.has_word_stats:
                words = words_of(block, tally.marks)
                tally.add_words(words)
                if config.has_word_probs:
                    print(f"{block.number} " + "\t".join(f"{word.text} [{word.score:2f}]" for word in words))
            advance(1)
    seconds = time.perf_counter() - started
    console.notice(f"evaluated {tally.num_tokens} tokens in {seconds:.1f} s ({tally.num_tokens / seconds:.2f} tokens/s)")
    knows_words = bool(config.remove_bpe) or library_of(model.subword).shows_words
    if knows_words:
        other, count = ("token", tally.num_tokens) if config.remove_bpe else ("word", tally.num_words)
        print(f"| by {other}: {perplexity_line(tally.total, count)} ({count} {other}s)")
    print(perplexity_line(tally.total, tally.num_words if config.remove_bpe else tally.num_tokens))
    if config.json is not None:
        write_figures(config.json, _figures(tally, knows_words=knows_words, by_word=bool(config.remove_bpe)),
                      tokens=tally.num_tokens, words=tally.num_words if knows_words else None, seconds=seconds)
    if config.has_word_stats:
        for stat in sorted(tally.stats.values(), key=lambda stat: -stat.count):
            print(stat.line())


def _figures(tally: Tally, *, knows_words: bool, by_word: bool) -> dict[str, float]:
    """The closing line's, and by the other unit where there are two."""
    counts = {"": tally.num_words if by_word else tally.num_tokens}
    if knows_words:
        counts["token_" if by_word else "word_"] = tally.num_tokens if by_word else tally.num_words
    figures: dict[str, float] = {}
    for prefix, count in counts.items():
        figures[f"{prefix}loss"], figures[f"{prefix}ppl"] = perplexity_of(tally.total, count)
    return figures


def _say(text: str) -> None:
    """On standard output and to the letter of fairseq's, where only the line about pruning has a bar."""
    print(f"| {text}" if text == PRUNING_LINE else text)


def _open_blocks(config: EvalLmConfig, model: LanguageModel, max_length: int) -> TokenBlocks:
    data, folder = config.data, Path(config.data.data.split(":")[0])
    if max_length > model.max_positions:
        raise ConfigError(f"--tokens-per-sample is {max_length}, more than the {model.max_positions} positions of "
                          f"{config.files.paths[0]}. Give less, or, where its positions are sinusoids, --model-overrides "
                          f"\"{{'max_target_positions': {max_length}}}\".")
    if data.context_window >= max_length:
        raise ConfigError(f"--context-window {data.context_window} leaves nothing to measure of --tokens-per-sample "
                          f"{max_length}. Make it smaller.")
    language = find_language(folder, data.subset)
    vocabulary = load_dictionary(folder, language)
    verify_splits([folder], [data.subset], "once", note=console.notice)
    if vocabulary.symbols != model.vocabulary.symbols:
        raise CheckpointError(f"{folder} was made with the dictionary {vocabulary.digest}, but {config.files.paths[0]} expects "
                              f"{model.vocabulary.digest}. Pass the matching data folder, or preprocess with its dictionary "
                              "(--srcdict).")
    return open_blocks(folder, data.subset, language, len(vocabulary), block_size=max_length - data.context_window,
                       break_mode=data.break_mode)


def _fitting(config: EvalLmConfig, model: LanguageModel, corpus: TokenBlocks) -> list[int]:
    too_long = np.flatnonzero(corpus.lengths > model.max_positions)
    if len(too_long):
        what = (f"{len(too_long)} of {len(corpus)} blocks of {corpus.name} are longer than the model's {model.max_positions} "
                "positions")
        if not config.data.skip_invalid:
            raise DataError(f"{what}. Use --sample-break-mode none, or add --skip-invalid-size-inputs-valid-test to leave them "
                            "out.")
        console.notice(f"{what} and are left out")
    fitting = np.setdiff1d(np.arange(len(corpus)), too_long)
    return fitting[config.data.shard_id :: config.data.num_shards].tolist()

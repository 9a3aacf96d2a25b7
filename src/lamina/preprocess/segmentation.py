"""Which segmentation each side gets: learned on the training text, loaded from a file, or none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from lamina.config.preprocess_options import PreprocessConfig
from lamina.errors import DataError
from lamina.parts.contracts import SubwordLibrary
from lamina.preprocess.line_blocks import TextFile, read_lines
from lamina.preprocess.workers import Progress
from lamina.text.subword import Subword, Whitespace, learn_subword
from lamina.text.tokenizer import Moses

# sentencepiece holds its training lines in memory; evenly spaced ones of a large text teach it as much as all of them.
MAX_LEARNING_LINES = 2_000_000


def make_subwords(config: PreprocessConfig, files: list[TextFile], num_lines: dict[TextFile, int],
                  progress: Progress) -> dict[str | None, Subword]:
    chosen, languages = config.segmentation, config.languages
    tokenizers: dict[str | None, Moses] = {
        language: Moses(Whitespace(), language) for language in languages if language and chosen.tokenizer}
    for tokenizer in tokenizers.values():
        tokenizer.tokenize("")  # complains now if sacremoses is not there
    inner: dict[str | None, Subword] = {}
    if chosen.learned is not None:
        groups = [languages] if config.dictionary.is_joined else [(language,) for language in languages]
        for group in groups:
            train = [file for file in files if file.split == "train" and file.language in group]
            every = 1 + sum(num_lines[file] for file in train) // MAX_LEARNING_LINES
            lines = chain.from_iterable(
                _learning_lines(file, config.text.max_line_length, every, tokenizers.get(file.language))
                for file in train)
            label = f"learn {chosen.subword} ({', '.join(filter(None, group)) or 'text'})"
            with progress(label, None):
                learned = learn_subword(chosen.learned, lines, chosen.vocab_size)
            inner |= dict.fromkeys(group, learned)
    elif chosen.given is not None:
        for number, language in enumerate(languages):
            inner[language] = _load_subword(chosen.given, chosen.given.models[min(number, len(chosen.given.models) - 1)])
    else:
        inner = dict.fromkeys(languages, Whitespace())
    return {language: Moses(inner[language], language) if language and language in tokenizers else inner[language]
            for language in languages}


def _learning_lines(file: TextFile, max_line_length: int, every: int, tokenizer: Moses | None) -> Iterator[str]:
    for number, line in enumerate(read_lines(file.path, max_line_length)):
        if number % every == 0:
            yield tokenizer.tokenize(line) if tokenizer else line


def _load_subword(library: SubwordLibrary, path: str) -> Subword:
    try:
        return library.load(Path(path).read_bytes(), path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Expected {library.about_model}.") from None


def subword_kind(subword: Subword) -> str:
    return f"moses, {subword.inner.kind}" if isinstance(subword, Moses) else subword.kind

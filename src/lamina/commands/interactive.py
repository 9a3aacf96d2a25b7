"""`lamina interactive`: translate lines as they come, from a person, a pipe or a file."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from typing import BinaryIO

from lamina import console
from lamina.api import Translation, Translator
from lamina.commands.generate import load_translator
from lamina.config.generate import InteractiveConfig
from lamina.decode.lines import Describer
from lamina.errors import DataError

PIPE_BUFFER = 1000
PROMPT = "> "


def run(config: InteractiveConfig) -> None:
    translator = load_translator(config.files)
    is_typed = config.input == "-" and sys.stdin.isatty()
    buffer_size = config.buffer_size or (1 if is_typed else PIPE_BUFFER)
    describer = Describer(translator.vocabularies, translator.subwords, config.output)
    if is_typed:
        console.notice("type a sentence and press Enter; Ctrl-D ends")
    has_constraints = config.search.constraint_order is not None
    waiting: deque[tuple[str, list[str]]] = deque()
    phrases: deque[list[str]] = deque()

    def passing(lines: Iterator[str]) -> Iterator[str]:
        for number, line in enumerate(lines, start=1):
            source, *given = line.split("\t") if has_constraints else [line]
            wanted = []
            for phrase in filter(str.strip, given):
                problem = translator.phrase_problem(phrase)
                if problem:
                    # One impossible wish should not end a long pipe.
                    console.warn(f"line {number}, constraint {phrase!r} is left out: {problem}")
                else:
                    wanted.append(phrase)
            waiting.append((source, wanted))
            phrases.append(wanted)
            yield source

    with _open_input(config.input) as file:
        translations = translator.stream(
            passing(_lines(file, config.input, is_typed)), buffer_size=buffer_size,
            constraints=iter(phrases.popleft, None) if has_constraints else None, max_tokens=config.max_tokens,
            batch_size=config.max_sentences, seed=config.files.seed, remove_bpe=config.output.remove_bpe,
            too_long=config.too_long, warn=console.warn,  # type: ignore[arg-type]
            with_alignment=describer.needs_attention, search=config.search)
        for number, translation in enumerate(translations):
            _show(config, translator, describer, number, *waiting.popleft(), translation)
            if not waiting:
                sys.stdout.flush()


def _open_input(name: str) -> BinaryIO | nullcontext[BinaryIO]:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return open(name, "rb")
    except OSError as error:
        raise DataError(f"--input {name} cannot be read: {error.strerror}.") from None


def _lines(file: BinaryIO, name: str, is_typed: bool) -> Iterator[str]:
    """Bytes that are not UTF-8 are replaced and named, so that one bad line does not end a long pipe."""
    number = 0
    while True:
        if is_typed:
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
        data = file.readline()
        if not data:
            return
        number += 1
        try:
            line = data.decode("utf-8")
        except UnicodeDecodeError as error:
            console.warn(f"line {number} of {'standard input' if name == '-' else name} is not valid UTF-8 at byte "
                         f"{error.start}; the bytes are replaced.")
            line = data.decode("utf-8", errors="replace")
        yield line.rstrip("\r\n")


def _show(config: InteractiveConfig, translator: Translator, describer: Describer, number: int, line: str,
          phrases: list[str], translation: Translation) -> None:
    pieces = translator.subwords[0].encode(line)
    described = [describer.describe(number, pieces, item.tokens, item.score, item.token_scores, item.alignment or [])
                 for item in (translation, *translation.alternatives)]
    if config.is_plain:
        print("\n".join(item.text for item in described))
        return
    print(f"S-{number}\t{describer.join(pieces)}")
    for phrase in phrases:
        print(f"C-{number}\t{describer.join(translator.subwords[1].encode(phrase))}")
    print("\n".join(line for item in described for line in item.lines))

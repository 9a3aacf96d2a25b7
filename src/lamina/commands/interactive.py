"""`lamina interactive`: translate lines, or continue prompts, from a terminal, a pipe or a file."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from typing import BinaryIO

from lamina import console
from lamina.api import LanguageModel, Translation, Translator
from lamina.api.from_flags import load_cascade, load_model
from lamina.config.chosen_depth import AUTO
from lamina.config.generate_options import InteractiveConfig
from lamina.decode.output_lines import Describer
from lamina.errors import ConfigError, DataError
from lamina.metrics.figures_file import write_figures

PIPE_BUFFER = 1000
PROMPT = "> "

MAX_LINE_BYTES = 2**16  # longer than any input that a model takes; each byte may become a piece


def run(config: InteractiveConfig) -> None:
    model = load_model(config.files, Translator, LanguageModel, data=config.data,
                       languages=(config.source_lang, config.target_lang))
    is_typed = config.input == "-" and sys.stdin.isatty()
    buffer_size = config.buffer_size or (1 if is_typed else PIPE_BUFFER)
    if is_typed:
        console.notice(f"type {'a prompt' if isinstance(model, LanguageModel) else 'a sentence'} and press Enter; Ctrl-D ends")
    if model.device.type == "cuda" and config.search.cuda_graphs and config.search.constraint_order is not None:
        console.notice("--cuda-graphs is off: --constraints needs the CPU at every step")
    if isinstance(model, LanguageModel):
        _continue_prompts(config, model, buffer_size, is_typed)
    else:
        _translate_lines(config, model, buffer_size, is_typed)


def _continue_prompts(config: InteractiveConfig, model: LanguageModel, buffer_size: int, is_typed: bool) -> None:
    if config.output.has_alignment or config.output.replace_unk is not None:
        raise ConfigError("--print-alignment and --replace-unk need a source to look at, and a language model has none. Leave "
                          "them out.")
    if config.cascade is not None:
        raise ConfigError("--cascade is for translation, and this is a language model. Leave it out.")
    describer = Describer((model.vocabulary, model.vocabulary), (model.subword, model.subword), config.output)
    waiting: deque[str] = deque()

    def passing(lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            waiting.append(line)
            yield line

    number, num_tokens, started = -1, 0, time.perf_counter()
    with _open_input(config.input) as file:
        texts = model.stream(passing(_lines(file, config.input, is_typed)), buffer_size=buffer_size,
                             max_tokens=config.max_tokens, batch_size=config.max_sentences, seed=config.files.seed,
                             remove_bpe=config.output.remove_bpe, search=config.search, warn=console.warn,
                             too_long=config.too_long)  # type: ignore[arg-type]
        for number, text in enumerate(texts):
            num_tokens += len(text.token_scores)
            _show(config, describer, number, model.subword.encode(waiting.popleft()), [], text)
            if not waiting:
                sys.stdout.flush()
    _write_speed(config, number + 1, num_tokens, time.perf_counter() - started)


def _translate_lines(config: InteractiveConfig, translator: Translator, buffer_size: int, is_typed: bool) -> None:
    describer = Describer(translator.vocabularies, translator.subwords, config.output)
    cascade = load_cascade(config.cascade, config.files, translator, config.search)
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
            with_alignment=describer.needs_attention, search=config.search, depth=None if cascade is None else AUTO,
            cascade=cascade)
        started, num_tokens, number = time.perf_counter(), 0, -1
        for number, translation in enumerate(translations):
            num_tokens += len(translation.token_scores)  # </s> counts, as in `lamina generate` and fairseq
            line, wanted = waiting.popleft()
            _show(config, describer, number, translator.subwords[0].encode(line),
                  [translator.subwords[1].encode(phrase) for phrase in wanted], translation)
            if not waiting:
                sys.stdout.flush()
        seconds = time.perf_counter() - started
        _write_speed(config, number + 1, num_tokens, seconds)
        if not is_typed:
            console.notice(f"translated {number + 1} lines ({num_tokens} tokens) in {seconds:.1f} s "
                           f"({(number + 1) / seconds:.2f} sentences/s, {num_tokens / seconds:.2f} tokens/s)")


def _write_speed(config: InteractiveConfig, sentences: int, tokens: int, seconds: float) -> None:
    if config.json is not None:
        write_figures(config.json, {}, sentences=sentences, tokens=tokens, seconds=seconds)


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
        data = file.readline(MAX_LINE_BYTES)
        if not data:
            return
        number += 1
        if len(data) == MAX_LINE_BYTES and not data.endswith(b"\n"):
            console.warn(f"line {number} of {'standard input' if name == '-' else name} is longer than {MAX_LINE_BYTES} bytes; "
                         "the rest of it is left out.")
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            data = data[: data.rindex(b" ")] if b" " in data else data
        try:
            line = data.decode("utf-8")
        except UnicodeDecodeError as error:
            console.warn(f"line {number} of {'standard input' if name == '-' else name} is not valid UTF-8 at byte "
                         f"{error.start}; the bytes are replaced.")
            line = data.decode("utf-8", errors="replace")
        yield line.rstrip("\r\n")


def _show(config: InteractiveConfig, describer: Describer, number: int, pieces: list[str], phrases: list[list[str]],
          translation: Translation) -> None:
    described = [describer.describe(number, pieces, item.tokens, item.score, item.token_scores, item.alignment or [])
                 for item in (translation, *translation.alternatives)]
    if config.is_plain:
        # As many lines for each input, also for one without a result: who reads them counts.
        print("\n".join([item.text for item in described] + [""] * (config.search.nbest - len(described))))
        return
    print(f"S-{number}\t{describer.join(pieces)}")
    for phrase in phrases:
        print(f"C-{number}\t{describer.join(phrase)}")
    print("\n".join(line for item in described for line in item.lines))

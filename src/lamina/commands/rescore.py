"""`lamina rescore`: how likely a model finds given translations."""

from __future__ import annotations

import math
import sys
from itertools import islice

from lamina import console
from lamina.api.from_flags import load_translator
from lamina.config.generate_options import RescoreConfig
from lamina.decode.output_lines import token_line
from lamina.errors import DataError
from lamina.metrics.figures_file import write_figures
from lamina.preprocess.line_blocks import MAX_LINE_LENGTH, count_lines, file_size, read_lines
from lamina.text.vocabulary import EOS

# Pairs in memory at a time.
BUFFER = 10_000


def run(config: RescoreConfig) -> None:
    translator = load_translator(config.files, measures=True)
    for path in (config.source, config.target):
        file_size(path)  # has to be there, with something in it
    numbers = [count_lines(path) for path in (config.source, config.target)]
    if numbers[0] != numbers[1]:
        raise DataError(f"{config.source} has {numbers[0]} lines and {config.target} {numbers[1]}; they must be aligned one to "
                        f"one. The shorter one ends after line {min(numbers)}.")
    pairs = zip(*(read_lines(path, MAX_LINE_LENGTH) for path in (config.source, config.target)), strict=True)
    total, num_tokens, number, num_skipped = 0.0, 0, 0, 0
    with console.progress("scoring", numbers[0]) as advance:
        while buffer := list(islice(pairs, BUFFER)):
            scores = translator.score(buffer, max_tokens=config.max_tokens,  # type: ignore[call-overload]
                                      batch_size=config.max_sentences, too_long=config.too_long, warn=console.warn,
                                      first_number=number)
            for score in scores:
                if score.ids == [EOS] and score.total == -math.inf:
                    num_skipped += 1
                else:
                    total, num_tokens = total + score.total, num_tokens + len(score.ids)
                sys.stdout.write(f"H-{number}\t{score.mean / math.log(2):.6f}\t{score.total / math.log(2):.6f}\n")
                if config.has_token_scores:
                    sys.stdout.write(token_line(number, score.token_scores) + "\n")
                number += 1
            advance(len(buffer))
    if num_skipped:
        console.notice(f"{num_skipped} of {number} pairs were skipped, and do not count in what follows")
    bits = -total / max(num_tokens, 1) / math.log(2)
    if config.json is not None:
        write_figures(config.json, {"loss": bits, "ppl": 2**bits}, sentences=number - num_skipped, tokens=num_tokens,
                      skipped=num_skipped)
    sys.stdout.write(f"Loss (base 2): {bits:.4f}, Perplexity: {2**bits:.2f}\n")

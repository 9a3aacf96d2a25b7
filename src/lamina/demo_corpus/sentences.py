"""A real English-Romanian parallel corpus without a download: draw sentences from templates, then hold some out."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lamina.demo_corpus.templates import TEMPLATES
from lamina.demo_corpus.wordlists import Pair
from lamina.errors import ConfigError

SentencePair = tuple[str, str]

# Comma-below for the cedillas of older Romanian text.
COMMA_BELOW = str.maketrans("şţŞŢ", "șțȘȚ")
# Draws without a new sentence before we say that there are no more to be had.
MAX_IDLE_DRAWS = 20_000
# A held-out sentence is built from words that training sentences use at least this often.
MIN_WORD_USES = 5
SLOT = re.compile(r"\{([a-z_]+)(\d?)\}")
WORD = re.compile(r"\w+")
# "în" and the indefinite article contract: într-o oră, într-un an.
CONTRACTION = re.compile(r"\bîn (?=(?:un|o)\b)")


@dataclass(frozen=True)
class Corpus:
    """Pairs of (English, Romanian). No sentence of one list, on either side, occurs in another list."""

    train: list[SentencePair]
    valid: list[SentencePair]
    test: list[SentencePair]


def build_corpus(num_train: int = 30_000, num_valid: int = 500, num_test: int = 500, seed: int = 1) -> Corpus:
    """The same corpus for the same seed and the same versions of Babel and num2words."""
    if min(num_train, num_valid, num_test) < 0:
        raise ConfigError(f"corpus sizes are {num_train}, {num_valid} and {num_test}; none may be negative")
    pairs = draw_pairs(num_train + num_valid + num_test, Random(seed))
    train, held_out = split_off(pairs, num_valid + num_test)
    return Corpus(train=train, valid=held_out[:num_valid], test=held_out[num_valid:])


def draw_pairs(num_pairs: int, rng: Random) -> list[SentencePair]:
    """Pairs in which every source and every target occurs once, so that any split keeps its parts apart."""
    seen: tuple[set[str], set[str]] = (set(), set())
    pairs: list[SentencePair] = []
    idle_draws = 0
    sentences = draw_sentences(rng)
    while len(pairs) < num_pairs:
        english, romanian = next(sentences)
        if english in seen[0] or romanian in seen[1]:
            idle_draws += 1
            if idle_draws > MAX_IDLE_DRAWS:
                raise ConfigError(f"the demo templates ran out at {len(pairs)} of {num_pairs} pairs: ask for fewer")
            continue
        idle_draws = 0
        seen[0].add(english)
        seen[1].add(romanian)
        pairs.append((english, romanian))
    return pairs


def draw_sentences(rng: Random) -> Iterator[SentencePair]:
    """Endless sentence pairs, every template equally often."""
    # Imported here so that the module can be read, and a written corpus handled, without Babel and num2words.
    from lamina.demo_corpus.fillings import build_slots

    slots = build_slots()
    templates = [(*pair, SLOT.findall(pair[0])) for pairs in TEMPLATES.values() for pair in pairs]
    while True:
        english, romanian, names = rng.choice(templates)
        values: dict[str, Pair] = {}
        for kind, digit in names:
            value = slots[kind](rng)
            while value in values.values():  # never from France to France
                value = slots[kind](rng)
            values[kind + digit] = value
        english = english.format_map({name: value.english for name, value in values.items()})
        romanian = romanian.format_map({name: value.romanian for name, value in values.items()})
        yield as_sentence(english), as_sentence(CONTRACTION.sub("într-", romanian))


def as_sentence(text: str) -> str:
    # Splitting and joining turns the thin and the non-breaking spaces of CLDR into plain ones.
    plain = " ".join(unicodedata.normalize("NFC", text).translate(COMMA_BELOW).split())
    return plain[0].upper() + plain[1:]


def split_off(pairs: list[SentencePair], num_held_out: int) -> tuple[list[SentencePair], list[SentencePair]]:
    """Move pairs from the end out of training, as long as training still uses all of their words.

    A country that no training sentence names could not be translated and would only add noise to a score. A corpus
    too small to meet this takes the rest of its held-out pairs from the end as they come.
    """
    words = [set(WORD.findall(f"{english} {romanian}".lower())) for english, romanian in pairs]
    uses = Counter(word for found in words for word in found)
    chosen: set[int] = set()
    for index in reversed(range(len(pairs))):
        if len(chosen) == num_held_out:
            break
        if all(uses[word] > MIN_WORD_USES for word in words[index]):
            uses.subtract(words[index])
            chosen.add(index)
    for index in reversed(range(len(pairs))):
        if len(chosen) == num_held_out:
            break
        chosen.add(index)
    train = [pair for index, pair in enumerate(pairs) if index not in chosen]
    return train, [pairs[index] for index in sorted(chosen)]


def write_corpus(corpus: Corpus, folder: Path) -> None:
    """Write train.en, train.ro, valid.en, ... with one sentence per line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", corpus.train), ("valid", corpus.valid), ("test", corpus.test)):
        for side, suffix in enumerate(("en", "ro")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            # Bytes, so that a line ends in one newline on every system.
            (folder / f"{name}.{suffix}").write_bytes(lines.encode("utf-8"))

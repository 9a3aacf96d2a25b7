"""Lines to pieces and back: the segmentations, how they are learned, and how folders and checkpoints carry them.

Every segmentation has the same contract, so that nothing downstream asks which one it is: `encode` a line to pieces,
`decode` pieces to a line, `kind`, and `to_bytes` / `from_bytes` for its model.
"""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from lamina.errors import ConfigError, DataError
from lamina.files import is_plain_name, read_json
from lamina.parts.contracts import SubwordLibrary
from lamina.parts.subword_libraries import JOINER, WORD_START
from lamina.registry import register
from lamina.text.tokenizer import Moses

SUBWORDS_NAME = "subwords.json"
BPE_VERSIONS = ("0.1", "0.2")
# Words whose segmentation is kept at hand; beyond that the cache starts again, so that memory stays bounded.
CACHED_WORDS = 500_000


class Subword(Protocol):
    @property
    def kind(self) -> str: ...

    def encode(self, line: str) -> list[str]: ...

    def decode(self, pieces: Sequence[str]) -> str: ...

    def to_bytes(self) -> bytes: ...


class Whitespace:
    """Lines that were segmented before: pieces are what white space separates, Unicode's included."""

    kind = "whitespace"

    def encode(self, line: str) -> list[str]:
        return line.split()

    def decode(self, pieces: Sequence[str]) -> str:
        return " ".join(pieces)

    def to_bytes(self) -> bytes:
        return b""

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "") -> Whitespace:
        return cls()


class SentencePiece:
    """A sentencepiece model; white space is made single spaces first, so that no piece holds any."""

    kind = "sentencepiece"

    def __init__(self, model: bytes, name: str = "the sentencepiece model") -> None:
        self.model = model
        self.name = name

    @cached_property
    def _processor(self) -> Any:
        from sentencepiece import SentencePieceProcessor

        try:
            processor = SentencePieceProcessor(model_proto=self.model)
            processor.encode("a", out_type=str)  # an empty model fails only here
            return processor
        except RuntimeError:
            raise DataError(f"{self.name} is not a sentencepiece model. Give the .model file that "
                            "spm_train or `lamina preprocess` wrote.") from None

    def encode(self, line: str) -> list[str]:
        return self._processor.encode(" ".join(line.split()), out_type=str)

    def decode(self, pieces: Sequence[str]) -> str:
        # A piece that the model does not know, as where both sides share a dictionary, keeps the mark of its word.
        return self._processor.decode_pieces(list(pieces)).replace(WORD_START, " ").strip(" ")

    def pieces(self) -> list[str]:
        """All that it may cut a text into, by its own ids."""
        return self._processor.id_to_piece(list(range(self._processor.get_piece_size())))

    def to_bytes(self) -> bytes:
        return self.model

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the sentencepiece model") -> SentencePiece:
        subword = cls(data, name)
        _ = subword._processor  # a damaged model is noticed here, not at the first line
        return subword

    def __reduce__(self) -> tuple[type[SentencePiece], tuple[bytes, str]]:
        return SentencePiece, (self.model, self.name)


class Bpe:
    """Byte-pair codes in subword-nmt's format; a piece that is continued within its word ends in @@."""

    kind = "bpe"

    def __init__(self, codes: bytes, name: str = "the BPE codes") -> None:
        self.codes = codes
        self.name = name

    @cached_property
    def _segmenter(self) -> Any:
        from subword_nmt.apply_bpe import BPE

        # Checked here, because subword-nmt ends the process over a line that it cannot read.
        try:
            text = self.codes.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.name} is not valid UTF-8 at byte {error.start}.") from None
        lines = text.rstrip("\n").split("\n")
        if lines[0].startswith("#version:") and lines[0].split(":", 1)[1].strip() not in BPE_VERSIONS:
            raise DataError(f"{self.name} say {lines[0][:40]!r}; known are {' and '.join(BPE_VERSIONS)}. Learn them "
                            "with `lamina preprocess` or subword-nmt 0.2 or later.")
        for number, line in enumerate(lines, start=1):
            if not (number == 1 and line.startswith("#version:")) and len(line.strip("\r\n ").split(" ")) != 2:
                raise DataError(f"{self.name}, line {number}: expected two symbols to merge, found {line[:40]!r}. "
                                "Give the codes file that subword-nmt learn-bpe or `lamina preprocess` wrote.")
        if all(line.startswith("#version:") for line in lines):
            raise DataError(f"{self.name}: no merges in it.")
        return BPE(io.StringIO(text), separator=JOINER)

    def encode(self, line: str) -> list[str]:
        segmenter = self._segmenter
        if len(segmenter.cache) > CACHED_WORDS:
            segmenter.cache.clear()
        return segmenter.segment_tokens(line.split())

    def decode(self, pieces: Sequence[str]) -> str:
        return remove_joiners(" ".join(pieces))

    def to_bytes(self) -> bytes:
        return self.codes

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the BPE codes") -> Bpe:
        subword = cls(data, name)
        _ = subword._segmenter
        return subword

    def __reduce__(self) -> tuple[type[Bpe], tuple[bytes, str]]:
        return Bpe, (self.codes, self.name)


def remove_joiners(line: str, joiner: str = JOINER + " ") -> str:
    """What --remove-bpe does: pieces of a word become the word."""
    return (line + " ").replace(joiner, "").rstrip()


NOTHING_TO_LEARN = "the text has only empty lines: there is nothing to learn subwords from."


def learn_subword(library: str | SubwordLibrary, lines: Iterable[str], vocab_size: int) -> Subword:
    """Learn a segmentation of about `vocab_size` pieces from raw (or Moses-tokenized) lines; a name has default options."""
    if isinstance(library, SubwordLibrary):
        return library.learn(lines, vocab_size)
    known = [name for name, kind in register.subword.items() if kind.can_learn()]
    if library not in known:
        raise ConfigError(f"--subword is {library!r}; it must be {' or '.join(known)}.")
    return register.subword[library]().learn(lines, vocab_size)


def learn_sentencepiece(lines: Iterable[str], vocab_size: int, character_coverage: float) -> SentencePiece:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=(" ".join(line.split()) for line in lines), model_writer=model, model_type="unigram",
            vocab_size=vocab_size, character_coverage=character_coverage,
            # Characters stay as they are: raw text out is then the text of the training side, not a folded form of it.
            normalization_rule_name="identity",
            # A small text simply gives fewer pieces.
            hard_vocab_limit=False,
            # Sentences are framed by the vocabulary's symbols, never by the model's.
            bos_id=-1, eos_id=-1, minloglevel=2)
    except RuntimeError as error:
        reason = str(error).strip().rsplit("\n", 1)[-1]
        if "sentences_.empty()" in reason:
            raise DataError(NOTHING_TO_LEARN) from None
        raise DataError(f"sentencepiece could not learn {vocab_size} pieces from this text ({reason}). "
                        "Try another --vocab-size; it must exceed the number of different characters.") from None
    return SentencePiece(model.getvalue())


def learn_bpe(lines: Iterable[str], vocab_size: int) -> Bpe:
    from subword_nmt import learn_bpe as subword_nmt

    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
    # A character counts twice where it occurs both inside and at the end of words: those are different pieces.
    num_characters = (len({character for word in counts for character in word[:-1]})
                      + len({word[-1] for word in counts}))
    if vocab_size <= num_characters:
        raise DataError(f"--vocab-size {vocab_size} leaves no room for merges: the text's characters alone make "
                        f"{num_characters} pieces. Choose a larger one.")
    codes = io.StringIO()
    words = io.StringIO("".join(f"{word} {count}\n" for word, count in sorted(counts.items())))
    try:
        # It draws a progress bar and prints remarks of its own.
        with redirect_stderr(io.StringIO()):
            subword_nmt.learn_bpe(words, codes, vocab_size - num_characters, is_dict=True)
    except ValueError:  # the maximum of no pairs at all
        if not counts:
            raise DataError(NOTHING_TO_LEARN) from None
        raise DataError("there is nothing for BPE to merge: every word of the text is a single character.") from None
    return Bpe.from_bytes(codes.getvalue().encode("utf-8"), "the BPE codes learned from this text")


def subword_to_dict(subword: Subword) -> dict[str, Any]:
    """Plain values that JSON and a checkpoint can hold."""
    if isinstance(subword, Moses):
        return {"kind": "moses", "language": subword.language, "inner": subword_to_dict(subword.inner)}
    return {"kind": subword.kind, "model": base64.b64encode(subword.to_bytes()).decode("ascii")}


def subword_from_dict(plain: Mapping[str, Any], name: str = "the stored subword model") -> Subword:
    try:
        if plain["kind"] == "moses" and is_plain_name(plain["language"]):
            return Moses(subword_from_dict(plain["inner"], name), plain["language"])
        return register.subword[plain["kind"]]().load(base64.b64decode(plain["model"]), name)
    except (KeyError, TypeError, ValueError, RecursionError):
        known = [*register.subword, Moses.kind]
        kind = plain.get("kind") if isinstance(plain, Mapping) else None
        what = f"of the kind {kind!r}, " if isinstance(kind, str) and kind not in known else ""
        raise DataError(f"{name} is {what}not one that this Lamina knows; known kinds are {', '.join(known)}.") from None


def save_subwords(folder: Path, subwords: Mapping[str, Subword]) -> None:
    """subwords.json for all languages, and beside it each model as a file that spm_encode or subword-nmt can read."""
    described = {}
    for language, subword in subwords.items():
        described[language] = plain = subword_to_dict(subword)
        holder = plain.get("inner", plain)
        del holder["model"]
        if ending := register.subword[holder["kind"]].file_ending:
            holder["file"] = ".".join(filter(None, ("subword", language, ending)))
            (folder / holder["file"]).write_bytes(subword.to_bytes())
    (folder / SUBWORDS_NAME).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def model_files(folder: Path) -> list[str]:
    """The subword models that `save_subwords` left in a folder, by name."""
    endings = [kind.file_ending for kind in register.subword.values() if kind.file_ending]
    return [path.name for ending in endings for path in folder.glob(f"subword*.{ending}")]


def load_subwords(data_folder: str | Path) -> dict[str, Subword]:
    """Each language's segmentation; its key is "" in a folder without languages (dict.txt).

    A folder that fairseq made has none on record: its text was segmented before, so it is split at white space.
    """
    folder = Path(data_folder)
    path = folder / SUBWORDS_NAME
    try:
        described = read_json(path)
        for language, plain in described.items():
            holder = plain.get("inner", plain)
            # A folder may come from strangers: what it names must lie in it, and nothing may be written elsewhere for it.
            if not (language == "" or is_plain_name(language)) or not is_plain_name(holder.get("file", "none")):
                raise DataError(f"{path} names a file or a language that is no plain name: {language!r}, "
                                f"{holder.get('file')!r}. Run `lamina preprocess` again.")
            model = (folder / holder["file"]).read_bytes() if "file" in holder else b""
            holder["model"] = base64.b64encode(model)
    except FileNotFoundError as error:
        if path.exists():
            raise DataError(f"{error.filename} is missing, though {path} names it. "
                            "Run `lamina preprocess` again.") from None
        names = sorted(found.name.removeprefix("dict").removesuffix("txt").strip(".") for found in
                       folder.glob("dict*.txt"))
        return {name: Whitespace() for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path} cannot be read. Run `lamina preprocess` again.") from None
    return {language: subword_from_dict(plain, f"the subword model of {language!r} in {folder}")
            for language, plain in described.items()}


def library_of(subword: Subword) -> SubwordLibrary:
    """The library that made a model."""
    inner = subword.inner if isinstance(subword, Moses) else subword
    return register.subword[inner.kind]()


def library_behind(symbols: Iterable[str]) -> SubwordLibrary:
    """The library whose marks a dictionary bears; white space if it bears none."""
    symbols = list(symbols)
    libraries = [kind() for kind in register.subword.values()]
    return next((library for library in libraries if any(map(library.is_marked, symbols))), register.subword["whitespace"]())

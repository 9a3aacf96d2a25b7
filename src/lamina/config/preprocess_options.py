"""What `lamina preprocess` reads, learns and writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lamina.config.plug_in_options import PlugInConfig
from lamina.fields import check, every, flag, part
from lamina.parts.contracts import SubwordLibrary
from lamina.registry import register

DEFAULT_PADDING_FACTOR = 8


class Learnable(Collection[str]):
    """The choices of --subword: the libraries that learn from text."""

    def _names(self) -> list[str]:
        return ["none", *(name for name, kind in register.subword.items() if kind.can_learn())]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __len__(self) -> int:
        return len(self._names())


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Text files: PREFIX.LANG, one sentence a line, line N of one side belonging to line N of the other."""

    source_lang: str | None = flag(None, "source language, the ending of the source files", aliases=("-s",),
                                   metavar="LANG")
    target_lang: str | None = flag(None, "target language, the ending of the target files", aliases=("-t",),
                                   metavar="LANG")
    train_prefix: str | None = flag(None, "training files, without .LANG", name="trainpref", metavar="PREFIX")
    valid_prefixes: tuple[str, ...] = flag((), "validation files; a second prefix becomes valid1, and so on",
                                           name="validpref", metavar="PREFIX,..", needs="!dict-only")
    test_prefixes: tuple[str, ...] = flag((), "test files; a second prefix becomes test1, and so on",
                                          name="testpref", metavar="PREFIX,..", needs="!dict-only")
    only_source: bool = flag(False, "one side only; without --source-lang the prefixes are whole file names")
    max_line_length: int = flag(100_000, "a line with more characters than this is an error, since it is rarely intended")

    def __post_init__(self) -> None:
        check(self.only_source or None not in (self.source_lang, self.target_lang),
              "--source-lang and --target-lang are needed: they name the two sides, PREFIX.SOURCE and PREFIX.TARGET. "
              "For text with one side, add --only-source.")
        check(self.only_source or self.source_lang != self.target_lang,
              f"--source-lang and --target-lang are both {self.source_lang!r}; the two sides need different names.")
        check(not self.only_source or self.target_lang is None or self.source_lang is not None,
              "--only-source with --target-lang needs --source-lang too.")
        check(bool(self.train_prefix or self.valid_prefixes or self.test_prefixes),
              "no text given: pass --trainpref, --validpref or --testpref.")
        check(self.max_line_length >= 1, f"--max-line-length is {self.max_line_length}; it must be at least 1.")
        for language in (self.source_lang, self.target_lang):
            check(language is None or (language.strip() != "" and not set(language) & set("/\\")),
                  f"{language!r} cannot be a language: it becomes part of file names.")


@dataclass(frozen=True, kw_only=True)
class DictionaryConfig:
    """Dictionaries."""

    is_joined: bool = flag(False, "one dictionary, and one subword model, for both sides", name="joined-dictionary",
                           needs="!only-source")
    source_dict: str | None = flag(None, "use this source dictionary instead of counting words", name="srcdict",
                                   metavar="FILE")
    target_dict: str | None = flag(None, "use this target dictionary instead of counting words", name="tgtdict",
                                   metavar="FILE", needs="!only-source")
    source_threshold: int = flag(0, "words seen less often become <unk>", name="thresholdsrc",
                                 needs=("!srcdict", "!like"))
    target_threshold: int = flag(0, "words seen less often become <unk>", name="thresholdtgt",
                                 needs=("!tgtdict", "!only-source", "!like"))
    source_size: int = flag(-1, "maximum dictionary size, the 4 special symbols included; -1 keeps all", name="nwordssrc",
                            needs=("!srcdict", "!like"))
    target_size: int = flag(-1, "maximum dictionary size, the 4 special symbols included; -1 keeps all", name="nwordstgt",
                            needs=("!tgtdict", "!only-source", "!like"))
    padding_factor: int = flag(DEFAULT_PADDING_FACTOR, "fill the dictionary up to a multiple of this")
    dict_only: bool = flag(False, "write the dictionaries and stop")

    def __post_init__(self) -> None:
        check(not (self.is_joined and self.source_dict and self.target_dict),
              "--joined-dictionary means one dictionary: give --srcdict or --tgtdict, not both.")
        for name, source, target, unset in (("thresholdtgt", self.source_threshold, self.target_threshold, 0),
                                            ("nwordstgt", self.source_size, self.target_size, -1)):
            partner = name.replace("tgt", "src")
            check(not self.is_joined or target in (unset, source),
                  f"--{name} has no effect with --joined-dictionary: that one obeys --{partner}. Leave it out.")
        check(not (self.is_joined and self.target_dict) or (self.source_threshold, self.source_size) == (0, -1),
              "--thresholdsrc and --nwordssrc have no effect on a dictionary that --tgtdict gives. Leave them out.")
        check(self.padding_factor >= 1, f"--padding-factor is {self.padding_factor}; it must be at least 1.")
        for name, threshold in (("thresholdsrc", self.source_threshold), ("thresholdtgt", self.target_threshold)):
            check(threshold >= 0, f"--{name} is {threshold}; it must be 0 (keep all words) or more.")
        for name, size in (("nwordssrc", self.source_size), ("nwordstgt", self.target_size)):
            check(size == -1 or size >= 4,
                  f"--{name} is {size}; the special symbols alone are 4. For no limit, give -1.")


@dataclass(frozen=True, kw_only=True)
class SegmentationConfig:
    """Raw text: tokenization and subwords; without them lines are split at white space."""

    subword: str | None = flag(None, "learn a subword model on the training text and apply it",
                               choices=Learnable(), paper="Kudo 2018; Sennrich et al. 2016")
    vocab_size: int = flag(8000, "pieces to learn", needs="subword")
    libraries: tuple[SubwordLibrary, ...] = every(register.subword)
    tokenizer: str | None = flag(None, "tokenize before, detokenize after; moses needs pip install 'lamina[moses]'",
                                 choices=("none", "moses"))

    def __post_init__(self) -> None:
        for name in ("subword", "tokenizer"):
            if getattr(self, name) == "none":  # written out, it still means that nothing was chosen
                object.__setattr__(self, name, None)
        given = [library for library in self.libraries if library.models]
        check(len(given) <= 1, f"{' and '.join(f'--{library.model_option}' for library in given)} are segmentations of the "
                               "same text: give one.")
        for library in given:
            check(not self.subword, f"--{library.model_option} brings a subword model and --subword learns one: leave one of "
                                    "them out.")
            check(len(library.models) <= 2,
                  f"--{library.model_option} takes one file, or one for the source and one for the target.")
        for library in self.libraries:
            library.check(is_learned=library.name == self.subword)
        check(self.vocab_size >= 1, f"--vocab-size is {self.vocab_size}; it must be at least 1.")

    @property
    def learned(self) -> SubwordLibrary | None:
        """What --subword chose."""
        return next((library for library in self.libraries if library.name == self.subword), None)

    @property
    def given(self) -> SubwordLibrary | None:
        """The library whose models a person has named."""
        return next((library for library in self.libraries if library.models), None)


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
    """Output."""

    text: TextConfig = part(TextConfig)
    dictionary: DictionaryConfig = part(DictionaryConfig)
    segmentation: SegmentationConfig = part(SegmentationConfig)
    like: str | None = flag(None, "take dictionaries and segmentation of this model, to train it further: a checkpoint, an "
                                  "exported folder, one of Hugging Face's, or hf://OWNER/NAME", metavar="CHECKPOINT",
                            needs=("!srcdict", "!tgtdict", "!joined-dictionary", "!subword", "!tokenizer", "!dict-only"))
    data_folder: str = flag("data-bin", "folder to write; files of an earlier run are replaced", name="destdir",
                            metavar="DIR")
    workers: int | None = flag(None, "processes to use; without it, one per core")
    dataset_impl: str = flag("mmap", "layout of the files; only the memory-mapped one is left", choices=("mmap",))
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check(self.workers is None or self.workers >= 1, f"--workers is {self.workers}; it must be at least 1.")
        text, dictionary, segmentation = self.text, self.dictionary, self.segmentation
        check(text.train_prefix is not None or not self.builds_dictionary,
              "a dictionary has to be counted on training text: pass --trainpref, or give --srcdict"
              + (" (or --tgtdict)." if dictionary.is_joined else "." if text.only_source else " and --tgtdict."))
        check(self.builds_dictionary or dictionary.padding_factor == DEFAULT_PADDING_FACTOR,
              "--padding-factor has no effect when the dictionaries are given.")
        check(not segmentation.subword or text.train_prefix is not None,
              "--subword learns on training text: pass --trainpref, or give a model with --bpe-codes or "
              "--sentencepiece-model.")
        check(not segmentation.subword or not (dictionary.source_dict or dictionary.target_dict),
              "--subword learns new pieces, which a dictionary given by --srcdict or --tgtdict would not know. Give "
              "the model that belongs to the dictionary with --bpe-codes or --sentencepiece-model instead.")
        check(segmentation.tokenizer is None or text.source_lang is not None,
              "--tokenizer moses needs to know the language: pass --source-lang.")
        check(self.like is None or segmentation.given is None,
              f"--like {self.like} brings its segmentation along: leave out "
              f"--{segmentation.given.model_option if segmentation.given else ''}.")
        check(not text.only_source or segmentation.given is None or len(segmentation.given.models) < 2,
              "--only-source has one side, and so one subword model.")

    @property
    def builds_dictionary(self) -> bool:
        """Whether at least one dictionary is counted, not given."""
        given = self.dictionary
        if self.like:
            return False
        if given.is_joined or self.text.only_source:
            return not (given.source_dict or given.target_dict)
        return not (given.source_dict and given.target_dict)

    @property
    def languages(self) -> tuple[str | None, ...]:
        """The sides to write; None is the one side of a text without a language."""
        return (self.text.source_lang,) if self.text.only_source else (self.text.source_lang, self.text.target_lang)

"""Data of masked language models and of sentence classifiers."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.fields import check, flag


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Masking."""

    mask_p: float = flag(0.15, "share of the words that are to be guessed", name="mask-prob", paper="Devlin et al. 2019 §3.1")
    keep_p: float = flag(0.1, "share of those that the model sees as they are", name="leave-unmasked-prob",
                         paper="Devlin et al. 2019 §3.1")
    random_p: float = flag(0.1, "share of those that it sees as a random word; the rest becomes <mask>",
                           name="random-token-prob", paper="Devlin et al. 2019 §3.1")
    is_frequency_weighted: bool = flag(False, "draw random words by the dictionary's counts instead of evenly",
                                       name="freq-weighted-replacement", needs="random-token-prob")
    is_whole_words: bool = flag(False, "mask all pieces of a word together, as sentencepiece's or BPE's marks delimit words",
                                name="mask-whole-words")

    def __post_init__(self) -> None:
        check(0.0 < self.mask_p < 1.0, f"--mask-prob is {self.mask_p}; it must lie strictly between 0 and 1.")
        for name, value in (("leave-unmasked-prob", self.keep_p), ("random-token-prob", self.random_p)):
            check(0.0 <= value <= 1.0, f"--{name} is {value}; it must lie in [0, 1].")
        check(self.keep_p + self.random_p <= 1.0,
              f"--leave-unmasked-prob {self.keep_p} and --random-token-prob {self.random_p} are shares of the same words: "
              "together they must not exceed 1.")


@dataclass(frozen=True, kw_only=True)
class SentenceConfig:
    """Sentences and labels."""

    is_regression: bool = flag(False, "predict a number: labels are read from DATA/label/SPLIT.label, one per line",
                               name="regression-target")
    is_truncated: bool = flag(False, "cut inputs to --max-positions instead of leaving them out", name="truncate-sequence")
    f1_label: str | None = flag(None, "report F1 of this label alone, as GLUE does for MRPC and QQP (1); F1 is the mean over "
                                      "all labels (macro) if left out", metavar="LABEL", needs="!regression-target")

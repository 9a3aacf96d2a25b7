"""Which data a run reads, and how it is cut into batches."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.masked_options import MaskingConfig, SentenceConfig
from lamina.fields import REQUIRED, check, flag, part
from lamina.traits import BLOCKS, CLASSES, MASKS, PAIRS

VERIFY_MODES = ("once", "full", "off")
MIXED, BY_LENGTH = BATCH_ORDERS = ("mixed", "length")
BREAK_MODES = ("none", "complete", "complete_doc", "eos")


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Blocks of running text."""

    size: int = flag(1024, "maximum tokens per block; the model's longest input follows it; 512, <s> included, with --task "
                           "masked_lm", name="tokens-per-sample")
    break_mode: str = flag("none", "where a block may end: anywhere (none), after a sentence (complete), also at the end of "
                                   "its document, an empty line (complete_doc), or after each sentence (eos); complete with "
                                   "--task masked_lm",
                           name="sample-break-mode", choices=BREAK_MODES)

    def __post_init__(self) -> None:
        check(self.size >= 1, f"--tokens-per-sample is {self.size}; it must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data."""

    data: str = flag(REQUIRED, "data folder made by `lamina preprocess` or fairseq-preprocess; several, separated by "
                               "colons, are read in turn, one per epoch", positional=True)
    source_lang: str | None = flag(None, "source language, as in the file names; found automatically where there is one pair",
                                   aliases=("-s",), metavar="LANG", wants=(PAIRS,))
    target_lang: str | None = flag(None, "target language, found likewise", aliases=("-t",), metavar="LANG", wants=(PAIRS,))
    train_subset: str = flag("train", "split to train on; NAME1, NAME2, .. beside it are added")
    valid_subset: str = flag("valid", "splits to validate on, separated by commas; the first decides what is best")
    upsample_primary: int = flag(1, "how many times to read NAME when NAME1, .. are added")
    truncate_source: bool = flag(False, "cut sources to --max-source-positions instead of leaving the pair out",
                                 wants=(PAIRS,))
    verify: str = flag("once", "compare large data files with the checksums that `lamina preprocess` noted: once for each size "
                               "and time of a file (once), at each start (full) or never (off)", choices=VERIFY_MODES)
    blocks: BlockConfig = part(BlockConfig, wants=(BLOCKS,))
    masking: MaskingConfig = part(MaskingConfig, wants=(MASKS,))
    sentences: SentenceConfig = part(SentenceConfig, wants=(CLASSES,))

    def __post_init__(self) -> None:
        check(self.upsample_primary >= 1,
              f"--upsample-primary is {self.upsample_primary}; it must be at least 1, where 1 reads the data once.")


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Batches (16k tokens an update is usual: max-tokens × update-freq × GPUs)."""

    max_tokens: int | None = flag(None, "maximum tokens in a batch, the longer side counted with its padding")
    max_sentences: int | None = flag(None, "maximum sentence pairs in a batch", name="batch-size", aliases=("max-sentences",))
    multiple: int = flag(8, "sentence pairs in a batch are a multiple of this where they can be",
                         name="required-batch-size-multiple")
    max_tokens_valid: int | None = flag(None, "--max-tokens for validation; as in training if left out")
    max_sentences_valid: int | None = flag(None, "--batch-size for validation; as in training if left out",
                                           name="batch-size-valid", aliases=("max-sentences-valid",))
    num_workers: int = flag(1, "threads that prepare batches ahead; 0 prepares them in the main thread")
    order: str | None = flag(None, "which sentences make a batch: of any length, one behind the other and without padding "
                                   "(mixed), or about as long as each other and padded, as in fairseq (length); mixed if left "
                                   "out, and what a resumed run was trained with", name="batch-order", choices=BATCH_ORDERS)
    curriculum: int = flag(0, "epochs that keep the batches in order of length before shuffling begins")
    skip_invalid_valid: bool = flag(False, "leave out too long validation and test pairs, and say how many, instead of "
                                           "stopping", name="skip-invalid-size-inputs-valid-test")

    def __post_init__(self) -> None:
        for name, value in (("max-tokens", self.max_tokens), ("max-sentences", self.max_sentences),
                            ("max-tokens-valid", self.max_tokens_valid), ("max-sentences-valid", self.max_sentences_valid),
                            ("required-batch-size-multiple", self.multiple)):
            check(value is None or value >= 1, f"--{name} is {value}; a limit on batches must be at least 1.")
        check(self.num_workers >= 0, f"--num-workers is {self.num_workers}; it must be 0 or more.")

    @property
    def is_limited(self) -> bool:
        return self.max_tokens is not None or self.max_sentences is not None

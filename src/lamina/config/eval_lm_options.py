"""What `lamina eval-lm` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config import joining
from lamina.config.batches import BREAK_MODES
from lamina.config.generate_options import ModelFiles
from lamina.config.plug_in_options import PlugInConfig
from lamina.fields import REQUIRED, check, flag, part
from lamina.registry import TasksWith
from lamina.traits import DECODER_ONLY


@dataclass(frozen=True, kw_only=True)
class EvalData:
    """Data."""

    data: str = flag(REQUIRED, "data folder, made with `lamina preprocess --only-source`", positional=True)
    source_lang: str | None = flag(None, "accepted as in fairseq; a text has one side, whose language the folder knows",
                                   aliases=("-s",), metavar="LANG")
    target_lang: str | None = flag(None, "accepted as in fairseq, likewise", aliases=("-t",), metavar="LANG")
    subset: str = flag("test", "split to evaluate", name="gen-subset")
    block_size: int | None = flag(None, "maximum tokens read at once, the context included; as many as the model takes "
                                        "if left out", name="tokens-per-sample")
    break_mode: str = flag("none", "where a block may end: anywhere (none), after a sentence (complete), also at the end of "
                                   "its document, an empty line (complete_doc), or after each sentence (eos)",
                           name="sample-break-mode", choices=BREAK_MODES)
    context_window: int = flag(0, "tokens of the text before a block that are read and not measured; takes them from "
                                  "--tokens-per-sample")
    max_tokens: int | None = flag(None, "maximum tokens in a batch; 36000 if neither limit is given")
    max_sentences: int | None = flag(None, "maximum blocks in a batch", name="batch-size", aliases=("max-sentences",))
    skip_invalid: bool = flag(False, "leave out blocks longer than the model's positions, and say how many, instead of "
                                     "stopping", name="skip-invalid-size-inputs-valid-test")
    num_shards: int = flag(1, "parts to divide the split into")
    shard_id: int = flag(0, "which part to evaluate, counted from 0")

    def __post_init__(self) -> None:
        for name, value in (("max-tokens", self.max_tokens), ("batch-size", self.max_sentences),
                            ("num-shards", self.num_shards), ("tokens-per-sample", self.block_size)):
            check(value is None or value >= 1, f"--{name} is {value}; it must be at least 1.")
        check(self.context_window >= 0, f"--context-window is {self.context_window}; it must be 0 or more.")
        check(0 <= self.shard_id < self.num_shards,
              f"--shard-id is {self.shard_id}; with --num-shards {self.num_shards} it must lie in [0, {self.num_shards}).")


@dataclass(frozen=True, kw_only=True)
class EvalLmConfig:
    """Output."""

    data: EvalData = part(EvalData)
    files: ModelFiles = part(ModelFiles)
    task: str | None = flag(None, "what the model does; the checkpoint knows", choices=TasksWith(DECODER_ONLY))
    softmax_batch: int | None = flag(None, "maximum tokens scored over the vocabulary at once; as many "
                                           "as fit into 128 MiB if left out")
    remove_bpe: str | None = flag(None, f"measure words, not subwords, which are joined at this mark: {joining.HELP}",
                                  metavar="[MARK]", bare_value=joining.BPE_MARK, aliases=("post-process",))
    has_word_probs: bool = flag(False, "print each word with its log-probability, a line a block", name="output-word-probs")
    has_word_stats: bool = flag(False, "print each word's count, summed log-probability, whether it has subwords, and the same "
                                       "of the words after it", name="output-word-stats")
    json: str | None = flag(None, "write the figures to this file too, unrounded, as one JSON object", metavar="FILE")
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check(self.softmax_batch is None or self.softmax_batch >= 1,
              f"--softmax-batch is {self.softmax_batch}; it must be at least 1.")
        joining.check_joiner(self.remove_bpe)

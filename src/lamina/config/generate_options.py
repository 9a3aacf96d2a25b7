"""What the commands that use a trained model can be told: generate, interactive, rescore."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from lamina.config import joining
from lamina.config.keep import KeepConfig
from lamina.config.metric_options import check_metric_options
from lamina.config.plug_in_options import PlugInConfig
from lamina.config.search_options import SearchConfig
from lamina.errors import ConfigError
from lamina.fields import REQUIRED, check, check_seed, every, flag, flatten, part
from lamina.files import split_paths
from lamina.parts.contracts import Metric
from lamina.parts.figures import REFERENCE_METRICS
from lamina.registry import TasksWith, register
from lamina.traits import PAIRS, WRITES

QUANTIZATIONS = ("int8",)


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """Model."""

    path: str = flag(REQUIRED, "checkpoint, or a folder of Hugging Face's, or hf://OWNER/NAME; several, separated by "
                                "colons, translate together as an ensemble")
    overrides: str = flag("{}", "settings of the stored model to replace, as in \"{'dropout': 0.1}\"", name="model-overrides",
                          metavar="DICT")
    keep: KeepConfig = part(KeepConfig)
    dict_dir: str | None = flag(None, "folder with the dictionaries of a fairseq checkpoint, which has none inside; they are "
                                      "also looked for in the data folder and beside the checkpoint", metavar="FOLDER")
    fp16: bool = flag(False, "compute in float16; needs a GPU, where it is the default of generate and interactive",
                      aliases=("memory-efficient-fp16", "amp"))
    bf16: bool = flag(False, "compute in bfloat16", aliases=("memory-efficient-bf16",))
    fp32: bool = flag(False, "compute in float32, also on a GPU")
    cpu: bool = flag(False, "stay on the CPU even where there is a GPU")
    quantize: str | None = flag(None, "on a CPU, round matrices and what they are multiplied with to 8 bits: faster, and "
                                      "not quite the same scores", choices=QUANTIZATIONS)
    seed: int = flag(1, "fixes what --sampling draws")

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check(bool(self.paths), "--path is empty; name the checkpoint to use.")
        given = [f"--{name}" for name in ("fp16", "bf16", "fp32") if getattr(self, name)]
        check(len(given) < 2, f"{' and '.join(given)} exclude each other. Leave all but one out.")
        check(not (self.quantize and self.bf16), "--quantize computes in float32 between its products of integers, so --bf16 "
                                                 "has no place beside it. Leave one of them out.")
        self.override_values()

    @property
    def paths(self) -> list[str]:
        return split_paths(self.path)

    def override_values(self) -> dict[str, Any]:
        """What to change in the stored model, the layers to keep included, by flag.

        A literal, never evaluated as code; keys in fairseq's spelling or ours.
        """
        try:
            values = ast.literal_eval(self.overrides)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            values = None
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
            raise ConfigError(f"--model-overrides is {self.overrides!r}; it must be a dictionary such as "
                              "\"{'dropout': 0.1}\".")
        overrides = {key.replace("_", "-"): value for key, value in values.items()}
        for name, layers in flatten(self.keep).items():
            check(layers is None or name not in overrides,
                  f"--{name} is given twice, the second time in --model-overrides. Leave one of them out.")
        return overrides | {name: layers for name, layers in flatten(self.keep).items() if layers is not None}


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Output."""

    remove_bpe: str | None = flag(None, f"join subwords at this mark: {joining.HELP}", metavar="[MARK]",
                                  bare_value=joining.BPE_MARK, aliases=("post-process",))
    alignment: str | None = flag(None, "print which source token each target token looks at most (A- lines)",
                                 name="print-alignment", choices=("hard",), bare_value="hard", metavar="[hard]")
    replace_unk: str | None = flag(None, "put the source word that an <unk> looks at most in its place; with a FILE of "
                                         "`source target` lines, its translation", metavar="[FILE]", bare_value="")

    def __post_init__(self) -> None:
        joining.check_joiner(self.remove_bpe)

    @property
    def has_alignment(self) -> bool:
        return self.alignment is not None


@dataclass(frozen=True, kw_only=True)
class SplitData:
    """Data."""

    data: str = flag(REQUIRED, "data folder", positional=True)
    source_lang: str | None = flag(None, "source language; the checkpoint's if left out", aliases=("-s",), metavar="LANG")
    target_lang: str | None = flag(None, "target language; the checkpoint's if left out", aliases=("-t",), metavar="LANG")
    subset: str = flag("test", "split to translate", name="gen-subset")
    max_tokens: int | None = flag(None, "maximum tokens in a batch; 12000 if neither limit is given (on a CPU 64 sentences)")
    max_sentences: int | None = flag(None, "maximum sentences in a batch", name="batch-size", aliases=("max-sentences",))

    def __post_init__(self) -> None:
        for name, value in (("max-tokens", self.max_tokens), ("batch-size", self.max_sentences)):
            check(value is None or value >= 1, f"--{name} is {value}; it must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class GenerateData(SplitData):
    """Data."""

    skip_invalid: bool = flag(False, "leave out too long pairs, and say how many, instead of stopping",
                              name="skip-invalid-size-inputs-valid-test")
    truncate_source: bool = flag(False, "cut sources to the model's longest length instead of leaving the pair out")
    num_shards: int = flag(1, "parts to divide the split into")
    shard_id: int = flag(0, "which part to translate, counted from 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.num_shards >= 1, f"--num-shards is {self.num_shards}; it must be at least 1.")
        check(0 <= self.shard_id < self.num_shards,
              f"--shard-id is {self.shard_id}; with --num-shards {self.num_shards} it must lie in [0, {self.num_shards}).")


SCORING = ("bleu", "sacrebleu")


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """Translation of a split."""

    data: GenerateData = part(GenerateData)
    files: ModelFiles = part(ModelFiles)
    task: str | None = flag(None, "what the model does; the checkpoint knows", choices=TasksWith(PAIRS))
    search: SearchConfig = part(SearchConfig)
    output: OutputConfig = part(OutputConfig)
    cascade: str | None = flag(None, "translate with some layers first, and again with all of them where that was not sure, by "
                                     "the threshold that `lamina calibrate` wrote; beside the checkpoint, if given bare",
                               metavar="[FILE]", bare_value="", needs="!score-reference")
    prefix_size: int = flag(0, "force the first N tokens of the reference", needs="!score-reference")
    source_text: str | None = flag(None, "source lines of the split as they were before `lamina preprocess`, from which "
                                   "--replace-unk copies words that the dictionary lacks", metavar="FILE")
    score_reference: bool = flag(False, "score the reference translations instead of translating: mean log-probability and "
                                        "each token's")
    is_quiet: bool = flag(False, "print the closing figures only", name="quiet")
    is_detokenized: bool = flag(False, "score detokenized text with sacreBLEU's 13a tokenizer instead of tokens as they "
                                       "stand", name="sacrebleu")
    scoring: str | None = flag(None, "what --sacrebleu chooses, as later releases of fairseq spell it: bleu of tokens, or "
                               "sacrebleu", choices=SCORING)
    metrics: tuple[str, ...] = flag(("bleu",), "figures to close with", name="metric", choices=REFERENCE_METRICS,
                                    metavar="NAME[,NAME..]")
    parts: tuple[Metric, ...] = every(register.metric)
    results_path: str | None = flag(None, "write the lines to FOLDER/generate-SUBSET.txt instead of the terminal",
                                    metavar="FOLDER")
    json: str | None = flag(None, "write the closing figures to this file too, unrounded, as one JSON object", metavar="FILE",
                            needs="!score-reference")
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check(self.scoring != "bleu" or not self.is_detokenized,
              "--scoring bleu scores tokens and --sacrebleu detokenized text. Leave one of them out.")
        if self.scoring == "sacrebleu":
            object.__setattr__(self, "is_detokenized", True)
        check(self.prefix_size >= 0, f"--prefix-size is {self.prefix_size}; it must be 0 or more.")
        check(self.search.constraint_order is None,
              "--constraints reads phrases from lines, and a data folder has none. Use `lamina interactive`: a line is the "
              "source, then its phrases, separated by tabs.")
        check(not (self.score_reference and (self.output.has_alignment or self.output.replace_unk is not None)),
              "--score-reference translates nothing, so --print-alignment and --replace-unk have no effect. Leave them out.")
        check_metric_options(self.metrics, self.parts, REFERENCE_METRICS)
        check(self.source_text is None or self.output.replace_unk is not None,
              "--source-text has no effect without --replace-unk. Add it, or leave --source-text out.")


@dataclass(frozen=True, kw_only=True)
class InteractiveConfig:
    """Lines in, translations out; with a language model, prompts in, texts out."""

    data: str | None = flag(None, "data folder, as in fairseq; dictionaries and subwords come from the "
                                  "checkpoint, so it may be left out", positional=True)
    files: ModelFiles = part(ModelFiles)
    task: str | None = flag(None, "what the model does; the checkpoint knows", choices=TasksWith(WRITES))
    source_lang: str | None = flag(None, "accepted as in fairseq; the checkpoint knows its languages", aliases=("-s",),
                                   metavar="LANG")
    target_lang: str | None = flag(None, "accepted as in fairseq; the checkpoint knows its languages", aliases=("-t",),
                                   metavar="LANG")
    input: str = flag("-", "file of lines; - is standard input")
    buffer_size: int = flag(0, "lines to read before working on them together; 0: one at a prompt, 1000 in a pipe")
    max_tokens: int | None = flag(None, "maximum tokens in a batch")
    max_sentences: int | None = flag(None, "maximum sentences in a batch", name="batch-size", aliases=("max-sentences",))
    too_long: str = flag("truncate", "what to do with a line longer than the model's positions", choices=("truncate", "skip"))
    json: str | None = flag(None, "write to this file how many sentences and tokens came out in how many seconds, as one JSON "
                                  "object", metavar="FILE")
    is_plain: bool = flag(False, "print the results alone, one per line, without S- H- D- P- lines", name="plain")
    search: SearchConfig = part(SearchConfig)
    cascade: str | None = flag(None, "translate with some layers first, and again with all of them where that was not sure, by "
                                     "the threshold that `lamina calibrate` wrote; beside the checkpoint, if given bare",
                               metavar="[FILE]", bare_value="")
    output: OutputConfig = part(OutputConfig)
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check(self.buffer_size >= 0, f"--buffer-size is {self.buffer_size}; it must be 0 or more.")
        for name, value in (("max-tokens", self.max_tokens), ("batch-size", self.max_sentences)):
            check(value is None or value >= 1, f"--{name} is {value}; it must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class RescoreConfig:
    """Scoring of given pairs."""

    files: ModelFiles = part(ModelFiles)
    source: str = flag(REQUIRED, "file of source lines", metavar="FILE")
    target: str = flag(REQUIRED, "file of their translations, line by line", metavar="FILE")
    max_tokens: int | None = flag(None, "maximum tokens in a batch")
    max_sentences: int | None = flag(None, "maximum pairs in a batch", name="batch-size", aliases=("max-sentences",))
    too_long: str = flag("truncate", "what to do with a line longer than the model's positions", choices=("truncate", "skip"))
    json: str | None = flag(None, "write the closing figures to this file too, unrounded, as one JSON object", metavar="FILE")
    has_token_scores: bool = flag(True, "print each token's log-probability too", name="token-scores")
    plug_ins: PlugInConfig = part(PlugInConfig)

"""What `lamina analyze` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config import joining
from lamina.config.generate_options import SplitData
from lamina.config.model import ModelConfig
from lamina.config.plug_in_options import PlugInConfig
from lamina.fields import REQUIRED, check, check_seed, flag, part, variant
from lamina.parts.contracts import TaskKind
from lamina.parts.figures import ANALYSIS_FIGURES, known_figures
from lamina.registry import register


@dataclass(frozen=True, kw_only=True)
class AnalyzedData(SplitData):
    """Data."""

    subset: str = flag("valid", "split to look at", name="gen-subset")
    max_pairs: int = flag(500, "look at this many sentence pairs of it, drawn at random by --seed; 0: at all of them")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.max_pairs >= 0, f"--max-pairs is {self.max_pairs}; it must be 0 (all pairs) or more.")


@dataclass(frozen=True, kw_only=True)
class AnalyzeFusionConfig:
    """Analysis."""

    checkpoint: str = flag(REQUIRED, "checkpoint of an encoder-decoder model, fused or not", positional=True)
    data: AnalyzedData = part(AnalyzedData)
    out: str = flag(REQUIRED, "folder to write index.html, the figures (PNG) and the numbers behind them (CSV) to",
                    metavar="FOLDER")
    metric: str = flag("bleu", "what masking an encoder layer is judged by: bleu translates the pairs once for each layer and "
                               "compares BLEU, length and loss; loss translates nothing and is quicker",
                       choices=ANALYSIS_FIGURES)
    beam: int = flag(1, "beam of translations; 1 is greedy search")
    remove_bpe: str | None = flag(None, f"join subwords at this mark before BLEU: {joining.HELP}", metavar="[MARK]",
                                  bare_value=joining.BPE_MARK, aliases=("post-process",))
    sentence: str | None = flag(None, "source sentence whose attention to draw, in the form of the text that was "
                                      "preprocessed; one of the pairs, of middling length, if left out", metavar="TEXT")
    target: str | None = flag(None, "its translation, likewise; the model's own if left out", metavar="TEXT", needs="sentence")
    seed: int = flag(1, "fixes which pairs of sentences and of embeddings are drawn")
    cpu: bool = flag(False, "stay on the CPU even where there is a GPU")
    json: str | None = flag(None, "write the page's numbers to this file too, unrounded, as one JSON object", metavar="FILE")
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check(self.beam >= 1, f"--beam is {self.beam}; it must be at least 1, where 1 is greedy search.")
        check(self.sentence is None or bool(self.sentence.strip()), "--sentence is empty; give the source to draw.")
        joining.check_joiner(self.remove_bpe)

    @property
    def is_of_texts(self) -> bool:
        """Whether it takes translations to measure it."""
        return bool(known_figures()[self.metric].metric)


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """What the model runs on."""

    data: str | None = flag(None, "data folder whose first training batch to run; made-up tokens if left out", metavar="FOLDER")
    max_tokens: int = flag(1024, "maximum tokens of that batch", needs="data")
    num_sentences: int = flag(8, "sentences of a made-up batch", name="sentences", needs="!data")
    length: int = flag(24, "tokens of each of them", needs="!data")
    vocab_size: int = flag(1000, "symbols of a made-up vocabulary", needs=("!data", "!checkpoint"))

    def __post_init__(self) -> None:
        for name, value in (("max-tokens", self.max_tokens), ("sentences", self.num_sentences), ("length", self.length)):
            check(value >= 1, f"--{name} is {value}; it must be at least 1.")
        check(self.vocab_size >= 8, f"--vocab-size is {self.vocab_size}; it must be at least 8.")


@dataclass(frozen=True, kw_only=True)
class AnalyzeDepthConfig:
    """Analysis."""

    checkpoint: str | None = flag(None, "checkpoint to look into; if left out, a fresh model of the flags below",
                                  positional=True)
    out: str = flag(REQUIRED, "folder to write index.html, the figures (PNG) and the numbers behind them (CSV) to",
                    metavar="FOLDER")
    sub_layers: tuple[int, ...] = flag((6, 12, 24, 48, 100, 200), "depths at which to measure how far the output moves, two "
                                                                  "sub-layers a layer", metavar="N,N,..")
    step: float = flag(1e-4, "how far each weight moves for it")
    repeats: int = flag(4, "fresh models to average at each depth")
    seed: int = flag(1, "fixes weights, made-up tokens and moves")
    cpu: bool = flag(False, "stay on the CPU even where there is a GPU")
    sample: SampleConfig = part(SampleConfig)
    kind: TaskKind = variant("task", "what a fresh model is for", register.task, default="", needs=("!checkpoint",))
    arch: str = flag("transformer", "preset that gives a fresh model's defaults", aliases=("-a",), choices=register.arch,
                     metavar="NAME", needs="!checkpoint")
    model: ModelConfig = part(ModelConfig)
    json: str | None = flag(None, "write the page's numbers to this file too, unrounded, as one JSON object", metavar="FILE")
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        depths = self.sub_layers
        check(len(depths) >= 2 and depths[0] >= 2 and list(depths) == sorted(set(depths)),
              f"--sub-layers is {','.join(map(str, depths))}; it must be two or more numbers from 2 on, in rising order.")
        check(self.step > 0, f"--step is {self.step}; it must be above 0.")
        check(self.repeats >= 1, f"--repeats is {self.repeats}; it must be at least 1.")

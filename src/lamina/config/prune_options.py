"""What `lamina prune` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config import joining
from lamina.config.keep import KeepConfig
from lamina.config.plug_in_options import PlugInConfig
from lamina.fields import REQUIRED, check, flag, flatten, part
from lamina.parts.contracts import Figure
from lamina.parts.figures import PRUNING_FIGURES, known_figures, metric_of


@dataclass(frozen=True, kw_only=True)
class LayerSearchConfig:
    """Search: let validation data say which layers to keep."""

    is_on: bool = flag(False, "find the best layers to keep on the data: layers are left out one after the other, each time "
                              "those that are missed least", name="search", paper="Fan et al. 2020 §3.2")
    encoder_layers: int | None = flag(None, "how many encoder layers to keep; all if left out", needs="search")
    decoder_layers: int | None = flag(None, "how many decoder layers to keep; all if left out", needs="search")
    importance: str | None = flag(
        None, "guess in one pass over the data instead of searching: layers whose output is most like their input go "
              "(influence), the block of layers whose ends are most alike (angular), or the layers without which the loss "
              "rises least (loss)", choices=("influence", "angular", "loss"), needs="search",
        paper="Men et al. 2024; Gromov et al. 2024")
    beam_width: int = flag(1, "choices of layers to continue from at each depth; 1 is greedy, more is slower and finds more")
    curve: str | None = flag(None, "measure quality and decoding speed at every depth of these stacks (both, if given bare), "
                                   "for evenly spaced, first, last and searched layers, and draw them beside --output",
                             choices=("both", "encoder", "decoder"), bare_value="both", metavar="[STACK]")

    def __post_init__(self) -> None:
        for name, number in (("encoder-layers", self.encoder_layers), ("decoder-layers", self.decoder_layers)):
            check(number is None or number >= 1, f"--{name} is {number}; a model needs at least 1 layer.")
        check(self.beam_width >= 1, f"--beam-width is {self.beam_width}; it must be at least 1, where 1 is greedy.")
        check(self.importance is None or self.beam_width == 1,
              "--beam-width has no effect with --importance, which ranks the layers once. Leave one of them out.")
        check(not self.is_on or self.encoder_layers is not None or self.decoder_layers is not None,
              "--search needs a budget: say how many layers to keep with --encoder-layers or --decoder-layers, or both.")


@dataclass(frozen=True, kw_only=True)
class LayerMetricConfig:
    """Measurement: how a choice of layers is judged, with --search and --curve."""

    metric: str = flag("loss", "bits per token, lower is better; or BLEU of translations, higher is better",
                       choices=PRUNING_FIGURES)
    subset: str = flag("valid", "split to measure on", name="gen-subset")
    beam: int = flag(1, "beam of the translations that BLEU and decoding speed are measured on; 1 is greedy")
    remove_bpe: str | None = flag(None, f"join subwords at this mark before BLEU: {joining.HELP}; known automatically for data "
                                        "made with --subword", metavar="[MARK]", bare_value=joining.BPE_MARK)
    max_tokens: int | None = flag(None, "maximum tokens in a batch; 4096 if neither limit is given")
    max_sentences: int | None = flag(None, "maximum sentences in a batch", name="batch-size", aliases=("max-sentences",))
    skip_invalid: bool = flag(False, "leave out what is too long, and say how much, instead of stopping",
                              name="skip-invalid-size-inputs-valid-test")
    memory: str | None = flag(None, "file that remembers what was measured, so that a search that was stopped, or is for "
                                    "another depth, continues from there; beside --output if left out", name="measurements",
                              metavar="FILE")
    cpu: bool = flag(False, "stay on the CPU even where there is a GPU")

    def __post_init__(self) -> None:
        check(self.beam >= 1, f"--beam is {self.beam}; it must be at least 1, where 1 is greedy search.")
        joining.check_joiner(self.remove_bpe)

    @property
    def is_of_texts(self) -> bool:
        """Whether it takes translations to measure it."""
        return bool(known_figures()[self.metric].metric)

    @property
    def cuts_words(self) -> bool:
        """Whether it depends on how the text is tokenized."""
        return self.is_of_texts and metric_of(self.metric).cuts_words

    @property
    def figure(self) -> Figure:
        return known_figures()[self.metric].figure


WORDS, SEQUENCES = "word", "sequence"


@dataclass(frozen=True, kw_only=True)
class HealConfig:
    """Healing: fine-tune what is left."""

    updates: int = flag(0, "train the cut model for so many updates, as the whole one was trained, with the whole one as its "
                           "teacher; the best of it by validation is written, or the last with --distill sequence. 0: write it "
                           "as it was cut", name="heal")
    lr: float | None = flag(None, "learning rate to fall from, in a straight line to 0; half of the run's if left out",
                            name="heal-lr", needs="heal")
    kind: str = flag(WORDS, "what the whole model teaches: its distribution over each next word (word), or its own "
                            "translations of the training set in place of its targets (sequence)",
                     choices=(WORDS, SEQUENCES), name="distill", needs="heal", paper="Kim and Rush 2016 §3")
    weight: float | None = flag(None, "the share of the loss that is the distance from the whole model's distributions; 0: "
                                      "learn from the targets alone. 0.5 if left out, and 0 with --distill sequence",
                                name="distill-weight", needs="heal", paper="Kim and Rush 2016 §3.1")

    def __post_init__(self) -> None:
        check(self.updates >= 0, f"--heal is {self.updates}; it must be a number of updates, or 0.")
        check(self.lr is None or self.lr > 0, f"--heal-lr is {self.lr}; it must be above 0.")
        check(self.weight is None or 0.0 <= self.weight <= 1.0, f"--distill-weight is {self.weight}; it must lie in [0, 1].")

    @property
    def teacher_weight(self) -> float:
        return self.weight if self.weight is not None else 0.5 if self.kind == WORDS else 0.0


@dataclass(frozen=True, kw_only=True)
class PruneConfig:
    """Files."""

    checkpoint: str = flag(REQUIRED, "checkpoint to prune", positional=True)
    data: str | None = flag(None, "data folder to measure on, with --search and --curve, and to train on, with --heal",
                            positional=True)
    output: str = flag(REQUIRED, "checkpoint to write; measurements and figures go beside it", metavar="FILE")
    json: str | None = flag(None, "write what was measured to this file too, unrounded, as one JSON object", metavar="FILE")
    keep: KeepConfig = part(KeepConfig)
    search: LayerSearchConfig = part(LayerSearchConfig)
    measure: LayerMetricConfig = part(LayerMetricConfig)
    heal: HealConfig = part(HealConfig)
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        measures = self.search.is_on or self.search.curve is not None
        check(measures or not self.keep.is_empty,
              "which layers are to stay? Name them with --encoder-layers-to-keep or --decoder-layers-to-keep, or have them "
              "found with --search.")
        check(self.keep.is_empty or not measures,
              "the layers to keep are either named (--encoder-layers-to-keep, --decoder-layers-to-keep) or found (--search, "
              "--curve). Leave one of them out.")
        check(measures or self.json is None, "--json has no effect without --search or --curve. Leave it out.")
        check(not measures or self.data is not None,
              "--search and --curve measure on data: give the data folder after the checkpoint.")
        heals = self.heal.updates > 0
        check(not heals or self.data is not None, "--heal trains on data: give the data folder after the checkpoint.")
        check(measures or heals or self.data is None,
              "a data folder has no effect without --search, --curve or --heal. Leave it out.")
        check(not heals or self.search.is_on or not self.keep.is_empty,
              "--heal needs a model to heal: name the layers to keep (--encoder-layers-to-keep, --decoder-layers-to-keep), or "
              "have them found with --search.")
        default = flatten(LayerSearchConfig()) | flatten(LayerMetricConfig())
        # Where the model is trained again, it may run where it is told to.
        shared = {"cpu"} if heals else set()
        given = [name for name, value in (flatten(self.search) | flatten(self.measure)).items()
                 if value != default[name] and name not in shared]
        check(measures or not given, f"--{given[0] if given else ''} has no effect without --search or --curve. Leave it out.")

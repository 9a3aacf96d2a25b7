"""What a part of each kind answers: the contract between a variant and the code that meets it.

Whoever meets a part asks it and never its type. A question that a part does not answer is refused in its name: what nobody
thought of is never treated as the plain case. `docs/extending.md` shows a part of each kind being written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from lamina.errors import CheckpointError, ConfigError, LaminaError
from lamina.registry import register

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor, nn

    from lamina.checkpoint.folding import Folding
    from lamina.nn.cross_entropy import LossSums
    from lamina.nn.stack import ActiveLayers
    from lamina.pruning.cut import Cut
    from lamina.text.subword import Subword
    from lamina.text.vocabulary import Vocabulary


class Part:
    """What all parts have in common."""

    topic: ClassVar[str] = ""  # the heading of its options in --help; the first line of its docstring if left out
    option: ClassVar[str]  # the option that chooses among the parts of its kind

    @property
    def name(self) -> str:
        return getattr(register, self.table).name_of(self)

    table: ClassVar[str]  # of the registry

    @property
    def spelled(self) -> str:
        """As one types it: `--init-type admin`."""
        return f"--{self.option} {self.name}"

    def cannot(self, what: str, why: str = "") -> LaminaError:
        """The refusal of a question that has no answer: `raise self.cannot("be folded")`."""
        return CheckpointError(f"a model with {self.spelled} cannot {what}: "
                               f"{why or f'the part {self.name!r} does not say how'}.")


class ModelPart(Part):
    """A part of a model, which travels in its checkpoint."""

    set_by_pruning: ClassVar[tuple[str, ...]] = ()  # its options that pruning changes, by flag
    is_plain: ClassVar[bool] = False  # whether a Transformer with it is the one of Vaswani et al. (2017), pre- or post-norm

    def not_in(self, toolkit: str) -> str:
        """Why another toolkit cannot hold a model with this part; nothing if it can. Asked by every exporter."""
        return "" if self.is_plain else f"{toolkit} has no {self.spelled}"

    def describe(self) -> str:
        """A line for model cards; nothing where there is nothing to say."""
        return "" if self.is_plain else self.spelled.removeprefix("--").replace(" ", ": ", 1)


# -- residual: how branches join the stream


@dataclass(frozen=True, kw_only=True)
class LayerPlace:
    """Where a layer stands, for the parts that depend on it."""

    stack: str  # "encoder" or "decoder"
    index: int  # from 0
    num_layers: int
    num_sub_layers: int  # 3 where a layer reads a memory besides itself, otherwise 2
    dim: int
    is_pre_norm: bool
    dropout_p: float
    # Layers of encoder and decoder when training began: a pruned model keeps what was derived from them. 0: no such stack.
    trained_depths: tuple[int, int]


class Residual(ModelPart):
    """How a branch joins the residual stream, and which weights the stack starts from (--init-type)."""

    table = "residual"
    option = "init-type"
    topic = "Initialisation"

    def check(self, pre_norm_sides: Sequence[str]) -> None:
        """Raise a ConfigError where it makes no sense with Pre-LN, which these sides have."""

    def build(self, place: LayerPlace) -> list[nn.Module]:
        """One module for each sub-layer, called as module(x, branch, layer_input): norm and sum in one of two orders.

        `layer_input` is what the whole layer read, for residuals that bring it back.
        """
        from lamina.nn.residual import PostNorm, PreNorm

        order = PreNorm if place.is_pre_norm else PostNorm
        return [order(self.norm(place), add, place.dropout_p) for add in self.adds(place)]

    def adds(self, place: LayerPlace) -> list[nn.Module]:
        """How shortcut and branch are added, one module for each sub-layer: add(x, branch_output)."""
        raise self.cannot("be built")

    def norm(self, place: LayerPlace) -> nn.Module:
        from torch import nn

        return nn.LayerNorm(place.dim)

    def final_norm(self, place: LayerPlace) -> nn.Module | None:
        """After the last layer of a stack: Post-LN normalises as it goes, Pre-LN owes the stream one norm at the end."""
        from torch import nn

        return nn.LayerNorm(place.dim) if place.is_pre_norm else None

    def initialise_(self, stack: nn.Module, place: LayerPlace) -> None:
        """What it changes once all weights have their usual start. `place` is that of the stack's first layer."""

    def begin_(self, beginning: Beginning) -> None:
        """Before the first update of a model whose weights are new: what needs data."""

    def fill_(self, model: nn.Module, batch: Any) -> None:
        """For analyses of a fresh model: what `begin_` does, on this one batch and without dropout."""

    @property
    def computes_as(self) -> str:
        """The same for kinds that differ in their first weights alone: a model of one may go on as a model of the other."""
        return self.name

    def compared_as(self) -> Residual:
        """What stands for it where depths are compared: the same, but for constants of one depth."""
        return self

    def why_stop(self) -> str:
        """Why training ends before its first update, or nothing."""
        return ""

    def with_depths(self, depths: tuple[int, int]) -> Residual:
        """The same, with everything that follows from these depths written down, for a model about to lose layers."""
        return self

    @property
    def trained_depths(self) -> tuple[int, ...]:
        """The depths that were written down, or ()."""
        return ()

    def fold(self, folding: Folding) -> None:
        """Change the weights so that plain residuals give the same outputs; raise `self.cannot(..)` if that is impossible."""
        raise self.cannot("be folded into a plain one")

    def can_fold(self) -> bool:
        """Whether `fold` has an answer, for those who would rather say so than try."""
        return not self.is_plain and type(self).fold is not Residual.fold

    def not_in(self, toolkit: str) -> str:
        if self.is_plain:
            return ""
        advice = ". `lamina fold` turns them into plain ones" if self.can_fold() else ""
        return f"{toolkit} has no scaled residuals ({self.spelled}){advice}"

    def describe(self) -> str:
        return "" if self.is_plain else f"residuals: {self.name}"


class Beginning(NamedTuple):
    """What a residual may look at before the first update."""

    model: nn.Module
    first_batches: Callable[[int], Sequence[Any]]
    save_dir: Path
    seed: int
    note: Callable[[str], None]


# -- fusion: what cross-attention reads


class FusionPlace(NamedTuple):
    num_readers: int  # decoder layers
    num_layers: int  # encoder layers
    dim: int  # of the encoder
    is_pre_norm: bool  # the encoder
    dropout_p: float
    feed_forward: Callable[[], nn.Module]  # a block as the encoder's layers have them


class Fusion(ModelPart):
    """What the cross-attention of each decoder layer reads of the encoder (--fusion).

    `build` gives a module with the contract of nn/fusion.py: `prepare(encoder)` once a batch, then `module(prepared, reader)`
    for each decoder layer; `reads_states` and `reads_final` say what it reads. Its weights are called `memory.*`.
    """

    table = "fusion"
    option = "fusion"
    topic = "Encoder-layer fusion"

    reads_tokens: bool = False  # the source embedding without positions
    reads_final: bool = True  # the encoder's output, after its last norm

    def check(self, num_encoder_layers: int, num_decoder_layers: int) -> None:
        """Raise a ConfigError where it does not fit these depths."""

    @abstractmethod
    def build(self, place: FusionPlace) -> nn.Module: ...

    def pruned(self, cut: Cut) -> Fusion:
        """The same choice for the layers that stay."""
        raise self.cannot("be pruned")

    def prune_weights_(self, weights: dict[str, Tensor], cut: Cut) -> None:
        """Change `memory.*` to what the pruned model holds."""

    def prune_moments_(self, moments: dict[str, Tensor], cut: Cut) -> None:
        """The same for what an optimizer remembers of them; what has no counterpart is removed."""
        for name in [name for name in moments if name.startswith("memory.")]:
            del moments[name]

    def unscale(self, folding: Folding) -> None:
        """Folding scales the encoder's states: divide what reads them, or raise `self.cannot(..)`."""
        raise self.cannot("be folded")


# -- head: what the softmax reads


class HeadPlace(NamedTuple):
    dim: int  # of the decoder
    encoder_dim: int
    num_layers: int  # of the decoder
    dropout_p: float
    attention_dropout_p: float
    feed_forward: Callable[[], nn.Module]  # a block as the decoder's layers have them


class Head(ModelPart):
    """What looks at the output vocabulary of an encoder-decoder (--surfacefusion, --head).

    `build` gives a module with the contract of nn/heads.py: `start(encoder, layout, ids)` once a batch and `terms(decoder,
    source, layout)` for each target token. Its weights are called `head.*`.
    """

    table = "head"
    option = "surfacefusion"
    topic = "Surface fusion"

    reads_tokens: bool = False  # the source embedding without positions
    reads_input: bool = False  # the encoder stack's input, with positions
    reads_final: bool = False  # the encoder's output

    def check(self, place: HeadPlace) -> None:
        """Raise a ConfigError where it does not fit."""

    def decoder_states(self, num_layers: int) -> set[int]:
        """Which states of the decoder it reads besides its output; 0 is the stack's input."""
        return set()

    @abstractmethod
    def build(self, place: HeadPlace, table: nn.Module) -> nn.Module: ...

    def pruned(self, cut: Cut) -> Head:
        """The same choice for the layers that stay."""
        raise self.cannot("be pruned")

    def unscale(self, folding: Folding) -> None:
        """Folding scales states of both stacks: divide what reads them, or raise `self.cannot(..)`."""
        raise self.cannot("be folded")

    def advice(self) -> str:
        """What has been seen to go wrong with this choice, or nothing."""
        return ""


# -- mixing: what a layer reads of the layers below it, inside one stack


class Mixing(ModelPart):
    """What each layer of a stack reads of the states below it (--mixing).

    `build` gives None, the usual case in which a layer reads the one before it, or a module called as
    module(states, index), where `states` holds the stack's input and the outputs of layers 0 to index - 1. It works position
    by position: in decoding it sees the newest token's states alone.
    """

    table = "mixing"
    option = "mixing"
    topic = "Mixing inside a stack"

    @abstractmethod
    def build(self, place: LayerPlace) -> nn.Module | None:
        """For the whole stack; `place` is that of its first layer."""

    def pruned(self, cut: Cut) -> Mixing:
        raise self.cannot("be pruned")

    def unscale(self, folding: Folding) -> None:
        raise self.cannot("be folded")


# -- the smaller kinds


class Positions(ModelPart):
    """How a stack's input knows where its tokens stand (--encoder-positions, --decoder-positions)."""

    table = "positions"
    option = "encoder-positions"
    topic = "Encoder and decoder stacks (defaults shown are those of --arch transformer)"

    @abstractmethod
    def build(self, max_positions: int, dim: int) -> nn.Module:
        """module(position ids) -> vectors; position ids start at packed.FIRST_POSITION."""

    def table_of(self, max_positions: int, dim: int) -> Tensor | None:
        """The table behind them where it is computed and no weight: what folding and exporting write down. None: a weight."""
        raise self.cannot("be folded or exported", "its positions are no table")


class Adapter(ModelPart):
    """Trainable weights beside the model's own (--adapter)."""

    table = "adapter"
    option = "adapter"
    topic = "Adapters"

    @abstractmethod
    def attach_(self, model: nn.Module) -> None:
        """Change the finished model; weights that should not move lose their `requires_grad`."""


class Criterion(Part):
    """What training minimises (--criterion)."""

    table = "criterion"
    option = "criterion"
    topic = "Loss"

    def check(self, task: TaskKind, model: Any) -> None:
        """Raise a ConfigError where it does not fit a task or a config.model.ModelConfig."""

    @abstractmethod
    def loss(self, model: Any, batch: Any, active: ActiveLayers, *, is_compiled: bool) -> LossSums:
        """Sums over the tokens that count. `model` is a models.contract.Model, `batch` a data.batching.AnyBatch."""


# -- metrics: text against text


class Figure(NamedTuple):
    """A number that something is judged by."""

    label: str  # in print and in tables
    decimals: int = 2
    larger_is_better: bool = True

    def shown(self, value: float) -> str:
        return f"{value:.{self.decimals}f}"


@dataclass(frozen=True, kw_only=True)
class MetricInputs:
    """What a metric may read besides its options, hypotheses and references."""

    sources: Sequence[str] = ()  # what was translated or corrected, a text per hypothesis
    edits: Sequence[Any] = ()  # metrics.m2.Annotated, one per hypothesis
    is_tokenized: bool = False  # words are what white space separates, and no metric should cut them further
    ignore_case: bool = False


@dataclass(frozen=True)
class Score:
    """The figures of one metric."""

    values: Mapping[str, float]  # by the names that the metric's `figures` have
    text: str  # one line for people
    signature: str  # what to quote beside the figures


# What a metric compares with.
REFERENCES, SOURCES, EDITS = "references", "sources", "edits"


class Metric(Part):
    """How good texts are (--metric). A metric with one figure needs no more than `corpus`."""

    table = "metric"
    option = "metric"
    topic = "Score"

    needs: ClassVar[frozenset[str]] = frozenset({REFERENCES})  # which of REFERENCES, SOURCES and EDITS it cannot do without
    figures: ClassVar[Mapping[str, Figure]] = {}  # by unique names; left out: one, named as the metric, with two decimals
    cuts_words: ClassVar[bool] = False  # whether it tokenizes what is not `is_tokenized`

    @abstractmethod
    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], inputs: MetricInputs) -> Score:
        """Of all texts. `references` holds one list for each reference file, as long as `hypotheses`; use `self.score`."""

    def sentences(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]],
                  inputs: MetricInputs) -> Iterator[Score]:
        """One for each text, in order, for metrics that can judge a text by itself."""
        raise self.cannot("judge sentences one by one")

    def of_sacrebleu(self, inputs: MetricInputs) -> Any:
        """The same as a metric of sacreBLEU, which resampling (`lamina score --baseline`) is done by."""
        raise self.cannot("be resampled")

    def announce(self) -> str:
        """For the log of a run whose validation it serves, or nothing. Raise a ConfigError where a package is missing."""
        return ""

    def cannot(self, what: str, why: str = "") -> LaminaError:
        return ConfigError(f"{self.spelled} cannot {what}: {why or f'the metric {self.name!r} does not say how'}.")

    def score(self, values: Mapping[str, float], text: str = "", signature: str = "") -> Score:
        """Checked and, where that is left out, put into words."""
        figures = self.own_figures()
        if set(values) != set(figures):
            raise ConfigError(f"{self.spelled} gave the figures {', '.join(values) or 'nothing'}, where its `figures` are "
                              f"{', '.join(figures)}.")
        text = text or ", ".join(f"{figures[name].label} = {figures[name].shown(value)}" for name, value in values.items())
        return Score(dict(values), text, signature or f"metric:{self.name}")

    @classmethod
    def own_figures(cls) -> Mapping[str, Figure]:
        if cls.figures:
            return cls.figures
        name = register.metric.name_of(cls)
        return {name: Figure(name)}

    @classmethod
    def judges_sentences(cls) -> bool:
        return cls.sentences is not Metric.sentences

    @classmethod
    def is_of_sacrebleu(cls) -> bool:
        return cls.of_sacrebleu is not Metric.of_sacrebleu


# -- tasks and presets


class TaskKind(Part):
    """A kind of problem: its data, its model and its figures (--task). What it is, without torch; `open` brings the rest."""

    table = "task"
    option = "task"
    topic = "Start here"

    traits: ClassVar[frozenset[str]] = frozenset()  # of traits.py: which options mean something
    stacks: ClassVar[tuple[str, ...]] = ()  # of its models
    defaults: ClassVar[Mapping[str, Any]] = {}  # of options whose own default was made for another task
    about_model: ClassVar[str] = "a Transformer"  # how a model card calls its models
    begins_from: ClassVar[tuple[str, ...]] = ()  # other tasks, whose models may lend this one's their weights
    fairseq_task: ClassVar[str] = ""  # what fairseq calls it, where it has it
    figures: ClassVar[Mapping[str, Figure]] = {}  # what it measures at validation besides losses and --metric's

    def has(self, *traits: str) -> bool:
        return set(traits) <= self.traits

    def sides(self, languages: tuple[str, ...]) -> tuple[str, ...]:
        """What messages call its vocabularies."""
        return languages

    def complete_(self, values: dict[str, Any], explicit: Mapping[str, Any]) -> None:
        """Let values of the preset follow options that a person gave."""

    def check(self, config: Any) -> None:
        """Raise a ConfigError where a config.train_options.TrainConfig does not fit."""

    def vocab_sizes(self, size: int) -> tuple[int, ...]:
        """What `build_model` wants where every vocabulary has `size` symbols."""
        return (size,)

    @abstractmethod
    def open(self, data: Any, model: Any) -> Any:
        """The tasks.base.Task of a data folder (config.batches.DataConfig) and a configuration of the model."""

    @abstractmethod
    def build_model(self, config: Any, vocab_sizes: tuple[int, ...]) -> Any:
        """A models.contract.Model, freshly initialised from a ModelConfig."""

    def made_up_batch(self, vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> Any:
        """A batch of random tokens, for `lamina analyze depth` without a data folder."""
        raise self.cannot("be looked at with made-up tokens")

    def load_api(self) -> Any:
        """The class that lamina.load gives for its checkpoints."""
        raise self.cannot("be loaded for use", "the task does not say what its models are used for")


Preset = Callable[[], Any]


# -- optimizers and schedules


class Optimizer(Part):
    """How weights move (--optimizer): element by element, over one flat float32 tensor that holds all of them.

    A step is compiled and captured: no method may wait for the device or branch on its data. `ok`, where there is one, is a
    0-dim boolean tensor; where it is False nothing may change (parts.update_rules.unless).
    """

    table = "optimizer"
    option = "optimizer"
    topic = "Optimizer"

    weight_decay: float = 0.0
    buffers: tuple[str, ...] = ()  # names of what is kept for each weight, in the order in which `update_` gets them

    @abstractmethod
    def factors(self, step: Tensor, lr: Tensor, ok: Tensor | None) -> tuple[Any, ...]:
        """The numbers that all weights share, as float32 or Python floats; `step` counts from 1, both are 0-dim float64."""

    @abstractmethod
    def update_(self, weights: Tensor, grad: Tensor, buffers: list[Tensor], factors: tuple[Any, ...],
                scratch: Tensor) -> None:
        """Move one chunk of the weights and of the buffers, in place; `scratch` is as long and free to use."""


class Rates(NamedTuple):
    """What a schedule is made from besides its own options."""

    lr: tuple[float, ...]
    min_lr: float
    max_update: int  # 0: training has no set end

    def only(self, schedule: Schedule) -> float:
        if len(self.lr) != 1:
            raise ConfigError(f"--lr lists {len(self.lr)} rates, but --lr-scheduler {schedule.name} starts from exactly one. "
                              "Give one number, or use --lr-scheduler fixed for a rate per epoch.")
        return self.lr[0]

    def known_end(self, what: str) -> int:
        if self.max_update <= 0:
            raise ConfigError(f"--max-update is not set, but --lr-scheduler {what} decays until then. Add --max-update with "
                              "the number of updates you plan to train.")
        return self.max_update


class Curve(Protocol):
    """The rate in force for the next update, once `updates_done` are finished; epochs count from 1."""

    def __call__(self, updates_done: int, epoch: int = 1) -> float: ...


class Schedule(Part):
    """How the learning rate moves (--lr-scheduler)."""

    table = "schedule"
    option = "lr-scheduler"
    topic = "Learning rate"

    uses_min_lr: ClassVar[bool] = False  # whether --min-lr is the end of its line rather than a reason to stop

    @abstractmethod
    def build(self, rates: Rates) -> Curve:
        """The rate for the next update, once so many are done, in an epoch that counts from 1: a pure function."""


# -- decoding step rules


class Stage(Enum):
    """When a step rule has its turn in a decoding step, in this order; within a stage, rules come as they are registered."""

    WEIGH = 1  # changes scores, also those of tokens that a prefix forces
    FORBID = 2  # forbids tokens, except those that a prefix or a constraint demands
    END = 3  # forbids the end; after the constraints, which look at whether the model would end
    CHOOSE = 4  # keeps some of what is left


class Step(NamedTuple):
    """A decoding step of B sentences (slots) with K beams each. What the host knows, and tensors that keep their place."""

    steps: Tensor  # (B,): tokens that each sentence has so far
    num_given: Tensor  # (B,): how many of them are a language model's prompt, which lengths do not count
    length: int  # no sentence has more tokens after this step
    slots: Tensor  # (B,): 0, 1, ..
    prefix: Tensor | None  # (B, P): tokens to begin with, padded; None where no sentence is within its prefix
    past: Tensor | None  # (B, K, length): each beam's tokens, of which the first `steps` count; None if no rule reads them


class RulePlace(NamedTuple):
    """What a step rule is built for."""

    num_slots: int
    num_beams: int
    num_steps: int  # no sentence ever has more tokens
    device: torch.device
    found: Any = None  # what the rule's own `look_up` gave


class RuleInForce:
    """A step rule in one search. A step is captured in a CUDA graph: no method but `select_` may ask the device a question.

    Whatever a rule keeps for each slot, it keeps in tensors that stay where they are; what is not needed is left out.
    """

    reads_past: bool = False  # whether it reads `step.past`

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        """Change the log-probabilities of each beam's next token, (B, K, V), in place: -inf forbids."""

    def forced(self, step: Step) -> Tensor | None:
        """The token that each sentence must continue with, or a pad; None where there is none. (B,)"""

    def note_(self, step: Step, tokens: Tensor, parents: Tensor) -> None:
        """The beams have gained these tokens, (B, K), each after the beam `parents` (B, K) of its sentence."""

    def begin_(self, slots: Tensor, prompt: Tensor, scores: Tensor) -> None:
        """A prompt is read at once, for all beams of these slots. prompt, scores of its tokens: (B', P)"""

    def put_(self, slots: Tensor) -> None:
        """Other sentences take these slots. (B',)"""

    def select_(self, slots: Tensor) -> None:
        """Only these slots continue, and are numbered afresh; tensors may move. (B',)"""


class StepRule(Part, RuleInForce):
    """What may be said at a decoding step, and at what price: its options are flags of every command that searches.

    A rule without a state for each slot is its own RuleInForce; one with a state builds it.
    """

    table = "step_rule"
    topic = "Search"

    stage: ClassVar[Stage] = Stage.FORBID
    # Whether `begin_` says all there is to say about a prompt that is read at once; if not, prompts are read token by token.
    knows_prompts: ClassVar[bool] = False
    shortest: int = 0  # fewest tokens of a translation; longest lengths below it are raised

    @property
    @abstractmethod
    def is_on(self) -> bool:
        """Whether it does anything with these options; if not, nobody asks it anything else."""

    def check(self, search: Any) -> None:
        """Raise a ConfigError where it does not fit the other options (a config.search_options.SearchConfig)."""

    def look_up(self, vocabulary: Vocabulary | None) -> Any:
        """What it needs to know of the target dictionary or of files; asked once per search, and given to `build`."""

    def build(self, place: RulePlace) -> RuleInForce:
        return self


# -- subword libraries


class SubwordLibrary(Part):
    """What cuts words into pieces (--subword): how a model is learned and loaded, and how its pieces make words.

    A model is a text.subword.Subword, whose `kind` is the name under which the library is registered: data folders and
    checkpoints keep it by that name and as bytes.
    """

    table = "subword"
    option = "subword"
    topic = "Raw text: tokenization and subwords; without them lines are split at white space"

    file_ending: ClassVar[str] = ""  # of a model in a data folder, subword.LANG.ENDING; "": models are not written as files
    model_option: ClassVar[str] = ""  # its option, without dashes, that names models to apply; "": it has none
    about_model: ClassVar[str] = "a subword model"  # how messages call a file with one
    shows_words: ClassVar[bool] = False  # whether its pieces tell where words begin

    @property
    def models(self) -> tuple[str, ...]:
        """The value of `model_option`: no file, one, or one each for source and target."""
        return ()

    def check(self, *, is_learned: bool) -> None:
        """Raise a ConfigError where its options do not fit; `is_learned`: --subword names it."""

    @classmethod
    def can_learn(cls) -> bool:
        return cls.learn is not SubwordLibrary.learn

    def learn(self, lines: Iterable[str], vocab_size: int) -> Subword:
        """A model of about so many pieces. --subword names libraries with this method; others apply models that are given."""
        raise ConfigError(f"{self.spelled} cannot be learned from text.")

    @abstractmethod
    def load(self, data: bytes, name: str) -> Subword:
        """A model from its bytes; a DataError that begins with `name` if they are damaged."""

    def is_marked(self, piece: str) -> bool:
        """Whether a piece gives away that this library made it: for dictionaries that do not say where they come from."""
        return False

    def begins_word(self, piece: str) -> bool:
        """Whether a word may begin with this piece; it does, unless the piece before it continues."""
        return True

    def continues(self, piece: str) -> bool:
        """Whether the piece after it belongs to the same word."""
        return False

    def spell(self, pieces: Sequence[str]) -> str:
        """The pieces of one word as text."""
        return "".join(pieces)

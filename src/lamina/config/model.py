"""What a model is made of. Blocks never see these classes: models/build.py turns them into numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lamina.config.drop_rates import SCHEDULE_HELP, Rates, rates_of
from lamina.fields import Switch, check, flag, part, variant
from lamina.parts.contracts import Adapter, Fusion, Head, HeadPlace, Mixing, ModelPart, Positions, Residual, StepRule
from lamina.parts.mixings import NoMixing
from lamina.parts.model_manners import FirstTokens, ForbiddenTokens, FreeForced, Renormalized
from lamina.registry import register
from lamina.traits import CLASSES, DECODER, DECODER_ONLY, ENCODER, ENCODER_ONLY, PAIRS

EOS_ID = 2  # of every vocabulary; text/vocabulary.py says the same, and a test holds the two together
# Of feed-forward blocks; the first is the default.
FFN_STARTS = ("torch", "xavier")


def no_block() -> Any:
    raise AssertionError("a configuration that is checked builds nothing")


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Encoder and decoder stacks (defaults shown are those of --arch transformer)."""

    num_layers: int = flag(6, "number of layers", name="layers", paper="Vaswani et al. 2017 §3.1")
    model_dim: int = flag(512, "width of the residual stream and the embeddings", name="embed-dim")
    ffn_dim: int = flag(2048, "inner width of the feed-forward block", name="ffn-embed-dim",
                        paper="Vaswani et al. 2017 §3.3")
    num_heads: int = flag(8, "attention heads; must divide the width", name="attention-heads",
                          paper="Vaswani et al. 2017 §3.2.2")
    is_pre_norm: bool = flag(False, "Pre-LN: normalise before each block instead of after it", name="normalize-before",
                             paper="Xiong et al. 2020")
    positions: Positions = variant(
        "positions", "how the stack's input knows where its tokens stand", register.positions, default="sinusoidal",
        needs=("token-positional-embeddings",),
        switches={"learned-pos": Switch("learned", "learn position embeddings instead of sinusoids")})
    layer_drop_p: float = flag(0.0, "LayerDrop: leave each layer out of an update with this probability, so that the model can "
                                    "be pruned afterwards; 0.2 is the usual choice, 0.5 to prune half or more, 0.1 to 0.2 for "
                                    "quality alone; lower --dropout by about 0.1 with it", name="layerdrop",
                               paper="Fan et al. 2020 §3.1")
    embed_path: str | None = flag(None, "text file of pretrained embeddings: a `COUNT DIM` line, then `word v1 v2 ...`")
    reads: tuple[str, ...] = flag((), "ids that the stack reads as other ones: a decoder starts from </s>, and with 2:0 from "
                                      "<s>; imported models need it", metavar="ID:ID[,..]")

    def __post_init__(self) -> None:
        for pair in self.reads:
            check(re.fullmatch(r"\d{1,9}:\d{1,9}", pair) is not None,
                  f"--encoder-reads or --decoder-reads is {','.join(self.reads)}; it must be pairs of ids such as 2:0.")
        for name, value in (("layers", self.num_layers), ("embed-dim", self.model_dim), ("ffn-embed-dim", self.ffn_dim),
                            ("attention-heads", self.num_heads)):
            check(value >= 1, f"--encoder-{name} or --decoder-{name} is {value}; it must be at least 1.")
        check(0.0 <= self.layer_drop_p < 1.0,
              f"--encoder-layerdrop or --decoder-layerdrop is {self.layer_drop_p}; it must lie in [0, 1).")
        check(self.model_dim % self.num_heads == 0,
              f"a width of {self.model_dim} cannot be split over {self.num_heads} attention heads; choose "
                      "--encoder-attention-heads and --decoder-attention-heads that divide the embed-dim.")

    @property
    def reads_ids(self) -> tuple[tuple[int, int], ...]:
        """(id in the text, id whose vector the stack reads)"""
        return tuple((int(first), int(second)) for first, second in (pair.split(":") for pair in self.reads))


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Embeddings and positions."""

    share_all: bool = flag(False, "one matrix for source, target and output; needs --joined-dictionary data",
                           name="share-all-embeddings", paper="Press and Wolf 2017", wants=(PAIRS,))
    share_decoder: bool = flag(False, "one matrix for target embeddings and output", name="share-decoder-input-output-embed",
                               paper="Press and Wolf 2017", wants=(DECODER,))
    unties_head: bool = flag(False, "an output matrix of its own for a model that guesses hidden words, instead of the input's",
                             name="untie-weights-roberta", wants=(ENCODER_ONLY,))
    is_scaled: bool = flag(True, "multiply token embeddings by sqrt(embed-dim)", name="scale-embedding",
                           paper="Vaswani et al. 2017 §3.4")
    has_norm: bool = flag(False, "layer-normalise the sum of token and position embeddings", name="layernorm-embedding")
    has_positions: bool = flag(True, "add position embeddings", name="token-positional-embeddings",
                               paper="Vaswani et al. 2017 §3.5")
    max_source_positions: int = flag(1024, "longest source, in tokens; longer pairs are left out and named",
                                     wants=(PAIRS,))
    max_target_positions: int = flag(1024, "longest target, in tokens; longer pairs are left out and named",
                                     wants=(DECODER,))
    max_positions: int = flag(512, "longest input of a masked language model or classifier, in tokens, <s> included; follows "
                                   "--tokens-per-sample if that is given alone", wants=(ENCODER_ONLY,))

    def __post_init__(self) -> None:
        for name in ("max_source_positions", "max_target_positions", "max_positions"):
            check(getattr(self, name) >= 1,
                  f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class DropoutConfig:
    """Dropout."""

    dropout_p: float = flag(0.1, "probability on embeddings and each block's output", name="dropout")
    attention_p: float = flag(0.0, "probability on attention weights", name="attention-dropout")
    activation_p: float = flag(0.0, "probability after the feed-forward activation", name="activation-dropout",
                               aliases=("relu-dropout",))
    source_word_p: float = flag(0.0, "probability that a source word becomes <unk> in training", name="source-word-dropout",
                                wants=(PAIRS,))
    target_word_p: float = flag(0.0, "probability that a word the decoder reads becomes <unk> in training",
                                name="target-word-dropout", wants=(PAIRS,))

    def __post_init__(self) -> None:
        for name, value in (("dropout", self.dropout_p), ("attention-dropout", self.attention_p),
                            ("activation-dropout", self.activation_p), ("source-word-dropout", self.source_word_p),
                            ("target-word-dropout", self.target_word_p)):
            check(0.0 <= value < 1.0, f"--{name} is {value}; it must lie in [0, 1).")


@dataclass(frozen=True, kw_only=True)
class MannersConfig:
    """Rules that a model brings."""

    forbidden: tuple[int, ...] = flag((), "ids that the model never says", name="model-forbids", metavar="ID,..")
    first: tuple[int, ...] = flag((), "ids that its texts begin with, such as that of the target language",
                                  name="model-begins-with", metavar="ID,..")
    renormalizes: bool = flag(False, "scores are the probabilities of what is not forbidden", name="model-renormalizes")
    frees_forced: bool = flag(False, "a token that has to come, such as </s> at the longest length, costs nothing",
                              name="model-frees-forced")

    def rules(self) -> tuple[StepRule, ...]:
        rules = (ForbiddenTokens(forbidden_tokens=self.forbidden), FirstTokens(first_tokens=self.first),
                 Renormalized(renormalizes=self.renormalizes), FreeForced(frees_forced=self.frees_forced))
        return tuple(rule for rule in rules if rule.is_on)

    def describe(self) -> str:
        """A line for model cards."""
        return f"texts begin with the ids {', '.join(map(str, self.first))}" if self.first else ""


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """Sentence classification."""

    num_classes: int = flag(0, "classes of the sentence head; 1 with --regression-target")
    init_token: int = flag(0, "id put in front of each input, <s> by default; -1: none", needs="num-classes")
    separator_token: int = flag(2, "id put between the two inputs of a pair, </s> by default; -1: none", needs="num-classes")
    name: str = flag("sentence_classification_head", "what the head is called: predict() asks for it by this name",
                     name="classification-head-name", needs="num-classes")
    activation: str = flag("tanh", "activation inside the head", name="pooler-activation-fn", choices=register.activation,
                           needs="num-classes")
    dropout_p: float = flag(0.0, "dropout inside the head", name="pooler-dropout", needs="num-classes")

    def __post_init__(self) -> None:
        check(self.num_classes >= 0, f"--num-classes is {self.num_classes}; it must be 1 or more.")
        for name in ("init_token", "separator_token"):
            check(getattr(self, name) >= -1, f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be an id, or -1.")
        check(bool(self.name) and "." not in self.name,
              f"--classification-head-name is {self.name!r}; it becomes part of parameter names: use no dots.")
        check(0.0 <= self.dropout_p < 1.0, f"--pooler-dropout is {self.dropout_p}; it must lie in [0, 1).")


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig:
    """Language models."""

    input_dim: int | None = flag(None, "width of the token vectors, projected to the model's; the model's if left out",
                                 name="decoder-input-dim")
    output_dim: int | None = flag(None, "width at which the output is read; the model's if left out",
                                  name="decoder-output-dim")
    has_final_norm: bool = flag(True, "normalise once more after the last layer of a Pre-LN decoder", name="decoder-final-norm")
    softmax_cutoff: tuple[int, ...] = flag((), "adaptive softmax: ids at which its bands of rarer words begin",
                                           name="adaptive-softmax-cutoff", metavar="N,..", paper="Grave et al. 2017 §4")
    softmax_dropout_p: float = flag(0.0, "dropout before the adaptive softmax and inside its tails",
                                    name="adaptive-softmax-dropout", needs="adaptive-softmax-cutoff")
    softmax_factor: float = flag(4.0, "each band is this many times narrower than the one before",
                                 name="adaptive-softmax-factor", needs="adaptive-softmax-cutoff")
    is_adaptive: bool = flag(False, "embed bands of rarer words in fewer dimensions", name="adaptive-input",
                             paper="Baevski and Auli 2019 §3")
    input_cutoff: tuple[int, ...] = flag((), "ids at which the bands of rarer words begin", name="adaptive-input-cutoff",
                                         metavar="N,..", needs="adaptive-input")
    input_factor: float = flag(4.0, "each band is this many times narrower than the one before",
                               name="adaptive-input-factor", needs="adaptive-input")
    ties_weights: bool = flag(False, "the adaptive softmax reads the words' vectors of the adaptive input",
                              name="tie-adaptive-weights", needs=("adaptive-input", "adaptive-softmax-cutoff"))
    ties_projections: bool = flag(False, "its tails use the projections of the adaptive input too", name="tie-adaptive-proj",
                                  needs="tie-adaptive-weights")

    def __post_init__(self) -> None:
        for name, value in (("decoder-input-dim", self.input_dim), ("decoder-output-dim", self.output_dim)):
            check(value is None or value >= 1, f"--{name} is {value}; it must be at least 1.")
        for name, cutoff in (("softmax", self.softmax_cutoff), ("input", self.input_cutoff)):
            check(all(one < other for one, other in zip((0, *cutoff), cutoff, strict=False)),
                  f"--adaptive-{name}-cutoff is {','.join(map(str, cutoff))}; the ids must rise, such as 20000,60000.")
        for name, factor in (("softmax", self.softmax_factor), ("input", self.input_factor)):
            check(factor >= 1.0, f"--adaptive-{name}-factor is {factor}; it must be 1 or more.")
        check(0.0 <= self.softmax_dropout_p < 1.0,
              f"--adaptive-softmax-dropout is {self.softmax_dropout_p}; it must lie in [0, 1).")
        check(not self.is_adaptive or bool(self.input_cutoff),
              "--adaptive-input needs --adaptive-input-cutoff, the ids at which bands begin, such as 20000,60000.")
        check(not self.ties_weights or (self.is_adaptive and self.softmax_cutoff == self.input_cutoff
                                        and self.softmax_factor == self.input_factor),
              "--tie-adaptive-weights needs --adaptive-input with the cutoff and the factor of the adaptive softmax.")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Model."""

    encoder: StackConfig = part(StackConfig, "encoder-", wants=(ENCODER,))
    decoder: StackConfig = part(StackConfig, "decoder-", wants=(DECODER,))
    embedding: EmbeddingConfig = part(EmbeddingConfig)
    dropout: DropoutConfig = part(DropoutConfig)
    layer_drop_schedule: str = flag("constant", f"how LayerDrop's rate p is shared out: {SCHEDULE_HELP}",
                                    name="layerdrop-schedule", metavar="NAME|P,P,..",
                                    paper="Huang et al. 2016 §3, Elhoushi et al. 2024 §4.1")
    activation: str = flag("relu", "activation of the feed-forward blocks", name="activation-fn",
                           choices=register.activation)
    classifier: ClassifierConfig = part(ClassifierConfig, wants=(CLASSES,))
    lm: LanguageModelConfig = part(LanguageModelConfig, wants=(DECODER_ONLY,))
    init: Residual = variant(
        "init-type", "residuals and the weights they start from; admin, for deep Post-LN models, profiles on the first batch "
                     "and then trains", register.residual, default="default", aliases=("residual",),
        paper="Liu et al. 2020 (Admin)")
    ffn_init: str | None = flag(None, "how both matrices of a feed-forward block begin: uniform in +-1/sqrt(fan-in), as are "
                                      "their biases (torch: fairseq since 0.10), or Xavier and zero biases (xavier: 0.9), "
                                      "whose product is several times as large; torch if left out", name="ffn-init",
                                choices=FFN_STARTS, wants=(DECODER,))
    fusion: Fusion = variant(
        "fusion", "what the decoder layers read of the encoder", register.fusion, default="none", paper="Liu et al. 2021",
        wants=(PAIRS,), switches={
            "layer-wise-attention": Switch("layer-wise", "decoder layer i reads encoder layer i; with unequal depths they are "
                                           "spread evenly, and the last reads the last", "Liu et al. 2021"),
            "transparent-attention": Switch("transparent", "every decoder layer reads its own learned mix of all encoder "
                                            "layers, also where --layer-wise-attention is given", "Liu et al. 2021")})
    surface: Head = variant(
        "surfacefusion", "let the softmax read the source embeddings: by attention, or pooled by mean or max", register.head,
        default="none", aliases=("head",), paper="Liu et al. 2021", wants=(PAIRS,))
    mixing: Mixing = variant("mixing", "what each layer of a stack reads of the layers below it", register.mixing,
                             default="none")
    mixing_stacks: str = flag("both", "the stacks whose layers --mixing changes", name="mixing-stacks",
                              choices=("both", "encoder", "decoder"), wants=(PAIRS,))
    norm_eps: float = flag(1e-5, "added to the variance in every layer norm")
    manners: MannersConfig = part(MannersConfig, wants=(DECODER,))
    adapter: Adapter = variant("adapter", "trainable weights beside the model's own", register.adapter, default="none")

    def __post_init__(self) -> None:
        check(0.0 < self.norm_eps < 1.0, f"--norm-eps is {self.norm_eps}; it must lie between 0 and 1, such as 1e-5.")
        self.fusion.check(self.encoder.num_layers, self.decoder.num_layers)
        self.surface.check(self.head_place())
        check(not self.embedding.share_all or self.encoder.model_dim == self.decoder.model_dim,
              f"--share-all-embeddings needs one width, but --encoder-embed-dim is {self.encoder.model_dim} and "
                      f"--decoder-embed-dim is {self.decoder.model_dim}. Make them equal, or leave out the sharing.")
        check(self.layer_drop_schedule == "constant" or self.encoder.layer_drop_p > 0 or self.decoder.layer_drop_p > 0,
              "--layerdrop-schedule has no effect without --encoder-layerdrop or --decoder-layerdrop. Add one, or leave it "
              "out.")
        _ = self.layer_drop_rates  # complains of a list that does not fit
        check(not self.embedding.share_all or self.decoder.embed_path in (None, self.encoder.embed_path),
              "--share-all-embeddings has one matrix: give --encoder-embed-path alone, without --decoder-embed-path.")
        widths = {self.lm.input_dim or self.decoder.model_dim, self.lm.output_dim or self.decoder.model_dim,
                  self.decoder.model_dim}
        check(not self.lm.ties_weights or len(widths) == 1,
              "--tie-adaptive-weights needs one width: leave out --decoder-input-dim and --decoder-output-dim, or make them "
              f"--decoder-embed-dim {self.decoder.model_dim}.")
        check(not (self.lm.softmax_cutoff and self.embedding.share_decoder),
              "--share-decoder-input-output-embed has no effect on an adaptive softmax: use --tie-adaptive-weights.")
        check(not (self.lm.is_adaptive and (self.embedding.share_decoder or self.decoder.embed_path)),
              "--adaptive-input has no single matrix to share or to fill: leave out --share-decoder-input-output-embed and "
              "--decoder-embed-path.")
        check(not self.embedding.share_decoder or (self.lm.input_dim or self.decoder.model_dim)
              == (self.lm.output_dim or self.decoder.model_dim),
              "--share-decoder-input-output-embed has one matrix: make --decoder-input-dim and --decoder-output-dim equal.")
        check(self.ffn_init is None or not self.init.sets_feed_forward,
              f"--ffn-init has no effect with {self.init.spelled}, which sets the first weights of feed-forward blocks itself. "
              "Leave one of them out.")
        pre_norm_sides = [side for side in ("encoder", "decoder") if getattr(self, side).is_pre_norm]
        self.init.check(pre_norm_sides)
        check(self.mixing_stacks == "both" or not self.mixing.is_plain,
              f"--mixing-stacks {self.mixing_stacks} has no effect without --mixing. Add one, or leave it out.")
        self.mixing.check(self.init, pre_norm_sides)

    def mixing_of(self, stack: str) -> Mixing:
        return self.mixing if self.mixing_stacks in ("both", stack) else NoMixing()

    @property
    def layer_drop_rates(self) -> tuple[Rates, Rates]:
        """LayerDrop's rate of each encoder layer, and of each decoder layer."""
        encoder, decoder = (rates_of(side, stack.layer_drop_p, stack.num_layers, self.layer_drop_schedule)
                            for side, stack in (("encoder", self.encoder), ("decoder", self.decoder)))
        return encoder, decoder

    @property
    def ffn_start(self) -> str:
        return self.ffn_init or FFN_STARTS[0]

    @property
    def trained_depths(self) -> tuple[int, int]:
        """Layers of encoder and decoder when training began, for residuals whose constants follow from them."""
        own = (self.encoder.num_layers, self.decoder.num_layers)
        return self.init.trained_depths or own  # type: ignore[return-value]

    def with_trained_depths(self) -> ModelConfig:
        """For those who take layers from a trained model: the same, with what depends on depth written down."""
        return replace(self, init=self.init.with_depths(self.trained_depths))

    def head_place(self, feed_forward: Callable[[], Any] = no_block) -> HeadPlace:
        return HeadPlace(dim=self.decoder.model_dim, encoder_dim=self.encoder.model_dim, num_layers=self.decoder.num_layers,
                         dropout_p=self.dropout.dropout_p, attention_dropout_p=self.dropout.attention_p,
                         feed_forward=feed_forward)

    def not_in(self, toolkit: str, *, may_start: bool = False, has_eps: bool = False) -> str:
        """Why another toolkit cannot hold a model with these options, besides what parts say; nothing if it can.

        `may_start`: it can start its decoder from another symbol than </s>; `has_eps`: its norms may have any epsilon.
        """
        started = all(own == EOS_ID for own, _ in self.decoder.reads_ids) and may_start
        if self.encoder.reads or (self.decoder.reads and not started):
            return f"{toolkit} has no --encoder-reads or --decoder-reads"
        if self.norm_eps != ModelConfig.norm_eps and not has_eps:
            return f"{toolkit} has no --norm-eps"
        return ""

    def model_parts(self) -> list[ModelPart]:
        """Every part whose kind can be chosen, for those who must know what all of them are."""
        return [self.init, self.fusion, self.surface, self.mixing, self.adapter, self.encoder.positions, self.decoder.positions]

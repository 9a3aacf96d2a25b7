"""Everything `lamina train` can be told, one dataclass per concern."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lamina.config import joining
from lamina.config.batches import BatchConfig, DataConfig
from lamina.config.keep import KeepConfig
from lamina.config.model import ModelConfig
from lamina.config.plug_in_options import PlugInConfig
from lamina.config.ranks_options import RanksConfig
from lamina.fields import check, check_seed, every, flag, part, variant
from lamina.parts.contracts import Criterion, Optimizer, Schedule, TaskKind, Tracker
from lamina.parts.figures import REFERENCE_METRICS, VALIDATION_FIGURES, known_figures
from lamina.registry import register
from lamina.traits import CLASSES, PAIRS

# For what LayerDrop draws.
BY_SENTENCE, BY_BATCH, BY_UPDATE = LAYER_DROP_DRAWS = ("sentence", "batch", "update")


@dataclass(frozen=True, kw_only=True)
class OptimizationConfig:
    """Optimisation."""

    criterion: Criterion = variant("criterion", "training loss", register.criterion, default="cross_entropy")
    optimizer: Optimizer = variant("optimizer", "update rule", register.optimizer, default="adam")
    schedule: Schedule = variant("lr-scheduler", "how the learning rate moves", register.schedule, default="inverse_sqrt")
    lr: tuple[float, ...] = flag((0.0005,), "learning rate; with --lr-scheduler fixed, one per epoch, and the last one stays",
                                 aliases=("learning-rate",), metavar="X[,X..]")
    min_lr: float = flag(-1.0, "floor of the linear and poly schedules; under the others, training stops once the rate has "
                               "fallen to it")
    stop_min_lr: float = flag(-1.0, "stop once the rate has fallen to this, whatever the schedule")
    max_epoch: int = flag(0, "stop after this epoch; 0: no limit", aliases=("me",))
    max_update: int = flag(0, "stop after this many updates; 0: no limit", aliases=("mu",))
    clip_norm: float = flag(25.0, "scale gradients down to this norm; 0: never", paper="Pascanu et al. 2013")
    update_freq: tuple[int, ...] = flag((1,), "batches whose gradients make one update; a list gives one number per epoch",
                                        metavar="N[,N..]", paper="Ott et al. 2018")
    layer_drop_draws: str | None = flag(None, "for what LayerDrop draws layers: for each sentence (of a language model, each "
                                        "row), which is the fastest and learns best; for each batch, as fairseq does; or once "
                                        "for all batches of an update; sentence if left out, and what a resumed run was "
                                        "trained with", name="layerdrop-draws", choices=LAYER_DROP_DRAWS)
    freeze: tuple[str, ...] = flag((), "leave these weights as they are: names as `lamina info --weights` lists them, of one "
                                       "weight or of all below a name, with * for any characters, such as encoder or "
                                       "*.norm.bias", metavar="PATTERN", repeats=True)
    sentence_avg: bool = flag(False, "average the loss over sentences instead of tokens")

    def __post_init__(self) -> None:
        check(bool(self.lr) and all(value > 0 for value in self.lr),
              f"--lr is {','.join(map(str, self.lr))}; it must be above 0.")
        check(bool(self.update_freq) and all(value >= 1 for value in self.update_freq),
              f"--update-freq is {','.join(map(str, self.update_freq))}; it must be at least 1.")
        check(self.clip_norm >= 0, f"--clip-norm is {self.clip_norm}; it must be 0 (never clip) or above.")
        for name in ("max_epoch", "max_update"):
            check(getattr(self, name) >= 0, f"--{name.replace('_', '-')} must be 0 (no limit) or above.")


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Distillation: learn from another model as well as from the data."""

    teacher: str | None = flag(None, "checkpoint of a model with the same dictionaries, of any depth, whose distribution over "
                                     "each next word is learned together with the data's", name="distill-from", metavar="FILE",
                               paper="Kim and Rush 2016 §3.1")
    weight: float = flag(0.5, "the teacher's share of the loss; the rest is the criterion's own", name="distill-weight",
                         needs="distill-from")
    temperature: float = flag(1.0, "both distributions are flattened by it; the gradient keeps its size",
                              name="distill-temperature", needs="distill-from", paper="Hinton et al. 2015 §2")

    def __post_init__(self) -> None:
        check(0.0 < self.weight <= 1.0, f"--distill-weight is {self.weight}; it must lie in (0, 1].")
        check(self.temperature > 0.0, f"--distill-temperature is {self.temperature}; it must be above 0.")


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """Precision and device."""

    fp16: bool = flag(False, "compute in float16 with a dynamic loss scale and float32 master weights, under all these names",
                      aliases=("memory-efficient-fp16", "amp"), paper="Micikevicius et al. 2018")
    bf16: bool = flag(False, "compute in bfloat16 with float32 master weights; needs no loss scale; the default on "
                             "GPUs that have it", aliases=("memory-efficient-bf16",))
    fp32: bool = flag(False, "compute in float32 on a GPU too")
    tf32: bool = flag(False, "as --fp32, with matrix products in TF32 (10 bits of each number), which an A100 or later has "
                             "units for")
    cuda_graphs: bool = flag(True, "on a GPU, capture the kernels of an update once and replay them: several times as fast")
    compiles: bool = flag(True, "on a GPU, let torch.compile fuse what it can before an update is captured", name="compile",
                          needs="cuda-graphs")
    packs: bool = flag(True, "on a GPU, give all batches the same shape, rows of --max-tokens or with room for --batch-size "
                             "sentences, so that updates can be captured", name="pack")
    fp16_init_scale: float = flag(128.0, "first loss scale", needs="fp16", aliases=("amp-init-scale",))
    fp16_scale_window: int | None = flag(None, "updates without overflow before the scale doubles; 2^14 / update-freq / "
                                               "ranks if left out", needs="fp16", aliases=("amp-scale-window",))
    min_loss_scale: float = flag(0.0001, "training has diverged when the scale falls below this", needs="fp16")
    threshold_loss_scale: float | None = flag(None, "never lower the scale beneath this", needs="fp16")
    checkpoint_activations: bool = flag(False, "keep only each layer's input for the gradient and compute the rest again: deep "
                                               "models in a fraction of the memory, a third slower",
                                        paper="Chen et al. 2016")
    cpu: bool = flag(False, "stay on the CPU even where there is a GPU")

    def __post_init__(self) -> None:
        check(not (self.fp16 and self.bf16), "--fp16 and --bf16 exclude each other; on recent GPUs take --bf16.")
        for is_on, name, others in ((self.fp32, "fp32", "--fp16 and --bf16"), (self.tf32, "tf32", "--fp16, --bf16 and --fp32")):
            check(not (is_on and (self.fp16 or self.bf16 or (self.fp32 and name == "tf32"))),
                  f"--{name} excludes {others}. Choose one of them.")
        for name in ("fp16_init_scale", "min_loss_scale"):
            check(getattr(self, name) > 0, f"--{name.replace('_', '-')} must be above 0.")


# Flags that fairseq has for a metric at validation.
SHORT = {"bleu": "eval-bleu", "rouge": "eval-rouge"}


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Validation."""

    is_off: bool = flag(False, "never validate; the best checkpoint is then not known", name="disable-validation")
    interval: int = flag(1, "epochs between validations", name="validate-interval", needs="!disable-validation")
    interval_updates: int = flag(0, "updates between validations, in addition to those at the end of epochs; 0: none",
                                 name="validate-interval-updates", needs="!disable-validation")
    eval_bleu: bool = flag(False, "translate the validation set greedily, as `lamina generate --beam 1 --max-len-a 2 "
                                  "--max-len-b 20` does, and report BLEU", needs="!disable-validation",
                           wants=(PAIRS,))
    eval_rouge: bool = flag(False, "summarize the validation set greedily too, and report ROUGE-1, 2, L and L-sum, F1 "
                                   "without stemming; needs pip install 'lamina[rouge]'", needs="!disable-validation",
                            wants=(PAIRS,), paper="Lin 2004")
    eval_metrics: tuple[str, ...] = flag((), "translate the validation set greedily too, and report these",
                                         name="eval-metric", choices=REFERENCE_METRICS, metavar="NAME[,NAME..]",
                                         needs="!disable-validation", wants=(PAIRS,))
    remove_bpe: str | None = flag(None, f"join subwords at this mark before BLEU and ROUGE: {joining.HELP}; known "
                                        "automatically for data made with --subword",
                                  name="eval-bleu-remove-bpe", metavar="[MARK]", bare_value=joining.BPE_MARK)
    detokenizer: str | None = flag(None, "make text of tokens before BLEU (13a) and ROUGE: moses as its script does, undoing "
                                         "its escapes (needs pip install 'lamina[moses]'); space leaves them as they are, for "
                                         "text that came whole. If left out, BLEU of text that looks tokenized is of tokens",
                                   name="eval-bleu-detok", choices=("moses", "space"))
    is_tokenized: bool = flag(False, "BLEU on tokens as they stand instead of sacreBLEU's 13a", name="eval-tokenized-bleu",
                              needs="eval-bleu")
    print_samples: bool = flag(False, "show a sample translation at each validation", name="eval-bleu-print-samples")
    best_metric: str = flag("loss", "what decides checkpoint_best.pt", name="best-checkpoint-metric",
                            choices=VALIDATION_FIGURES, needs="!disable-validation")
    is_maximized: bool = flag(False, "larger is better; implied by the metrics of which that is so",
                              name="maximize-best-checkpoint-metric")
    patience: int = flag(-1, "stop after this many validations without improvement; -1: never",
                         needs="!disable-validation")

    def __post_init__(self) -> None:
        check(self.interval >= 1, f"--validate-interval is {self.interval}; it must be at least 1.")
        check(self.interval_updates >= 0, "--validate-interval-updates must be 0 (off) or above.")
        best = known_figures()[self.best_metric]
        check(not best.metric or best.metric in self.metrics,
              f"--best-checkpoint-metric {self.best_metric} needs {best.metric.upper()} at validation: add "
              f"--{SHORT.get(best.metric, f'eval-metric {best.metric}')}.")
        joining.check_joiner(self.remove_bpe, "eval-bleu-remove-bpe")
        check(not (self.is_tokenized and self.detokenizer == "moses"),
              "--eval-tokenized-bleu counts tokens as they stand, and --eval-bleu-detok moses joins them. Leave one out.")
        for name, is_set in (("remove-bpe", self.remove_bpe is not None), ("detok", self.detokenizer is not None),
                             ("print-samples", self.print_samples)):
            check(not is_set or bool(self.metrics),
                  f"--eval-bleu-{name} has no effect without --eval-bleu or --eval-rouge. Add one, or leave it out.")
        larger = [name for name in VALIDATION_FIGURES if known_figures()[name].figure.larger_is_better]
        check(not self.is_maximized or self.best_metric in larger,
              f"--maximize-best-checkpoint-metric would keep the worst model by {self.best_metric}. Leave it out, or choose "
              f"--best-checkpoint-metric {' or '.join(larger)}.")
        check(self.patience == -1 or self.patience >= 1, f"--patience is {self.patience}; it must be at least 1, or -1.")

    @property
    def metrics(self) -> list[str]:
        """Of the table of metrics, those that translations of the validation set are judged by."""
        short = [name for name, is_set in (("bleu", self.eval_bleu), ("rouge", self.eval_rouge)) if is_set]
        return list(dict.fromkeys((*short, *self.eval_metrics)))

    @property
    def prefers_larger(self) -> bool:
        return known_figures()[self.best_metric].figure.larger_is_better


@dataclass(frozen=True, kw_only=True)
class SavingConfig:
    """Checkpoints."""

    save_dir: str = flag("checkpoints", "folder for checkpoint_best.pt, checkpoint_last.pt and the numbered ones")
    restore_file: str = flag("checkpoint_last.pt", "checkpoint to resume from, in --save-dir unless a path; a file that does "
                                                   "not exist means a fresh start, with a warning")
    finetune_from_model: str | None = flag(None, "take the weights of this checkpoint, whose dictionary may differ, and "
                                                 "start everything else from the beginning; the same command then "
                                                 "resumes from checkpoint_last.pt")
    reset_optimizer: bool = flag(False, "resume without the optimizer's state, and with the best score and patience forgotten")
    reset_lr_scheduler: bool = flag(False, "resume with the learning rate's schedule started over")
    reset_dataloader: bool = flag(False, "resume at the start of epoch 1 of the data")
    reset_meters: bool = flag(False, "resume with the best score and patience forgotten")
    is_on: bool = flag(True, "write checkpoints", name="save")
    interval: int = flag(1, "epochs between checkpointN.pt", name="save-interval", needs="save")
    interval_updates: int = flag(0, "updates between checkpoint_N_UPDATES.pt, each validated; 0: none",
                                 name="save-interval-updates", needs="save")
    keep_interval_updates: int = flag(-1, "how many of those to keep; -1: all", needs="save-interval-updates")
    keep_last_epochs: int = flag(-1, "how many checkpointN.pt to keep; -1: all", needs="epoch-checkpoints")
    has_epochs: bool = flag(True, "write checkpointN.pt", name="epoch-checkpoints")
    has_last: bool = flag(True, "write checkpoint_last.pt, which resuming needs", name="last-checkpoints")
    has_optimizer_state: bool = flag(True, "put the optimizer's state into checkpoints; without it they are a third the "
                                           "size and cannot be resumed exactly", name="save-optimizer-state")
    merges_adapter: bool = flag(False, "write what LoRA has learned as part of the model's own matrices, into all checkpoints "
                                       "but checkpoint_last.pt, which resuming needs", name="lora-merge",
                                needs=("save", "lora-rank"))
    is_async: bool = flag(True, "write checkpoints in the background, from a copy in the host's memory; a best or last one "
                                "that still waits when a newer one comes is replaced by it", name="async-save", needs="save",
                         aliases=("save-async", "write-checkpoints-asynchronously"))
    is_sharded: bool = flag(False, "with --fsdp, each rank writes its own rows: a checkpoint is a small file and a folder of "
                                   "torch.distributed.checkpoint beside it, which any number of ranks resumes from and all "
                                   "commands read; `lamina convert` makes one file of it", name="sharded-save", needs="save",
                            aliases=("use-sharded-state",))

    def __post_init__(self) -> None:
        check(self.interval >= 1, f"--save-interval is {self.interval}; it must be at least 1. For none: --no-save.")
        check(self.interval_updates >= 0, "--save-interval-updates must be 0 (off) or above.")
        for name in ("keep_interval_updates", "keep_last_epochs"):
            value = getattr(self, name)
            check(value == -1 or value >= 1,
                  f"--{name.replace('_', '-')} is {value}; it must be at least 1, or -1.")


LOG_FORMATS = ("rich", "tqdm", "simple", "json", "none")


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Progress."""

    format: str | None = flag(None, "live bar (rich), one line per interval (simple, json) or nothing; a bar in a terminal "
                                    "and lines elsewhere if left out", name="log-format", choices=LOG_FORMATS)
    interval: int = flag(100, "updates between lines", name="log-interval")
    has_bar: bool = flag(True, "show a live bar in a terminal", name="progress-bar")
    device_tflops: float | None = flag(None, "dense TFLOP/s of one device in the run's precision, of which mfu is the share "
                                             "that is used; known for common GPUs in half precision", name="device-tflops",
                                       paper="Chowdhery et al. 2022 §4.1")
    profile: str | None = flag(None, "write a trace of these updates to --save-dir, one file per rank, which ui.perfetto.dev "
                                     "opens; without numbers, of updates 20 to 22", metavar="[FROM:TO]", bare_value="20:22",
                               form=r"\d*:\d*")
    trackers: tuple[str, ...] = flag((), "where figures go in addition to train.jsonl in --save-dir", name="tracker",
                                     choices=register.tracker, metavar="NAME[,NAME..]")
    tracker_kinds: tuple[Tracker, ...] = every(register.tracker)

    def __post_init__(self) -> None:
        check(self.interval >= 1, f"--log-interval is {self.interval}; it must be at least 1.")
        check(self.device_tflops is None or self.device_tflops > 0,
              f"--device-tflops is {self.device_tflops}; it must be above 0.")
        _ = self.profiled

    @property
    def profiled(self) -> range:
        """The updates that --profile names."""
        if self.profile is None:
            return range(0)
        first, _, last = self.profile.partition(":")
        is_told = all(number.isascii() and number.isdecimal() and len(number) <= 9 for number in (first, last))
        check(is_told and 1 <= int(first or 0) <= int(last or 0),
              f"--profile is {self.profile!r}; it must be FROM:TO, the first and the last update to trace, such as 20:22.")
        return range(int(first), int(last) + 1)

    @property
    def chosen_trackers(self) -> list[Tracker]:
        """Those that --tracker names, and those that an option of their own asks for."""
        return [tracker for tracker in self.tracker_kinds if tracker.name in self.trackers or tracker.is_on]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Start here."""

    kind: TaskKind = variant("task", "what to learn", register.task, default="")
    arch: str = flag("transformer", "preset that gives the model's defaults", aliases=("-a",),
                     choices=register.arch, metavar="NAME")
    config: str | None = flag(None, "recipe: a YAML file of `flag: value` lines, or with them under `train:`; or the name of "
                                    "one that comes with Lamina (`lamina recipe list`); flags given here win over it",
                              metavar="FILE")
    print_config: bool = flag(False, "print the resolved configuration, in the form of a recipe, and stop")
    plan: bool = flag(False, "print what the run would take and cost, and the first reason why it would not start, and stop: "
                             "parameters, effective batch, memory per rank, bytes sent per update, padding")
    plan_memory: float | None = flag(None, "with --plan, plan for GPUs with this many GiB of memory each, on a machine that "
                                           "has others or none: 80 for an H100", metavar="GIB")
    seed: int = flag(1, "fixes the initial weights, the order of the data and dropout")
    data: DataConfig = part(DataConfig)
    model: ModelConfig = part(ModelConfig)
    keep: KeepConfig = part(KeepConfig)
    batches: BatchConfig = part(BatchConfig)
    optimization: OptimizationConfig = part(OptimizationConfig)
    distillation: DistillationConfig = part(DistillationConfig)
    precision: PrecisionConfig = part(PrecisionConfig)
    ranks: RanksConfig = part(RanksConfig)
    validation: ValidationConfig = part(ValidationConfig)
    saving: SavingConfig = part(SavingConfig)
    log: LogConfig = part(LogConfig)
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        self._check_plan()
        check(self.batches.is_limited, "a batch needs a limit: give --max-tokens (4096 is a good start) or --batch-size.")
        self.optimization.criterion.check(self.kind, self.model)
        self._check_metric()
        self.kind.check(self)
        self._check_schedule()
        self._check_layer_drop()
        self._check_distillation()
        self._check_sharding()
        self._check_sharded_save()
        check(not (self.saving.interval_updates and self.validation.is_off and self.validation.patience != -1),
              "--patience needs validation; leave out --disable-validation.")

    def _check_plan(self) -> None:
        if self.plan_memory is not None:
            check(self.plan, "--plan-memory has no effect without --plan. Add it, or leave it out.")
            check(0.0 < self.plan_memory < math.inf, f"--plan-memory is {self.plan_memory:g}; it must be the GiB of a GPU, "
                                                     "such as 80.")
            check(not self.precision.cpu, "--plan-memory is for GPUs, and --cpu trains without. Leave one of them out.")

    def _check_sharded_save(self) -> None:
        if self.saving.is_sharded:
            check(self.ranks.is_sharded, "--sharded-save writes the rows that ranks hold, and without --fsdp each holds all of "
                                         "them. Add --fsdp, or leave it out.")
            check(not self.saving.merges_adapter, "--lora-merge needs whole matrices, which no rank has when it saves with "
                                                  "--sharded-save. Leave one of them out.")

    def _check_schedule(self) -> None:
        schedule = self.optimization.schedule
        check(not (schedule.needs_validation and self.validation.is_off),
              f"--lr-scheduler {schedule.name} looks at validation: leave out --disable-validation.")

    def _check_layer_drop(self) -> None:
        draws = self.optimization.layer_drop_draws
        check(draws in (None, BY_SENTENCE) or any(stack.layer_drop_p for stack in (self.model.encoder, self.model.decoder)),
              "--layerdrop-draws has no effect without --encoder-layerdrop or --decoder-layerdrop. Add one, or leave it out.")
        check(not (draws == BY_BATCH and (self.ranks.reshards or self.ranks.fsdp_size is not None)),
              "--layerdrop-draws batch lets ranks run different layers at the same time, and where --fsdp gives weights back "
              "they hold each other's. Leave out --reshard-after-forward and --fsdp-size.")

    def _check_sharding(self) -> None:
        check(not (self.model.mixing.reads_layers and (self.ranks.reshards or self.ranks.fsdp_size is not None)),
              f"{self.model.mixing.spelled} reads a layer's weights before the layer runs, and where --fsdp gives weights back "
              "they are not there. Leave out --reshard-after-forward and --fsdp-size.")

    def _check_distillation(self) -> None:
        if self.distillation.teacher is not None:
            check(not self.kind.has(CLASSES), f"--distill-from learns a distribution over words, and --task {self.task} has "
                                              "classes. Leave it out.")
            check(not self.model.lm.softmax_cutoff, "--distill-from compares whole distributions over words, which an adaptive "
                                                    "softmax is there to avoid. Leave one of them out.")

    def _check_metric(self) -> None:
        metric = self.validation.best_metric
        owner = known_figures()[metric].task
        check(not owner or metric in self.kind.figures,
              f"--best-checkpoint-metric {metric} is not measured by this run: it is a figure of --task {owner}.")

    @property
    def may_reshard(self) -> bool:
        """Whether --fsdp can give weights back: not where others than a layer's own pass on all ranks read them."""
        return not (self.model.mixing.reads_layers or self.optimization.layer_drop_draws == BY_BATCH)

    @property
    def task(self) -> str:
        """Its name."""
        return self.kind.name

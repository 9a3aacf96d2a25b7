"""What the smaller commands can be told: average, convert, export, fold, info, completion, demo."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.plug_in_options import PlugInConfig
from lamina.fields import REQUIRED, check, check_seed, flag, part


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Average."""

    inputs: tuple[str, ...] = flag(("checkpoints",), "checkpoints to average; or a training folder, of which --num-... "
                                   "says how many", is_list=True, metavar="PATH")
    output: str = flag(REQUIRED, "checkpoint to write", metavar="FILE")
    num_epochs: int | None = flag(None, "take this many of the folder's checkpointEPOCH.pt, the newest",
                                  name="num-epoch-checkpoints")
    num_updates: int | None = flag(None, "take this many of the folder's checkpoint_EPOCH_UPDATES.pt, the newest",
                                   name="num-update-checkpoints")
    upper_bound: int | None = flag(None, "leave out checkpoints of later epochs than this, or with "
                                   "--num-update-checkpoints of later updates", name="checkpoint-upper-bound")
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        for name, number in (("num-epoch-checkpoints", self.num_epochs), ("num-update-checkpoints", self.num_updates),
                             ("checkpoint-upper-bound", self.upper_bound)):
            check(number is None or number >= 1, f"--{name} is {number}; it must be at least 1.")
        check(None in (self.num_epochs, self.num_updates),
              "--num-epoch-checkpoints and --num-update-checkpoints exclude each other. Leave one of them out.")
        has_number = self.num_epochs is not None or self.num_updates is not None
        check(self.upper_bound is None or has_number,
              "--checkpoint-upper-bound has no effect without --num-epoch-checkpoints or --num-update-checkpoints.")
        check(not has_number or len(self.inputs) == 1,
              f"--inputs names {len(self.inputs)} paths, but --num-epoch-checkpoints and --num-update-checkpoints choose from "
              "one folder. Name that folder alone, or leave the number out.")


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Convert."""

    checkpoint: str = flag(REQUIRED, "checkpoint of fairseq, from 0.9 on, or of one of its forks; a folder of Hugging Face's, "
                                     "or hf://OWNER/NAME; what `lamina export --format safetensors` wrote; or one that `lamina "
                                     "train --sharded-save` wrote", positional=True)
    output: str = flag(REQUIRED, "checkpoint of Lamina to write", metavar="FILE")
    dict_dir: str | None = flag(None, "folder with its dictionaries, such as the data folder it was trained on; the "
                                      "checkpoint's own folder if left out", metavar="FOLDER")
    source_lang: str | None = flag(None, "source language, if neither the checkpoint nor the folder says it",
                                   aliases=("-s",), metavar="LANG")
    target_lang: str | None = flag(None, "target language, likewise", aliases=("-t",), metavar="LANG")
    plug_ins: PlugInConfig = part(PlugInConfig)



FORMATS = ("safetensors", "fairseq", "ctranslate2", "huggingface")


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Export."""

    checkpoint: str = flag("checkpoints/checkpoint_best.pt", "checkpoint to export", positional=True)
    format: str = flag("safetensors", "for whom: any reader of safetensors, and Lamina itself (safetensors); fairseq, plain "
                                      "models; CTranslate2, plain, folded and pruned models; transformers of Hugging Face, "
                                      "models that it has a class for (huggingface)", choices=FORMATS)
    output: str = flag(REQUIRED, "folder to write: the model, its dictionaries and subword models, and a README.md that "
                                 "describes it", metavar="FOLDER")
    dict_dir: str | None = flag(None, "folder with the dictionaries of a fairseq checkpoint; its own folder if left out",
                                metavar="FOLDER")
    license: str | None = flag(None, "license of the model, for its card on the hub, such as apache-2.0; unknown if left out",
                               metavar="NAME")
    base_model: str | None = flag(None, "model on the hub that this one was trained from, for its card; if left out, the "
                                        "hf://OWNER/NAME that is exported or that training began with", metavar="OWNER/NAME")
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        for name, value in (("license", self.license), ("base-model", self.base_model)):
            check(value is None or self.format == "huggingface",
                  f"--{name} has no effect without --format huggingface, whose card shows it. Leave it out.")



@dataclass(frozen=True, kw_only=True)
class FoldConfig:
    """Fold."""

    checkpoint: str = flag("checkpoints/checkpoint_best.pt", "checkpoint of a model with scaled residuals",
                           positional=True)
    output: str = flag(REQUIRED, "checkpoint to write: a plain Transformer with the same outputs", metavar="FILE")
    plug_ins: PlugInConfig = part(PlugInConfig)



@dataclass(frozen=True, kw_only=True)
class InfoConfig:
    """Info."""

    checkpoint: str = flag("checkpoints/checkpoint_best.pt", "checkpoint to describe", positional=True)
    is_json: bool = flag(False, "print everything, the whole configuration included, as JSON", name="json")
    lists_weights: bool = flag(False, "list the weights instead, by name, with their shapes", name="weights", needs="!json")
    plug_ins: PlugInConfig = part(PlugInConfig)


@dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    """Completion."""

    shell: str = flag(REQUIRED, "shell to write it for", choices=("bash", "zsh", "fish"), positional=True)


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Demo."""

    folder: str = flag("lamina-demo", "where text, data and checkpoints go; a second run continues from what is there")
    max_update: int = flag(800, "updates to train each of the two models; the default takes about three minutes on two cores")
    num_pairs: int = flag(30000, "training pairs to make", name="train-pairs")
    num_samples: int = flag(10, "translations to show", name="samples")
    seed: int = flag(1, "fixes the corpus, the initial weights and the order of the data")

    def __post_init__(self) -> None:
        for name, value in (("max-update", self.max_update), ("train-pairs", self.num_pairs)):
            check(value >= 1, f"--{name} is {value}; it must be at least 1.")
        check_seed(self.seed)
        check(self.num_samples >= 0, f"--samples is {self.num_samples}; it must be 0 or more.")

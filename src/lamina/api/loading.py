"""`lamina.load`: the models of checkpoints, ready to be used on raw text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

import torch

from lamina.api.keyword_options import import_parts
from lamina.api.language_model import LanguageModel
from lamina.api.loaded_model import LoadedModel
from lamina.api.masked_model import MaskedLanguageModel
from lamina.api.outputs import OptionValue, parse_device, parse_dtype, silent, warn_in_python, writing_dtype
from lamina.api.translator import Translator
from lamina.checkpoint.format import Checkpoint
from lamina.config.keep import as_text
from lamina.errors import CheckpointError, ConfigError
from lamina.files import split_paths
from lamina.interop.any_format import load_any
from lamina.interop.fairseq_file import DictionaryPlaces
from lamina.models.contract import Model
from lamina.nn.linear import has_onednn
from lamina.nn.prepacked import Int8Linear, Prepacked, PrepackedLinear
from lamina.pruning.on_loading import made_ready
from lamina.traits import WRITES

AnyModel = Translator | LanguageModel | MaskedLanguageModel
Paths = str | Path | Sequence[str | Path]
Keep = str | int | Sequence[int] | None
Tell = Callable[[str], object]


@overload
def load(path: Paths, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None, *,
         task: Literal["translation"], encoder_layers_to_keep: Keep = None, decoder_layers_to_keep: Keep = None,
         overrides: Mapping[str, OptionValue] | None = None, dict_dir: Paths | None = None, source_lang: str | None = None,
         target_lang: str | None = None, quantize: str | None = None, prepack: bool = True, user_dir: Paths = (),
         notice: Tell | None = None, say: Tell | None = None) -> Translator: ...


@overload
def load(path: Paths, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None, *,
         task: Literal["language_modeling"], encoder_layers_to_keep: Keep = None, decoder_layers_to_keep: Keep = None,
         overrides: Mapping[str, OptionValue] | None = None, dict_dir: Paths | None = None, source_lang: str | None = None,
         target_lang: str | None = None, quantize: str | None = None, prepack: bool = True, user_dir: Paths = (),
         notice: Tell | None = None, say: Tell | None = None) -> LanguageModel: ...


@overload
def load(path: Paths, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None, *,
         task: Literal["masked_lm", "sentence_prediction"], encoder_layers_to_keep: Keep = None,
         decoder_layers_to_keep: Keep = None, overrides: Mapping[str, OptionValue] | None = None,
         dict_dir: Paths | None = None, source_lang: str | None = None, target_lang: str | None = None,
         quantize: str | None = None, prepack: bool = True, user_dir: Paths = (), notice: Tell | None = None,
         say: Tell | None = None) -> MaskedLanguageModel: ...


@overload
def load(path: Paths, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None, *,
         task: str | None = None, encoder_layers_to_keep: Keep = None, decoder_layers_to_keep: Keep = None,
         overrides: Mapping[str, OptionValue] | None = None, dict_dir: Paths | None = None, source_lang: str | None = None,
         target_lang: str | None = None, quantize: str | None = None, prepack: bool = True, user_dir: Paths = (),
         notice: Tell | None = None, say: Tell | None = None) -> AnyModel: ...


def load(path: Paths, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None, *,
         task: str | None = None, encoder_layers_to_keep: Keep = None, decoder_layers_to_keep: Keep = None,
         overrides: Mapping[str, OptionValue] | None = None, dict_dir: Paths | None = None, source_lang: str | None = None,
         target_lang: str | None = None, quantize: str | None = None, prepack: bool = True, user_dir: Paths = (),
         notice: Tell | None = None, say: Tell | None = None) -> AnyModel:
    """The model of a checkpoint, or an ensemble of several.

    Arguments:
        path: a checkpoint, or several as a list or as `a.pt:b.pt`: their probabilities are averaged. Checkpoints of fairseq
            and folders of Hugging Face's are taken as they are; `hf://owner/name` is downloaded from its hub.
        device: "cpu", "cuda", "cuda:1" or a torch.device; a GPU if there is one, if left out.
        dtype: "fp32", "fp16", "bf16", torch's names of them or a torch.dtype. If left out, models that write texts compute in
            float16 on a GPU; everything else is float32.
        task: the task that the checkpoint must be of. It tells type checkers what comes back; without it, that is a union.
        encoder_layers_to_keep: prune every model: a list of layers, how many to keep, or text as for
            the flags.
        decoder_layers_to_keep: likewise.
        overrides: settings of the model by flag, in place of the stored ones; they may hold these two, with the flags' meaning.
        dict_dir: a folder, or several, where the dictionaries of a checkpoint of fairseq are looked for, as well as in its own.
        source_lang: its language, where a checkpoint of fairseq does not say it.
        target_lang: likewise.
        quantize: "int8" rounds the matrices of linear layers, and what they are multiplied with, to 8 bits on a CPU: faster,
            and not quite the same scores.
        prepack: on a CPU, lay matrices out for its kernels. Such a model can still be copied, pickled, moved and saved; False
            leaves plain torch.nn.Linear layers, for hooks and other work on them.
        user_dir: files or folders that register parts of your own, as --user-dir does; a checkpoint imports nothing itself.
        notice: hears of overrides that models do not have and of doubtful pruning; Python's warnings, if left out.
        say: hears the line about pruning that scripts read.

    Returns:
        A Translator, a LanguageModel or a MaskedLanguageModel, as the checkpoint's task says.

    >>> lamina.load("checkpoint_best.pt", task="translation", device="cpu").translate("a bird").text == model("a bird").text
    True
    """
    import_parts(user_dir, notice or warn_in_python)
    names = split_paths(path) if isinstance(path, str) else [path] if isinstance(path, Path) else path
    paths = [Path(name) for name in names]
    if not paths:
        raise CheckpointError("there is no checkpoint to load: the list of paths is empty.")
    device = parse_device(device)
    dtype = parse_dtype(dtype)
    prepacking = _prepacking(quantize, device, dtype or writing_dtype(device) or torch.float32) if prepack or quantize else None
    models, described = [], []
    kept = {"encoder-layers-to-keep": encoder_layers_to_keep, "decoder-layers-to-keep": decoder_layers_to_keep}
    overrides = {name: as_text(layers) for name, layers in kept.items() if layers is not None} | dict(overrides or {})
    folders = [dict_dir] if isinstance(dict_dir, (str, Path)) else dict_dir or ()
    places = DictionaryPlaces.of(*folders, source_lang=source_lang, target_lang=target_lang)
    for number, place in enumerate(paths):
        # One at a time: what a checkpoint holds for training may be three times the model.
        whole = load_any(place, places=places, notice=notice or warn_in_python, is_resumable=False)
        checkpoint = made_ready(whole, place, overrides, notice=notice or warn_in_python, say=say or silent)
        del whole
        if number == 0:
            kind, vocabularies = checkpoint.kind, checkpoint.vocabularies()
            if task not in (None, kind.name):
                raise CheckpointError(f"{place} is of --task {kind.name}, not {task}. Leave task out, or name that one.")
        if checkpoint.kind != kind:
            raise CheckpointError(f"{place} was trained for {checkpoint.task} and {paths[0]} for {kind.name}: no ensemble.")
        for side, own, first in zip(checkpoint.sides, checkpoint.vocabularies(), vocabularies, strict=True):
            if own.symbols != first.symbols:
                raise CheckpointError(f"{place} has another {side} dictionary ({own.digest}) than {paths[0]} ({first.digest}). "
                                      "An ensemble needs models trained on the same data folder.")
        models.append(checkpoint.build_model())
        is_rounded = (dtype or (writing_dtype(device) if kind.has(WRITES) else None) or torch.float32) != torch.float32
        described.append(checkpoint if is_rounded else replace(checkpoint, weights={}))
    return _assembled(models, described, [place.name for place in paths], device, dtype, prepacking)


def model_of(checkpoint: Checkpoint, name: str, device: torch.device) -> AnyModel:
    """As `load` gives it; for a checkpoint that is no file."""
    prepacking = _prepacking(None, device, writing_dtype(device) or torch.float32)
    return _assembled([checkpoint.build_model()], [checkpoint], [name], device, None, prepacking)


def _assembled(models: Sequence[Model], checkpoints: Sequence[Checkpoint], names: Sequence[str], device: torch.device,
               dtype: torch.dtype | None, prepacking: type[Prepacked] | None) -> AnyModel:
    first = checkpoints[0]
    if dtype is None and first.kind.has(WRITES):
        dtype = writing_dtype(device)
    loaded: AnyModel = first.kind.load_api()(models, first.vocabularies(), first.subword_models(), languages=first.languages,
                                             device=device, dtype=dtype)
    if isinstance(loaded, LoadedModel):  # a task of one's own may give anything
        loaded.describe(checkpoints, names)
        loaded.prepack(prepacking)
    return loaded


def _prepacking(quantize: str | None, device: torch.device, dtype: torch.dtype) -> type[Prepacked] | None:
    """How the matrices of a model are laid out ahead, if they are."""
    if quantize is None:
        return PrepackedLinear if device.type == "cpu" and dtype == torch.float32 and has_onednn() else None
    if quantize != "int8":
        raise ConfigError(f"quantize is {quantize!r}; it must be int8, or left out.")
    if device.type != "cpu" or dtype != torch.float32:
        raise ConfigError("quantize='int8' is for a CPU, with float32 between its products of integers. Choose "
                          "device='cpu' and no dtype, or leave quantize out.")
    if not has_onednn():
        raise ConfigError("quantize='int8' needs an x86 CPU and a torch with oneDNN, and this is not both. Leave it out.")
    return Int8Linear

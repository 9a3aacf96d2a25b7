"""The models and the data that a command's flags name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lamina import console
from lamina.api.loading import load
from lamina.api.outputs import DTYPES
from lamina.api.translator import Translator
from lamina.config.chosen_depth import AUTO
from lamina.config.generate_options import ModelFiles, SplitData
from lamina.config.search_options import SearchConfig, given_options
from lamina.data.corpus import Languages, ParallelCorpus, load_dictionaries, open_corpus
from lamina.data.verify import verify_splits
from lamina.decode.cascade import Cascade, cascade_path
from lamina.errors import CheckpointError, ConfigError, DataError

# As in fairseq, where no limit on a batch is given.
DEFAULT_MAX_TOKENS = 12000
# What a checkpoint of another kind is for.
USES = {"Translator": "translates: use `lamina generate`, `interactive` or `rescore`",
        "LanguageModel": "is a language model: `lamina eval-lm` measures it on a data folder, `lamina interactive` continues "
                         "prompts",
        "MaskedLanguageModel": "is a masked language model: it fills gaps or classifies, which is done from Python, by "
                               "fill_mask() and predict() of lamina.load(FILE)"}


def load_model(files: ModelFiles, *kinds: type[Any], data: str | None = None, languages: Sequence[str | None] = (None, None),
               say: Callable[[str], object] = console.notice, says_size: bool = False, measures: bool = False) -> Any:
    """The models that the flags name, of one of these kinds. `say` prints what scripts look for when layers are left out.

    A checkpoint of fairseq may have its dictionaries in the `data` folder, and its languages told by flags. `measures`: the
    command is asked for probabilities, not for texts, and computes in float32 unless it is told otherwise.
    """
    device = "cuda" if torch.cuda.is_available() and not files.cpu else "cpu"
    dtype = next((name for name in DTYPES if getattr(files, name)), "fp32" if measures else None)
    if files.fp16 and device == "cpu":
        console.notice("--fp16 has no effect without a GPU: computing in float32")
        dtype = "fp32"
    quantize = files.quantize
    if quantize and device == "cuda":
        console.notice(f"--quantize {quantize} has no effect on a GPU; --cpu stays on the CPU")
        quantize = None
    said: list[str] = []
    model = load(files.paths, device=device, dtype=dtype, overrides=files.override_values(), notice=console.notice,
                 say=said.append, dict_dir=[folder for folder in (files.dict_dir, data) if folder],
                 source_lang=languages[0], target_lang=languages[1], quantize=quantize)
    if not isinstance(model, kinds):
        raise CheckpointError(f"{files.paths[0]} {USES[type(model).__name__]}.")
    if said:
        say(said[0])  # one line for all models of an ensemble
    if said or says_size:
        say(f"num. model params: {sum(parameter.numel() for parameter in model.models[0].parameters())}")
    return model


def load_translator(files: ModelFiles, data: SplitData | None = None, say: Callable[[str], object] = console.notice, *,
                    measures: bool = False) -> Translator:
    if data is None:
        return load_model(files, Translator, say=say, measures=measures)
    return load_model(files, Translator, data=data.data, languages=(data.source_lang, data.target_lang), say=say,
                      measures=measures)


def load_cascade(path: str | None, files: ModelFiles, translator: Translator, search: SearchConfig) -> Cascade | None:
    """What --cascade names, for this translator; an empty path is that of the file beside the checkpoint."""
    if path is None:
        return None
    file = Path(path) if path else cascade_path(files.paths)
    if not file.is_file():
        raise ConfigError(f"there is no cascade {file}. `lamina calibrate {files.path} DATA` chooses one.")
    cascade = translator.cascade_of(AUTO, file)
    assert cascade is not None
    if different := cascade.differences(given_options(search)):
        console.warn(f"the threshold of {file} was chosen with other options than these ({', '.join(different)}), so what it "
                     "loses is not known. Run `lamina calibrate` with the same options.")
    return cascade


def open_split(data: SplitData, translator: Translator, path: str,
               max_source_length: int | None = None) -> ParallelCorpus:
    """The split that the flags name, in the languages and with the dictionaries of the checkpoint `path`."""
    folder = Path(data.data.split(":")[0])
    languages = Languages(data.source_lang or translator.languages[0], data.target_lang or translator.languages[1])
    if languages[::-1] == translator.languages != languages:
        console.warn(f"{path} translates from {languages.target} to {languages.source}, and is given {languages.source} to "
                     f"translate into {languages.target}. Is that meant?")
    if not folder.is_dir():
        raise DataError(f"there is no data folder {folder}. Make one with `lamina preprocess --destdir {folder} ...`.")
    for side, own, theirs in zip(("source", "target"), load_dictionaries(folder, languages), translator.vocabularies,
                                 strict=True):
        if own.symbols != theirs.symbols:
            raise CheckpointError(f"{folder} was made with the {side} dictionary {own.digest}, but {path} expects "
                                  f"{theirs.digest}. Pass the matching data folder, or preprocess with its dictionary.")
    sizes = (len(translator.vocabularies[0]), len(translator.vocabularies[1]))
    verify_splits([folder], [data.subset], "once", pair=languages, note=console.notice)
    return open_corpus(folder, data.subset, languages, sizes, max_source_length=max_source_length)

"""A checkpoint from wherever a path leads: a file of ours, an exported folder, a file of fairseq's, or a
folder of Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lamina.checkpoint.format import Checkpoint, checkpoint_of, read_archive
from lamina.checkpoint.merging import merge_adapter, merged_if_it_can
from lamina.checkpoint.shards import description_of
from lamina.config.preprocess_options import PreprocessConfig
from lamina.errors import CheckpointError, LaminaError
from lamina.interop.downloads import local_path
from lamina.interop.exported_folder import read_folder
from lamina.interop.fairseq_file import READABLE, DictionaryPlaces, checkpoint_from_fairseq, is_fairseq
from lamina.interop.from_huggingface import checkpoint_from_huggingface
from lamina.interop.huggingface_folder import is_huggingface
from lamina.preprocess.pipeline import ModelTexts

Notice = Callable[[str], object]


def load_any(path: str | Path, device: torch.device | str = "cpu", *, places: DictionaryPlaces | None = None,
             notice: Notice = lambda _: None, is_resumable: bool = True) -> Checkpoint:
    """`places` says where the dictionaries of a foreign checkpoint lie, besides its own folder; `notice` hears remarks.

    One that is not to be resumable is read faster where it is foreign, and an adapter is merged into its weights.
    """
    path = description_of(local_path(path, notice))
    if path.is_dir():
        found = _from_huggingface(path, places, notice) if is_huggingface(path) else read_folder(path, device)
    else:
        content = read_archive(path, device, READABLE)
        found = (checkpoint_of(content, path) if _is_ours(content)
                 else _from_foreign(content, path, places, notice, is_resumable))
    return found if is_resumable else merged_if_it_can(found)


def load_foreign(path: str | Path, *, places: DictionaryPlaces | None = None, notice: Notice = lambda _: None) -> Checkpoint:
    """The same, of what is not ours yet, not one file yet, or whose adapter is not a part of its weights yet."""
    path = description_of(local_path(path, notice))
    if path.is_dir():
        return merged_if_it_can(_from_huggingface(path, places, notice) if is_huggingface(path) else read_folder(path))
    content = read_archive(path, allowed=READABLE)
    if _is_ours(content):
        found = checkpoint_of(content, path)
        if content.get("shards"):
            return found
        if not found.model_config().adapter.is_plain:
            return merge_adapter(found)
        raise CheckpointError(f"{path} is a checkpoint of Lamina already: there is nothing to convert.")
    return _from_foreign(content, path, places, notice)


def texts_like(config: PreprocessConfig, notice: Notice = lambda _: None) -> ModelTexts | None:
    """Dictionaries and segmentations of the model that --like names, if it names one."""
    if config.like is None:
        return None
    places = DictionaryPlaces.of(None, source_lang=config.text.source_lang, target_lang=config.text.target_lang)
    found = load_any(config.like, places=places, notice=notice, is_resumable=False)
    return ModelTexts(found.vocabularies(), found.subword_models())


def _from_huggingface(folder: Path, places: DictionaryPlaces | None, notice: Notice) -> Checkpoint:
    places = places or DictionaryPlaces()
    return checkpoint_from_huggingface(folder, source_lang=places.source_lang, target_lang=places.target_lang, notice=notice)


def _is_ours(content: Any) -> bool:
    return isinstance(content, dict) and "lamina_format" in content


def _from_foreign(content: Any, path: str | Path, places: DictionaryPlaces | None, notice: Notice,
                  is_resumable: bool = True) -> Checkpoint:
    if not is_fairseq(content):
        raise CheckpointError(f"{path} is not a checkpoint of Lamina or fairseq.")
    try:
        return checkpoint_from_fairseq(content, Path(path), places or DictionaryPlaces(), notice, is_resumable=is_resumable)
    except LaminaError:
        raise
    except Exception as error:  # a stranger's file may hold anything in any place
        what = (str(error).strip().splitlines() or [""])[0][:200]
        raise CheckpointError(f"{path} does not hold what a checkpoint of fairseq should ({type(error).__name__}: {what}). It "
                              "may be damaged; try another copy.") from error

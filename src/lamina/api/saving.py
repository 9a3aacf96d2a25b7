"""`lamina.save`: a model that somebody built and trained in a loop of their own, as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lamina.api.data_sets import Data
from lamina.api.loaded_model import LoadedModel
from lamina.checkpoint.format import Checkpoint, load_weights_, save_checkpoint
from lamina.config.model import ModelConfig
from lamina.config.parser import resolve
from lamina.config.train_options import TrainConfig
from lamina.errors import ConfigError
from lamina.fields import flatten
from lamina.models.contract import Model
from lamina.provenance import origin
from lamina.registry import register
from lamina.text.subword import subword_to_dict


def save(model: Model | LoadedModel[Model], path: str | Path, *, config: ModelConfig | None = None,
         data: Data | str | Path | None = None, task: str = "translation",
         metrics: Mapping[str, float] | None = None) -> Path:
    """Write a model as a checkpoint that `lamina.load` and every command read.

    Arguments:
        model: what `build_model` or its neighbours in lamina.models.build made; or a loaded model, which needs nothing else.
        path: the file to write.
        config: the configuration that the model was built from.
        data: the data folder that it was trained on, whose dictionaries and subwords go into the file.
        task: what it was trained for.
        metrics: figures of the last validation, for `lamina info`.

    Returns:
        The path.

    >>> from lamina.models.build import build_model
    >>> config = lamina.register.arch["tiny"]()
    >>> net = build_model(config, *map(len, data.vocabularies))
    >>> lamina.load(lamina.save(net, "own.pt", config=config, data=data), task="translation").translate("").text
    ''
    """
    if isinstance(model, LoadedModel):
        return model.save(path)
    if config is None or data is None:
        raise ConfigError("a model does not know what it was built from and trained on: give its ModelConfig as config=, and "
                          "the data folder as data=.")
    if task not in register.task:
        raise ConfigError(f"task is {task!r}; it must be one of {', '.join(register.task)}.")
    opened = (data if isinstance(data, Data) else Data(data)).open(config, task)
    weights = {name: weight.detach().float().cpu() for name, weight in model.named_parameters()}
    with torch.random.fork_rng(devices=[]):
        load_weights_(opened.build_model(), weights, "Is this the configuration and the data folder that it was built from?")
    rest = resolve(TrainConfig, {"task": task, "data": str(opened.folders[0]), "max-tokens": 4096})
    save_checkpoint(Path(path), Checkpoint(
        config=flatten(rest) | flatten(config), languages=tuple(opened.languages),
        dictionaries=tuple(vocabulary.to_text() for vocabulary in opened.vocabularies),
        subwords=tuple(map(subword_to_dict, opened.subwords)), weights=weights, metrics=dict(metrics or {}), origin=origin()))
    return Path(path)

"""A batch to look at a model with: the first of a data folder, or made-up tokens."""

# B batch, T tokens

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.config.batches import BatchConfig, DataConfig
from lamina.config.model import ModelConfig
from lamina.data.batching import AnyBatch, Batch, TokenBatch
from lamina.data.feed import Feed
from lamina.data.masked_blocks import MaskedBatch
from lamina.errors import ConfigError
from lamina.fields import build, unique_leaves
from lamina.tasks import TASKS
from lamina.tasks.base import Task
from lamina.text.vocabulary import EOS, FIRST_WORD_ID

MASKED_EVERY = 7  # of made-up tokens, about the 15 % that masked language models guess


def made_up_batch(task: str, vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int = 0) -> AnyBatch:
    """Words drawn evenly, every sentence of one length, with </s> at its end."""
    generator = torch.Generator().manual_seed(seed)
    rows = tuple(range(num_sentences))

    def sentences(vocab_size: int) -> Tensor:
        drawn = torch.randint(FIRST_WORD_ID, vocab_size, (num_sentences, length), generator=generator)
        drawn[:, -1] = EOS
        return drawn

    text = sentences(vocab_sizes[0])
    match task:
        case "translation":
            target = sentences(vocab_sizes[1])
            return Batch(text, _moved_right(target), target, text.numel(), target.numel(), rows)
        case "language_modeling":
            return TokenBatch(_moved_right(text), text, text.numel(), rows)
    places = torch.arange(0, text.numel(), MASKED_EVERY)
    return MaskedBatch(text, places, text.flatten()[places], rows)


def _moved_right(text: Tensor) -> Tensor:
    return torch.cat([torch.full_like(text[:, :1], EOS), text[:, :-1]], dim=1)


def open_task(name: str, model: ModelConfig, folder: str, flat: dict[str, Any]) -> Task:
    """The data folder, read as a run of this flat configuration would."""
    if name == "sentence_prediction":
        raise ConfigError("--data: the data of --task sentence_prediction is not read here; leave it out, and made-up tokens "
                          "are used.")
    names = {leaf.name for leaf in unique_leaves(DataConfig)}
    data = build(DataConfig, {key: value for key, value in flat.items() if key in names} | {"data": folder})
    return TASKS[name](data, model)


def first_batch(task: Task, max_tokens: int, device: torch.device, seed: int) -> AnyBatch:
    """That of a run's first epoch."""
    feed = Feed(task.train_corpus(1), seed=seed, limits=BatchConfig(max_tokens=max_tokens, num_workers=0), device=device,
                max_positions=task.max_positions, is_shuffled=True)
    return next(iter(feed.batches(1)))

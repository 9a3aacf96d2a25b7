"""What the interfaces to models have in common: results, and how options are read."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lamina.config.search_options import SearchConfig
from lamina.errors import ConfigError
from lamina.fields import build, flat_names
from lamina.text.vocabulary import EOS

TooLong = Literal["truncate", "skip"]
OptionValue = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float] | None


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# As torch spells them, and its users.
SPELLINGS = {**DTYPES, "float32": torch.float32, "float": torch.float32, "float16": torch.float16, "half": torch.float16,
             "bfloat16": torch.bfloat16}


@dataclass
class Translation:
    """One translation of a sentence."""

    text: str
    score: float  # by which translations of a sentence are compared: mean log-probability unless options say otherwise
    tokens: list[str]  # pieces, without </s>
    token_scores: list[float]  # natural logarithms, </s> last
    ids: list[int]  # </s> last
    alignment: list[tuple[int, int]] | None = None  # (source piece, target piece), where it was asked for
    alternatives: list[Translation] = field(default_factory=list)  # the rest of the n best
    is_skipped: bool = False  # the source was too long, and nothing was translated


@dataclass
class Score:
    """How likely a model finds a given translation."""

    ids: list[int]  # </s> last
    tokens: list[str]
    token_scores: list[float]  # natural logarithms

    @property
    def total(self) -> float:
        """The log-probability of all tokens."""
        return sum(self.token_scores)

    @property
    def mean(self) -> float:
        """The log-probability per token."""
        return self.total / len(self.token_scores)

    @property
    def perplexity(self) -> float:
        """Per token, `</s>` included."""
        return math.exp(-self.mean)


@dataclass(frozen=True)
class Attention:
    """Who looks at what: a row of weights, which sum to 1, for each target token."""

    weights: Tensor  # (target, source), on the CPU; of several layers (layers, target, source)
    source: list[str]  # tokens, </s> last
    target: list[str]  # likewise


def search_config(**options: object) -> SearchConfig:
    """SearchConfig from its fields' and its rules' names or from flags (`lenpen`, `max_len_a`); None means the default."""
    flags = flat_names(SearchConfig)
    values = {flags.get(name, name.replace("_", "-")): value for name, value in options.items() if value is not None}
    return build(SearchConfig, values, explicit=values)


def only_one(search: SearchConfig | None, **options: object) -> SearchConfig:
    given = [name for name, value in options.items() if value is not None]
    if search is not None and given:
        raise ConfigError(f"{given[0]} and search were both given. Put {given[0]} into the SearchConfig, or leave search out.")
    return search or search_config(**options)


def fitted(ids: np.ndarray, limit: int, number: int, too_long: TooLong, warn: Callable[[str], object],
           side: str = "") -> np.ndarray | None:
    """What the model has positions for; `side` (source or target) says whose line it is, where there are two."""
    if too_long not in ("truncate", "skip"):
        raise ConfigError(f"too_long is {too_long!r}; it must be truncate or skip.")
    if len(ids) <= limit:
        return ids
    what = "skipped" if too_long == "skip" else f"cut to {limit}"
    where = f"{side} line {number + 1}".lstrip()
    warn(f"{where} has {len(ids)} tokens, more than the {limit} positions of the model; it was {what}.")
    return None if too_long == "skip" else np.append(ids[: limit - 1], EOS)


def parse_device(device: torch.device | str | None) -> torch.device:
    """What a person named, if it is there; the GPU, if there is one, where nothing was named."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ConfigError(f"device is {device!r}; it must be cpu, cuda, or a GPU by number, such as cuda:1.") from None
    if found.type == "cuda":
        number = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not number:
            why = "sees no GPU" if torch.backends.cuda.is_built() else "was built without CUDA"
            raise ConfigError(f"device is {device}, but this torch {why}. Leave device out, or write device=\"cpu\".")
        if found.index is not None and found.index >= number:
            known = "is 1 GPU here, cuda:0" if number == 1 else f"are {number} GPUs here, cuda:0 to cuda:{number - 1}"
            raise ConfigError(f"device is {device}, but there {known}.")
    elif found.type not in ("cpu", "mps"):
        raise ConfigError(f"device is {device}; models run on cpu and cuda.")
    return found


def parse_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A precision by any of its names."""
    if isinstance(dtype, str):
        found = SPELLINGS.get(dtype.removeprefix("torch."))
        if found is None:
            raise ConfigError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}, or as torch spells them: float32, "
                              "float16, bfloat16.")
        return found
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ConfigError(f"dtype is {dtype!r}; it must be a floating point type, such as torch.float32 or \"bf16\".")
    return dtype


def writing_dtype(device: torch.device) -> torch.dtype | None:
    """What models that write texts compute in, unless they are told; None: in what they are stored in, float32.

    float16 rounds eight times as finely as bfloat16, as fast, so that a search seldom decides otherwise than in float32. What
    bfloat16 has more of is range, which training needs and normalised states do not; a model that leaves the range is noticed.
    """
    return torch.float16 if device.type == "cuda" else None


def warn_of_lost(number: int, total: int, warn: Callable[[str], object]) -> None:
    """Say how many sentences a search found nothing for."""
    if number:
        warn(f"{number} of {total} sentences have no result: the model's scores for them are NaN or infinite. In float16 "
             "(--fp16, the default on a GPU) values may be too large: try --bf16 or --fp32.")


def silent(message: str) -> None:
    """A script that prunes knows that it does."""


def warn_in_python(message: str) -> None:
    """As a warning about the line that called Lamina, however far down this was found."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("lamina", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)

"""A cascade: some layers translate first, and the whole model again where that was not sure enough.

`lamina calibrate` chooses the threshold on validation data, for one model, and writes it to a file; the file names the model by
its digest and serves no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from lamina.config.chosen_depth import Depth, parse_depth
from lamina.data.batching import ChooseBatches
from lamina.decode.active_depth import active_layers
from lamina.decode.backtrace import Hypothesis
from lamina.decode.batched_search import Found, search_rows
from lamina.decode.search import Search
from lamina.errors import ConfigError, LaminaError
from lamina.files import read_json, write_json

FORMAT = "lamina cascade 1"
# Options of a search that change nothing of its best translation.
WITHOUT_EFFECT = {"nbest", "cuda_graphs"}


def confidence(hypothesis: Hypothesis) -> float:
    """How sure a model is: the mean log-probability of the tokens, `</s>` included, whatever hypotheses are compared by."""
    return sum(hypothesis.token_scores) / len(hypothesis.token_scores)


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Whose shallow translations are kept, and what that was worth on validation data."""

    model: str  # digest of the model that it was chosen for
    depth: Mapping[str, str]  # of the first translation, by stack, as for --encoder-layers-to-keep
    threshold: float  # a translation with at least this confidence is kept
    search: Mapping[str, Any] = field(default_factory=dict)  # the options that it was chosen with
    figures: Mapping[str, Any] = field(default_factory=dict)  # on validation data

    @property
    def chosen_depth(self) -> Depth:
        parsed = parse_depth(dict(self.depth))
        assert parsed is not None
        return parsed

    def keeps(self, hypotheses: Sequence[Hypothesis]) -> bool:
        """Whether these, the best first, are good enough; nothing is good about NaN."""
        return confidence(hypotheses[0]) >= self.threshold

    def check(self, digest: str) -> None:
        if digest != self.model:
            raise ConfigError(f"this cascade was chosen for the model {self.model}, and this is the model {digest}: its "
                              "threshold says nothing here. Run `lamina calibrate` on this checkpoint, with the same "
                              "--quantize and --model-overrides.")

    def differences(self, search: Mapping[str, Any]) -> list[str]:
        """The options in which a search differs from the one that the threshold was chosen with, as flags."""
        names = sorted({*self.search, *search} - WITHOUT_EFFECT)
        return [f"--{name.replace('_', '-')}" for name in names if _plain(self.search.get(name)) != _plain(search.get(name))]

    def save(self, path: str | Path) -> Path:
        write_json(Path(path), {"format": FORMAT, **asdict(self)})
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Cascade:
        try:
            content = read_json(Path(path))
        except (OSError, ValueError, LaminaError) as error:
            raise ConfigError(f"{path} cannot be read as a cascade: {getattr(error, 'strerror', None) or error}") from None
        names = {item.name for item in fields(cls)}
        needed = {"model", "depth", "threshold"}
        if not isinstance(content, dict) or content.get("format") != FORMAT or not needed <= set(content):
            raise ConfigError(f"{path} is not a cascade. `lamina calibrate MODEL DATA` writes one.")
        made = cls(**{name: value for name, value in content.items() if name in names})
        if not isinstance(made.threshold, float) or math.isnan(made.threshold) or not isinstance(made.depth, dict):
            raise ConfigError(f"{path} is damaged: its threshold must be a number, and its depth name the stacks. Run "
                              "`lamina calibrate` again.")
        _ = made.chosen_depth
        return made


def _plain(value: Any) -> Any:
    """As JSON holds it."""
    return list(value) if isinstance(value, tuple) else value


def cascade_path(paths: Sequence[str | Path]) -> Path:
    """Where `lamina calibrate` puts a model's cascade, and others look for it: beside the (first) checkpoint."""
    path = Path(paths[0])
    return (path if path.name else path.resolve()).with_suffix(".cascade.json")


def searches_of(cascade: Cascade | None, search: Search) -> list[Search]:
    """The search itself, or before it that of the cascade's first depth."""
    if cascade is None:
        return [search]
    return [search.at(active_layers(cascade.chosen_depth, search.models)), search]


def searched(cascade: Cascade | None, searches: Sequence[Search], rows: Sequence[np.ndarray], **how: Any) -> Iterator[Found]:
    """`search_rows`, by the only one of `searches_of` or by the cascade of both."""
    if cascade is None:
        (search,) = searches
        return search_rows(search, rows, **how)
    shallow, whole = searches
    return cascade_rows(cascade, shallow, whole, rows, **how)


def cascade_rows(cascade: Cascade, shallow: Search, whole: Search, rows: Sequence[np.ndarray], *,
                 numbers: Sequence[int] | None = None, prefixes: Sequence[np.ndarray] | None = None,
                 constraints: Sequence[Sequence[Sequence[int]]] | None = None, choose: ChooseBatches = list,
                 **how: Any) -> Iterator[Found]:
    """`search_rows` with both: first `shallow`, and `whole` where that was not sure. `choose` decides on the first pass."""
    unsure = []
    numbers = range(len(rows)) if numbers is None else numbers
    for found in search_rows(shallow, rows, numbers=numbers, prefixes=prefixes, constraints=constraints, choose=choose, **how):
        if cascade.keeps(found.hypotheses):
            yield found
        else:
            unsure.append(found.index)
    unsure.sort()

    def part(values: Sequence[Any] | None) -> list[Any] | None:
        return None if values is None else [values[index] for index in unsure]

    for found in search_rows(whole, [rows[index] for index in unsure], numbers=part(numbers), prefixes=part(prefixes),
                             constraints=part(constraints), **how):
        yield replace(found, index=unsure[found.index], is_repeated=True)

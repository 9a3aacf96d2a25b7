"""Whether the ranks of a run were started alike: where they differ, they would train several models, or wait for each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import lamina
from lamina.config.train_options import TrainConfig
from lamina.distributed.ranks import Ranks
from lamina.errors import ConfigError
from lamina.fields import flatten

# What may differ between machines and ranks: where things lie, who they are, what the first one shows. Folders of data are
# compared by what is in them, and where runs continue from by how far that has come.
OWN = frozenset(("data", "save-dir", "config", "print-config", "device-id", "distributed-rank", "distributed-init-method",
                 "distributed-port", "distributed-spawn", "log-format", "log-interval", "progress-bar", "tracker",
                 "tensorboard-logdir", "wandb-project", "mlflow-experiment", "trackio-project", "num-workers"))
DATA_ENDINGS = (".idx", ".bin", ".txt")
DATA_NAMES = ("subwords.json",)
# Of the beginning and of the end of a data file: dictionaries are compared whole, large files in passing.
SAMPLE_SIZE = 2**20
MAX_NAMED = 5


def check_agreement(config: TrainConfig, ranks: Ranks) -> None:
    """An error on all ranks that names one that differs from the first, and in what."""
    if ranks.size == 1:
        return
    own = settings_of(config)
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    digests = ranks.gather([digest])
    if digests.count(digests[0]) == len(digests):
        return
    others = ranks.gather([own])
    rank = next(number for number, found in enumerate(digests) if found != digests[0])
    raise ConfigError(difference(rank, others[0], others[rank]))


def difference(rank: int, first: dict[str, str], other: dict[str, str]) -> str:
    """What to tell of a rank that was not started as the first one was."""
    nothing = "none"
    names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
    told = "; ".join(f"{name} is {other.get(name, nothing)} on rank {rank} and {first.get(name, nothing)} on rank 0"
                     for name in names[:MAX_NAMED])
    more = f"; and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return (f"the ranks of this run were not started alike: {told}{more}. Start all of them with the same options, data and "
            "version of Lamina.")


def settings_of(config: TrainConfig) -> dict[str, str]:
    """All that decides what this rank computes."""
    settings = {f"--{name}": _shown(value) for name, value in flatten(config).items() if name not in OWN}
    for number, folder in enumerate(filter(None, config.data.data.split(":"))):
        for name, digest in _files(Path(folder)):
            settings[f"the data file {name}{f' of folder {number + 1}' if number else ''}"] = digest
    return {**settings, "the version of Lamina": f"{lamina.__version__} ({_code_digest()})",
            "the version of torch": torch.__version__}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "empty"
    return "not given" if value is None else str(value)


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Of a folder that is not there or cannot be read, nothing: the task will say what is wrong with it."""
    try:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and (path.suffix in DATA_ENDINGS or path.name in DATA_NAMES):
                yield path.relative_to(folder).as_posix(), _sample(path)
    except OSError:
        return


def _sample(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(SAMPLE_SIZE))
        file.seek(max(0, size - SAMPLE_SIZE))
        digest.update(file.read(SAMPLE_SIZE))
    return f"{size} bytes ({digest.hexdigest()[:8]})"


def _code_digest() -> str:
    root = Path(lamina.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]

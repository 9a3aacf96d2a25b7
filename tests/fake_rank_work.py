"""One process of many ranks, of which the others are not there; a process that starts from nothing can import this."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from lamina.config.parser import parse, resolve
from lamina.config.train_options import TrainConfig
from lamina.distributed.ranks import Ranks
from lamina.training import whole_run
from lamina.training.run import Run

# Of which the others would fill the first argument, which is memory as it came.
FILLED_BY_OTHERS = re.compile("gather|scatter|alltoall")


class Collectives(TorchDispatchMode):
    """Those that are called: name and shapes. What nobody sends is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace in ("c10d", "_c10d_functional"):
            shapes = [list(item.shape) for item in tree_flatten(args)[0] if isinstance(item, torch.Tensor)]
            self.calls.append([function._schema.name, *shapes])
            if FILLED_BY_OTHERS.search(function._schema.name):
                for item in tree_flatten(args[0])[0]:
                    item.zero_()
        return function(*args, **(kwargs or {}))


def train_as(number: int, ranks: Sequence[int], size: int, words: Sequence[str], folder: str) -> None:
    """A whole run as one of these ranks; RANK.json tells its collectives, and the bytes that it holds."""
    torch.set_num_threads(1)
    rank = ranks[number]

    @contextmanager
    def joined(config: Any, *, is_on_gpu: bool) -> Iterator[Ranks]:
        dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
        yield Ranks(rank, size, is_group=True)
        dist.destroy_process_group()

    whole_run.joined = joined

    def bytes_held(run: Run) -> dict[str, int]:
        """Without what aligns the pieces; `row` is one row of each parameter, which is dealt out whole."""
        weights, optimizer = run.updater.weights, run.updater.optimizer
        own = sum(view.numel() for view in weights.views(weights.grad))
        return {"updates": run.progress.updates, "gradients": 4 * own, "optimizer": 4 * own * len(optimizer.buffers),
                "row": 4 * sum(shape[1:].numel() for shape in weights.shapes)}

    config = resolve(TrainConfig, parse("lamina train", TrainConfig, "", [*words, "--save-dir", f"{folder}/run{rank}"])[0])
    with Collectives() as noted:
        held = whole_run.run_training(config, after=bytes_held)
    Path(folder, f"{rank}.json").write_text(json.dumps({"calls": noted.calls, **held}))

"""Checkpoints that all ranks write together, each the rows that it holds, in the format of torch.distributed.checkpoint.

torch's own `save` lets ranks exchange plans as pickles, over a process group that a background thread would need for itself.
But here every rank knows who holds which rows. So each writes its file, and tells the first rank through the store where in it
what is: as JSON, which can run no code, and without a collective that a dead rank would leave waiting. The first rank writes
the index and the description, and gives the folder its name when all is on disk.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from lamina.checkpoint.format import Checkpoint, save_checkpoint, without_zip_checksums
from lamina.checkpoint.shard_index import INDEX_NAME
from lamina.checkpoint.shards import DESCRIPTION_NAME, OPTIMIZER, SHARDS_PREFIX, WEIGHTS
from lamina.distributed.matrix_exchange import rows_of_rank
from lamina.distributed.ranks import Ranks
from lamina.distributed.rows import RowsOfWeights
from lamina.distributed.weights import FlatWeights
from lamina.errors import CheckpointError
from lamina.files import file_hash, part_of, replace_durably

SECONDS_BETWEEN_LOOKS = 0.02
# When the run has failed: what other ranks have on the way to disk may still arrive.
SECONDS_OF_GRACE = 5.0


@dataclass
class OwnRows(Checkpoint):
    """A checkpoint whose `weights` are this rank's rows of weights and optimizer state, by their names in a sharded one."""

    shapes: dict[str, torch.Size] = field(default_factory=dict)  # of the whole tensors


def with_own_rows(checkpoint: Checkpoint, weights: FlatWeights, buffers: Mapping[str, Mapping[int, Tensor]]) -> OwnRows:
    """A checkpoint that lacks them, with this rank's rows of the weights, and of the optimizer's buffers by number."""
    assert isinstance(weights, RowsOfWeights), "others are not in rows"
    rows = {f"{WEIGHTS}/{name}": own for name, own in weights.rows_by_name().items()}
    shapes = {f"{WEIGHTS}/{name}": shape for name, shape in weights.shapes_by_name().items()}
    for buffer, pieces in buffers.items():
        for number, piece in pieces.items():
            name = f"{OPTIMIZER}/{buffer}/{weights.names[number]}"
            rows[name], shapes[name] = piece, weights.shapes[number]
    described = {item.name: getattr(checkpoint, item.name) for item in fields(Checkpoint)}
    return OwnRows(**{**described, "weights": rows}, shapes=shapes)


class ShardWriter:
    """`write` is called on all ranks that take part for the same states in the same order, in a thread of any kind.

    Those are the ranks that hold the first copy of the weights (`num_shards` neighbours); others have nothing to add.
    """

    def __init__(self, ranks: Ranks, num_shards: int, run: str, patience: float) -> None:
        """All ranks make one together. `patience` is how many seconds the first waits for the others' parts of a checkpoint."""
        self.ranks = ranks
        self.num_shards = num_shards
        self.patience = patience
        self._number = 0
        # The first rank's: its process is the one whose end makes folders stale.
        own = [run, secrets.token_hex(3), part_of(Path("folder")).name]
        self.run, self._token, self._part = ranks.gather([own])[0]
        self._is_given_up = threading.Event()

    @property
    def takes_part(self) -> bool:
        """Whether this rank has rows that no other one writes."""
        return self.ranks.rank < self.num_shards

    def give_up(self) -> None:
        """The run ends with an error: perhaps another rank is gone, and its part will not come."""
        self._is_given_up.set()

    def write(self, folder: Path, state: Checkpoint, updates: int) -> Path | None:
        """The description of the finished checkpoint, on the first rank."""
        assert isinstance(state, OwnRows), "rows of a rank"
        self._number += 1
        name = f"{SHARDS_PREFIX}{self.run}-{updates}-{self._token}{self._number}"
        part = folder / self._part.replace("folder", name, 1)
        try:
            report, error = self._write_rows(part, state), None
        except (OSError, RuntimeError) as caught:
            report, error = {}, self._unwritten(part, caught)
        if not self.ranks.is_first:
            self._tell(report if error is None else {"error": str(error)})
            if error is not None:
                raise error
            return None
        try:
            reports = self._reports(report, error)
            self._finish(part, name, state, reports)
        except (OSError, RuntimeError) as caught:
            raise self._unwritten(part, caught) from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return folder / name / DESCRIPTION_NAME

    def _write_rows(self, part: Path, state: OwnRows) -> dict[str, Any]:
        """Write this rank's file; where what is in it, and its checksum."""
        plan = self._plan(state.shapes, state.weights, self.ranks.rank)
        part.mkdir(parents=True, exist_ok=True)
        if not plan.items:
            return {"items": [], "files": {}}
        with without_zip_checksums():
            results = _Writer(part).write_data(plan, _Rows(state.weights)).wait()
        items = [[result.index.fqn, list(result.index.offset or ()), place.relative_path, place.offset, place.length,
                  result.size_in_bytes] for result in results for place in [result.storage_data]]
        return {"items": items, "files": {file: file_hash(part / file) for file in {item[2] for item in items}}}

    def _plan(self, shapes: Mapping[str, torch.Size], rows: Mapping[str, Tensor], rank: int) -> SavePlan:
        """What a rank writes: its rows of each tensor, if it has any."""
        items = []
        for name, shape in shapes.items():
            own = rows_of_rank(shape[0], rank, self.num_shards)
            if own:
                begin = torch.Size([own.start, *[0] * (len(shape) - 1)])
                chunk = ChunkStorageMetadata(begin, torch.Size([len(own), *shape[1:]]))
                data = TensorWriteData(chunk, TensorProperties(dtype=rows[name].dtype), torch.Size(shape))
                items.append(WriteItem(MetadataIndex(name, begin), WriteItemType.SHARD, tensor_data=data))
        return _Writer.of_rank(SavePlan(items), rank)

    def _finish(self, part: Path, name: str, state: OwnRows, reports: list[dict[str, Any]]) -> None:
        """Index and description, and then the folder's name."""
        plans = [self._plan(state.shapes, state.weights, rank) for rank in range(self.num_shards)]
        _, metadata = create_default_global_save_plan(plans)
        results = [[WriteResult(MetadataIndex(item[0], item[1]), item[5], _StorageInfo(*item[2:5])) for item in report["items"]]
                   for report in reports]
        _Writer(part).finish(metadata, results)
        files = {file: digest for report in reports for file, digest in report["files"].items()}
        if missing := sorted(file for file in files if not (part / file).exists()):
            raise CheckpointError(f"a sharded checkpoint was not written: {missing[0]}, which another rank wrote, is not in "
                                  f"{part}. --save-dir must be one folder that all machines see. Earlier checkpoints are "
                                  "untouched.")
        files[INDEX_NAME] = file_hash(part / INDEX_NAME)
        described = {item.name: getattr(state, item.name) for item in fields(Checkpoint)}
        save_checkpoint(part / DESCRIPTION_NAME, Checkpoint(**{**described, "weights": {},
                                                               "shards": {"folder": name, "files": files}}))
        replace_durably(part, part.parent / name)

    def _key(self, rank: int) -> str:
        return f"shards {self._token} {self._number} {rank}"

    def _tell(self, report: dict[str, Any]) -> None:
        with suppress(dist.DistError):  # the first rank is gone, which ends this one too
            self.ranks.store.set(self._key(self.ranks.rank), json.dumps(report))

    def _reports(self, own: dict[str, Any], error: CheckpointError | None) -> list[dict[str, Any]]:
        """Of all ranks that write, in their order; an error where one has failed, or does not answer."""
        missing = set(range(1, self.num_shards))
        reports = {0: own}
        until = time.monotonic() + self.patience
        is_given_up = False
        while missing:
            for rank in sorted(missing):
                if self.ranks.store.check([self._key(rank)]):
                    reports[rank] = json.loads(self.ranks.store.get(self._key(rank)))
                    with suppress(dist.DistError, RuntimeError):
                        self.ranks.store.delete_key(self._key(rank))
                    missing.discard(rank)
            if self._is_given_up.is_set() and not is_given_up:
                is_given_up, until = True, min(until, time.monotonic() + SECONDS_OF_GRACE)
            if missing and time.monotonic() > until:
                raise CheckpointError(f"a sharded checkpoint was not written: rank {min(missing)} has not told that its part "
                                      "is on disk. Earlier checkpoints are untouched.")
            if missing:
                time.sleep(SECONDS_BETWEEN_LOOKS)
        if error is not None:
            raise error
        failed = next((rank for rank, report in sorted(reports.items()) if "error" in report), None)
        if failed is not None:
            raise CheckpointError(f"rank {failed}: {reports[failed]['error']}")
        return [reports[rank] for rank in sorted(reports)]

    def _unwritten(self, part: Path, error: OSError | RuntimeError) -> CheckpointError:
        cause = error if isinstance(error, OSError) else error.__context__
        reason = cause.strerror if isinstance(cause, OSError) else str(error)
        return CheckpointError(f"the sharded checkpoint {part} could not be written: {reason or error}. Free some space or "
                               "choose another --save-dir; earlier checkpoints are untouched.")


class _Rows(DefaultSavePlanner):
    """The rows of this rank by name: they are not looked for in tensors that know of each other."""

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.rows = rows

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self.rows[write_item.index.fqn].contiguous()


class _Writer(FileSystemWriter):
    """One file per rank. The index says nothing of where it was written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, single_file_per_rank=True, sync_files=True, thread_count=1)

    @staticmethod
    def of_rank(plan: SavePlan, rank: int) -> SavePlan:
        """With the file's name, as torch numbers them."""
        return _Writer(Path(os.curdir)).prepare_global_plan([SavePlan([])] * rank + [plan])[rank]

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()

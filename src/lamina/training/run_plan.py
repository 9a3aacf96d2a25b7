"""`lamina train ... --plan`: what a run would take and cost, and the first reason why it would not start."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lamina.config.train_options import TrainConfig
from lamina.cuda_graphs.static_batches import tensors_of
from lamina.data.feed import Feed
from lamina.distributed.launch import find_place, num_to_start
from lamina.distributed.ranks import ALONE
from lamina.errors import LaminaError
from lamina.init.deferred import deferred
from lamina.tasks.base import Task
from lamina.training.compute_type import compute_type
from lamina.training.feeds import Feeds
from lamina.training.freezing import freeze_
from lamina.training.function_loss import criterion_in_force
from lamina.training.introduction import effective_batch
from lamina.training.memory_plan import GIB, bytes_kept, bytes_of_state, bytes_sent
from lamina.training.packed_runs import is_packed, was_packed
from lamina.training.report import Reporter
from lamina.training.resharding import memory_of, resharding
from lamina.training.restore import StartingPoint, pruned_config, restore_weights_, starting_point
from lamina.training.run import open_task
from lamina.training.settled import settled
from lamina.training.tracking import check_package
from lamina.training.whole_run import is_for_gpu


@dataclass
class RunPlan:
    """What is known of a run ahead of it; what could not be found out is missing."""

    ranks: int = 1
    device: str = "cpu"
    precision: str = ""
    parameters: int | None = None
    trained: int | None = None
    effective_batch: str = ""
    batches: int | None = None  # of an epoch
    updates: int | None = None  # of an epoch
    padding: float | None = None  # the share of it
    memory: dict[str, int] = field(default_factory=dict)  # bytes per rank, by kind
    sent: int | None = None  # bytes, by each rank in an update
    reshards: bool | None = None  # whether --fsdp does, with several ranks
    sharding: str = ""  # why, where the run does not say
    reason: str = ""  # why it would not start

    def lines(self) -> Iterator[str]:
        yield f"{self.ranks} {'rank' if self.ranks == 1 else 'ranks'}, {self.device}, {self.precision}"
        if self.effective_batch:
            yield self.effective_batch
        if self.padding is not None:
            yield f"an epoch: {self.batches} batches, {self.updates} updates, {100 * self.padding:.1f} % padding expected"
        if self.parameters is not None:
            yield f"parameters: {self.parameters:,}, of which {self.trained:,} are trained"
        if self.sharding:
            yield self.sharding
        if self.memory:
            kinds = ", ".join(f"{kind} {size / GIB:.2f}" for kind, size in self.memory.items())
            yield f"memory per rank, in GiB, estimated: {kinds}; together {sum(self.memory.values()) / GIB:.2f}"
        if self.sent is not None:
            yield f"sent by each rank per update: {self.sent / GIB:.2f} GiB"
        yield f"it would not start: {self.reason}" if self.reason else "nothing that shows here keeps it from starting"


def show_plan(config: TrainConfig) -> None:
    plan = plan_of(config)
    if config.log.format == "json":
        print(json.dumps(asdict(plan)), flush=True)
        return
    for line in plan.lines():
        print(f"| {line}", flush=True)


def plan_of(config: TrainConfig) -> RunPlan:
    """Nothing is written, and no weight is ever made: the model stands on the meta device."""
    problems: list[str] = []
    machine = _machine(config)
    plan = RunPlan(device=machine.name, ranks=config.ranks.world_size or 1)
    with _noting(problems):
        started = num_to_start(config.ranks, os.environ, machine.num_gpus)
        if config.ranks.world_size is None:
            plan.ranks = max(started, find_place(config.ranks, os.environ).size)
    with _noting(problems):
        for tracker in config.log.chosen_trackers:
            check_package(tracker)
        _check_folder(config)
    dtype = compute_type(config.precision, machine.device, _silent, has_bf16=None if machine.is_here else True)
    plan.precision = str(dtype).removeprefix("torch.")
    with _noting(problems):
        _fill(plan, config, machine, dtype, problems)
    if problems:
        plan.reason = problems[0]
    elif machine.memory is not None:
        plan.reason = shortage(plan, config, machine.memory)
    return plan


class Machine(NamedTuple):
    """What the run is planned for."""

    device: torch.device
    name: str
    num_gpus: int = 0
    memory: int | None = None  # bytes of each GPU; None: there is none
    is_here: bool = True


def _machine(config: TrainConfig) -> Machine:
    if config.plan_memory is not None:
        return Machine(torch.device("cuda"), f"GPU of {config.plan_memory:g} GiB", memory=round(config.plan_memory * GIB),
                       is_here=False)
    if not is_for_gpu(config):
        return Machine(torch.device("cpu"), "CPU")
    device = torch.device("cuda")
    return Machine(device, torch.cuda.get_device_name(0), torch.cuda.device_count(), memory_of(device))


def _fill(plan: RunPlan, config: TrainConfig, machine: Machine, dtype: torch.dtype, problems: list[str]) -> None:
    reporter = Reporter(replace(config.log, format="none"), ALONE, config.optimization)
    reporter.note = _silent  # type: ignore[method-assign]
    # Of a GPU that is not here, kernels are taken to work.
    packs = is_packed(config, dtype, machine.device, _silent) if machine.is_here else config.precision.packs
    start: StartingPoint | None = None
    with _noting(problems):
        start = starting_point(config, torch.device("cpu"), _silent, _silent)
    config = pruned_config(config, None if start is None else start.checkpoint, _silent)
    config = settled(config, start, _silent, was_packed=was_packed(config, dtype, machine.device))
    criterion = criterion_in_force(config, None, start, _silent)
    task = open_task(config, ALONE, reporter)
    feeds = Feeds(task, config, torch.device("cpu"), _silent, is_packed=packs)
    feed = feeds.train(1)
    freq = feeds.update_freq(1)
    plan.effective_batch = effective_batch(config, freq, plan.ranks)
    plan.batches, plan.padding = len(feed.plan(1)), feed.padding_share(1)
    plan.updates = -(-plan.batches // (freq * plan.ranks))
    model, _ = deferred(task.build_model)
    with _noting(problems):
        if start is not None:
            restore_weights_(model, start.checkpoint, task, start.path, _silent, is_resumed=start.is_resumed)
        _ = feeds.valid
    freeze_(model, config.optimization.freeze, _silent)
    plan.parameters = sum(parameter.numel() for parameter in model.parameters())
    plan.trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    shards = config.ranks.num_shards(plan.ranks)
    if config.ranks.is_sharded and plan.ranks > 1:
        plan.reshards, plan.sharding = resharding(config, model, dtype, plan.ranks, machine.memory)
    plan.memory = bytes_of_state(config, model, dtype, plan.ranks, shards, reshards=plan.reshards is not False)
    plan.sent = bytes_sent(config, model, dtype, plan.ranks, shards, reshards=plan.reshards is not False)
    plan.memory["activations"] = bytes_kept(model.to(dtype), _typical_batch(config, task, feed), criterion,
                                            recomputes=config.precision.checkpoint_activations)


def _typical_batch(config: TrainConfig, task: Task, feed: Feed) -> Any:
    """As large as batches may be, of sentences of the usual length."""
    usual = max(float(sizes.mean()) for sizes in feed.corpus.sizes.values())
    length = max(2, round(usual))
    limits = config.batches
    rows = limits.max_tokens // length if limits.max_tokens else limits.max_sentences
    assert rows is not None, "the configuration asks for one of the two"
    rows = min(max(rows, 1), limits.max_sentences or rows)
    batch = task.kind.made_up_batch(tuple(map(len, task.vocabularies)), rows, length, config.seed)
    return replace(batch, **{name: tensor.to("meta") for name, tensor in tensors_of(batch).items()})


def _check_folder(config: TrainConfig) -> None:
    if not config.saving.is_on:
        return
    folder = Path(config.saving.save_dir)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise LaminaError(f"no checkpoint could be written to {folder}: {there} cannot be written to. Choose another "
                          "--save-dir, or --no-save to keep nothing.")


def shortage(plan: RunPlan, config: TrainConfig, available: int) -> str:
    """What does not fit, and what may help that the run does not do yet."""
    needed = sum(plan.memory.values())
    if needed <= available:
        return ""
    remedies = [] if config.ranks.is_sharded or plan.ranks == 1 else ["--fsdp"]
    if plan.reshards is False and config.may_reshard:
        remedies.append("--reshard-after-forward")
    if not config.precision.checkpoint_activations:
        remedies.append("--checkpoint-activations")
    remedies.append("a smaller --max-tokens with a larger --update-freq")
    return f"it needs about {needed / GIB:.1f} GiB of each GPU's {available / GIB:.1f}. Try {' or '.join(remedies)}."


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except LaminaError as error:
        problems.append(str(error))


def _silent(text: str) -> None:
    """A plan tells its own lines alone."""


"""What processes do in tests of several ranks; here, since a process that is started afresh must be able to import it."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist
from torch import multiprocessing as mp

import lamina.cuda_graphs.compiled_pass as compiled_pass
import lamina.training.update as update_module
from lamina.cli import main
from lamina.config.model import ModelConfig
from lamina.config.ranks_options import RanksConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.cuda_graphs.compiled_pass import CompiledPasses
from lamina.cuda_graphs.static_batches import shape_of
from lamina.cuda_graphs.train_pass import CapturedPasses
from lamina.data.flat_texts import FlatSentences, end_to_end, flat_row
from lamina.data.labelled_sentences import SentenceBatch
from lamina.data.layer_subsets import LayerSubsets
from lamina.distributed.gathered import GatheredWeights
from lamina.distributed.launch import joined
from lamina.distributed.ranks import ALONE, Ranks
from lamina.distributed.replicated import ReplicatedWeights
from lamina.distributed.sharded import ShardedWeights
from lamina.distributed.weights import FlatWeights
from lamina.nn.stack import ALL_LAYERS, stacks_of
from lamina.parts.contracts import Beginning, Criterion
from lamina.parts.criteria import LabelSmoothedCrossEntropy, SentenceLoss
from lamina.parts.muon import Muon
from lamina.parts.residuals import Admin
from lamina.parts.surface_fusion import AttendedFusion, HardFusion
from lamina.parts.update_rules import Nag
from lamina.text.vocabulary import PAD
from lamina.training.freezing import freeze_
from lamina.training.layer_drop import LayerDrop
from lamina.training.loop import update_seed
from lamina.training.loss import batch_loss
from lamina.training.restore import load_optimizer_, optimizer_state
from lamina.training.update import Updater
from tiny import FUSIONS, batch_of, tiny_config, tiny_masked_model, tiny_model

# Batches of an update on all ranks: enough for several each, an uneven number, and less than there are ranks.
TOTALS = (8, 5, 1, 3)
# So small that a tiny model has several buckets, and some parameters have one of their own.
BUCKET_SIZE = 1500
PRELOAD = ["lamina.training.run", "lamina.distributed.sharded", "lamina.api.translated_split"]


def with_layer_drop(config: ModelConfig, p: float) -> ModelConfig:
    return replace(config, encoder=replace(config.encoder, layer_drop_p=p), decoder=replace(config.decoder, layer_drop_p=p))


class Outcome(NamedTuple):
    weights: dict[str, Tensor]
    numbers: list[list[float]]
    counts: list[tuple[int, int]]
    masks: list[Any]


def batch(place: int) -> Any:
    """Of different sizes, so that a mean of means would show."""
    return batch_of(slice(place % 4, place % 4 + 1 + place % 3), seed=place)


def sentence_batch(place: int) -> Any:
    tokens = batch(place).source
    return SentenceBatch(tokens, torch.arange(len(tokens)) % 3, tuple(range(len(tokens))))


def flat_sentence_batch(place: int) -> Any:
    """In a flat row, with the sentences that run each layer."""
    padded = sentence_batch(place)
    rows = [row[row.ne(PAD)].numpy() for row in padded.tokens]
    flat = FlatSentences(**flat_row(end_to_end(rows)), indices=padded.indices, target=padded.target)
    return LayerSubsets(((0.5,) * 2, ()), seed=3).given_to(flat, 1, place, is_static=False, capacities={})


def drawn_batch(place: int) -> Any:
    """With the sentences that run each layer."""
    return LayerSubsets(((0.5,) * 4, (0.5,) * 4), seed=3).given_to(batch(place), 1, place, is_static=False, capacities={})


def partly_frozen(config: ModelConfig) -> Any:
    model = tiny_model(config)
    freeze_(model, ("source_embedding", "encoder.layers.[01].*", "*.ffn.fc1.*"), lambda note: None)
    return model


def recomputed(config: ModelConfig) -> Any:
    """With --checkpoint-activations."""
    model = tiny_model(config)
    for stack in stacks_of(model).values():
        stack.recomputes = True
    return model


class Case(NamedTuple):
    config: ModelConfig
    new_model: Callable[[ModelConfig], Any] = tiny_model
    batch: Callable[[int], Any] = batch
    criterion: Criterion = LabelSmoothedCrossEntropy(smoothing=0.1)
    draws_by_batch: bool = False


CASES = {
    "plain": Case(tiny_config(dropout_p=0.2)),
    "fusion": Case(replace(tiny_config(dropout_p=0.2, **FUSIONS["both"]),
                           surface=AttendedFusion(mode=HardFusion(dropout=0.5)))),
    "admin": Case(tiny_config(dropout_p=0.2, init=Admin())),
    "layerdrop": Case(with_layer_drop(tiny_config(dropout_p=0.2, num_layers=4), 0.5)),
    "layerdrop by batch": Case(with_layer_drop(tiny_config(dropout_p=0.2, num_layers=4), 0.5), draws_by_batch=True),
    "layerdrop by sentence": Case(with_layer_drop(tiny_config(dropout_p=0.2, num_layers=4), 0.5), batch=drawn_batch),
    "layerdrop by sentence, recomputed": Case(with_layer_drop(tiny_config(dropout_p=0.2, num_layers=4), 0.5), recomputed,
                                              batch=drawn_batch),
    "frozen": Case(with_layer_drop(tiny_config(dropout_p=0.2, num_layers=4), 0.5), lambda config: partly_frozen(config)),
    # Some weights, those of the head for gaps, take no part.
    "sentences": Case(ModelConfig(), lambda _: tiny_masked_model(num_classes=3), sentence_batch, SentenceLoss()),
    "sentences in a flat row": Case(ModelConfig(), lambda _: tiny_masked_model(num_classes=3), flat_sentence_batch,
                                    SentenceLoss()),
}

WITHOUT_DROPOUT = Case(tiny_config())
# Of one shape: each is compiled.
COMPILED = {"alike, fused": Case(tiny_config(dropout_p=0.2, **FUSIONS["both"]), batch=lambda place: batch(0)),
            # Whose dropout is drawn otherwise where they are compiled.
            "alike, recomputed": Case(tiny_config(init=Admin()), recomputed, batch=lambda place: batch(0))}


class _Repeat(NamedTuple):
    """In the place of a CUDA graph: the same work again."""

    replay: Callable[[], Any]


class RepeatedPasses(CapturedPasses):
    """What is captured on a GPU is done again here: the same memory, the same order, and no hooks that send.

    On every second rank nothing is captured, as where a capture failed.
    """

    def __init__(self, updater: Updater, ranks: Ranks) -> None:
        super().__init__(updater.model, updater.weights, updater.forward_backward, lambda text: None, lambda seconds: None,
                         is_compiled=False)
        self.recorder.capture = lambda function: _Repeat(function)  # type: ignore[method-assign, assignment]
        # Layers that are computed again draw another dropout where they are replayed.
        counts = any(stack.recomputes for stack in stacks_of(updater.model).values())
        self.recorder.is_on = counts or ranks.rank % 2 == 0
        self.num_replayed = 0

    def find(self, batch: Any, active: Any, sums: Tensor) -> Callable[[], None] | None:
        if self.is_off or active != ALL_LAYERS:
            return None
        self.num_replayed += 1
        return partial(self._pass, batch, ())


def train_updates(case: Case, ranks: Ranks, new_weights: Callable[[Any, torch.dtype, Ranks], FlatWeights],
                  dtype: torch.dtype = torch.float32, max_rows: int | None = None, *, is_replayed: bool = False,
                  is_compiled: bool = False, cuda_graphs: bool = True,
                  note: Callable[[str], object] = lambda note: None) -> Outcome:
    """A few updates on this rank's batches; those of more than `max_rows` do not fit into its memory."""
    config = case.config
    model = case.new_model(config).to(ranks.device)
    if isinstance(config.init, Admin) and ranks.is_first:
        config.init.begin_(Beginning(model, lambda number: [case.batch(0).to(ranks.device)] * number, Path(), 1,
                                     lambda text: None))
    for parameter in model.parameters():
        ranks.broadcast_(parameter.data)
    # Not Adam: the bias of keys has no gradient but rounding, which Adam would divide by itself.
    optimization = OptimizationConfig(criterion=case.criterion, optimizer=Nag(), clip_norm=1.0)
    updater = Updater(model, optimization, PrecisionConfig(cuda_graphs=cuda_graphs), dtype, ranks,
                      new_weights(model, dtype, ranks), note)
    if is_replayed:
        updater._captured = RepeatedPasses(updater, ranks)
        updater.weights.expect_replays_()
    if is_compiled:
        updater._compiled = compiled_passes(updater)
    layer_drop = LayerDrop(config, seed=3, is_by_batch=case.draws_by_batch)
    is_by_sentence = case.batch in (drawn_batch, flat_sentence_batch)
    if max_rows is not None:
        update_module.batch_loss = partial(_short_of_memory, max_rows)
    numbers, counts, masks = [], [], []
    for update, total in enumerate(TOTALS):
        draws = [ALL_LAYERS] if is_by_sentence else layer_drop.draws(update, total)
        own = list(range(ranks.rank, total, ranks.size))
        if updater.weights.needs_fillers and len(own) < -(-total // ranks.size):
            own.append(total + ranks.size)
        batches = [case.batch(place).to(ranks.device) for place in own]
        result = updater.update(batches, 0.1, update_seed(3, update), draws, total)
        result.wait()
        numbers.append(result.numbers.tolist())
        counts.append((result.num_tokens, result.num_sentences))
        masks.append(draws)
    update_module.batch_loss = batch_loss
    if is_replayed and not updater._captured.is_off:
        assert updater._captured.num_replayed, "a case that replays nothing tests nothing"
    return Outcome({name: value.clone() for name, value in updater.weights.state_dict().items()}, numbers, counts, masks)


def compiled_passes(updater: Updater) -> CompiledPasses:
    """As on a GPU, but for the code that the compiler makes; it works on the first batch."""
    compiled_pass.compiled = partial(torch.compile, backend="aot_eager", dynamic=False)  # type: ignore[attr-defined]
    passes = CompiledPasses(updater.model, updater.forward_backward, fail_if_off, lambda seconds: None)
    passes._recurring = shape_of  # type: ignore[assignment]
    updater._step_ = passes.or_eager(updater.optimizer.step_, "the optimizer")
    return passes


def fail_if_off(note: str) -> None:
    assert "is off" not in note, note


def _short_of_memory(max_rows: int, model: Any, own: Any, *rest: Any, **options: Any) -> Any:
    if own.num_sentences > max_rows:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return batch_loss(model, own, *rest, **options)


def muon_steps(ranks: Ranks, new_weights: Callable[[Any, torch.dtype, Ranks], FlatWeights], stored: Any = None,
               num_steps: int = 3) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and state after steps along gradients that all know; from the weights and the state of steps before."""
    model = tiny_model().to(ranks.device)
    weights = new_weights(model, torch.float32, ranks)
    rule = Muon(betas=(0.9, 0.98), weight_decay=0.1, no_decay=("norms", "biases"))
    updater = Updater(model, OptimizationConfig(optimizer=rule), PrecisionConfig(), torch.float32, ranks, weights)
    first = 0
    if stored is not None:
        weights.fill_(dict(enumerate(weights.views(weights.master))), stored[0])
        load_optimizer_(updater, stored[1], lambda note: None)
        first = int(updater.optimizer.step)
    for step in range(first, first + num_steps):
        generator = torch.Generator().manual_seed(step)
        whole = {name: torch.randn(shape, generator=generator).to(ranks.device)
                 for name, shape in zip(weights.names, weights.shapes, strict=True)}
        weights.fill_(dict(enumerate(weights.views(weights.grad))), whole)
        updater.optimizer.step_(weights.grad.clone(), 0.01)
    return ({name: value.clone() for name, value in weights.named(weights.master).items()},
            {name: {key: item.clone() for key, item in value.items()} if isinstance(value, dict) else value.clone()
             for name, value in optimizer_state(updater).items()})


def replicated(model: Any, dtype: torch.dtype, ranks: Ranks) -> FlatWeights:
    return ReplicatedWeights(model, dtype, ranks, BUCKET_SIZE)


def sharded(model: Any, dtype: torch.dtype, ranks: Ranks) -> FlatWeights:
    return ShardedWeights(model, dtype, ranks)


def gathered(model: Any, dtype: torch.dtype, ranks: Ranks) -> FlatWeights:
    return GatheredWeights(model, dtype, ranks)


KINDS = {"replicated": replicated, "sharded": sharded, "gathered": gathered}
# Where weights are sharded, all ranks have to run the same layers at a time.
PAIRS = [(name, kind) for name, case in CASES.items() for kind in KINDS if kind != "sharded" or not case.draws_by_batch]


# Passes that leave out whole layers are never captured.
REPLAYED = [(name, dtype) for name, case in CASES.items() if case.batch is drawn_batch or not any(
    map(any, case.config.layer_drop_rates)) for dtype in (torch.float32, torch.bfloat16)]


def alone(model: Any, dtype: torch.dtype, ranks: Ranks) -> FlatWeights:
    return FlatWeights(model, dtype)


def reference(case: Case, dtype: torch.dtype = torch.float32, *, is_replayed: bool = False) -> Outcome:
    """What one process makes of all batches."""
    return train_updates(case, ALONE, alone, dtype, is_replayed=is_replayed)


def _work(local: int, size: int, meeting: str, folder: str) -> None:
    torch.set_num_threads(1)
    config = RanksConfig(world_size=size, rank=local, init_method=f"file://{meeting}")
    with joined(config, is_on_gpu=False) as ranks:
        outcome = train_updates(WITHOUT_DROPOUT, ranks, replicated, max_rows=1 if ranks.rank == 1 else None)
        torch.save(tuple(outcome), Path(folder, f"short-replicated-{ranks.rank}.pt"))
        begun = muon_steps(ranks, sharded)
        torch.save(begun, Path(folder, f"muon-{ranks.rank}.pt"))
        # What one rank began, and what these did, with the state of the first rank, which has all of it.
        dist.barrier()
        torch.save([muon_steps(ranks, sharded, stored) for stored in
                    (muon_steps(ALONE, alone), torch.load(Path(folder, "muon-0.pt"), weights_only=True))],
                   Path(folder, f"muon-resumed-{ranks.rank}.pt"))
        for name, dtype in REPLAYED:
            outcome = train_updates(CASES[name], ranks, replicated, dtype, is_replayed=True)
            torch.save(tuple(outcome), Path(folder, f"{name}-replayed {dtype}-{ranks.rank}.pt"))
            outcome = train_updates(CASES[name], ranks, gathered, dtype, is_replayed=True)
            torch.save(tuple(outcome), Path(folder, f"{name}-replayed, gathered {dtype}-{ranks.rank}.pt"))
        for name, case in COMPILED.items():  # the first rank alone, since it takes seconds: what ranks send is the same
            outcome = train_updates(case, ranks, sharded, is_compiled=ranks.is_first)
            torch.save(tuple(outcome), Path(folder, f"{name}-compiled-{ranks.rank}.pt"))
        for name, kind in PAIRS:
            outcome = train_updates(CASES[name], ranks, KINDS[kind])
            torch.save(tuple(outcome), Path(folder, f"{name}-{kind}-{ranks.rank}.pt"))


def run_on(size: int, folder: Path) -> None:
    """Every case in turn on `size` ranks, in processes that are started once."""
    # One process imports torch, which takes seconds, and the others are its copies.
    multiprocessing.set_forkserver_preload(PRELOAD)
    mp.start_processes(_work, (size, str(folder / "meeting"), str(folder)), nprocs=size, start_method="forkserver")


def run_commands(size: int, commands: Sequence[Sequence[str] | Sequence[Sequence[str]]], folder: Path) -> list[list[int]]:
    """Command lines on `size` ranks, one after the other, as torchrun would start them; the exit codes of each rank.

    Several command lines in the place of one are those of the ranks, where they should be the same and are not.
    They meet at the launcher's own store, with all that those before have left in it, as when torchrun starts them again. What
    the ranks print goes to RANK.out and RANK.err in the folder.
    """
    multiprocessing.set_forkserver_preload(PRELOAD)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for words in commands:
        # Processes of their own, as in real life: gloo is not made to meet again and again in one.
        mp.start_processes(_command_work, (size, store.port, words, str(folder)), nprocs=size, start_method="forkserver")
    return [list(map(int, Path(folder, f"{rank}.codes").read_text().split())) for rank in range(size)]


def _command_work(rank: int, size: int, port: int, words: Any, folder: str) -> None:
    words = words if isinstance(words[0], str) else words[rank]
    torch.set_num_threads(1)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, f"{rank}.{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="localhost",
                      MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    with Path(folder, f"{rank}.codes").open("a") as codes:
        codes.write(f"{code}\n")


def read(folder: Path, name: str, kind: str, rank: int) -> Outcome:
    return Outcome(*torch.load(folder / f"{name}-{kind}-{rank}.pt", weights_only=False))

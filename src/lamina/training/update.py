"""One update: forward and backward over a few batches, then one step of the optimizer. Asks the GPU no question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.cuda_graphs.compiled_pass import CompiledPasses
from lamina.cuda_graphs.train_pass import CapturedPasses
from lamina.data.batching import AnyBatch
from lamina.distributed.ranks import ALONE, Ranks
from lamina.distributed.weights import FlatWeights
from lamina.nn.compiling import compiled
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts.contracts import Criterion
from lamina.training.layer_drop import run_in_any
from lamina.training.loss import batch_loss
from lamina.training.loss_scale import LossScale
from lamina.training.memory_limit import MemoryLimit
from lamina.training.optimizers import build_optimizer
from lamina.training.passes import Pass, passes_of

# As in fairseq: keeps the division finite when there is no gradient at all.
CLIP_EPSILON = 1e-6


class UpdateResult(NamedTuple):
    """What an update did on all ranks, perhaps still under way: reading it waits for it."""

    numbers: Tensor  # (5,): loss sum, nll sum, gradient norm, loss scale, 1 if the step was taken
    grad_norms: Tensor  # (P,), one a parameter
    num_tokens: int
    num_sentences: int
    arrival: torch.cuda.Event | None = None  # of the tensors on the host

    def wait(self) -> None:
        """Before the tensors are read. Later work on the device is not waited for."""
        if self.arrival is not None:
            self.arrival.synchronize()


class Updater:
    """Model, weights, loss scale and optimizer, moved together by `update`."""

    def __init__(self, model: Any, optimization: OptimizationConfig, precision: PrecisionConfig,
                 dtype: torch.dtype = torch.float32, ranks: Ranks = ALONE, weights: FlatWeights | None = None,
                 note: Callable[[str], None] = lambda _: None, skip_time: Callable[[float], None] = lambda _: None,
                 criterion: Criterion | None = None) -> None:
        """`skip_time` is told of seconds that are not training: an update's speed does not count them.

        `criterion` takes the place of the optimization's own, as one that has a teacher does.
        """
        self.model = model
        self.optimization = optimization
        self.criterion = criterion or optimization.criterion
        self.ranks = ranks
        self.weights = weights or FlatWeights(model, dtype)
        self.memory = MemoryLimit(note)
        self.optimizer = build_optimizer(optimization.optimizer, self.weights.master, self.weights)
        device = self.weights.master.device
        self.scale = LossScale(precision, device, is_on=dtype == torch.float16,
                               default_window=2**14 // (optimization.update_freq[0] * ranks.size))
        self.sums = torch.zeros(2, device=device)  # of loss and nll, over the batches of an update
        self.lr, self.share = (torch.zeros((), device=device, dtype=torch.float64) for _ in range(2))
        self.before_step: Callable[[], None] = lambda: None  # for those who still copy the state
        self._captured, self._compiled = self._faster_passes(precision, note, skip_time)
        # Not made in vain: the compiler takes seconds to import. It gains nothing where parameters are moved in groups.
        is_fused = precision.compiles and self.optimizer.is_uniform
        self._compiled_move_ = self._move_
        if is_fused and self._captured is not None:
            self._compiled_move_ = (partial(self._move_, step_=compiled(self.optimizer.step_)) if self.weights.exchanges_in_step
                                    else compiled(self._move_))
        self._step_ = self.optimizer.step_
        if is_fused and self._compiled is not None:
            self._step_ = self._compiled.or_eager(self.optimizer.step_, "the optimizer")

    def update(self, batches: Sequence[AnyBatch], lr: float, seed: int, draws: Sequence[ActiveLayers] = (ALL_LAYERS,),
               total: int | None = None) -> UpdateResult:
        """Batches, forward and backward, all-reduce, clip, step.

        The gradient is that of the summed loss over the number of tokens, however the batches are cut and dealt out.
        `draws` are the layers that all batches run, or those of each of the `total`; layers that none runs have a zero
        gradient and are stepped like the rest. `batches` are this rank's of `total` on all ranks; the first of all is the
        first rank's, the next the second's.
        """
        assert not self.weights.replaces or len(batches) <= 1, "gradients of one batch at most"
        if not self.model.training:
            self.model.train()  # not each time: a deep model has a thousand parts to tell
        self.active_in_any = run_in_any(draws)
        passes = list(passes_of(batches, seed, draws, total, self.ranks))
        done = self.memory.fit(passes, self.accumulate_, self.weights)
        self.weights.sum_grad_(self.active_in_any)
        counted = [one.batch for one in done if not one.is_filler]
        num_tokens, num_sentences = self.ranks.sum(sum(batch.num_target_tokens for batch in counted),
                                                   sum(batch.num_sentences for batch in counted))
        self.ranks.sum_(self.sums)
        # A masked batch of very short sentences may have nothing to guess.
        self.share.fill_(1.0 / max(num_sentences if self.optimization.sentence_avg else num_tokens, 1))
        self.lr.fill_(lr)
        self.before_step()
        is_captured = self._captured is not None and not self.weights.exchanges_in_step
        numbers = self._captured.step(self.clip_and_step_) if self._captured and is_captured else self.clip_and_step_()
        return self._result(numbers, num_tokens, num_sentences)

    def accumulate_(self, passes: Iterable[Pass]) -> None:
        """Gradients and losses of these passes, added up from nothing; each is replayed where it has been captured."""
        self.weights.zero_grad_()
        self.sums.zero_()
        run = self._compiled or self.forward_backward
        for number, one in enumerate(passes):
            # What gathers a gradient by replacing it must be alone: the pieces of a batch that was cut are not.
            may_replay = not self.weights.replaces or (number == 0 and one.is_last)
            replay = self._captured.find(one.batch, one.active, self.sums) if self._captured and may_replay else None
            one.begin()
            if replay is not None:
                replay()
                continue
            if one.is_last:
                self.weights.expect_last_(self.active_in_any)
            run(one.batch, one.active, is_filler=one.is_filler)
            self.weights.collect_grad_()

    def forward_backward(self, batch: AnyBatch, active: ActiveLayers = ALL_LAYERS, *, is_filler: bool = False,
                         is_compiled: bool = False) -> None:
        loss, nll = batch_loss(self.model, batch, self.criterion, active, is_compiled=is_compiled)
        if loss.requires_grad:  # not where no layer runs that is trained
            (loss * (0.0 if is_filler else self.scale.value)).backward()
        if not is_filler:
            self.sums += torch.stack([loss.detach(), nll])

    def clip_and_step_(self) -> Tensor:
        """One step of the optimizer along the gradient there is: what UpdateResult tells of it, end to end. (5 + P,)"""
        scale_used = self.scale.value.clone()
        norms = self.weights.grad_norms() * (self.share / scale_used).float()
        norm = norms.norm()
        ok = norm.isfinite()
        clip_norm = self.optimization.clip_norm
        clip = (clip_norm / (norm + CLIP_EPSILON)).clamp(max=1.0) if clip_norm else torch.ones_like(norm)
        is_compiled = self._captured is not None and self._captured.is_compiled
        move_ = self._compiled_move_ if is_compiled else self._move_
        move_((clip * self.share / scale_used).float(), ok)
        self.scale.update_(ok)
        return torch.cat([self.sums, torch.stack([norm, scale_used, ok.float()]), norms])

    def _move_(self, factor: Tensor, ok: Tensor, step_: Callable[..., None] | None = None) -> None:
        grad = self.weights.grad
        grad = grad.mul_(factor) if grad.dtype == torch.float32 else grad.float().mul_(factor)
        # None where the host can see for free that all is well, which spares the optimizer its masks.
        (step_ or self._step_)(grad, self.lr, None if ok.device.type == "cpu" and bool(ok) else ok)
        self.weights.publish_()

    def _result(self, numbers: Tensor, num_tokens: int, num_sentences: int) -> UpdateResult:
        arrival = None
        if self._captured is not None and numbers.is_cuda:
            # The next update writes to the same memory, and the host should not have to wait for it to read this one.
            on_host = torch.empty(numbers.shape, pin_memory=True)
            numbers = on_host.copy_(numbers, non_blocking=True)
            arrival = torch.cuda.Event()
            arrival.record()
        return UpdateResult(numbers[:5], numbers[5:], num_tokens, num_sentences, arrival)

    def _faster_passes(self, precision: PrecisionConfig, note: Callable[[str], None],
                       skip_time: Callable[[float], None]) -> tuple[CapturedPasses | None, CompiledPasses | None]:
        """What takes the place of eager passes on a GPU: one of the two, or neither."""
        if self.weights.master.device.type != "cuda" or not precision.cuda_graphs:
            return None, None
        if reason := self.weights.why_uncaptured:
            note(f"updates are {'compiled' if precision.compiles else 'eager'}, not captured (--cuda-graphs): {reason}. "
                 "Those of a small model take 5 to 19 times as long (docs/multi-gpu.md)")
            return None, CompiledPasses(self.model, self.forward_backward, note, skip_time) if precision.compiles else None
        self.weights.expect_replays_()
        return CapturedPasses(self.model, self.weights, self.forward_backward, note, skip_time,
                              is_compiled=precision.compiles), None

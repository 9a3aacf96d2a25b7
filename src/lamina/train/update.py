"""One update: forward and backward over a few batches, then one step of the optimizer. Asks the GPU no question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lamina.config.train import OptimizationConfig, PrecisionConfig
from lamina.data.batching import AnyBatch
from lamina.nn.stack import ALL_RUN, Runs
from lamina.train.loss import batch_loss
from lamina.train.memory import MemoryLimit
from lamina.train.optim import build_optimizer
from lamina.train.ranks import ALONE, Ranks
from lamina.train.scale import LossScale
from lamina.train.weights import FlatWeights

# As in the references: keeps the division finite when there is no gradient at all.
CLIP_EPSILON = 1e-6
# Between the seeds of an update's batches: far enough that those of other updates are not met. In the lower 32 bits, since
# torch's generator for the CPU reads no others.
SEED_STRIDE = 0x9E3779B1


class UpdateResult(NamedTuple):
    """What an update did on all ranks, still on the device: reading it is the caller's choice, and may wait."""

    numbers: Tensor  # (5,): loss sum, nll sum, gradient norm, loss scale, 1 if the step was taken
    grad_norms: Tensor  # (P,), one a parameter
    num_tokens: int
    num_sentences: int


class Updater:
    """Model, weights, loss scale and optimizer, moved together by `update`."""

    def __init__(self, model: Any, optimization: OptimizationConfig, precision: PrecisionConfig,
                 dtype: torch.dtype = torch.float32, ranks: Ranks = ALONE, weights: FlatWeights | None = None,
                 note: Callable[[str], None] = lambda _: None) -> None:
        self.model = model
        self.optimization = optimization
        self.ranks = ranks
        self.weights = weights or FlatWeights(model, dtype)
        self.memory = MemoryLimit(note)
        self.optimizer = build_optimizer(optimization.optimizer, self.weights.master)
        self.scale = LossScale(precision, self.weights.master.device, is_on=dtype == torch.float16,
                               default_window=2**14 // (optimization.update_freq[0] * ranks.size))

    def update(self, batches: Sequence[AnyBatch], lr: float, seed: int, runs: Runs = ALL_RUN,
               total: int | None = None) -> UpdateResult:
        """The gradient is that of the summed loss over the number of tokens, however the batches are cut and dealt out.

        All batches of an update run the same layers; the others have a zero gradient and are stepped like the rest.
        `batches` are this rank's of `total` on all ranks; the first of all is the first rank's, the next the second's.
        """
        if not self.model.training:
            self.model.train()  # not each time: a deep model has a thousand parts to tell
        losses, own = self._add_up_gradients(batches, seed, runs, total)
        self.weights.sum_grad_(runs)
        num_tokens, num_sentences = self.ranks.sum(sum(batch.num_target_tokens for batch in own),
                                                   sum(batch.num_sentences for batch in own))
        loss_sums = self.ranks.sum_(torch.stack(losses).sum(dim=0) if losses else self.scale.value.new_zeros(2))
        # A masked batch of very short sentences may have nothing to guess.
        share = 1.0 / max(num_sentences if self.optimization.sentence_avg else num_tokens, 1)
        scale_used = self.scale.value.clone()
        norms = self.weights.grad_norms() * (share / scale_used)
        norm = norms.norm()
        ok = norm.isfinite()
        self.weights.grad.mul_(self._clip_factor(norm) * share / scale_used)
        self.optimizer.step_(self.weights.grad, lr, self._unless_known(ok))
        self.weights.publish_()
        self.scale.update_(ok)
        numbers = torch.cat([loss_sums, torch.stack([norm, scale_used, ok.float()])])
        return UpdateResult(numbers, norms, num_tokens, num_sentences)

    def _add_up_gradients(self, batches: Sequence[AnyBatch], seed: int, runs: Runs,
                          total: int | None) -> tuple[list[Tensor], list[AnyBatch]]:
        """Of all batches, in smaller pieces where memory runs out: loss and nll of each piece, and the pieces."""
        self.weights.zero_grad_()
        while True:
            try:
                return self._pass_over([self.memory.cut(batch) for batch in batches], seed, runs, total)
            except torch.OutOfMemoryError as error:
                if not (self.weights.can_begin_again and self.memory.can_cut_smaller()):
                    raise
                # Otherwise it would keep alive all that the pass has allocated.
                error.__traceback__ = None
            self.memory.free()
            self.weights.forget_grad_()

    def _pass_over(self, batches: Sequence[Sequence[AnyBatch]], seed: int, runs: Runs,
                   total: int | None) -> tuple[list[Tensor], list[AnyBatch]]:
        losses, own = [], []
        for number, pieces in enumerate(batches):
            place = self.ranks.rank + number * self.ranks.size
            # Seeded by the number of the update and the batch's place in it: a resumed run draws the same dropout as one
            # that never stopped, and several ranks the same as one.
            torch.manual_seed(seed + place * SEED_STRIDE)
            is_filler = total is not None and place >= total
            for piece in pieces:
                if number == len(batches) - 1 and piece is pieces[-1]:
                    self.weights.expect_last_(runs)
                self.memory.trying = piece
                sums = batch_loss(self.model, piece, self.optimization.criterion, runs)
                (sums.loss * (0.0 if is_filler else self.scale.value)).backward()
                self.weights.collect_grad_()
                if not is_filler:
                    losses.append(torch.stack([sums.loss.detach(), sums.nll]))
                    own.append(piece)
        return losses, own

    def _unless_known(self, ok: Tensor) -> Tensor | None:
        """None where the host can see for free that all is well, which spares the optimizer its masks."""
        return None if ok.device.type == "cpu" and bool(ok) else ok

    def _clip_factor(self, norm: Tensor) -> Tensor:
        if not self.optimization.clip_norm:
            return torch.ones_like(norm)
        return (self.optimization.clip_norm / (norm + CLIP_EPSILON)).clamp(max=1.0)

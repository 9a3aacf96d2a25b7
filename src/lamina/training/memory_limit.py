"""What to do when a batch does not fit."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from lamina.config.train_options import TrainConfig
from lamina.data.batching import AnyBatch
from lamina.distributed.weights import FlatWeights
from lamina.errors import MemoryShortageError
from lamina.packed import Packed
from lamina.training.passes import Pass


class MemoryLimit:
    """How large a batch may be, as found out by running out of memory; larger ones are cut in two, and in two again.

    The gradient is a sum over tokens that is divided once, so that pieces give the one of the whole.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self.trying: AnyBatch | None = None  # what is being computed
        self._too_large: int | None = None  # the smallest size that did not fit

    def fit(self, passes: Sequence[Pass], accumulate: Callable[[Iterable[Pass]], object], weights: FlatWeights) -> list[Pass]:
        """Accumulate the gradients of all passes, in smaller pieces where memory runs out: those that it took."""
        while True:
            pieces = [piece for one in passes for piece in self.cut(one)]
            try:
                accumulate(self._watched(pieces))
                return pieces
            except torch.OutOfMemoryError as error:
                if not (weights.can_begin_again and self.can_cut_smaller()):
                    raise
                # Otherwise it would keep alive all that the pass has allocated.
                error.__traceback__ = None
            _free()
            weights.forget_grad_()

    def cut(self, one: Pass) -> list[Pass]:
        rows = one.batch.num_sentences
        if self._too_large is None or _size(one.batch) < self._too_large or rows < 2:
            return [one]
        return [piece for half in one.cut_at(rows // 2) for piece in self.cut(half)]

    def can_cut_smaller(self) -> bool:
        """After what was being tried did not fit: remembers that, and says so the first time."""
        batch, self.trying = self.trying, None
        if batch is None or batch.num_sentences < 2:
            return False
        if self._too_large is None:
            self.note(f"the GPU's memory ran out on a batch of {batch.num_sentences} rows: it is computed in two halves, which "
                      "give the same gradient, and so is every batch as large from now on; a smaller --max-tokens or "
                      "--batch-size avoids it")
        self._too_large = _size(batch)
        return True

    def _watched(self, pieces: Sequence[Pass]) -> Iterator[Pass]:
        for piece in pieces:
            self.trying = piece.batch
            yield piece


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _size(batch: AnyBatch) -> int:
    return sum(rows.ids.numel() if isinstance(rows, Packed) else rows.numel() for rows in batch.inputs)


@contextmanager
def advise_when_short(config: TrainConfig) -> Iterator[None]:
    """One line with a way out, instead of the allocator's report."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise MemoryShortageError(f"the GPU's memory ran out. Try: {'; '.join(_remedies(config))}. Checkpoints written so far "
                                  "are whole: the same command resumes from them.") from None


def _remedies(config: TrainConfig) -> list[str]:
    batches, precision = config.batches, config.precision
    name, limit = ("--max-tokens", batches.max_tokens) if batches.max_tokens else ("--batch-size", batches.max_sentences)
    assert limit is not None, "the configuration asks for one of the two"
    remedies = [f"{name} {max(limit // 2, 1)} with --update-freq {2 * config.optimization.update_freq[0]}, which keeps the "
                "effective batch"]
    if not precision.checkpoint_activations:
        remedies.insert(0, "--checkpoint-activations, which computes what it does not keep again")
    ranks = config.ranks
    if ranks.is_sharded and ranks.reshards is None and ranks.fsdp_size is None and config.may_reshard:
        remedies.append("--reshard-after-forward, which keeps no gathered weights")
    if not (precision.fp16 or precision.bf16):
        remedies.append("--bf16")
    return remedies

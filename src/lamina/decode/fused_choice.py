"""The end of a search's step on a GPU in two kernels: the best of the vocabulary, and what becomes of the beams.

Written with torch, choosing takes seventy kernels, which is more than a small model's step has. What is found is the same, but
for equal scores, of which the lowest beam's lowest token comes first here, and torch says nothing.

They have run in Triton's interpreter and been compiled for Hopper GPUs, but not run on a GPU yet. Until then
LAMINA_FUSED_CHOICE=1 turns them on.
"""

# B slots, K beams, V vocabulary, M candidates, N blocks of the vocabulary

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lamina.decode.candidates import CANDIDATES_PER_BEAM, Candidates, most_likely
from lamina.nn.layout import HAS_TRITON

if TYPE_CHECKING:
    from lamina.decode.beam_step import BeamStep

SWITCH = "LAMINA_FUSED_CHOICE"
# Words of the vocabulary that one program looks at, and candidates of a slot that one can hold.
BLOCK = 1024
MOST_FOUND = 2**14
# Candidates are found one after the other: with more beams, sorting is faster.
MOST_BEAMS = 16


def can_fuse(slots: BeamStep, log_probs: Tensor) -> bool:
    """Whether the kernels know this kind of search."""
    vocab = log_probs.size(2)
    return (log_probs.is_cuda and HAS_TRITON and os.environ.get(SWITCH) == "1"
            and slots.search.strategy is most_likely and slots.constraints is None and log_probs.dtype == torch.float32
            and slots.config.beam <= MOST_BEAMS and vocab >= CANDIDATES_PER_BEAM * slots.config.beam
            and _num_found(slots.config.beam, vocab) <= MOST_FOUND)


def choose_(slots: BeamStep, log_probs: Tensor, steps: Tensor) -> Candidates:
    """What becomes of all slots' beams, written where it is kept: the beams that continue. log_probs: (B, K, V); steps: (B,)"""
    from lamina.decode import choice_kernels as kernels

    log_probs = log_probs.contiguous()
    batch, num_beams, vocab = log_probs.shape
    number, num_blocks = CANDIDATES_PER_BEAM * num_beams, -(-vocab // BLOCK)
    best_totals = log_probs.new_empty(batch * num_beams, num_blocks, number)
    best_tokens = torch.empty_like(best_totals, dtype=torch.int32)
    parents = torch.empty_like(slots.tokens)
    first, *others = slots.states
    kernels.best_of_blocks[(batch * num_beams, num_blocks)](log_probs, slots.scores, best_totals, best_tokens, vocab, M=number,
                                                            BLOCK=BLOCK)
    kernels.choose[(batch,)](
        log_probs, best_totals, best_tokens, steps, slots.rules.limits, slots.tokens, slots.scores, parents, slots.num_ended,
        slots.is_done.view(torch.uint8), slots.trace.notes, first.ancestry, vocab, num_blocks, slots.trace.notes.size(1),
        first.capacity, first.length, K=num_beams, M=number, RANKS=_power(number), FOUND=_power(_num_found(num_beams, vocab)))
    if num_beams > 1:
        for state in others:
            state.reorder_(parents)
    return Candidates(slots.scores, slots.tokens, parents)


def _num_found(num_beams: int, vocab: int) -> int:
    return CANDIDATES_PER_BEAM * num_beams**2 * -(-vocab // BLOCK)


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()

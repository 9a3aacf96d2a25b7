"""The end of a search's step on a GPU in two kernels: the best of the vocabulary, and what becomes of the beams.

Written with torch, choosing takes seventy kernels, which is more than a small model's step has. What is found is the same, but
for equal scores, of which the lowest beam's lowest token comes first here, and torch says nothing.

Like `most_likely`, they look for the best among spans of the vocabulary first. nn/step_attention.py has the switch.
"""

# B slots, K beams, V vocabulary, M candidates, N spans of the vocabulary

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lamina.decode.candidates import CANDIDATES_PER_BEAM, Candidates, most_likely
from lamina.nn.step_attention import has_kernels

if TYPE_CHECKING:
    from lamina.decode.beam_step import BeamStep

# Tokens of the vocabulary that are looked at together, by entries that they are of: about the root of that.
SPANS = {2**17: 64, 2**19: 128, 2**31: 256}
SPANS_OF_PROGRAM = 32
# Spans that one program can hold.
MOST_SPANS = 2**14
# Candidates are found one after the other: with more beams, sorting is faster.
MOST_BEAMS = 16
WARPS = 4


def can_fuse(slots: BeamStep, log_probs: Tensor) -> bool:
    """Whether the kernels know this kind of search."""
    vocab = log_probs.size(2)
    return (has_kernels(log_probs) and slots.search.strategy is most_likely and slots.constraints is None
            and log_probs.dtype == torch.float32
            and slots.config.beam <= MOST_BEAMS and vocab >= CANDIDATES_PER_BEAM * slots.config.beam
            and slots.config.beam * -(-vocab // _span(slots.config.beam, vocab)) <= MOST_SPANS)


def choose_(slots: BeamStep, log_probs: Tensor, steps: Tensor, min_length: int = 0) -> Candidates:
    """What becomes of all slots' beams, written where it is kept: the beams that continue. log_probs: (B, K, V); steps: (B,)

    Nobody says a pad, or ends before `min_length` tokens of its own.
    """
    from lamina.decode import choice_kernels as kernels

    log_probs = log_probs.contiguous()
    batch, num_beams, vocab = log_probs.shape
    number, span = CANDIDATES_PER_BEAM * num_beams, _span(num_beams, vocab)
    num_spans = -(-vocab // span)
    bests = log_probs.new_empty(batch * num_beams, num_spans)
    parents = torch.empty_like(slots.tokens)
    first, *others = slots.states
    kernels.best_of_spans[(batch * num_beams, -(-num_spans // SPANS_OF_PROGRAM))](
        log_probs, slots.scores, steps, slots.rules.limits, slots.rules.num_given, bests, vocab, num_spans, min_length,
        K=num_beams, SPAN=span, SPANS=SPANS_OF_PROGRAM)
    kernels.choose[(batch,)](
        log_probs, bests, steps, slots.rules.limits, slots.rules.num_given, slots.tokens, slots.scores, parents,
        slots.num_ended, slots.is_done.view(torch.uint8), slots.trace.notes, first.ancestry, vocab, num_spans,
        slots.trace.notes.size(1), first.capacity, first.length, min_length, K=num_beams, M=number, SPAN=span,
        RANKS=_power(number), FOUND=_power(num_beams * num_spans), num_warps=WARPS)
    if num_beams > 1:
        for state in others:
            state.reorder_(parents)
    return Candidates(slots.scores, slots.tokens, parents)


def _span(num_beams: int, vocab: int) -> int:
    return next(span for most, span in SPANS.items() if num_beams * vocab <= most)


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()

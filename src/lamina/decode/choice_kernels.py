"""Triton kernels that choose the beams of a step and write it down (decode/fused_choice.py says when and why)."""

# B slots, K beams, V vocabulary, M candidates, N blocks of the vocabulary
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: N803 (sizes known to the compiler are written as Triton's users write them)

from __future__ import annotations

import triton
import triton.language as tl

from lamina.decode.backtrace import END_PARENT, END_SCORE, PARENT, SCORE, TOKEN
from lamina.text.vocabulary import EOS

NOTES = tl.constexpr(5)
NOTE_TOKEN, NOTE_PARENT, NOTE_SCORE = tl.constexpr(TOKEN), tl.constexpr(PARENT), tl.constexpr(SCORE)
NOTE_END_PARENT, NOTE_END_SCORE = tl.constexpr(END_PARENT), tl.constexpr(END_SCORE)
END = tl.constexpr(EOS)
COLUMNS = tl.constexpr(64)  # steps of the past that are moved together


@triton.jit
def best_of_blocks(log_probs, scores, best_totals, best_tokens, vocab, M: tl.constexpr, BLOCK: tl.constexpr):
    """The M best continuations of a beam in a block of the vocabulary, the best first. Results: (B * K, N, M)"""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    places = tl.arange(0, BLOCK)
    tokens = block * BLOCK + places
    totals = tl.load(log_probs + row * vocab + tokens, mask=tokens < vocab, other=float("-inf")) + tl.load(scores + row)
    totals = tl.where(totals != totals, float("inf"), totals)  # NaN counts as the largest, as it does for torch.topk
    first = (row * tl.num_programs(1) + block) * M
    for number in range(M):
        best, place = tl.max(totals, 0, return_indices=True)
        tl.store(best_totals + first + number, best)
        tl.store(best_tokens + first + number, block * BLOCK + place)
        totals = tl.where(places == place, float("-inf"), totals)


# One kernel for all lengths.
@triton.jit(do_not_specialize=["num_blocks", "num_steps", "capacity", "length"])
def choose(log_probs, best_totals, best_tokens, steps, limits, tokens, scores, parents, num_ended, is_done, notes, ancestry,
           vocab, num_blocks, num_steps, capacity, length, K: tl.constexpr, M: tl.constexpr, RANKS: tl.constexpr,
           FOUND: tl.constexpr):
    """Of a slot: the M best of what was found, the hypotheses that end among the first K, and the K beams that continue."""
    slot = tl.program_id(0).to(tl.int64)
    number_found = K * num_blocks * M
    first_found = slot * number_found
    places, ranks = tl.arange(0, FOUND), tl.arange(0, RANKS)
    found = tl.load(best_totals + first_found + places, mask=places < number_found, other=float("-inf"))
    chosen = tl.zeros([RANKS], tl.int32)
    bests = tl.full([RANKS], float("-inf"), tl.float32)
    for number in range(M):
        best, place = tl.max(found, 0, return_indices=True)
        chosen = tl.where(ranks == number, place, chosen)
        bests = tl.where(ranks == number, best, bests)
        found = tl.where(places == place, float("-inf"), found)
    is_candidate = ranks < M
    token = tl.load(best_tokens + first_found + chosen, mask=is_candidate, other=0)
    beam = chosen // (num_blocks * M)
    total = (tl.load(log_probs + (slot * K + beam) * vocab + token, mask=is_candidate, other=0.0)
             + tl.load(scores + slot * K + beam, mask=is_candidate, other=0.0))
    # Where nothing was left to find, the place that is named has been taken before.
    total = tl.where(bests == float("-inf"), float("-inf"), total)

    # As _ends and _survivors of decode/beam_step.py.
    step, limit, was_done, before = (tl.load(steps + slot), tl.load(limits + slot), tl.load(is_done + slot),
                                     tl.load(num_ended + slot))
    is_end = is_candidate & (token == END)
    may_end = is_end & (ranks < K) & (total > float("-inf")) & (was_done == 0)
    ends = may_end & (tl.cumsum(may_end.to(tl.int32), 0) <= K - before)
    continues = is_candidate & (token != END)
    place = tl.where(continues, tl.cumsum(continues.to(tl.int32), 0),
                     tl.sum(continues.to(tl.int32), 0) + tl.cumsum(is_end.to(tl.int32), 0)) - 1
    survives = is_candidate & (place < K)
    score = tl.where(is_end, float("-inf"), total)

    tl.debug_barrier()  # all of the old scores are read
    tl.store(tokens + slot * K + place, token.to(tl.int64), mask=survives)
    tl.store(scores + slot * K + place, score, mask=survives)
    tl.store(parents + slot * K + place, beam.to(tl.int64), mask=survives)
    note = notes + (slot * num_steps + step) * NOTES * K
    tl.store(note + NOTE_TOKEN * K + place, token, mask=survives)
    tl.store(note + NOTE_PARENT * K + place, beam, mask=survives)
    tl.store(note + NOTE_SCORE * K + place, score.to(tl.int32, bitcast=True), mask=survives)
    tl.store(note + NOTE_END_PARENT * K + ranks, beam, mask=ranks < K)
    tl.store(note + NOTE_END_SCORE * K + ranks, tl.where(ends, total, float("-inf")).to(tl.int32, bitcast=True),
             mask=ranks < K)
    ended = before + tl.sum(ends.to(tl.int64), 0)
    is_alive = tl.sum((survives & (score != float("-inf"))).to(tl.int32), 0) > 0
    tl.store(num_ended + slot, ended)
    tl.store(is_done + slot, ((was_done != 0) | (ended >= K) | (limit <= step) | (is_alive == 0)).to(tl.uint8))

    if K > 1:
        # As StepState.reorder_ of nn/cache.py.
        tl.debug_barrier()  # the parents are written
        is_beam = ranks < K
        parent = tl.load(parents + slot * K + ranks, mask=is_beam, other=0)
        for start in range(0, length, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            mask = is_beam[:, None] & (columns < length)[None, :]
            past = tl.load(ancestry + (slot * K + parent)[:, None] * capacity + columns[None, :], mask=mask, other=0)
            tl.debug_barrier()
            tl.store(ancestry + (slot * K + ranks)[:, None] * capacity + columns[None, :], past, mask=mask)

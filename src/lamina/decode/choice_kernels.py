"""Triton kernels that choose the beams of a step and write it down (decode/fused_choice.py says when and why)."""

# B slots, K beams, V vocabulary, M candidates, N spans of the vocabulary
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: N803 (sizes known to the compiler are written as Triton's users write them)

from __future__ import annotations

import triton
import triton.language as tl

from lamina.decode.backtrace import END_PARENT, END_SCORE, PARENT, SCORE, TOKEN
from lamina.text.vocabulary import EOS, PAD

NOTES = tl.constexpr(5)
NOTE_TOKEN, NOTE_PARENT, NOTE_SCORE = tl.constexpr(TOKEN), tl.constexpr(PARENT), tl.constexpr(SCORE)
NOTE_END_PARENT, NOTE_END_SCORE = tl.constexpr(END_PARENT), tl.constexpr(END_SCORE)
END, PADDING = tl.constexpr(EOS), tl.constexpr(PAD)
COLUMNS = tl.constexpr(64)  # steps of the past that are moved together


@triton.jit(do_not_specialize=["min_length"])
def best_of_spans(log_probs, scores, steps, limits, num_given, bests, vocab, num_spans, min_length, K: tl.constexpr,
                  SPAN: tl.constexpr, SPANS: tl.constexpr):
    """The best continuation of a beam in each span of the vocabulary. bests: (B * K, N)"""
    row = tl.program_id(0).to(tl.int64)
    may_end = _may_end(steps, limits, num_given, row // K, min_length)
    spans = tl.program_id(1) * SPANS + tl.arange(0, SPANS)
    tokens = spans[:, None] * SPAN + tl.arange(0, SPAN)[None, :]
    own = tl.load(log_probs + row * vocab + tokens, mask=_may_be_said(tokens, vocab, may_end), other=float("-inf"))
    best = tl.max(_largest_if_nan(own), 1) + tl.load(scores + row)
    tl.store(bests + row * num_spans + spans, _largest_if_nan(best), mask=spans < num_spans)


@triton.jit
def _largest_if_nan(values):
    """As torch.topk sees it."""
    return tl.where(values != values, float("inf"), values)


@triton.jit
def _may_end(steps, limits, num_given, slot, min_length):
    """Whether a hypothesis is as long as it must be; at its longest length it ends in any case."""
    step = tl.load(steps + slot)
    return (step >= tl.load(num_given + slot) + min_length) | (step >= tl.load(limits + slot))


@triton.jit
def _may_be_said(tokens, vocab, may_end):
    return (tokens < vocab) & (tokens != PADDING) & (may_end | (tokens != END))


@triton.jit
def _in_order(numbers, RANKS: tl.constexpr):
    """From the smallest to the largest; all of them differ."""
    ranks = tl.arange(0, RANKS)
    place = tl.sum((numbers[None, :] < numbers[:, None]).to(tl.int32), 1)
    return tl.sum(tl.where(place[:, None] == ranks[None, :], numbers[:, None], 0), 0)


# One kernel for all lengths.
@triton.jit(do_not_specialize=["num_steps", "capacity", "length", "min_length"])
def choose(log_probs, bests, steps, limits, num_given, tokens, scores, parents, num_ended, is_done, notes, ancestry, vocab,
           num_spans, num_steps, capacity, length, min_length, K: tl.constexpr, M: tl.constexpr, SPAN: tl.constexpr,
           RANKS: tl.constexpr, FOUND: tl.constexpr):
    """Of a slot: the M best continuations, the hypotheses that end among the first K, and the K beams that continue.

    None of the M best lies outside the M spans whose best are the best; of equal ones, the first.
    """
    slot = tl.program_id(0).to(tl.int64)
    places, ranks = tl.arange(0, FOUND), tl.arange(0, RANKS)
    found = tl.load(bests + slot * K * num_spans + places, mask=places < K * num_spans, other=float("-inf"))
    # A span that is not chosen comes after all others.
    spans = K * num_spans + ranks
    for number in range(M):
        best, place = tl.max(found, 0, return_indices=True)
        spans = tl.where(ranks == number, tl.where(best > float("-inf"), place, K * num_spans + number), spans)
        found = tl.where(places == place, float("-inf"), found)
    spans = _in_order(spans, RANKS)  # so that of equal continuations the first one is found first
    beam_of, first = spans // num_spans, spans % num_spans * SPAN
    token_of = first[:, None] + tl.arange(0, SPAN)[None, :]
    may_end = _may_end(steps, limits, num_given, slot, min_length)
    is_token = (spans < K * num_spans)[:, None] & _may_be_said(token_of, vocab, may_end)
    totals = tl.load(log_probs + (slot * K + beam_of)[:, None] * vocab + token_of, mask=is_token, other=float("-inf"))
    totals += tl.load(scores + slot * K + beam_of, mask=spans < K * num_spans, other=float("-inf"))[:, None]
    totals = tl.reshape(_largest_if_nan(totals), [RANKS * SPAN])
    entries = tl.arange(0, RANKS * SPAN)
    chosen = tl.zeros([RANKS], tl.int32)
    highest = tl.full([RANKS], float("-inf"), tl.float32)
    for number in range(M):
        best, place = tl.max(totals, 0, return_indices=True)
        chosen = tl.where(ranks == number, place, chosen)
        highest = tl.where(ranks == number, best, highest)
        totals = tl.where(entries == place, float("-inf"), totals)
    is_candidate = ranks < M
    # Where nothing was left to find, the place that is named has been taken before, or is none.
    is_found = highest > float("-inf")
    span = tl.sum(tl.where((chosen // SPAN)[:, None] == ranks[None, :], spans[None, :], 0), 1)
    span = tl.where(is_found, span, 0)
    beam, token = span // num_spans, tl.where(is_found, span % num_spans * SPAN + chosen % SPAN, 0)
    total = (tl.load(log_probs + (slot * K + beam) * vocab + token, mask=is_candidate, other=0.0)
             + tl.load(scores + slot * K + beam, mask=is_candidate, other=0.0))
    total = tl.where(is_found, total, float("-inf"))

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

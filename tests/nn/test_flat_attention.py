"""Attention over flat rows against one mask over all pairs of tokens."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lamina.nn.flat_attention import BLOCK_COST, PLACE_COST, Blocks, cut


def bounds_of(sizes):
    return torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32)


def rows(sizes, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(sizes), width, generator=generator, dtype=torch.float64).requires_grad_()


def over_all_pairs(query, key, value, sizes, read_sizes, num_heads, *, is_causal):
    own, read = (torch.repeat_interleave(torch.arange(len(some)), torch.tensor(some)) for some in (sizes, read_sizes))
    may_attend = own[:, None] == read
    if is_causal:
        may_attend = may_attend.tril()
    heads = (part.unflatten(1, (num_heads, -1)).transpose(0, 1) for part in (query, key, value))
    return F.scaled_dot_product_attention(*heads, attn_mask=may_attend).transpose(0, 1).flatten(1)


SIZES = [3, 40, 5, 1, 3, 90, 41, 2, 7, 0, 33]


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_row_that_reads_itself(is_causal):
    qkv = rows(SIZES, 3 * 8)
    ours = Blocks(bounds_of(SIZES)).attend(qkv, None, 2, is_causal=is_causal, dropout_p=0.0)
    wanted = over_all_pairs(*qkv.chunk(3, dim=1), SIZES, SIZES, 2, is_causal=is_causal)
    torch.testing.assert_close(ours, wanted)
    weights = rows(SIZES, 8, seed=1).detach()
    (ours_grad,), (wanted_grad,) = (torch.autograd.grad((out * weights).sum(), qkv) for out in (ours, wanted))
    torch.testing.assert_close(ours_grad, wanted_grad)


def test_a_row_that_reads_another_one():
    read_sizes = [9, 4, 60, 2, 1, 30, 5, 8, 8, 0, 70]
    query, memory = rows(SIZES, 8), rows(read_sizes, 2 * 8, seed=1)
    ours = Blocks(bounds_of(SIZES), bounds_of(read_sizes)).attend(query, memory, 2, is_causal=False, dropout_p=0.0)
    wanted = over_all_pairs(query, *memory.chunk(2, dim=1), SIZES, read_sizes, 2, is_causal=False)
    torch.testing.assert_close(ours, wanted)
    weights = rows(SIZES, 8, seed=2).detach()
    gradients = [torch.autograd.grad((out * weights).sum(), (query, memory)) for out in (ours, wanted)]
    torch.testing.assert_close(*gradients)


def test_what_nobody_reads_gets_no_gradient():
    """Pads behind the sentences may be a sentence on one side and nothing on the other."""
    sizes, read_sizes = [3, 5, 0], [4, 2, 6]
    query, memory = rows(sizes, 8), rows(read_sizes, 16)
    out = Blocks(bounds_of(sizes), bounds_of(read_sizes)).attend(query, memory, 2, is_causal=False, dropout_p=0.0)
    out.square().sum().backward()
    assert memory.grad[:6].any(dim=1).all()
    assert not memory.grad[6:].any()
    out = Blocks(bounds_of(read_sizes), bounds_of(sizes)).attend(rows(read_sizes, 8), rows(sizes, 16), 2, is_causal=False,
                                                                dropout_p=0.0)
    assert out.isfinite().all()


def test_blocks_cost_as_little_as_they_can():
    random = np.random.default_rng(0)
    for _ in range(20):
        sizes = np.sort(random.choice([2, 5, 9, 30, 80, 200], 40))
        read_sizes = random.integers(1, 100, 40)
        edges = (np.flatnonzero(np.diff(sizes)) + 1).tolist()

        def cost(cuts, sizes=sizes, read_sizes=read_sizes):
            blocks = pairwise([0, *cuts, len(sizes)])
            return sum(BLOCK_COST + (end - first) * (sizes[end - 1] * (read_sizes[first:end].max() + PLACE_COST)
                                                     + read_sizes[first:end].max() * PLACE_COST) for first, end in blocks)

        every = [[edge for bit, edge in enumerate(edges) if number >> bit & 1] for number in range(2 ** len(edges))]
        assert cost(cut(sizes, read_sizes)) == min(map(cost, every))
    assert cut(np.arange(1, 300), np.arange(1, 300))[-1] < 299

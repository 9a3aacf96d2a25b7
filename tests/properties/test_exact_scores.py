"""On a CPU a sentence's scores have the same bits in whatever company it is searched, where the CPU's kernels let them."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lamina.config.search_options import SearchConfig
from lamina.decode.search import Search
from lamina.nn.heads import SurfaceHead
from lamina.nn.layout import VECTOR, Layout, whole_vectors
from lamina.nn.linear import has_onednn
from lamina.nn.prepacked import PrepackedLinear, prepack_
from lamina.text.vocabulary import EOS
from tiny import FUSIONS, VOCABULARY_SIZE, tiny_model

CPU = torch.device("cpu")


def kernels_are_exact(dim=16, heads=2):
    """Whether a row's product and attention do not depend on other rows, or on padding in whole vectors."""
    torch.manual_seed(0)
    x, linear = torch.randn(150, dim), torch.nn.Linear(dim, dim)
    packed = PrepackedLinear(linear.weight, linear.bias)
    key, query = torch.randn(3, heads, 7, dim // heads), torch.randn(3, heads, 5, dim // heads)

    def attended(rows, width):
        bias = torch.zeros(rows, 1, 1, width)
        bias[..., 7:] = -torch.inf
        padded = F.pad(key[:rows], (0, 0, 0, width - 7))
        return F.scaled_dot_product_attention(query[:rows], padded, padded, attn_mask=bias)

    with torch.inference_mode():
        product = all(torch.equal(packed(x[:number]), packed(x)[:number]) for number in range(1, 150))
        return product and all(torch.equal(attended(rows, width), attended(3, VECTOR)[:rows])
                               for rows in (1, 2, 3) for width in (VECTOR, 2 * VECTOR, 3 * VECTOR))


def joining(search, rows, seed):
    """They come a few at a time, into six slots."""
    generator = np.random.default_rng(seed)
    scheduler, sentences, found = search.open(6, CPU, width=48), search.sentences(), {}
    waiting = [sentences.sentence(number, row) for number, row in enumerate(rows)]
    while waiting or not scheduler.is_idle:
        for _ in range(generator.choice([0, 0, 1, 3])):
            if waiting:
                scheduler.add(waiting.pop())
        found.update(scheduler.step())
    return found


@pytest.mark.skipif(not has_onednn(), reason="this CPU has no prepacked products")
@pytest.mark.parametrize("changes", FUSIONS.values(), ids=FUSIONS.keys())
def test_company_changes_no_bit(changes):
    if not kernels_are_exact():
        pytest.skip("the kernels of this CPU round by the shape of a batch")
    model = tiny_model(seed=1, **changes).eval()
    prepack_(model, PrepackedLinear)
    search = Search([model], SearchConfig(beam=5, nbest=5, max_length_factor=1.0, max_length_offset=3))
    generator = np.random.default_rng(2)
    rows = [np.append(generator.integers(4, VOCABULARY_SIZE, size), EOS) for size in generator.integers(4, 40, 24)]
    expected = {number: next(search.each([row], num_slots=1, device=CPU))[1] for number, row in enumerate(rows)}
    # A surface is pooled over all places, and learned gates are computed side by side: how many there are decides on rounding.
    has_surface = isinstance(model.head, SurfaceHead)
    for found in (dict(search.each(rows, num_slots=24, device=CPU)), joining(search, rows, 1)):
        for number, own in expected.items():
            for one, other in zip(found[number], own, strict=True):
                assert one.ids == other.ids
                assert one.token_scores == (pytest.approx(other.token_scores, abs=1e-5) if has_surface else other.token_scores)


def test_rows_are_padded_to_whole_vectors_where_there_is_no_gradient():
    layout, x = Layout.of_ids(torch.tensor([[4, 5, 1]]), pad_id=1), torch.ones(1, 3, 2)
    assert whole_vectors(x, layout) == (x, layout)
    with torch.no_grad():
        wide, wider = whole_vectors(x, layout)
        assert wide.shape == (1, VECTOR, 2)
        assert wide[0, 3:].eq(0).all()
        assert wider.is_pad.tolist() == [[False, False] + [True] * (VECTOR - 2)]
        assert whole_vectors(wide, wider) == (wide, wider)

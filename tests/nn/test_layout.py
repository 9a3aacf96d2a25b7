"""Sources without their padding are encoded as with it."""

import pytest
import torch

from lamina.nn.layout import FLAT_MULTIPLE, FlatLayout, Layout
from lamina.text.vocabulary import EOS, PAD
from tiny import FUSIONS, MIXINGS, tiny_model

ROWS = [[4, 5, 6, 7, 8, 9, 10, EOS], [5, EOS], [6, 7, EOS], [*range(4, 23), EOS]]


def padded(rows):
    return torch.tensor([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows])


def flat_of(ids):
    return FlatLayout.of(ids, Layout.of_ids(ids, PAD))


@pytest.mark.parametrize("changes", [{}, *FUSIONS.values(), *MIXINGS.values()], ids=["plain", *FUSIONS, *MIXINGS])
@torch.no_grad()
def test_a_search_begins_with_the_same(changes, monkeypatch):
    model = tiny_model(seed=1, **changes).eval()
    source, tokens = padded(ROWS), torch.tensor([[4, 5], [6, 7], [8, 9], [10, 11]])
    assert flat_of(source).ids.size(1) < source.numel()
    state = model.start(source, 8, 2)
    monkeypatch.setattr(FlatLayout, "of", lambda ids, layout: None)
    expected = model.start(source, 8, 2)
    for _ in range(2):
        torch.testing.assert_close(model.step(tokens, state), model.step(tokens, expected), rtol=1e-5, atol=1e-5)


def test_every_token_is_there_once_and_pads_are_nobody_elses():
    source = padded(ROWS)
    with torch.no_grad():
        flat = flat_of(source)
    number = sum(map(len, ROWS))
    assert flat.ids[0, :number].tolist() == [token for row in ROWS for token in row]
    assert flat.positions[0, :number].tolist() == [2 + place for row in ROWS for place in range(len(row))]
    assert flat.ids.size(1) % FLAT_MULTIPLE == 0
    x = torch.arange(flat.ids.size(1), dtype=torch.float32)[None, :, None]
    spread = flat.spread(x)[:, :, 0]
    assert spread.shape == (4, 32)
    first = 0
    for row, own in zip(ROWS, spread.tolist(), strict=True):
        last = first + len(row) - 1
        assert own == [*range(first, last + 1), *[last] * (32 - len(row))]
        first = last + 1
    assert flat.spread(x).flatten(0, 1).index_select(0, flat.back)[:number, 0].tolist() == list(range(number))


@torch.no_grad()
def test_a_sentence_that_becomes_nan_spoils_no_other():
    model = tiny_model(seed=1, share_all=False).eval()
    source = padded(ROWS)
    tokens = torch.tensor([[4], [6], [8], [10]])
    expected = model.step(tokens, model.start(source, 8, 1))
    model.source_embedding.table.weight[22] = torch.nan  # in the longest row alone
    found = model.step(tokens, model.start(source, 8, 1))
    assert found[3].isnan().all()
    torch.testing.assert_close(found[:3], expected[:3], rtol=1e-5, atol=1e-5)


def test_where_rows_stay_padded():
    source = padded(ROWS)
    assert flat_of(source) is None, "with gradients"
    with torch.no_grad():
        assert flat_of(source.flip(1)) is None, "padded on the left"
        assert flat_of(padded([ROWS[0]] * 5)) is None, "hardly any padding"

"""Groups of texts that step together say what each says by itself."""

import pytest
import torch

from lamina.nn.joined_states import ByGroup, JoinedState, by_group
from lamina.text.vocabulary import EOS
from tiny import FUSIONS, tiny_model


def test_rows_are_split_by_group_and_joined_again():
    rows = torch.arange(5.0)[:, None]
    apart = by_group(torch.mul, (rows,), ByGroup([2, 3], [1, 10]))
    assert apart.flatten().tolist() == [0, 1, 20, 30, 40]
    assert by_group(torch.mul, (rows,), 2).flatten().tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("changes", FUSIONS.values(), ids=FUSIONS.keys())
@torch.no_grad()
def test_each_group_looks_at_its_own_past_and_source(changes):
    """Three groups that come one after the other, and of which one loses a text."""
    model = tiny_model(seed=1, **changes).eval()
    sources = [torch.tensor(rows) for rows in ([[4, 5, 6, 7, EOS], [8, 9, EOS, 1, 1]], [[5, EOS]], [[6, 7, EOS], [7, 4, EOS]])]
    alone, expected = [model.start(source, 8, 2) for source in sources], {}
    joined: JoinedState = JoinedState(model.start(sources[0], 8, 2))
    generator = torch.Generator().manual_seed(1)
    for step in range(5):
        if step in (1, 2):
            joined.join_(model.start(sources[step], 8, 2))
        if step == 3:
            joined.select_(torch.tensor([1, 2, 3, 4]))
            alone[0].select_(torch.tensor([1]))
        there = alone[: 1 + min(step, 2)]
        tokens = [torch.randint(4, 12, (len(state.steps), 2), generator=generator) for state in there]
        expected = torch.cat([model.step(own, state) for own, state in zip(tokens, there, strict=True)])
        torch.testing.assert_close(model.step(torch.cat(tokens), joined), expected, rtol=1e-5, atol=1e-5)
        parents = [torch.randint(0, 2, own.shape, generator=generator) for own in tokens]
        joined.reorder_(torch.cat(parents))
        for state, own in zip(there, parents, strict=True):
            state.reorder_(own)
    assert joined.steps.tolist() == [5, 4, 3, 3]

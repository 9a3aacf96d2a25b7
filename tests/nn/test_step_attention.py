"""The attention of a decoding step in one kernel is torch's. On a CPU Triton's interpreter runs it, where it is there."""

import pytest
import torch

from interpreted import check_interpreted, needs_interpreter, starts_interpreter
from lamina.config.search_options import SearchConfig
from lamina.decode.search import Search
from lamina.nn import step_attention
from lamina.nn.attention import CrossAttention, SelfAttention
from lamina.nn.cache import KeyValues, StepState
from lamina.nn.layout import Layout
from lamina.nn.stack import ALL_LAYERS
from tiny import tiny_language_model, tiny_model, tiny_pair

BATCH, DIM, PAD = 3, 48, 1


@starts_interpreter
def test_in_the_interpreter():
    check_interpreted(__file__)


@pytest.fixture
def with_kernels(monkeypatch):
    """As on a GPU, in small blocks."""
    monkeypatch.setattr(step_attention, "suits", lambda query: not torch.is_grad_enabled())
    monkeypatch.setattr(step_attention, "STEPS", 4)


def state_of(past, num_beams, steps):
    state = StepState(layers=[past], steps=steps, num_beams=num_beams, max_length=32, active=ALL_LAYERS)
    state.differ_()
    return state


@needs_interpreter
@pytest.mark.parametrize("num_beams", [1, 5])
@pytest.mark.parametrize("num_heads", [1, 2, 3])  # of 48, 24 and 16 channels
@torch.no_grad()
def test_steps_of_beams_that_change_places(num_beams, num_heads, monkeypatch):
    torch.manual_seed(0)
    attention = SelfAttention(DIM, num_heads, 0.0).eval()
    stepped = torch.tensor([True, False, True])
    steps = torch.zeros(BATCH, dtype=torch.long)
    states = [state_of(KeyValues(BATCH, num_beams, num_heads, torch.empty(0, DIM)), num_beams, steps.clone()) for _ in range(2)]
    for number in range(11):
        x, parents = torch.randn(BATCH, num_beams, DIM), torch.randint(num_beams, (BATCH, num_beams))
        found = []
        for has_kernel, state in enumerate(states):
            monkeypatch.setattr(step_attention, "suits", lambda *_, has_kernel=has_kernel: bool(has_kernel))
            turn = state.turn(state.begin(), x.dtype)
            found.append(attention.step(x, state.layers[0], turn))
            state.finished_in(~stepped if number % 3 == 1 else torch.zeros(BATCH, dtype=torch.bool))
            state.end()
            state.reorder_(parents)
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    kept = [state.layers[0].data[:, : state.length] for state in states]
    for slot, number in enumerate(states[0].steps.tolist()):
        torch.testing.assert_close(kept[0][slot, :number], kept[1][slot, :number])


@needs_interpreter
@pytest.mark.parametrize("num_beams", [1, 5, 17])
@pytest.mark.parametrize("size", [7, 40])
@torch.no_grad()
def test_beams_read_their_source(num_beams, size, monkeypatch):
    torch.manual_seed(0)
    attention = CrossAttention(DIM, DIM, 2, 0.0).eval()
    ids = torch.full((BATCH, size), 9)
    ids[1, 4:] = PAD
    ids[2, :-2] = PAD  # padding on the left may fill a block
    layout = Layout.of_ids(ids, PAD).as_bias(torch.float32)
    x, memory = torch.randn(BATCH, num_beams, DIM), torch.randn(BATCH, size, DIM)
    halves = tuple(part.contiguous() for part in attention.halves(attention.project(memory)))
    expected = attention.step(x, halves, layout)
    monkeypatch.setattr(step_attention, "suits", lambda *_: True)
    torch.testing.assert_close(attention.step(x, halves, layout), expected, rtol=1e-5, atol=1e-6)


@needs_interpreter
def test_what_a_row_finds_does_not_depend_on_its_neighbours(with_kernels):
    torch.manual_seed(0)
    attention = CrossAttention(DIM, DIM, 2, 0.0).eval()
    x, memory = torch.randn(2, 3, DIM), torch.randn(2, 90, DIM)
    with torch.no_grad():
        keys, values = (part.contiguous() for part in attention.halves(attention.project(memory)))
        ids = torch.full((2, 90), 9)
        ids[0, 20:] = PAD
        query = attention.q_proj(x)
        wide = step_attention.read_source(query, keys, values, Layout.of_ids(ids, PAD).as_bias(x.dtype).may_attend)
        narrow = step_attention.read_source(query[:1], keys[:1, :, :20].contiguous(), values[:1, :, :20].contiguous(),
                                            Layout.of_ids(ids[:1, :20], PAD).as_bias(x.dtype).may_attend)
    assert torch.equal(wide[:1], narrow)


def found_by(model, config, source, prefix=None):
    found = Search([model], config).run(source, prefix)
    return [[(one.ids, pytest.approx(one.score, abs=1e-5)) for one in own] for own in found]


@needs_interpreter
@pytest.mark.parametrize("beam", [1, 3])
def test_searches(beam, with_kernels, monkeypatch):
    config = SearchConfig(beam=beam, nbest=beam, max_length_offset=6)
    source, _ = tiny_pair(batch=4)
    own = found_by(tiny_model(seed=3, share_all=False), config, source)
    prompts = source[:, :3]
    continued = found_by(tiny_language_model(seed=2), config, source, prompts)
    monkeypatch.setattr(step_attention, "suits", lambda *_: False)
    assert found_by(tiny_model(seed=3, share_all=False), config, source) == own
    assert found_by(tiny_language_model(seed=2), config, source, prompts) == continued


def test_a_cpu_and_a_gradient_take_torchs_attention():
    with torch.inference_mode():
        assert not step_attention.suits(torch.zeros(1, 2, 1, DIM))

"""Rows of a search in one kernel each are torch's. On a CPU Triton's interpreter runs them, where it is there."""

import pytest
import torch
from torch import nn

from interpreted import check_interpreted, needs_interpreter, starts_interpreter
from lamina.nn import step_rows
from lamina.nn.cross_entropy import Term
from lamina.nn.embedding import InputEmbedding, OutputTable, TokenTable
from lamina.nn.heads import LinearHead
from lamina.nn.positions import LearnedPositions, SinusoidalPositions
from lamina.nn.residual import Add, DeepNorm, OmegaAdd, PostNorm

BATCH, BEAMS, DIM, VOCAB = 3, 2, 24, 40


@starts_interpreter
def test_in_the_interpreter():
    check_interpreted(__file__)


@pytest.fixture
def calls(monkeypatch):
    """As on a GPU; what was computed by kernels."""
    calls = []
    for name in ("add_norm", "embed", "log_softmax"):
        real = getattr(step_rows, name)
        monkeypatch.setattr(step_rows, name, lambda *given, real=real, name=name: calls.append(name) or real(*given))
    monkeypatch.setattr(step_rows, "suits", lambda *_, **__: torch.is_inference_mode_enabled())
    return calls


@needs_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("add", [Add(), OmegaAdd(DIM), DeepNorm(1.5)], ids=["plain", "omega", "constant"])
@torch.no_grad()
def test_a_branch_and_a_norm(add, dtype, calls):
    torch.manual_seed(0)
    norm = nn.LayerNorm(DIM)
    for part in (*norm.parameters(), *add.parameters()):
        nn.init.normal_(part)
    residual, branch = PostNorm(norm, add, 0.1).to(dtype).eval(), nn.Linear(DIM, DIM).to(dtype)
    x = torch.randn(BATCH, BEAMS, DIM, dtype=dtype)
    expected = residual(x, branch)
    with torch.inference_mode():
        found = residual(x, branch)
    tolerance = 1e-3 if dtype == torch.float16 else 2e-6
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert calls == ([] if isinstance(add, DeepNorm) else ["add_norm"])


@needs_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions, None])
@torch.no_grad()
def test_a_token_and_its_position(kind, has_norm, dtype, calls):
    torch.manual_seed(0)
    table = TokenTable(VOCAB, DIM, 1)
    nn.init.normal_(table.weight)
    positions = None if kind is None else kind(9, DIM)
    if isinstance(positions, LearnedPositions):
        nn.init.normal_(positions.weight)
    embedding = InputEmbedding(table, scale=DIM**0.5, positions=positions, norm=nn.LayerNorm(DIM) if has_norm else None,
                               dropout_p=0.1).to(dtype).eval()
    ids, places = torch.randint(VOCAB, (BATCH, BEAMS)), torch.tensor([0, 3, 8])
    expected = embedding.step(ids, places)
    with torch.inference_mode():
        found = embedding.step(ids, places)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert calls == ([] if kind is None else ["embed"])


@needs_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@torch.no_grad()
def test_log_probabilities(dtype, calls):
    torch.manual_seed(0)
    head = LinearHead(OutputTable(VOCAB, DIM)).to(dtype)
    nn.init.normal_(head.table.weight)
    terms = [Term(torch.randn(BATCH, BEAMS, DIM, dtype=dtype), 1.0)]
    expected = head.log_probs(terms)
    with torch.inference_mode():
        found = head.log_probs(terms)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert calls == ["log_softmax"]


def test_a_cpu_goes_without():
    with torch.inference_mode():
        assert not step_rows.suits(torch.zeros(1, 1, DIM))

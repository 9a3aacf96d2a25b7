"""The loss against a teacher's distribution, chunk by chunk, is the plain formula."""

import pytest
import torch
from torch.nn import functional as F

from lamina.nn import cross_entropy
from lamina.nn.cross_entropy import Term
from lamina.nn.soft_cross_entropy import Scored, soft_cross_entropy

N, V, D = 7, 11, 4


def scored(seed, weights, *, has_bias=False):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    terms = [Term(random(1, N, D), random(1, N, 1).sigmoid() if weight is None else weight) for weight in weights]
    return Scored(terms, random(V, D), random(V) if has_bias else None)


def log_scores(side):
    """What the head says, over the whole vocabulary: the weighted sum of its terms' log-probabilities."""
    return sum(F.log_softmax(F.linear(term.features[0], side.matrix, side.bias), dim=1) *
               (term.weight if isinstance(term.weight, float) else term.weight[0]) for term in side.terms)


@pytest.mark.parametrize("chunk_scores", [2**23, 3 * V], ids=["one chunk", "several"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize(("student_weights", "teacher_weights"), [([1.0], [1.0]), ([0.8, 0.2], [1.0]),
                                                                  ([None, None], [0.7, 0.3])])
def test_it_is_the_plain_formula(student_weights, teacher_weights, temperature, chunk_scores, monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK_SCORES, "cpu", chunk_scores)
    student, teacher = scored(1, student_weights, has_bias=True), scored(2, teacher_weights)
    counts = torch.tensor([1.0, 1, 0, 1, 1, 1, 1])
    found = soft_cross_entropy(student, teacher, counts, temperature=temperature)
    wanted = (log_scores(teacher).detach() / temperature).softmax(dim=1)
    expected = 0.0
    for term in student.terms:
        log_probs = F.log_softmax(F.linear(term.features[0], student.matrix, student.bias) / temperature, dim=1)
        weight = term.weight if isinstance(term.weight, float) else term.weight[0, :, 0]
        expected = expected - temperature**2 * ((wanted * log_probs).sum(dim=1) * weight * counts).sum()
    # Losses are in float32, as of the other criterion.
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    inputs = [*(term.features for term in student.terms), student.matrix, student.bias]
    for one, other in zip(torch.autograd.grad(found, inputs, retain_graph=True),
                          torch.autograd.grad(expected, inputs, retain_graph=True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_one_who_knows_what_the_teacher_knows_learns_nothing():
    student = scored(1, [1.0])
    loss = soft_cross_entropy(student, student, torch.ones(N))
    (grad,) = torch.autograd.grad(loss, student.matrix)
    probs = log_scores(student).exp()
    torch.testing.assert_close(loss.double(), -(probs * probs.log()).sum(), rtol=1e-5, atol=1e-5)
    assert grad.abs().max() < 1e-6

"""The chunked loss against the plain formula, its gradients, and what it leaves in memory."""

import weakref

import pytest
import torch
from torch.nn import functional as F

import lamina.nn.cross_entropy as loss_module
from lamina.nn.cross_entropy import Term, label_smoothed_loss, sentence_loss

PAD = 1


def plain_loss(terms, weight, target, smoothing):
    """(1 - eps) * nll + eps / V * sum of -log p, the whole matrix at once, in float64."""
    total, nll_total = 0.0, 0.0
    counts = target.ne(PAD)
    for features, term_weight in terms:
        log_probs = F.log_softmax(features.double() @ weight.double().t(), dim=-1)
        nll = -log_probs.gather(2, target[..., None]).squeeze(2)
        loss = (1 - smoothing) * nll - smoothing / weight.size(0) * log_probs.sum(dim=2)
        factor = term_weight.squeeze(2) if isinstance(term_weight, torch.Tensor) else term_weight
        total = total + (loss * factor)[counts].sum()
        nll_total = nll_total + (nll * factor)[counts].sum()
    return total, nll_total


def example(num_terms, is_gated=False):
    torch.manual_seed(0)
    weight = torch.randn(11, 6, requires_grad=True)
    features = [torch.randn(3, 5, 6, requires_grad=True) for _ in range(num_terms)]
    gate = torch.rand(3, 5, 1).requires_grad_() if is_gated else 0.8
    weights = [gate, 1 - gate] if num_terms == 2 else [1.0]
    target = torch.randint(2, 11, (3, 5))
    target[0, 3:] = PAD
    leaves = [weight, *features, *([gate] if is_gated else [])]
    return [Term(f, w) for f, w in zip(features, weights, strict=True)], weight, target, leaves


@pytest.mark.parametrize("chunk_scores", [1, 30, 2**24])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("num_terms", "is_gated"), [(1, False), (2, False), (2, True)])
def test_equals_the_plain_formula(monkeypatch, chunk_scores, smoothing, num_terms, is_gated):
    monkeypatch.setattr(loss_module, "CHUNK_SCORES", {"cpu": chunk_scores, "cuda": chunk_scores})
    terms, weight, target, leaves = example(num_terms, is_gated)
    sums = label_smoothed_loss(terms, weight, target, smoothing=smoothing, pad_id=PAD)
    expected, expected_nll = plain_loss(terms, weight, target, smoothing)
    torch.testing.assert_close(sums.loss.double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(sums.nll.double(), expected_nll, rtol=1e-6, atol=0)
    assert not sums.nll.requires_grad
    ours = torch.autograd.grad(3 * sums.loss, leaves)
    for gradient, reference in zip(ours, torch.autograd.grad(3 * expected, leaves), strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk_scores", [1, 2**24])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_output_bias_is_one_more_column(monkeypatch, chunk_scores, smoothing):
    monkeypatch.setattr(loss_module, "CHUNK_SCORES", {"cpu": chunk_scores, "cuda": chunk_scores})
    terms, weight, target, leaves = example(1)
    bias = torch.randn(11, requires_grad=True)
    sums = label_smoothed_loss(terms, weight, target, smoothing=smoothing, pad_id=PAD, output_bias=bias)
    wide = [Term(torch.cat([terms[0].features, torch.ones(3, 5, 1)], dim=2), 1.0)]
    expected, _ = plain_loss(wide, torch.cat([weight, bias[:, None]], dim=1), target, smoothing)
    torch.testing.assert_close(sums.loss.double(), expected, rtol=1e-6, atol=0)
    leaves = [*leaves, bias]
    for gradient, reference in zip(torch.autograd.grad(3 * sums.loss, leaves), torch.autograd.grad(3 * expected, leaves),
                                   strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-6)


def test_a_batch_without_targets_costs_nothing():
    weight, bias = torch.randn(11, 6, requires_grad=True), torch.randn(11, requires_grad=True)
    features = torch.randn(1, 0, 6, requires_grad=True)
    sums = label_smoothed_loss([Term(features, 1.0)], weight, torch.zeros(0, dtype=torch.long), smoothing=0.0, pad_id=PAD,
                               output_bias=bias)
    sums.loss.backward()
    assert sums.loss.item() == 0.0
    assert (weight.grad == 0).all()
    assert (bias.grad == 0).all()


def test_the_loss_of_classes_and_of_numbers():
    torch.manual_seed(0)
    scores = torch.randn(4, 3, requires_grad=True)
    classes = torch.tensor([0, 1, 2, 1])
    sums = sentence_loss(scores, classes)
    torch.testing.assert_close(sums.loss, -scores.log_softmax(dim=1)[torch.arange(4), classes].sum())
    assert not sums.nll.requires_grad
    numbers = torch.tensor([0.5, -1.0, 2.0, 0.0])
    torch.testing.assert_close(sentence_loss(scores[:, :1], numbers).loss, ((scores[:, 0] - numbers) ** 2).sum())


def test_agrees_with_torch():
    terms, weight, target, _ = example(1)
    sums = label_smoothed_loss(terms, weight, target, smoothing=0.1, pad_id=PAD)
    expected = F.cross_entropy((terms[0].features @ weight.t()).flatten(0, 1), target.flatten(), ignore_index=PAD,
                               label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(sums.loss, expected, rtol=1e-6, atol=0)


def test_padding_contributes_nothing():
    terms, weight, target, leaves = example(1)
    label_smoothed_loss(terms, weight, target, smoothing=0.1, pad_id=PAD).loss.backward()
    assert leaves[1].grad[0, 3:].abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close(dtype):
    terms, weight, target, leaves = example(1)
    expected = torch.autograd.grad(label_smoothed_loss(terms, weight, target, smoothing=0.1, pad_id=PAD).loss, leaves)
    halves = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    sums = label_smoothed_loss([Term(halves[1], 1.0)], halves[0], target, smoothing=0.1, pad_id=PAD)
    assert sums.loss.dtype == torch.float32
    for gradient, reference in zip(torch.autograd.grad(sums.loss, halves), expected, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.float(), reference, rtol=0.05, atol=0.05)


def test_the_matrix_of_scores_is_never_whole(monkeypatch):
    monkeypatch.setattr(loss_module, "CHUNK_SCORES", {"cpu": 4 * 1000, "cuda": 4 * 1000})
    largest = 0

    class Watcher(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    features, weight = torch.randn(1, 64, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    with Watcher():
        label_smoothed_loss([Term(features, 1.0)], weight, torch.randint(2, 1000, (1, 64)), smoothing=0.1,
                            pad_id=PAD).loss.backward()
    assert largest == weight.numel() < 64 * 1000


def test_one_chunk_of_scores_is_there_at_a_time(monkeypatch):
    monkeypatch.setattr(loss_module, "CHUNK_SCORES", {"cpu": 4 * 1000})
    earlier, num_chunks = [], []

    def watched(real):
        def run(*given):
            found = real(*given)
            earlier.append(weakref.ref(found[-1] if isinstance(found, tuple) else found))
            return found
        return run

    def before_a_chunk(start, *given, real=loss_module.product):
        if given[0].size(1) == 1000:  # the matrix turned around: no scores, but the features' gradient
            return real(start, *given)
        num_chunks.append(start)
        assert not any(own() is not None for own in earlier)
        return watched(real)(start, *given)

    monkeypatch.setattr(loss_module, "product", before_a_chunk)
    monkeypatch.setattr(loss_module, "_score_chunk", watched(loss_module._score_chunk))
    features, weight = (torch.randn(rows, 8, requires_grad=True) for rows in (16, 1000))
    label_smoothed_loss([Term(features[None], 1.0)], weight, torch.full((1, 16), 7), smoothing=0.1, pad_id=1).loss.backward()
    assert len(num_chunks) == 4

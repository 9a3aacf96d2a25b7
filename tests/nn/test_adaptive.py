"""Vocabularies in bands: lookups, probabilities, loss and gradients."""

import numpy as np
import pytest
import torch

import lamina.nn.cross_entropy as loss_module
from lamina.cuda_graphs.capture_contract import NoQuestions
from lamina.nn.adaptive import AdaptiveHead, AdaptiveTable, Band, Tail
from lamina.nn.cross_entropy import Term
from lamina.nn.embedding import TokenTable

SIZES, DIMS, DIM = (6, 5, 4), (8, 4, 2), 8


def filled(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module.eval()


def table():
    return filled(AdaptiveTable([Band(TokenTable(size, dim, None if number else 1), torch.nn.Linear(dim, DIM, bias=False))
                                 for number, (size, dim) in enumerate(zip(SIZES, DIMS, strict=True))]))


def head(dropout_p=0.0):
    tails = [Tail(TokenTable(size, dim, None), torch.nn.Linear(DIM, dim, bias=False), is_turned=False, dropout_p=dropout_p)
             for size, dim in zip(SIZES[1:], DIMS[1:], strict=True)]
    return filled(AdaptiveHead(TokenTable(SIZES[0], DIM, None), torch.nn.Linear(DIM, 2, bias=False), tails, project=None,
                               is_tied=False, dropout_p=dropout_p))


def test_each_word_has_the_vector_of_its_band():
    words = table()
    vectors = words(torch.arange(15).view(3, 5)).flatten(0, 1)
    for number, (band, start) in enumerate(zip(words.bands, (0, 6, 11), strict=True)):
        torch.testing.assert_close(vectors[start : start + SIZES[number]], band(torch.arange(SIZES[number])))


def test_only_the_words_of_a_text_and_never_padding_learn():
    words = table()
    words(torch.tensor([[1, 7, 7, 3]])).sum().backward()
    learned = [band.table.weight.grad.abs().sum(dim=1).ne(0).nonzero()[:, 0].tolist() for band in words.bands]
    # 7 is the second word of its band, where padding is in the first: it learns like the others.
    assert learned == [[3], [1], []]


def test_words_alone_and_the_whole_vocabulary_agree():
    softmax, features = head(), torch.randn(30, DIM)
    every = softmax.scores(features)
    torch.testing.assert_close(every.exp().sum(dim=1), torch.ones(30))
    target = torch.arange(30) % 15
    torch.testing.assert_close(softmax._of_targets(features, target), every.gather(1, target[:, None])[:, 0])


@pytest.mark.parametrize("chunk", [2**24, 20])
@pytest.mark.parametrize("on_host", [False, True])
def test_loss_and_gradients_are_those_of_the_whole_vocabulary(monkeypatch, chunk, on_host):
    monkeypatch.setattr(loss_module, "CHUNK_SCORES", {"cpu": chunk, "cuda": chunk})
    softmax, features = head(), torch.randn(3, 6, DIM)
    target = torch.randint(0, 15, (3, 6))
    target[0, :] = torch.tensor([1, 7, 12, 0, 14, 6])  # padding, then the words at its place in the bands
    leaves = [features.requires_grad_(), *softmax.parameters()]
    sums = softmax.loss([Term(features, 1.0)], target, smoothing=0.0, pad_id=1,
                        target_on_host=target.numpy() if on_host else None)
    own = torch.autograd.grad(sums.loss, leaves)
    expected = -softmax.scores(features).gather(2, target[:, :, None])[:, :, 0][target.ne(1)].sum()
    torch.testing.assert_close(sums.loss, expected)
    torch.testing.assert_close(sums.nll, expected.detach())
    for found, wanted in zip(own, torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_tail_is_computed_for_its_own_words_alone(monkeypatch):
    softmax, seen = head(), []
    own = Tail.features
    monkeypatch.setattr(Tail, "features", lambda self, x: seen.append(len(x)) or own(self, x))
    target = np.array([[2, 3, 7, 2, 13, 13]])
    softmax.loss([Term(torch.randn(1, 6, DIM), 1.0)], torch.from_numpy(target), smoothing=0.0, pad_id=1,
                 target_on_host=target)
    assert seen == [1, 2]
    seen.clear()
    softmax.loss([Term(torch.randn(1, 2, DIM), 1.0)], torch.tensor([[2, 3]]), smoothing=0.0, pad_id=1)
    assert seen == []


@pytest.mark.parametrize("room", [(5, 6), (8, 8), (30, 40)])
def test_with_room_for_more_words_the_loss_is_the_same_and_the_device_is_asked_nothing(room):
    softmax, features = head(), torch.randn(2, 9, DIM)
    target = torch.tensor([[2, 3, 7, 1, 6, 13, 12, 14, 10], [1, 5, 11, 11, 12, 4, 9, 10, 0]])
    leaves = [features.requires_grad_(), *softmax.parameters()]

    def gradients():
        sums = softmax.loss([Term(features, 1.0)], target, smoothing=0.0, pad_id=1, target_on_host=on_host)
        return sums, torch.autograd.grad(sums.loss, leaves)

    on_host = target.numpy()
    assert softmax.host_sizes(on_host) == (5, 6)
    assert softmax.host_sizes(None) is None
    expected, wanted = gradients()
    on_host = None
    with softmax.with_room(room), NoQuestions():
        found, own = gradients()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(own, wanted)


def test_dropout_in_training_alone():
    softmax, features = head(dropout_p=0.5), torch.randn(4, DIM)
    torch.testing.assert_close(softmax.scores(features), softmax.scores(features))
    softmax.train()
    assert not torch.equal(softmax.tails[0].features(features), softmax.tails[0].features(features))

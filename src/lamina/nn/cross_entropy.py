"""Label-smoothed cross entropy, chunk by chunk: the (tokens, vocabulary) matrix never stands whole in memory."""

# N tokens of a batch, V vocabulary, D model_dim

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lamina.nn.compiling import compiled
from lamina.nn.linear import add_product_, product

# Scores per chunk: 32 MiB in float32 on a CPU, most of which its cache may hold; 128 MiB in half precision on a GPU, where
# smaller starts to pay for launching kernels and for adding up the gradients of the chunks.
CHUNK_SCORES = {"cpu": 2**23, "cuda": 2**26, "meta": 2**26}  # on the meta device shapes are planned, a GPU's


class Term(NamedTuple):
    """Features that look at the vocabulary, and the weight of their log-probabilities.

    One term of weight 1 is a distribution; the weighted sum of several is not (`normalise` in nn/heads.py).
    """

    features: Tensor  # (B, T, D)
    weight: float | Tensor  # 1.0, or (B, T, 1)


def joined_term(parts: Sequence[Term], sizes: Sequence[int]) -> Term:
    """The term of several groups of rows, one after the other."""
    features = torch.cat([part.features for part in parts])
    weights = [part.weight for part in parts]
    if isinstance(weights[0], float):
        return Term(features, weights[0])
    return Term(features, torch.cat([own.expand(size, -1, -1) for own, size in zip(weights, sizes, strict=True)]))  # type: ignore[union-attr]


class LossSums(NamedTuple):
    """Sums over the tokens that count, in nats, as 0-dim float32 tensors."""

    loss: Tensor  # what training minimises
    nll: Tensor  # negative log-likelihood, for perplexity; carries no gradient


def sentence_loss(scores: Tensor, target: Tensor) -> LossSums:
    """Cross entropy of the classes, or the squared error where the targets are numbers. scores: (B, C), target: (B,)

    A class below 0, and a number that is NaN, is no target (data/flat_texts.py).
    """
    if target.is_floating_point():
        found = scores[:, 0].float()
        loss = F.mse_loss(found, torch.where(target.isnan(), found.detach(), target), reduction="sum")
    else:
        loss = F.cross_entropy(scores.float(), target, reduction="sum")
    return LossSums(loss, loss.detach())


def label_smoothed_loss(terms: list[Term], output_weight: Tensor, target: Tensor, *, smoothing: float, pad_id: int,
                        output_bias: Tensor | None = None, is_compiled: bool = False) -> LossSums:
    """(1 - eps) * nll + eps / V * (sum of -log p over the whole vocabulary), summed over non-pad targets. target: (B, T)

    A head with several terms scores with their weighted log-softmaxes, so its loss is the weighted sum of theirs.
    """
    flat_target = target.flatten()
    counts = flat_target.ne(pad_id).float()  # (N,)
    loss: Tensor | float = 0.0
    nll: Tensor | float = 0.0
    for term in terms:
        weight = term.weight
        token_weight = counts * (weight.flatten().float() if isinstance(weight, Tensor) else weight)
        term_loss, term_nll = LinearCrossEntropy.apply(term.features.flatten(0, 1), output_weight, output_bias,
                                                        flat_target, token_weight, smoothing, is_compiled)
        loss, nll = loss + term_loss, nll + term_nll
    assert isinstance(loss, Tensor)
    assert isinstance(nll, Tensor)
    return LossSums(loss, nll)


class LinearCrossEntropy(torch.autograd.Function):
    """Linear, log-softmax and loss in one pass, whose gradients are made while a chunk's scores are at hand.

    The scores are computed once and never recomputed: three matrix products a chunk, as without chunks.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, output_weight: Tensor, bias: Tensor | None, target: Tensor,
                token_weight: Tensor, smoothing: float, is_compiled: bool) -> tuple[Tensor, Tensor]:
        num_classes = output_weight.size(0)
        needs_features, needs_matrix, needs_bias, _, needs_token_weight, *_ = ctx.needs_input_grad
        features_grad = torch.empty_like(features) if needs_features else None
        chunks = list(chunks_of(features.size(0), num_classes, features.device.type))
        # Gradients of several chunks are added up in float32: half precision would lose the small ones.
        grad_type = torch.float32 if len(chunks) > 1 else output_weight.dtype
        matrix_grad = torch.zeros_like(output_weight, dtype=grad_type) if needs_matrix else None
        bias_grad = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and needs_bias else None
        score_chunk = compiled_chunk() if is_compiled else _score_chunk
        losses, nlls = [], []
        for rows in chunks:
            scores = product(features[rows], output_weight, bias)  # (n, V)
            needs_any = needs_features or needs_matrix or needs_bias
            loss, nll, scores = score_chunk(scores, target[rows], token_weight[rows], smoothing, needs_any)
            losses.append(loss)
            nlls.append(nll)
            if not needs_any:
                continue
            # From here on `scores` is the gradient with respect to them.
            if bias_grad is not None:
                bias_grad += scores.sum(dim=0, dtype=torch.float32)
            if features_grad is not None:
                features_grad[rows] = product(scores, output_weight.t())
            if matrix_grad is not None:
                add_product_(matrix_grad, scores.t(), features[rows].t())
            del scores  # before the next chunk's are there too
        loss, nll = torch.cat(losses), torch.cat(nlls)
        ctx.save_for_backward(features_grad, matrix_grad, bias_grad, loss if needs_token_weight else None)
        ctx.matrix_dtype = output_weight.dtype
        nll_sum = (nll * token_weight).sum()
        ctx.mark_non_differentiable(nll_sum)
        return (loss * token_weight).sum(), nll_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        features_grad, matrix_grad, bias_grad, losses = ctx.saved_tensors
        # In place: nothing else holds these buffers, and the graph is used once.
        features_grad = None if features_grad is None else features_grad.mul_(loss_grad)
        matrix_grad = None if matrix_grad is None else matrix_grad.mul_(loss_grad).to(ctx.matrix_dtype)
        bias_grad = None if bias_grad is None else bias_grad.mul_(loss_grad).to(ctx.matrix_dtype)
        return features_grad, matrix_grad, bias_grad, None, None if losses is None else losses * loss_grad, None, None


def _score_chunk(scores: Tensor, target: Tensor, token_weight: Tensor, smoothing: float,
                 needs_grad: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and nll of each row, and the gradient of the weighted loss with respect to the scores, in their type. (n, V)"""
    num_classes, dtype = scores.size(1), scores.dtype
    log_probs = F.log_softmax(scores, dim=1, dtype=torch.float32)
    answer = target[:, None]
    nll = -log_probs.gather(1, answer).squeeze(1)
    loss = (1.0 - smoothing) * nll - smoothing / num_classes * log_probs.sum(dim=1)
    if not needs_grad:
        return loss, nll, scores
    # In place: they become the gradient.
    gradient = log_probs.exp_().sub_(smoothing / num_classes)
    gradient.scatter_add_(1, answer, torch.full_like(gradient[:, :1], smoothing - 1.0))
    return loss, nll, gradient.mul_(token_weight[:, None]).to(dtype)


@cache
def compiled_chunk() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """The same in two passes over the scores instead of a dozen. It sees columns by their number, where none is scattered."""
    def score_chunk(scores: Tensor, target: Tensor, token_weight: Tensor, smoothing: float,
                    needs_grad: bool) -> tuple[Tensor, Tensor, Tensor]:
        num_classes = scores.size(1)
        wide = scores.float()
        normaliser = wide.logsumexp(dim=1, keepdim=True)
        nll = (normaliser - wide.gather(1, target[:, None])).squeeze(1)
        spread = num_classes * normaliser.squeeze(1) - wide.sum(dim=1)
        loss = (1.0 - smoothing) * nll + smoothing / num_classes * spread
        is_answer = torch.arange(num_classes, device=scores.device) == target[:, None]
        gradient = (wide - normaliser).exp() - smoothing / num_classes - (1.0 - smoothing) * is_answer
        return loss, nll, scores.copy_(gradient * token_weight[:, None])

    return compiled(score_chunk)


def chunks_of(num_tokens: int, num_classes: int, device: str) -> Iterator[slice]:
    """The tokens whose scores are computed together."""
    # A power of two of equal chunks where that is possible: what is compiled is compiled for one size.
    number = 1 << max(0, -(-num_tokens * num_classes // CHUNK_SCORES[device]) - 1).bit_length()
    size = max(1, -(-num_tokens // number))
    for start in range(0, max(num_tokens, 1), size):  # a batch without targets is one empty chunk
        yield slice(start, min(start + size, num_tokens))

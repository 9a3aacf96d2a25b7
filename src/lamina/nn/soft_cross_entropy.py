"""Cross entropy against another model's distribution over the next word, chunk by chunk (Kim and Rush 2016, §3.1).

Neither model's (tokens, vocabulary) matrix ever stands whole in memory, as in cross_entropy.py.
"""

# N tokens of a batch, n of a chunk, V vocabulary, D model_dim

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lamina.nn.compiling import compiled
from lamina.nn.cross_entropy import Term, chunks_of
from lamina.nn.linear import add_product_, product


class Scored(NamedTuple):
    """What looks at the vocabulary, and how."""

    terms: list[Term]
    matrix: Tensor  # (V, D)
    bias: Tensor | None = None  # (V,)


def soft_cross_entropy(student: Scored, teacher: Scored, counts: Tensor, *, temperature: float = 1.0,
                       is_compiled: bool = False) -> Tensor:
    """Sum over the tokens that count of T^2 times the cross entropy of both distributions, sharpened by 1/T.

    T^2 keeps the gradient's size whatever T is (Hinton et al. 2015, §2). Where the student's head has several terms, each
    learns from the teacher with its weight, as it does from the data. counts: (N,), 1 or 0
    """
    def teacher_scores(rows: slice) -> Tensor:
        first, *others = teacher.terms
        if not others:
            return product(first.features.flatten(0, 1)[rows], teacher.matrix, teacher.bias)
        scores: Tensor | float = 0.0
        for term in teacher.terms:
            own = product(term.features.flatten(0, 1)[rows], teacher.matrix, teacher.bias)
            scores = scores + F.log_softmax(own, dim=1, dtype=torch.float32) * _weight_of(term, rows)
        assert isinstance(scores, Tensor)
        return scores

    total: Tensor | float = 0.0
    for term in student.terms:
        weight = counts if isinstance(term.weight, float) else counts * term.weight.flatten().float()
        loss = _SoftCrossEntropy.apply(term.features.flatten(0, 1), student.matrix, student.bias, teacher_scores, weight,
                                       temperature, is_compiled)
        total = total + (loss * term.weight if isinstance(term.weight, float) else loss)
    assert isinstance(total, Tensor)
    return total


def _weight_of(term: Term, rows: slice) -> Tensor | float:
    return term.weight if isinstance(term.weight, float) else term.weight.flatten(0, 1)[rows].float()


class _SoftCrossEntropy(torch.autograd.Function):
    """The gradients are made while a chunk's scores are at hand, as in LinearCrossEntropy."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, matrix: Tensor, bias: Tensor | None, teacher_scores: Callable[[slice], Tensor],
                token_weight: Tensor, temperature: float, is_compiled: bool) -> Tensor:
        needs_features, needs_matrix, needs_bias, _, needs_token_weight, *_ = ctx.needs_input_grad
        rows_of_chunks = list(chunks_of(features.size(0), matrix.size(0), features.device.type))
        grad_type = torch.float32 if len(rows_of_chunks) > 1 else matrix.dtype
        features_grad = torch.empty_like(features) if needs_features else None
        matrix_grad = torch.zeros_like(matrix, dtype=grad_type) if needs_matrix else None
        bias_grad = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and needs_bias else None
        score_chunk = _compiled_chunk() if is_compiled else _score_chunk
        losses = []
        for rows in rows_of_chunks:
            scores = product(features[rows], matrix, bias)  # (n, V)
            loss, gradient = score_chunk(scores, teacher_scores(rows), token_weight[rows], temperature)
            losses.append(loss)
            if features_grad is not None:
                features_grad[rows] = product(gradient, matrix.t())
            if bias_grad is not None:
                bias_grad += gradient.sum(dim=0, dtype=torch.float32)
            if matrix_grad is not None:
                add_product_(matrix_grad, gradient.t(), features[rows].t())
            del scores, gradient  # before the next chunk's are there too
        loss = torch.cat(losses)
        ctx.save_for_backward(features_grad, matrix_grad, bias_grad, loss if needs_token_weight else None)
        ctx.dtype = matrix.dtype
        return (loss * token_weight).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_grad: Tensor) -> tuple[Tensor | None, ...]:
        features_grad, matrix_grad, bias_grad, losses = ctx.saved_tensors
        features_grad = None if features_grad is None else features_grad.mul_(loss_grad)
        matrix_grad, bias_grad = (None if grad is None else grad.mul_(loss_grad).to(ctx.dtype)
                                  for grad in (matrix_grad, bias_grad))
        return features_grad, matrix_grad, bias_grad, None, None if losses is None else losses * loss_grad, None, None


def _score_chunk(scores: Tensor, teacher: Tensor, token_weight: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The loss of each row, and the gradient of the weighted loss with respect to the scores, in their type. (n,), (n, V)"""
    log_probs = F.log_softmax(scores.float() / temperature, dim=1)
    wanted = F.softmax(teacher.float() / temperature, dim=1)
    loss = -(wanted * log_probs).sum(dim=1) * temperature**2
    gradient = (log_probs.exp() - wanted) * (token_weight[:, None] * temperature)
    return loss, gradient.to(scores.dtype)


@cache
def _compiled_chunk() -> Callable[..., tuple[Tensor, Tensor]]:
    return compiled(_score_chunk)

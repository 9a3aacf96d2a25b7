"""Attention residuals: each sub-layer reads a softmax mix of the outputs of all sub-layers below it, by token.

A layer's input comes with what its sub-layers make of everything below the layer, computed ahead of it (`prior`), so that all
layers run the same code, however much is below; what the layer itself puts out is merged in by its softmax's normaliser.
"""

# B batch, T tokens (or K beams), D model_dim, S sub-layers of a layer, N sources below

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lamina.nn.compiling import is_replaced
from lamina.nn.dropout import dropout
from lamina.nn.mixing import INPUT, OUTPUT, DepthWeights, StackMixing, layer_name, recomputed

EPSILON = 1e-6  # of the RMS norm of keys



class Attended(NamedTuple):
    """What S queries make of the sources so far."""

    mixes: tuple[Tensor, ...]  # S times (B, T, D)
    normalisers: tuple[Tensor, ...]  # S times (B, T, 1), float32: the logarithm of that softmax's denominator


class AttendedStream(NamedTuple):
    """What the sub-layers of a layer read, and what it has put out so far."""

    prior: Attended  # of what is below the layer, by sub-layer
    inner: tuple[Tensor, ...]  # outputs of the layer's own sub-layers; in the block form, the sum of the block so far


class AttendedResidual(nn.Module):
    """f(norm(h)), h the softmax mix over depth, in place of a sum (Kimi 2026, §3).

    `query` asks the sources, whose keys are their RMS-normed selves. Deviates: the gain of that norm is left out, since the
    query takes it in.
    """

    parameter_kind = "gates"

    def __init__(self, norm: nn.Module, dim: int, number: int, dropout_p: float, *, is_block: bool) -> None:
        super().__init__()
        self.norm = norm
        self.query = nn.Parameter(torch.empty(dim))
        self.number = number  # among the sub-layers of its layer
        self.dropout_p = dropout_p
        self.is_block = is_block
        self.shares: Tensor | None = None  # of prior and inner sources in the last pass, for analyses; (B, T, 1 + inner)
        self.is_watched = False

    def initialise_(self) -> None:
        nn.init.zeros_(self.query)

    def forward(self, x: AttendedStream, branch: Callable[[Tensor], Tensor], layer_input: Any = None) -> AttendedStream:
        h = x.prior.mixes[self.number]
        if x.inner:
            logits = [x.prior.normalisers[self.number], *(scores(source, self.query[None]) for source in x.inner)]
            shares = torch.cat(logits, dim=-1).softmax(dim=-1)  # (B, T, 1 + inner)
            if self.is_watched:
                self.shares = shares
            shares = shares.to(h.dtype)
            h = shares[..., :1] * h
            for number, source in enumerate(x.inner, start=1):
                h = torch.addcmul(h, shares[..., number : number + 1], source)
        elif self.is_watched:
            self.shares = torch.ones_like(x.prior.normalisers[self.number])
        output = dropout(branch(self.norm(h)), self.dropout_p, self.training)
        inner = (x.inner[0] + output if x.inner else output,) if self.is_block else (*x.inner, output)
        return AttendedStream(x.prior, inner)  # torch 2.11 compiles x._replace to a tuple without fields


def scores(sources: Tensor, queries: Tensor) -> Tensor:
    """Of sources by several queries. sources: (.., D), queries: (S, D) -> (.., S), float32"""
    rms = (sources.float().square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt()
    if torch.compiler.is_compiling():  # a sum is joined to what stands around it, and a matrix product is not
        return (sources.float()[..., None, :] * queries.float()).sum(dim=-1) * rms
    return (sources @ queries.t()).float() * rms


class DepthAttention(nn.Module):
    """A softmax over sources, by token, for several queries."""

    is_compiled_whole = True

    def over(self, queries: Sequence[Tensor], groups: Sequence[tuple[Tensor, ...]]) -> Attended:
        """Compiled, group by group: groups are alike, so that a deep stack compiles no more code than a shallow one."""
        if not is_replaced(self):
            attended: Attended = recomputed(attend, queries, *chain.from_iterable(groups))
            return attended
        so_far = None
        for group in groups:
            so_far = self(tuple(queries), so_far, *group)
        assert so_far is not None, "there is a source"
        return so_far

    def forward(self, queries: tuple[Tensor, ...], so_far: Attended | None, *sources: Tensor) -> Attended:
        """Over these sources and those that `so_far` was made of, in many small steps, which a compiler makes one kernel of.

        queries: S times (D,), sources: N times (B, T, D)
        """
        wide = [source.float() for source in sources]
        rms = [(source.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt() for source in wide]
        mixes, normalisers = [], []
        for number, query in enumerate(queries):
            values = wide
            logits = [(source * query.float()).sum(dim=-1, keepdim=True) * own for source, own in zip(wide, rms, strict=True)]
            if so_far is not None:
                values, logits = [*values, so_far.mixes[number].float()], [*logits, so_far.normalisers[number]]
            highest = reduce(torch.maximum, logits).detach()
            powers = [(logit - highest).exp() for logit in logits]
            total = reduce(torch.add, powers)
            mix = reduce(torch.add, (power / total * value for power, value in zip(powers, values, strict=True)))
            mixes.append(mix.to(sources[0].dtype))
            normalisers.append(highest + total.log())
        return Attended(tuple(mixes), tuple(normalisers))


def attend(queries: Sequence[Tensor], *sources: Tensor) -> Attended:
    """All at once in few calls, for eager passes."""
    values = torch.stack(sources, dim=-2)  # (B, T, N, D)
    logits = scores(values, torch.stack(tuple(queries)))  # (B, T, N, S)
    normaliser = logits.logsumexp(dim=-2, keepdim=True)
    shares = (logits - normaliser).exp().to(values.dtype)
    mixed = shares.transpose(-2, -1) @ values  # (B, T, S, D)
    return Attended(mixed.unbind(dim=-2), normaliser.unbind(dim=-1))


@dataclass
class _Kept:
    groups: list[tuple[Tensor, ...]]  # of sources: the input, and what a layer has put out or a block summed up
    names: list[str]
    partial: Tensor | None = None  # of the block that is under way
    block: int = 0
    watched: tuple[Any, Tensor] | None = None  # for analyses: the layer that runs, and the shares of its prior, (B, T, S, N)

    @property
    def all_groups(self) -> list[tuple[Tensor, ...]]:
        return [*self.groups, *([] if self.partial is None else [(self.partial,)])]

    @property
    def partial_name(self) -> str:
        return f"block {self.block + 1}"


class AttentionResiduals(StackMixing):
    """Keeps the sources of a pass: the input and the output of each sub-layer, or the sums of finished blocks.

    `blocks` holds each layer's block; None: the full form, in which every output is a source.
    """

    parameter_kind = "gates"

    def __init__(self, dim: int, blocks: Sequence[int] | None, *, has_output: bool) -> None:
        super().__init__()
        self.blocks = None if blocks is None else tuple(blocks)
        self.query = nn.Parameter(torch.empty(dim)) if has_output else None
        self.attention = DepthAttention()
        self._is_token: Callable[[], Tensor] | None = None
        self._seen: dict[str, dict[str, list[Tensor]]] = {}  # by reader and column, shares of tokens

    def initialise_(self) -> None:
        if self.query is not None:
            nn.init.zeros_(self.query)

    def begin(self, x: Tensor) -> _Kept:
        return _Kept([(x,)], [INPUT])

    def read(self, kept: _Kept, layer: Any, index: int) -> AttendedStream:
        if self.blocks is not None and kept.partial is not None and self.blocks[index] != kept.block:
            kept.names.append(kept.partial_name)
            kept.groups.append((kept.partial,))
            kept.partial = None
        queries: list[Tensor] = [residual.query for residual in residuals_of(layer)]
        if self._is_token is not None:
            kept.watched = layer, shares_of(torch.stack(queries), *chain.from_iterable(kept.groups))
        return AttendedStream(self.attention.over(queries, kept.groups), () if kept.partial is None else (kept.partial,))

    def note(self, kept: _Kept, index: int, output: AttendedStream) -> None:
        if self.blocks is not None:
            kept.block = self.blocks[index]
        names = [f"{layer_name(index + 1)}.{number + 1}" for number in range(len(output.inner))]
        if kept.watched is not None:
            layer, below = kept.watched
            for number, residual in enumerate(residuals_of(layer)):
                inner = names if self.blocks is None else [kept.partial_name]
                assert residual.shares is not None, "it has just run"
                shares = torch.cat((residual.shares[..., :1] * below[..., number, :], residual.shares[..., 1:]), dim=-1)
                self._see(f"{layer_name(index + 1)}.{number + 1}", [*kept.names, *inner], shares)
        if self.blocks is None:
            kept.groups.append(output.inner)
            kept.names.extend(names)
        else:
            (kept.partial,) = output.inner

    def skip(self, kept: _Kept, index: int) -> None:
        """It puts nothing out."""

    def state(self, kept: _Kept) -> Tensor:
        """The sum of all outputs, as a Pre-LN stream is."""
        return torch.stack(list(chain.from_iterable(kept.all_groups))).sum(dim=0)

    def final(self, kept: _Kept, num_layers: int) -> Tensor:
        if self.query is None:
            return kept.groups[0][0]  # it is not read
        if self._is_token is not None:
            names = [*kept.names, *([] if kept.partial is None else [kept.partial_name])]
            self._see(OUTPUT, names, shares_of(self.query[None], *chain.from_iterable(kept.all_groups))[..., 0, :])
        return self.attention.over([self.query], kept.all_groups).mixes[0]

    # -- for analyses

    def watch_(self, stack: Any, is_token: Callable[[], Tensor] | None) -> None:
        self._is_token, self._seen = is_token, self._seen if is_token is None else {}
        for layer in stack.layers:
            for residual in residuals_of(layer):
                residual.is_watched, residual.shares = is_token is not None, None

    def _see(self, reader: str, columns: list[str], shares: Tensor) -> None:
        assert self._is_token is not None
        own = shares[self._is_token()].double()
        found = self._seen.setdefault(reader, {})
        for number, name in enumerate(columns[: shares.size(-1)]):
            found.setdefault(name, []).append(own[:, number].cpu())

    def read_weights(self, stack: Any) -> DepthWeights:
        columns = list(dict.fromkeys(name for found in self._seen.values() for name in found))
        shown = [[torch.cat(found[name]).mean() if name in found else torch.tensor(torch.nan, dtype=torch.float64)
                  for name in columns] for found in self._seen.values()]
        return DepthWeights(tuple(self._seen), tuple(columns), torch.stack([torch.stack(row) for row in shown]).float(),
                            "The share of each source in what a sub-layer reads, the mean over the tokens of the data")


def shares_of(queries: Tensor, *sources: Tensor) -> Tensor:
    """(B, T, S, N)"""
    return torch.stack([scores(source, queries) for source in sources], dim=-1).softmax(dim=-1)


def residuals_of(layer: nn.Module) -> list[AttendedResidual]:
    """In the order of the sub-layers."""
    return [part for part in layer.children() if isinstance(part, AttendedResidual)]

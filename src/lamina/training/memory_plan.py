"""What training a model will hold in each rank's memory, and send to other ranks, without holding or sending it."""

# P numbers of all parameters that are trained

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lamina.config.train_options import TrainConfig
from lamina.nn.parameter_kinds import parameters_of
from lamina.nn.stack import stacks_of
from lamina.parts.contracts import Criterion
from lamina.training.loss import batch_loss

FLOAT = 4  # bytes
GIB = 2**30


def bytes_of_state(config: TrainConfig, model: nn.Module, dtype: torch.dtype, num_ranks: int, num_shards: int, *,
                   reshards: bool = True) -> dict[str, int]:
    """Weights, gradients and the optimizer's state of one rank, by kind; the largest shard, of sharded ones.

    `reshards`: whether --fsdp does (resharding.py).
    What distributed/weights.py and training/optimizers.py allocate; a test compares them.
    """
    small = dtype.itemsize
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    frozen = sum(parameter.numel() for parameter in model.parameters()) - trained
    is_trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    rule = config.optimization.optimizer
    moments = sum(torch.Size(own.shape).numel() * len(rule.rule_for(own).buffers)
                  for own in parameters_of(model) if own.name in is_trained)
    if config.ranks.is_sharded and not reshards:
        share = -(-trained // num_ranks)
        return {"weights": FLOAT * share + small * (trained + frozen), "gradients": FLOAT * share + (FLOAT + small) * trained,
                "optimizer": FLOAT * -(-moments // num_ranks)}
    if config.ranks.is_sharded and num_ranks > 1:
        gathered = _largest_parts(model)
        return {"weights": FLOAT * 2 * -(-trained // num_shards) + FLOAT * -(-frozen // num_shards) + small * gathered,
                "gradients": FLOAT * -(-trained // num_shards) + small * gathered,
                "optimizer": FLOAT * -(-moments // num_shards)}
    is_half = dtype != torch.float32
    adds_up = max(config.optimization.update_freq) > 1 or num_ranks > 1
    return {"weights": FLOAT * trained + (small * trained if is_half else 0) + small * frozen,
            "gradients": small * trained + (FLOAT * trained if is_half and adds_up else 0),
            "optimizer": FLOAT * moments}


def _largest_parts(model: nn.Module) -> int:
    """Numbers that are gathered at a time: what belongs to no layer, and two layers, of which one comes ahead."""
    layers = [sum(parameter.numel() for parameter in layer.parameters())
              for stack in stacks_of(model).values() for layer in stack.layers]
    return sum(parameter.numel() for parameter in model.parameters()) - sum(layers) + 2 * max(layers, default=0)


def bytes_sent(config: TrainConfig, model: nn.Module, dtype: torch.dtype, num_ranks: int, num_shards: int, *,
               reshards: bool = True) -> int:
    """By each rank in an update, as rings of ranks do it: what it sends is the same for any number of them, nearly."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    everything = sum(parameter.numel() for parameter in model.parameters())
    if num_ranks == 1:
        return 0
    if not config.ranks.is_sharded:
        return _all_reduced(FLOAT * trained, num_ranks)
    if not reshards:
        return round((FLOAT + dtype.itemsize) * trained * (num_ranks - 1) / num_ranks)
    passes, share = max(config.optimization.update_freq), (num_shards - 1) / num_shards
    gathered = 2 * dtype.itemsize * everything * share  # once forward and once backward
    scattered = FLOAT * trained * share
    copies = num_ranks // num_shards
    return round(passes * (gathered + scattered + _all_reduced(FLOAT * trained / num_shards, copies)))


def _all_reduced(size: float, num_ranks: int) -> int:
    return round(2 * size * (num_ranks - 1) / num_ranks)


def bytes_kept(model: Any, batch: Any, criterion: Criterion, *, recomputes: bool) -> int:
    """Of activations, between forward and backward, as an eager pass keeps them; model and batch are on the meta device.

    Scores of attention in one piece do not count: kernels compute them again. Compiled layers keep less.
    """
    stacks = list(stacks_of(model).values())
    for stack in stacks:
        stack.recomputes = False
    total, inputs = _saved(model, lambda: batch_loss(model, batch, criterion).loss)
    if not recomputes:
        return total
    inside = 0
    for stack in stacks:
        own, stack.recomputes = stack.recomputes, True
        rest, _ = _saved(model, lambda: batch_loss(model, batch, criterion).loss)
        stack.recomputes = own
        inside = max(inside, (total - rest) // max(len(stack.layers), 1))
    for stack in stacks:
        stack.recomputes = True
    outside, _ = _saved(model, lambda: batch_loss(model, batch, criterion).loss)
    return outside + inputs + inside  # one layer at a time is whole again


def _saved(model: nn.Module, run: Callable[[], Tensor]) -> tuple[int, int]:
    """Bytes that the graph keeps besides weights, each once; and those of what goes into the layers of all stacks."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}
    inputs: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in own and not (tensor.dim() == 4 and tensor.size(-1) == tensor.size(-2)):
            kept[storage] = tensor
        return tensor

    def note_inputs(_: nn.Module, given: tuple[Any, ...]) -> None:
        inputs.update({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
                       for tensor in given if isinstance(tensor, Tensor)})

    hooks = [layer.register_forward_pre_hook(note_inputs) for stack in stacks_of(model).values() for layer in stack.layers]
    model.train()
    try:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = run()
    finally:
        for hook in hooks:
            hook.remove()
    del loss
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()), sum(inputs.values())

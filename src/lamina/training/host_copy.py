"""Copies of a run's state in the host's memory, so that it can be written while training changes the original."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lamina.checkpoint.format import Checkpoint

Buffers = list[Tensor]


class HostCopy(NamedTuple):
    """A state as it was, in buffers that belong to it until they are given back."""

    checkpoint: Checkpoint
    buffers: Buffers
    arrival: torch.cuda.Event | None  # of the tensors, where they come from a GPU

    def wait(self) -> None:
        """Before the tensors are read."""
        if self.arrival is not None:
            self.arrival.synchronize()


class HostCopier:
    """Makes copies in buffers that are used again and again: fresh memory, pinned memory above all, costs more than the copy.

    What lies on a GPU is copied on a stream of its own, into pinned memory. The host does not wait, and the next passes run
    meanwhile; only what would change the state has to (`before_change`).
    """

    def __init__(self) -> None:
        self._free: list[Buffers] = []
        self._stream: torch.cuda.Stream | None = None
        self._arrival: torch.cuda.Event | None = None  # of the last copy, as long as nothing was told to wait for it

    def copy(self, checkpoint: Checkpoint) -> HostCopy:
        copies = _Copies(self._free.pop() if self._free else [])
        weights, training = copies.of(checkpoint.weights), copies.of(checkpoint.training)
        arrival = self._send(copies.of_device) if copies.of_device else None
        return HostCopy(replace(checkpoint, weights=weights, training=training), copies.used, arrival)

    def give_back(self, copy: HostCopy) -> None:
        """This copy is no longer read."""
        self._free.append(copy.buffers)

    def before_change(self) -> None:
        """What the device is given from here on may change the state: it begins when the copy of that is made."""
        if self._arrival is not None:
            torch.cuda.current_stream().wait_event(self._arrival)
            self._arrival = None

    def _send(self, pairs: list[tuple[Tensor, Tensor]]) -> torch.cuda.Event:
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for host, source in pairs:
                host.copy_(source, non_blocking=True)
                # Memory of a tensor that lives no longer than the checkpoint is not handed out again before it is read.
                source.record_stream(self._stream)
            self._arrival = torch.cuda.Event()
            self._arrival.record()
        return self._arrival


class _Copies:
    """The tensors of nested dictionaries, copied; views of one memory become views of one copy, made in one piece."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._copy_of: dict[Any, Tensor] = {}
        self.used: Buffers = []
        self.of_device: list[tuple[Tensor, Tensor]] = []  # copies and originals that have yet to be sent

    def of(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.of(item) for key, item in value.items()}
        return self._copied(value.detach()) if isinstance(value, Tensor) else value

    def _copied(self, tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        key = tensor.device, memory.data_ptr(), tensor.dtype
        if key not in self._copy_of:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory)  # type: ignore[call-overload]
            self._copy_of[key] = self._copy(whole)
        return self._copy_of[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _copy(self, whole: Tensor) -> Tensor:
        host = self._buffer(whole)
        self.used.append(host)
        if whole.is_cuda:
            self.of_device.append((host, whole))
        else:
            host.copy_(whole)
        return host

    def _buffer(self, whole: Tensor) -> Tensor:
        """The states of a run are alike: its buffers come back in the order in which they are needed."""
        number = len(self.used)
        if number < len(self._buffers) and self._buffers[number].shape == whole.shape \
                and self._buffers[number].dtype == whole.dtype:
            return self._buffers[number]
        try:
            return torch.empty(whole.shape, dtype=whole.dtype, pin_memory=whole.is_cuda)
        except RuntimeError:  # a system may allow little pinned memory; without it the host waits for the copy
            return torch.empty(whole.shape, dtype=whole.dtype)

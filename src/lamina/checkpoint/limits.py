"""What a small file may not grow into: looked at before and after torch reads it.

torch's restricted reader runs no code, but it unpacks what is packed, allocates what it is told to and follows references. A
file of a megabyte can so become tens of gigabytes, or a structure that takes years to walk. Honest files hold things once.
"""

from __future__ import annotations

import os
import pickle
import pickletools
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lamina.files import LIMIT_FACTOR, LIMIT_SPARE, Budget

# Steps of the pickle machine; the largest model there is takes a hundred thousand.
MAX_STEPS = 2_000_000
# What the archives of honest programs name. torch allows more, some of which allocate whatever size a file asks for.
_REBUILDS = {f"torch._utils.{name}" for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter",
                                                 "_rebuild_parameter_with_state")}
_PLAIN = {"collections.OrderedDict", "torch.Size", "torch.device", "builtins.set", "__builtin__.set"}
_FLAT_STORAGES = {f"torch.{name}Storage" for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char",
                                                      "Byte", "Bool")}


def check_archive(path: str | Path, allowed: Collection[str] = ()) -> None:
    """Before reading. Raises what the reader would raise of a file that holds more than tensors and plain values."""
    size = os.path.getsize(path)
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            _check_pickles(file, allowed)
        return
    with open(path, "rb") as file:
        check_packed(file, size, allowed)


def check_packed(file: BinaryIO, size: int, allowed: Collection[str] = ()) -> None:
    """The same of an archive that is a zip file of this size; it is left at its beginning."""
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > LIMIT_FACTOR * size + LIMIT_SPARE:
        raise ValueError(f"its {size} bytes would unpack to {unpacked}, which no checkpoint's do")
    file.seek(0)
    reader: Any = torch._C.PyTorchFileReader(file)  # the one that torch.load reads with
    _check_pickle(reader.get_record("data.pkl"), allowed)
    file.seek(0)


def _check_pickles(file: BinaryIO, allowed: Collection[str]) -> None:
    """Of the format before 2020: five of them, one behind the other, and then the numbers."""
    for _ in range(5):
        _check_steps(pickletools.genops(file), allowed)


def _check_pickle(content: bytes, allowed: Collection[str]) -> None:
    _check_steps(pickletools.genops(content), allowed)


def _check_steps(steps: Iterator[Any], allowed: Collection[str]) -> None:
    for number, (step, argument, _) in enumerate(steps):
        if number > MAX_STEPS:
            raise ValueError(f"it has more than {MAX_STEPS} steps of reading, which no checkpoint has")
        if step.name == "GLOBAL":
            name = str(argument).replace(" ", ".")
            is_dtype = isinstance(getattr(torch, name.removeprefix("torch."), None), torch.dtype)
            if not (is_dtype or name in _PLAIN or name in _REBUILDS or name in _FLAT_STORAGES or name in allowed):
                raise pickle.UnpicklingError(f"GLOBAL {name}")


def check_content(content: Any, size: int) -> None:
    """After reading: walked with all its references followed, it is not much larger than the file, and has an end."""
    Budget(LIMIT_FACTOR * size + LIMIT_SPARE, _cost).spend(content)


def _cost(value: Any) -> tuple[int, list[Any]] | None:
    """Of tensors and of objects that torch makes; None: a plain value."""
    if isinstance(value, Tensor):
        check_tensor(value)
        return value.numel() * value.element_size(), []
    if isinstance(value, (torch.dtype, torch.device, torch.Size)):
        return 1, []
    inner = getattr(value, "__dict__", None)
    return None if inner is None or isinstance(value, (dict, list, set, tuple)) else (1, [inner])


def check_tensor(value: Tensor) -> None:
    """Dense numbers that are all there, on the host or a GPU: the rest would fail somewhere, or grow when it is copied."""
    if value.layout != torch.strided or value.is_quantized or value.device.type == "meta" or value.is_complex():
        raise ValueError(f"it holds a tensor that is not one of plain numbers ({value.dtype}, {value.layout}, "
                         f"{value.device.type})".replace("torch.", ""))
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise ValueError(f"it holds a tensor of shape {tuple(value.shape)} without the numbers for it")

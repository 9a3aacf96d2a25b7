"""Values that are computed again for the gradient instead of being kept."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def computed_again(function: Callable[..., Any], *inputs: Any, keeps_generator: bool = False) -> Any:
    """function(*inputs), of which the result alone is kept; torch's generator is set back only with `keeps_generator`.

    Before torch 2.13 its hooks stay in force while the frames of a call that failed are alive, as the error's traceback has
    them, and whatever runs next would be taken for a part of it. So these frames are cleared.
    """
    if torch.compiler.is_compiling():  # errors of a compiled call come from outside of it
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=keeps_generator)
    try:
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=keeps_generator)
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        raise

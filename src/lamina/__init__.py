"""Lamina: deep, fused and prunable Transformers.

    import lamina
    lamina.load("checkpoint_best.pt").translate(["A bird sings."], beam=5)[0].text

Parts of your own are registered with `lamina.register` (docs/extending.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamina.api import (
        Filling,
        LanguageModel,
        MaskedLanguageModel,
        Prediction,
        Score,
        Translation,
        Translator,
        load,
    )
    from lamina.registry import register

__version__ = "0.1.0"
__all__ = ["Filling", "LanguageModel", "MaskedLanguageModel", "Prediction", "Score", "Translation", "Translator",
           "__version__", "load", "register"]


def __getattr__(name: str) -> Any:
    if name == "register":
        from lamina.registry import register

        return register
    # Only on demand: `lamina --help` should not wait for torch.
    if name in __all__:
        import lamina.api

        return getattr(lamina.api, name)
    raise AttributeError(f"module 'lamina' has no attribute {name!r}")

"""Lamina: deep, fused and prunable Transformers.

    import lamina
    lamina.load("checkpoint_best.pt").translate(["A bird sings."], beam=5)[0].text
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamina.api import Score, Translation, Translator, load
    from lamina.api.language_model import LanguageModel
    from lamina.api.masked_model import Filling, MaskedLanguageModel, Prediction

__version__ = "0.1.0"
__all__ = ["Filling", "LanguageModel", "MaskedLanguageModel", "Prediction", "Score", "Translation", "Translator",
           "__version__", "load"]


def __getattr__(name: str) -> Any:
    # Only on demand: `lamina --help` should not wait for torch.
    if name in __all__:
        import lamina.api

        return getattr(lamina.api.masked_model if name in ("Filling", "MaskedLanguageModel", "Prediction") else lamina.api, name)
    raise AttributeError(f"module 'lamina' has no attribute {name!r}")

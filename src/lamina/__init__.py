"""Lamina: deep, fused and prunable Transformers.

    import lamina
    data = lamina.prepare(pairs, valid=more_pairs, subword="sentencepiece", vocab_size=8000, out="data")
    model = lamina.train(data, arch="tiny", max_update=800, lr=2e-3, save_dir="ck")
    model.translate("A bird sings.", beam=5).text
    lamina.load("ck/checkpoint_best.pt", task="translation")

Parts of your own are registered with `lamina.register` (docs/extending.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lamina.api import (
        AnyBatch,
        Attention,
        Data,
        Event,
        Filling,
        LanguageModel,
        MaskedLanguageModel,
        ModelConfig,
        Prediction,
        Score,
        SearchConfig,
        States,
        Translation,
        Translator,
        load,
        prepare,
        save,
        train,
    )
    from lamina.errors import LaminaError
    from lamina.registry import register

__version__ = "0.1.0"
__all__ = ["AnyBatch", "Attention", "Data", "Event", "Filling", "LaminaError", "LanguageModel", "MaskedLanguageModel",
           "ModelConfig", "Prediction", "Score", "SearchConfig", "States", "Translation", "Translator", "__version__", "load",
           "prepare", "register", "save", "train"]


def __getattr__(name: str) -> object:
    if name == "register":
        from lamina.registry import register

        return register
    if name == "LaminaError":
        from lamina.errors import LaminaError

        return LaminaError
    # Only on demand: `lamina --help` should not wait for torch.
    if name in __all__:
        import lamina.api

        return getattr(lamina.api, name)
    raise AttributeError(f"module 'lamina' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

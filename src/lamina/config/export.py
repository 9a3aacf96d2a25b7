"""What `lamina export` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.fields import REQUIRED, flag

FORMATS = ("safetensors", "fairseq", "ctranslate2")


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Export."""

    checkpoint: str = flag("checkpoints/checkpoint_best.pt", "checkpoint to export", positional=True)
    format: str = flag("safetensors", "for whom: any reader of safetensors, and Lamina itself (safetensors); fairseq, plain "
                                      "models; CTranslate2, plain, folded and pruned models", choices=FORMATS)
    output: str = flag(REQUIRED, "folder to write: the model, its dictionaries and subword models, and a README.md that "
                                 "describes it", metavar="FOLDER")
    dict_dir: str | None = flag(None, "folder with the dictionaries of a fairseq checkpoint; its own folder if left out",
                                metavar="FOLDER")

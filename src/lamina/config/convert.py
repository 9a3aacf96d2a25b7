"""What `lamina convert` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.fields import REQUIRED, flag


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Convert."""

    checkpoint: str = flag(REQUIRED, "checkpoint of fairseq, from 0.9 on, or of one of its forks; or a folder that `lamina "
                                     "export --format safetensors` wrote", positional=True)
    output: str = flag(REQUIRED, "checkpoint of Lamina to write", metavar="FILE")
    dict_dir: str | None = flag(None, "folder with its dictionaries, such as the data folder it was trained on; the "
                                      "checkpoint's own folder if left out", metavar="FOLDER")
    source_lang: str | None = flag(None, "source language, where neither the checkpoint nor the folder tells it",
                                   aliases=("-s",), metavar="LANG")
    target_lang: str | None = flag(None, "target language, likewise", aliases=("-t",), metavar="LANG")

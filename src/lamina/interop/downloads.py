"""hf://owner/name: models of the Hugging Face Hub, downloaded once and found in its cache from then on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from lamina.errors import CheckpointError

SCHEME = "hf://"
# What is needed of a repository: no weights of other frameworks, and no code.
PATTERNS = ("*.json", "*.txt", "*.spm", "*.model", "model*.safetensors", "pytorch_model*.bin")


def local_path(path: str | Path, notice: Callable[[str], object] = lambda _: None) -> Path:
    """The path itself, or where the model that it names on the hub was downloaded to."""
    name = hub_name(path)
    return Path(path) if name is None else _downloaded(name, notice)


def hub_name(path: str | Path) -> str | None:
    """owner/name of a path such as hf://owner/name, which pathlib writes with a single slash; None of any other."""
    match = re.fullmatch(r"hf:/{1,2}(.+)", os.fspath(path))
    if match is None or (os.fspath(path).startswith("hf:/") and Path(path).exists()):
        return None
    if re.fullmatch(r"[\w.-]+/[\w.-]+", match[1]) is None:
        raise CheckpointError(f"{path} names no model on the Hugging Face Hub: write {SCHEME}OWNER/NAME, such as "
                              f"{SCHEME}Helsinki-NLP/opus-mt-en-ro.")
    return match[1]


def _downloaded(name: str, notice: Callable[[str], object]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise CheckpointError(f"{SCHEME}{name} needs the package huggingface_hub: pip install 'lamina[huggingface]'. Or "
                              "download the folder yourself, and name it.") from None
    disable_progress_bars()
    notice(f"{SCHEME}{name}: looking on the Hugging Face Hub")
    try:
        files = _without_doubles(name)
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # of half a dozen libraries for networks
        cached = _cached(name)
        if cached is not None:
            notice(f"{SCHEME}{name}: the hub cannot be reached; taking what was downloaded before")
            return cached
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(f"{SCHEME}{name} cannot be downloaded ({type(error).__name__}: {reason}). Check the name and the "
                              "network; or download the folder elsewhere, and name it.") from None


def _without_doubles(name: str) -> list[str]:
    """Weights of one kind: the pickle only where there is no safetensors."""
    from huggingface_hub import list_repo_files

    has_safetensors = any(re.fullmatch(r"model.*\.safetensors", file) for file in list_repo_files(name))
    return [pattern for pattern in PATTERNS if not (has_safetensors and pattern.endswith(".bin"))]


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
    except Exception:
        return None
    return folder if (folder / "config.json").is_file() else None

"""Where Python keeps what it has compiled of its modules, if it would keep it nowhere.

Installers compile packages to bytecode, or Python does when it first imports them. In many containers neither happens: uv
leaves it out, PYTHONDONTWRITEBYTECODE is set, or the packages' folders cannot be written to. Then each command
compiles the two thousand modules of torch and its compiler again, which takes twice as long as importing them. A folder of the
user's, beside those of Triton and others, keeps them from then on; Python itself checks that they are not older than their
sources.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from importlib.util import cache_from_source, find_spec
from pathlib import Path

LARGEST_PACKAGE = "torch"


def keep_bytecode(environ: MutableMapping[str, str] = os.environ) -> None:
    """For this process, before it imports torch, and for those that it starts. PYTHONPYCACHEPREFIX names another folder."""
    if LARGEST_PACKAGE in sys.modules or sys.pycache_prefix is not None or not _is_lost(LARGEST_PACKAGE):
        return
    sys.pycache_prefix = str(cache_folder(environ) / "bytecode")
    sys.dont_write_bytecode = False
    environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    environ.pop("PYTHONDONTWRITEBYTECODE", None)


def cache_folder(environ: MutableMapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lamina")


def _is_lost(package: str) -> bool:
    """Whether the package has no bytecode, and Python would not write any."""
    spec = find_spec(package)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return False
    bytecode = Path(cache_from_source(spec.origin))
    is_writable = not sys.dont_write_bytecode and os.access(bytecode.parent.parent, os.W_OK)
    return not bytecode.exists() and not is_writable

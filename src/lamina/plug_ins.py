"""Parts from outside: a person's own files (--user-dir) and installed packages (entry points of the group lamina.parts).

They are imported before options are parsed, so that their parts have flags like all others. Nothing else imports code: not a
checkpoint, which only names the parts it needs, and not a recipe or another file.

The published lines of fairseq name folders of fairseq plug-ins (`--user-dir ../radam_fairseq`). Such a folder is recognised by
reading its text and never imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import keyword
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from lamina.errors import ConfigError
from lamina.fields import build, flatten
from lamina.registry import tables_restored

GROUP = "lamina.parts"
USER_DIR = "user-dir"
# Import statements alone: a comment that mentions the other toolkit makes no plug-in of it.
_IMPORTS_FAIRSEQ = re.compile(r"^\s*(?:from|import)\s+fairseq\b", re.MULTILINE)
_IMPORTS_LAMINA = re.compile(r"^\s*(?:from|import)\s+lamina\b", re.MULTILINE)

_imported: dict[Path, ModuleType] = {}
_state = {"are installed ones loaded": False}


def paths_in(words: Sequence[str]) -> list[str]:
    """What a command line gives as --user-dir, in any of its spellings; several are separated by commas."""
    found: list[str] = []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == f"--{USER_DIR}":
            if equals:
                found.append(value)
            elif place + 1 < len(words):
                found.append(words[place + 1])
    return [path for text in found for path in text.split(",") if path]


def import_paths(paths: Iterable[str | os.PathLike[str]], notice: Callable[[str], object]) -> list[str]:
    """Import files and folders of parts, each once; those that do not exist are returned, for the caller to judge."""
    missing = []
    for given in paths:
        path = Path(given)
        if not path.exists():
            missing.append(str(given))
        elif is_for_fairseq(path):
            notice(f"--{USER_DIR} {given} has no effect: it holds plug-ins for fairseq, which are not imported here. Options "
                   "and optimizers of the published lines are built in")
        else:
            import_path(path)
    return missing


def missing_notice(missing: Sequence[str]) -> str:
    return (f"--{USER_DIR} {', '.join(missing)} does not exist; it has no effect, since everything that this command names is "
            "known without it")


def is_for_fairseq(path: Path) -> bool:
    """By the text of its Python files."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    return any(map(_IMPORTS_FAIRSEQ.search, texts)) and not any(map(_IMPORTS_LAMINA.search, texts))


def import_path(path: Path) -> None:
    """A file, a package (a folder with __init__.py), or a folder whose files are imported one by one."""
    path = path.resolve()
    if path in _imported:
        return
    if path.is_dir() and not (path / "__init__.py").exists():
        files = sorted(path.glob("*.py"))
        if not files:
            raise ConfigError(f"--{USER_DIR} {path} has no Python files. Name the file or folder that registers your parts.")
        for file in files:
            import_path(file)
        _imported[path] = sys.modules[__name__]
        return
    source = path / "__init__.py" if path.is_dir() else path
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(
        name, source, submodule_search_locations=[str(path)] if path.is_dir() else None)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--{USER_DIR} {path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ConfigError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        line = _line_in(error, path)
        raise ConfigError(f"--{USER_DIR} {path} cannot be imported: {type(error).__name__}: {error}{line}.") from error
    _imported[path] = module


def _module_name(path: Path) -> str:
    """Its own where that is free, so that its tests may import it too; otherwise one that says where it comes from."""
    stem = path.name if path.is_dir() else path.stem
    if stem.isidentifier() and not keyword.iskeyword(stem) and stem not in sys.modules and _is_unknown(stem):
        return stem
    return f"user_parts_{re.sub(r'[^0-9a-zA-Z_]', '_', stem)}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _is_unknown(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError):
        return True


def _line_in(error: BaseException, path: Path) -> str:
    """Where in the person's own files it happened."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if Path(file).is_relative_to(path if path.is_dir() else path.parent):
            place = f" ({Path(file).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


@contextmanager
def restored() -> Iterator[None]:
    """Inside, parts may be added, to try them; afterwards none of them is known."""
    before = dict(_imported)
    try:
        with tables_restored():
            yield
    finally:
        _imported.clear()
        _imported.update(before)


def load_installed(notice: Callable[[str], object]) -> None:
    """The parts of installed packages, once; a package that is broken costs a line and nothing more."""
    if _state["are installed ones loaded"]:
        return
    _state["are installed ones loaded"] = True
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            notice(f"the parts of the installed package {entry.value} could not be loaded: {type(error).__name__}: {reason}")


class Carried:
    """A configuration on its way to another process, which imports the same parts before it looks at it."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __reduce__(self) -> Any:
        paths = [str(path) for path, module in _imported.items() if module is not sys.modules[__name__]]
        return _arrived, (paths, type(self.config), flatten(self.config))


def _arrived(paths: list[str], cls: type, flat: dict[str, Any]) -> Carried:
    load_installed(lambda _: None)  # the first process has said it
    import_paths(paths, lambda _: None)
    return Carried(build(cls, flat))

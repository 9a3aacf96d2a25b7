"""Python's bytecode is kept somewhere, unless somebody has said where."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lamina

PROGRAM = "from lamina.bytecode import keep_bytecode; keep_bytecode(); import torch; print(torch.__cached__)"


@pytest.fixture
def import_torch(tmp_path):
    """A torch of one line, imported by another process; where its bytecode belongs, whether it is there, and the files kept."""
    (tmp_path / "site" / "torch").mkdir(parents=True)
    (tmp_path / "site" / "torch" / "__init__.py").write_text("answer = 42\n")

    def run(**environment):
        path = os.pathsep.join([str(tmp_path / "site"), str(Path(lamina.__file__).parents[1])])
        base = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True,
                              env=base | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")} | environment)
        place = Path(done.stdout.strip())
        return place, place.exists(), sorted((tmp_path / "cache").rglob("*.pyc"))

    return run


def test_bytecode_that_nothing_else_keeps_is_kept_in_the_users_cache(import_torch, tmp_path):
    place, is_there, kept = import_torch(PYTHONDONTWRITEBYTECODE="1")
    assert place.is_relative_to(tmp_path / "cache" / "lamina" / "bytecode")
    assert is_there
    assert place in kept
    before = place.stat().st_mtime_ns
    assert import_torch(PYTHONDONTWRITEBYTECODE="1")[0].stat().st_mtime_ns == before


def test_python_keeps_it_beside_the_module_where_it_may(import_torch, tmp_path):
    place, is_there, kept = import_torch()
    assert place.parent == tmp_path / "site" / "torch" / "__pycache__"
    assert is_there
    assert kept == []
    # From now on it is there, and nothing has to be written.
    assert import_torch(PYTHONDONTWRITEBYTECODE="1")[0] == place


def test_a_folder_that_somebody_named_stays(import_torch, tmp_path):
    place, is_there, kept = import_torch(PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX=str(tmp_path / "own"))
    assert place.is_relative_to(tmp_path / "own")
    assert not is_there
    assert kept == []

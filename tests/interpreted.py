"""Triton's interpreter, which runs kernels on a CPU where Triton is installed.

It must be on before a kernel is imported: so a file's tests of kernels run in a process of their own.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

HAS_TRITON = find_spec("triton") is not None
IS_INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"

needs_interpreter = pytest.mark.skipif(not IS_INTERPRETED, reason="needs TRITON_INTERPRET=1 and triton")
starts_interpreter = pytest.mark.skipif(not HAS_TRITON or IS_INTERPRETED, reason="needs triton, not interpreted yet")


def check_interpreted(file: str) -> None:
    """All tests of a file with the interpreter."""
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file], text=True, check=False,
                         capture_output=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert run.returncode == 0, run.stdout


def _count_by_numbers():
    """Triton 3.6 makes lengths of loops of arrays with one number, which numpy 2.4 no longer takes for a number."""
    from triton.runtime import interpreter

    real = interpreter._patch_lang_tensor

    def patch(tensor, scope):
        real(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def _mask_by_booleans():
    """Triton 3.9 computes some conditions of single numbers in integers, calls them booleans, and refuses them as masks."""
    from triton.runtime.interpreter import InterpreterBuilder

    def with_boolean(real, place):
        def run(self, *given):
            given[place].data = given[place].data.astype(bool)
            return real(self, *given)
        return run

    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        setattr(InterpreterBuilder, name, with_boolean(getattr(InterpreterBuilder, name), place))


if IS_INTERPRETED:
    _count_by_numbers()
    _mask_by_booleans()

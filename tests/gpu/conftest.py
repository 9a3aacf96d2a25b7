"""Compiling takes seconds a test: test_captured.py does it, the others capture updates as they are."""

import pytest

import lamina.nn.compiling as compiling_module
import lamina.nn.cross_entropy as loss_module
import lamina.training.update as update_module


@pytest.fixture(autouse=True)
def uncompiled(request, monkeypatch):
    if request.module.__name__.endswith("test_captured"):
        yield
        return
    loss_module.compiled_chunk.cache_clear()
    for module in (compiling_module, loss_module, update_module):
        monkeypatch.setattr(module, "compiled", lambda function: function)
    yield
    loss_module.compiled_chunk.cache_clear()

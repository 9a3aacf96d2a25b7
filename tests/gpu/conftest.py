"""Compiling takes seconds a test: test_captured.py and test_compiled.py do it, the others capture updates as they are.

A run on a GPU may be cut short, so each failure is told as soon as it is known.
"""

import os

import pytest
import torch
from torch import distributed as dist

import lamina.cuda_graphs.compiled_pass as pass_module
import lamina.nn.compiling as compiling_module
import lamina.nn.cross_entropy as loss_module
import lamina.training.update as update_module
from lamina.distributed.ranks import Ranks


@pytest.fixture(autouse=True)
def uncompiled(request, monkeypatch):
    if request.module.__name__.endswith(("test_captured", "test_compiled")):
        yield
        return
    loss_module.compiled_chunk.cache_clear()
    for module in (compiling_module, loss_module, pass_module, update_module):
        monkeypatch.setattr(module, "compiled", lambda function: function)
    yield
    loss_module.compiled_chunk.cache_clear()


@pytest.fixture(autouse=True)
def usable_device(request):
    """An assertion that fails on the device leaves its process no device: every later test there would fail, fast, and take the
    tests of others. So the process ends; xdist starts another one."""
    yield
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        if hasattr(request.config, "workerinput"):
            os._exit(1)
        pytest.exit(f"the device is lost: {str(error).partition(chr(10))[0]}", returncode=1)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """A group of one."""
    device = torch.device("cuda", 0)
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield Ranks(device=device)
    dist.destroy_process_group()


class FailuresAtOnce:
    """One line for each failure, while other tests are still running. With xdist the process that prints hears of all."""

    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_line(f"FAILED {report.nodeid} ({report.when}): {reason(report)}", red=True)
            self.terminal.flush()

    def pytest_collectreport(self, report):
        self.pytest_runtest_logreport(report)


def reason(report):
    """Where it failed, the error's first line, and the last line on stderr, where commands say what is wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        lines = [(report.longreprtext.strip().splitlines() or ["no reason given"])[-1]]
    else:
        lines = [f"{os.path.basename(crash.path)}:{crash.lineno}: {crash.message.partition(chr(10))[0]}"]
    return " | ".join([*lines, *report.capstderr.strip().splitlines()[-1:]])


@pytest.hookimpl(trylast=True)  # the terminal comes first
def pytest_configure(config):
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(terminal), "failures-at-once")

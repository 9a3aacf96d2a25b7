"""What tests of recipes have in common."""

from pathlib import Path

import pytest

from lamina.recipes import worker


@pytest.fixture
def in_process(monkeypatch):
    """Runs worked on right here, which saves the seconds that it takes to load torch."""
    def popen(command, **_):
        worker.main(Path(command[-1]))
        return type("Done", (), {"poll": lambda self: 0, "returncode": 0})()

    monkeypatch.setattr("lamina.recipes.runner.subprocess.Popen", popen)
    monkeypatch.setattr("lamina.recipes.worker._live_and_die_with_parent", lambda: None)

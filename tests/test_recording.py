"""Recordings are left in peace."""

import gc

import pytest

from lamina.recording import undisturbed


@pytest.mark.parametrize("was_on", [True, False])
def test_no_garbage_is_collected_while_something_is_recorded(was_on):
    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(RuntimeError), undisturbed():
            assert not gc.isenabled()
            raise RuntimeError("a recording that fails")
        assert gc.isenabled() == was_on
    finally:
        gc.enable()

"""Recordings are left in peace."""

import gc

import pytest

from lamina.cuda_graphs.capture import no_garbage_collection


@pytest.mark.parametrize("was_on", [True, False])
def test_no_garbage_is_collected_while_something_is_recorded(was_on):
    def record_in_vain():
        assert not gc.isenabled()
        raise RuntimeError("cannot be recorded")

    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(RuntimeError, match="cannot be recorded"), no_garbage_collection():
            record_in_vain()
        assert gc.isenabled() == was_on
    finally:
        gc.enable()

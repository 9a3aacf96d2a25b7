"""Who is silent is named; who is late is not."""

import time
from contextlib import ExitStack

from torch import distributed as dist

from lamina.distributed import heartbeat
from lamina.distributed.heartbeat import beating, silent_ranks


def test_the_rank_that_gives_no_sign_is_named(monkeypatch):
    monkeypatch.setattr(heartbeat, "SECONDS_BETWEEN_BEATS", 0.02)
    monkeypatch.setattr(heartbeat, "SECONDS_OF_WATCHING", 1.0)
    store = dist.HashStore()
    with ExitStack() as living:
        for rank in (0, 1, 3):
            living.enter_context(beating(store, rank))
        with beating(store, 2):
            time.sleep(0.1)
        time.sleep(0.1)
        assert silent_ranks(store, 0, 4) == [2]
        assert silent_ranks(store, 0, 5) == [2, 4]  # one that never came
    assert silent_ranks(store, 0, 1) == []


def test_a_store_that_is_gone_names_nobody():
    class Gone:
        def check(self, keys):
            raise dist.DistNetworkError("Connection reset by peer")

        def set(self, key, value):
            raise dist.DistNetworkError("Connection reset by peer")

    assert silent_ranks(Gone(), 0, 2) == []
    with beating(Gone(), 0):
        time.sleep(0.01)

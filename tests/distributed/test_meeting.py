"""Ranks meet again where others have met before."""

import threading
from datetime import timedelta

import pytest
from torch import distributed as dist

from lamina.distributed.meeting import agree_on_attempt

PATIENCE = timedelta(seconds=20)


def meet(store, size, patience=PATIENCE):
    names = {}
    threads = [threading.Thread(target=lambda rank=rank: names.update({rank: agree_on_attempt(store, rank, size, patience)}))
               for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names.values())) == 1
    assert len(names) == size
    return names[0]


@pytest.mark.parametrize("size", [2, 3])
def test_every_meeting_has_a_name_of_its_own(size):
    store = dist.HashStore()
    assert len({meet(store, size) for _ in range(5)}) == 5


def test_what_a_killed_rank_has_said_is_not_believed():
    """It spoke and was killed before the answer came, or before it could confirm."""
    store = dist.HashStore()
    store.set("word 1", "old")
    first = meet(store, 2)
    store.set("answer 1", f"old {first}")
    store.set(f"{first} 1", "confirmed")
    assert meet(store, 2) != first


@pytest.mark.parametrize(("rank", "reason"), [(0, "1 of 2 have not come"), (1, "rank 0 does not answer")])
def test_nobody_waits_for_ever(rank, reason):
    with pytest.raises(dist.DistStoreError, match=reason):
        agree_on_attempt(dist.HashStore(), rank, 2, timedelta(seconds=0.05))

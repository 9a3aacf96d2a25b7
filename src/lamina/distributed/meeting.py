"""Where ranks meet more than once: torchrun starts them again at the same place, and what a former attempt said still stands.

Who believes it waits for processes that are gone. How often torchrun has started them does not tell attempts apart: a machine
counts for itself, and not when another one joins. So the ranks of an attempt agree on a name that nobody used before.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Any

from torch import distributed as dist

SECONDS_BETWEEN_LOOKS = 0.02


def agree_on_attempt(store: Any, rank: int, size: int, patience: timedelta) -> str:
    """A name for this meeting. Each rank says a word of its own, and believes the answer that repeats it.

    The first rank answers a rank that speaks again, until all have confirmed under the new name: then none is left that
    listened to an old word.
    """
    until = time.monotonic() + patience.total_seconds()
    word = secrets.token_hex(8)
    if rank == 0:
        _answer(store, word, size, until)
        return word
    store.set(f"word {rank}", word)
    while True:
        if store.check([f"answer {rank}"]):
            repeated, _, name = store.get(f"answer {rank}").decode().partition(" ")
            if repeated == word:
                store.set(f"{name} {rank}", "confirmed")
                return name
        _wait(until, "rank 0 does not answer")


def _answer(store: Any, name: str, size: int, until: float) -> None:
    others = range(1, size)
    answered: dict[int, str] = {}
    while not store.check([f"{name} {rank}" for rank in others]):
        for rank in others:
            if store.check([f"word {rank}"]) and answered.get(rank) != (word := store.get(f"word {rank}").decode()):
                store.set(f"answer {rank}", f"{word} {name}")
                answered[rank] = word
        missing = size - 1 - len(answered)
        _wait(until, f"{missing} of {size} have not come" if missing else "one has left again")


def _wait(until: float, why_not: str) -> None:
    if time.monotonic() > until:
        raise dist.DistStoreError(why_not)
    time.sleep(SECONDS_BETWEEN_LOOKS)

"""One value for all threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu.core.once import once

THREADS = 4


def test_threads_get_the_same() -> None:
    together = threading.Barrier(THREADS)
    made = []

    @once
    def thing() -> object:
        """What there is one of."""
        threading.Event().wait(0.05)  # in which the others ask for it
        made.append(object())
        return made[-1]

    def ask(_: int) -> object:
        together.wait()
        return thing()

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(ask, range(THREADS)))
    assert len(made) == 1 and all(each is made[0] for each in found)
    assert thing.__doc__ == "What there is one of."


def test_what_failed_is_tried_again() -> None:
    tries = []

    @once
    def thing() -> int:
        tries.append(None)
        if len(tries) == 1:
            raise KeyError("not yet")
        return 5

    with pytest.raises(KeyError):
        thing()
    assert thing() == thing() == 5 and len(tries) == 2

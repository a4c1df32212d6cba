"""Doorbells that ring while the model looks: none is lost, whoever rings and whenever."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu.sim.nv.world import NvSimWorld
from sim.nv.methods import release
from sim.nv.raw_nv import Buffer, RawNv, Ring

DOORBELL, UNRUNG = 0x90, 0xFFFFFFFF
ROUNDS = 80
PATIENCE = 20_000  # looks of the model in which nothing comes


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Threads take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("moment", ["read_word", "write_word", "load", "store"])
def test_a_ring_at_every_moment_of_a_look(
    user: RawNv, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another channel rings just before and just after each access of the model to the page."""
    page, other = user.world.gpus[0].usermode, user.open_ring()
    flags, count = user.buffer(), 0
    access: Callable[..., Any] = getattr(page, moment)
    inside = False

    def ring() -> None:
        nonlocal count, inside
        if not inside and count < 32:
            count, inside = count + 1, True
            other.submit(*release(flags.va, count))
            inside = False

    def interrupted(*arguments: Any) -> Any:
        ring()
        result = access(*arguments)
        ring()
        return result

    monkeypatch.setattr(page, moment, interrupted)
    user.ring.submit(*release(flags.va + 8, 1))
    if moment == "store":
        user.doorbell_page.write(0x200, 4, 1)
    user.run()
    assert flags.host.read(8, 4) == 1
    assert flags.host.read(0, 4) == count and count


class Producer(threading.Thread):
    """Submits without any lock, and waits for each to be done."""

    def __init__(self, ring: Ring, flag: Buffer, seed: int, stop: threading.Event):
        super().__init__(daemon=True)
        self.ring, self.flag, self.done = ring, flag, 0
        self._rng, self._stopped = random.Random(seed), stop

    def run(self) -> None:
        while self.done < ROUNDS and not self._stopped.is_set():
            for _ in range(self._rng.randint(1, 3)):
                self.done += 1
                self.ring.submit(*release(self.flag.va, self.done))
            while self.flag.host.read(0, 4) != self.done:
                if self._stopped.is_set():
                    return
            self.ring.at = 0


@pytest.mark.parametrize("seed", [1, 2])
def test_rings_of_threads_are_not_lost(eager_switches: None, seed: int) -> None:
    """Two threads ring at the one register while a third has the model work."""
    world = NvSimWorld(seed=seed)
    user, stop = RawNv(world.process), threading.Event()
    rings = [user.ring, user.open_ring()]
    producers = [Producer(ring, user.buffer(), seed + i, stop) for i, ring in enumerate(rings)]
    for producer in producers:
        producer.start()
    patience = PATIENCE
    while any(producer.is_alive() for producer in producers) and patience:
        with world.lock:
            patience = PATIENCE if world.work() else patience - 1
    stop.set()
    for producer in producers:
        producer.join()
    assert [producer.done >= ROUNDS for producer in producers] == [True, True]
    assert [p.flag.host.read(0, 4) == p.done for p in producers] == [True, True]
    assert not world.debug.violations
    world.close()


def test_a_ring_that_never_comes_is_still_missed(user: RawNv) -> None:
    flag = user.buffer()
    user.ring.submit(*release(flag.va, 1))
    user.run()
    user.ring.write_entry(user.ring.entry(release(flag.va, 2)))
    user.ring.publish()
    user.run()
    assert flag.host.read(0, 4) == 1
    assert "its doorbell was not rung" in user.ring.user.world.stuck("").message
    user.doorbell(user.ring.token)
    user.run()
    assert flag.host.read(0, 4) == 2

"""Ctrl-C while a model works: it comes between what engines and calls do, and nothing is lost."""

from __future__ import annotations

import os
import signal

import pytest

from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.undisturbed import Undisturbed
from sim.raw_kfd import PAGE, SDMA, SIGNAL, RawKfd, sdma_write


def test_it_comes_at_the_end() -> None:
    undisturbed, done = Undisturbed(), []
    with pytest.raises(KeyboardInterrupt), undisturbed, undisturbed:
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == [1] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with undisturbed:
        pass
    with pytest.raises(KeyboardInterrupt), undisturbed:
        signal.raise_signal(signal.SIGINT)
        undisturbed.let_through()
        done.append(2)
    assert done == [1]


def test_a_block_in_the_beginning_and_the_end_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As finalizers have them, which the collector runs at any call."""
    undisturbed, set_handler, inside = Undisturbed(), signal.signal, []

    def collecting(number: int, handler: object) -> object:
        before = set_handler(number, handler)  # type: ignore[arg-type]
        if not inside:
            inside.append(1)
            with undisturbed:
                pass
            inside.pop()
        return before

    monkeypatch.setattr(signal, "signal", collecting)
    for _ in range(2):
        with undisturbed:
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), undisturbed:
        signal.raise_signal(signal.SIGINT)


def test_an_engine_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet that was begun is done."""
    world = KfdWorld(seed=1)
    user = RawKfd(world.process)
    target, queue = user.alloc(PAGE, SIGNAL), user.queue(SDMA)
    step = type(world.gpus[0].queues[0]).step

    def interrupted(self: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        step(self)  # type: ignore[arg-type]

    monkeypatch.setattr(type(world.gpus[0].queues[0]), "step", interrupted)
    queue.submit(sdma_write(target.va, 7))
    with pytest.raises(KeyboardInterrupt):
        world.waiter.idle(1_000_000)
    assert target.host.read(0, 4) == 7
    world.close()


def test_a_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT_EVENTS is left between two turns of engines, and may be made again."""
    world = KfdWorld(seed=1)
    user = RawKfd(world.process)
    event = user.event(page=user.event_page().handle).event_id

    def work(*_: object) -> bool:
        signal.raise_signal(signal.SIGINT)
        turns.append(1)
        return True

    turns: list[int] = []
    monkeypatch.setattr(world, "work", work)
    with pytest.raises(KeyboardInterrupt):
        user.wait([event], timeout=1000)
    monkeypatch.undo()
    assert len(turns) <= 2
    user.call("set_event", event_id=event)
    assert user.wait([event], timeout=0)[0] == 0
    world.close()

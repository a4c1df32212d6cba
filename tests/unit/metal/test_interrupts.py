"""A Ctrl-C at every call of Objective-C's runtime: what was begun ends, and all works after it."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device, Tensor
from gpu.autogen.metal import METHODS
from gpu.backends.metal.graph import MetalGraph
from gpu.backends.metal.library import simulated_libraries
from gpu.backends.metal.memory import PAGE
from gpu.backends.metal.objc import FUNCTIONS
from simulated import SIMULATED, keeping_rules
from unit.metal.test_graph import COUNT, held, memory, program

NAMES = [name.replace(":", "_") for name in METHODS] + [
    # objc_release is called by finalizers, whose errors Python lets go.
    name for name in FUNCTIONS if name != "objc_release"
]  # fmt: skip
_new = np.random.default_rng


@pytest.fixture(autouse=True)
def mac(need: Callable[[str], None]) -> Iterator[None]:
    need("simulated-mac")
    with Context(SIM=SIMULATED["METAL"], DEV="METAL"), keeping_rules("METAL"):
        yield


@contextmanager
def interrupted(at: int, after: bool) -> Iterator[list[str]]:
    """A Ctrl-C comes before or after the call of this number; gives the names of all."""
    objc: Any = Device["METAL"].context.objc  # type: ignore[attr-defined]
    seen: list[str] = []

    def noticing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            seen.append(name)
            is_now = len(seen) == at + 1
            if is_now and not after:
                signal.raise_signal(signal.SIGINT)
            result = call(*arguments)
            if is_now and after:
                signal.raise_signal(signal.SIGINT)
            return result

        return function

    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setattr(objc, name, noticing(name, getattr(objc, name)))
        yield seen


def launching() -> None:
    rng, made = _new(1), program("valued")
    memories = memory(rng), memory(rng)
    wanted = held(memories[0]) * np.uint32(5) + held(memories[1]) + np.uint32(7 - 2 * 3)
    made(*memories, vals=(7, 3), wait=True)
    assert (held(memories[0]) == wanted).all()


def replaying(count: int) -> Callable[[], None]:
    made = program("plain")
    graph = MetalGraph([(made, (0, 1), ())] * count, 2)

    def replay() -> None:
        rng = _new(count)
        for _ in range(2):
            memories = memory(rng), memory(rng)
            wanted = held(memories[0]).copy()
            for _ in range(count):
                wanted = wanted * np.uint32(3) + held(memories[1])
            graph(memories)
            Device["METAL"].synchronize()
            assert (held(memories[0]) == wanted).all()

    return replay


def copying() -> None:
    allocator = Device["METAL"].allocator
    given, got = bytearray(range(COUNT)), bytearray(COUNT)
    first, second = allocator.alloc(COUNT), allocator.alloc(COUNT)
    allocator.copy_in(first, memoryview(given))
    allocator.copy(second, first, COUNT)
    allocator.copy_out(memoryview(got), second)
    assert got == given


def sharing() -> None:
    allocator = Device["METAL"].allocator
    memory = allocator.alloc(4 * COUNT)
    held(memory)[:] = np.arange(COUNT)
    assert Tensor.from_blob(memory.id, 8, "uint32", offset=64).tolist() == list(range(16, 24))


def borrowing() -> None:
    whole = np.zeros(2 * PAGE, np.uint8)
    begin = -whole.ctypes.data % PAGE
    memory = Device["METAL"].allocator.borrow(whole.ctypes.data + begin, 64, whole)
    assert memory is not None and memory.is_borrowed


def loading() -> None:
    assert program("working").block


OPERATIONS: dict[str, Callable[[], Callable[[], None]]] = {
    "launch": lambda: launching,
    "replay of few": lambda: replaying(2),
    "replay of many": lambda: replaying(8),
    "copies": lambda: copying,
    "exchange": lambda: sharing,
    "borrow": lambda: borrowing,
    "load": lambda: loading,
}


@pytest.mark.parametrize("what", OPERATIONS)
def test_an_interrupt_at_every_call(what: str) -> None:
    run = OPERATIONS[what]()
    for _ in range(3):
        run()
    Device["METAL"].synchronize()
    with interrupted(-1, after=False) as seen:
        run()
    came = 0
    (library,) = simulated_libraries()[-1:]
    step = max(len(seen) // 15, 1)  # of very many calls some
    for at in range(0, len(seen), step):
        for after in (False, True):
            open_before = library.runtime.open_pools
            with interrupted(at, after) as called:
                try:
                    run()
                except KeyboardInterrupt:
                    came += 1
            if at >= len(called):  # who waits asks now more often, now less
                continue
            # Of these two nobody knows whether they have: the pool goes with the thread.
            lost = called[at] == (
                "objc_autoreleasePoolPush" if after else "objc_autoreleasePoolPop"
            )
            assert library.runtime.open_pools == open_before + lost
            run()
    assert came > len(range(0, len(seen), step))
    Device["METAL"].synchronize()
    gc.collect()

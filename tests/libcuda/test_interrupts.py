"""A Ctrl-C behind every call of libcuda: the next result is right, and nothing is left behind."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pytest

from gpu.backends.cuda import hotcode
from gpu.backends.cuda.exchange import CudaExchange
from gpu.backends.cuda.graph import ONE_BY_ONE, CudaGraph
from gpu.backends.cuda.library import BY_VALUE, SIGNATURES, Library
from gpu.backends.cuda.memory import SLOT_BYTES, SLOTS
from libcuda.test_simulated import ADD, Simulated

COUNT = 256


class Noticing(Library):
    """A libcuda behind one of whose calls a Ctrl-C comes.

    Attributes:
        seen: the functions that were called, in order, since `begin`.
    """

    def __init__(self, addresses: dict[str, int]):
        super().__init__(addresses)
        self.seen: list[str] = []
        self._at = -1
        for name in (*SIGNATURES, *BY_VALUE):
            setattr(self, name, self.noticed(name, getattr(self, name)))

    def begin(self, at: int) -> None:
        """It comes behind the call of this number from now; -1 is never."""
        self.seen, self._at = [], at

    def noticed(self, name: str, call: Callable[..., int]) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            self.seen.append(name)
            is_now = len(self.seen) == self._at + 1
            code = call(*arguments)
            if is_now:
                signal.raise_signal(signal.SIGINT)
            return code

        return function

    def bind(self, name: str, *pointers: int) -> Callable[[], int]:
        return self.noticed(name, super().bind(name, *pointers))


class Interrupted(Simulated):
    """A GPU of a model, whose native code is one call as well.

    Attributes:
        live: memory that was allocated and not freed, which tensors would own, by its identity.
    """

    def __init__(self, patch: pytest.MonkeyPatch):
        patch.setattr("libcuda.test_simulated.Library", Noticing)
        super().__init__(3)
        self.cuda: Any = self.context.library
        self.live: dict[int, tuple[Any, int]] = {}
        take, give = self.allocator.alloc, self.allocator.free

        def alloc(nbytes: int) -> Any:
            memory = take(nbytes)
            self.live[id(memory)] = memory, nbytes
            return memory

        def free(memory: Any, nbytes: int) -> None:
            self.live.pop(id(memory))
            give(memory, nbytes)

        patch.setattr(self.allocator, "alloc", alloc)
        patch.setattr(self.allocator, "free", free)
        native = hotcode.hot_code()
        noticed = native._replace(
            launch=self.cuda.noticed("launch", native.launch),
            replay=self.cuda.noticed("replay", native.replay),
        )
        patch.setattr("gpu.backends.cuda.program.hot_code", lambda: noticed)
        patch.setattr("gpu.backends.cuda.graph.hot_code", lambda: noticed)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interrupted]:
    made = Interrupted(monkeypatch)
    yield made
    made.context.close()
    made.library.check()


def _launches(gpu: Interrupted) -> Callable[[], None]:
    add = gpu.program(ADD, "add", 2, 1)

    def run(wait: bool = False) -> None:
        x, y = np.arange(COUNT, dtype=np.uint32), np.full(COUNT, 5, np.uint32)
        a, b = gpu.array(x), gpu.array(y)
        add(a, b, vals=[7], wait=wait)
        np.testing.assert_array_equal(gpu.numbers(a, COUNT), x + y + np.uint32(7))
        gpu.allocator.free(a, 4 * COUNT)
        gpu.allocator.free(b, 4 * COUNT)

    return run


def _timed(gpu: Interrupted) -> Callable[[], None]:
    run: Any = _launches(gpu)
    return lambda: run(wait=True)


def _replays(gpu: Interrupted) -> Callable[[], None]:
    add = gpu.program(ADD, "add", 2, 1)
    graph = CudaGraph([(add, (0, 1), (0,)), (add, (2, 0), (0,))], 3)
    made = [gpu.array(np.zeros(COUNT, np.uint32)) for _ in range(4)]
    turn = iter(range(1 << 30))

    def run() -> None:
        for value in 3, 4:
            number = next(turn)
            memories = [made[number % 4], made[(number + 1) % 4], made[(number + 2) % 4]]
            have = [gpu.numbers(memory, COUNT) for memory in memories]
            graph(memories, [value])
            first = have[0] + have[1] + np.uint32(value)
            np.testing.assert_array_equal(gpu.numbers(memories[0], COUNT), first)
            last = have[2] + first + np.uint32(value)
            np.testing.assert_array_equal(gpu.numbers(memories[2], COUNT), last)

    return run


def _making_graphs(gpu: Interrupted) -> Callable[[], None]:
    add = gpu.program(ADD, "add", 2, 1)

    def run() -> None:
        graph = CudaGraph([(add, (0, 1), (0,))], 2)
        a, b = gpu.array(np.zeros(COUNT, np.uint32)), gpu.array(np.ones(COUNT, np.uint32))
        for _ in range(ONE_BY_ONE + 2):
            graph([a, b], [1])
        assert set(gpu.numbers(a, COUNT).tolist()) == {2 * (ONE_BY_ONE + 2)}

    return run


def _copies(gpu: Interrupted) -> Callable[[], None]:
    data = np.random.default_rng(1).integers(0, 255, SLOT_BYTES + 77, np.uint8)

    def run() -> None:
        first, second = (gpu.allocator.alloc(data.nbytes) for _ in range(2))
        gpu.allocator.copy_in(first, data.data)
        gpu.allocator.copy(second, first, data.nbytes)
        back = np.empty_like(data)
        gpu.allocator.copy_out(back.data, second)
        np.testing.assert_array_equal(back, data)
        gpu.allocator.free(first, data.nbytes)
        gpu.allocator.free(second, data.nbytes)

    return run


def _allocations(gpu: Interrupted) -> Callable[[], None]:
    def run() -> None:
        memory = gpu.allocator.alloc(777)
        gpu.allocator.copy_in(memory, bytes(range(100)) * 7 + bytes(77))
        gpu.allocator.free(memory, 777)
        gpu.allocator.free_cache()

    return run


def _loading(gpu: Interrupted) -> Callable[[], None]:
    def run() -> None:
        memory = gpu.array(np.arange(COUNT, dtype=np.uint32))
        gpu.program(ADD, "add", 2, 1)(memory, memory, vals=[1])
        assert gpu.numbers(memory, COUNT).tolist() == [2 * i + 1 for i in range(COUNT)]

    return run


def _sharing(gpu: Interrupted) -> Callable[[], None]:
    exchange = CudaExchange(gpu.context)

    def run() -> None:
        for by_file in False, True:
            exchange.export(100, by_file)

    return run


OPERATIONS = {
    "launch": _launches,
    "timed launch": _timed,
    "replay": _replays,
    "graph": _making_graphs,
    "copies": _copies,
    "memory": _allocations,
    "load": _loading,
    "share": _sharing,
}


def _left(gpu: Interrupted, kept: Collection[int] = ()) -> list[str]:
    """What is there when nothing runs, and no memory but this is kept."""
    for _ in range(2):  # what the first round lets go is given back by the second
        gc.collect()
        for identity in gpu.live.keys() - kept:
            gpu.allocator.free(*gpu.live[identity])
        gpu.context.synchronize()
        gpu.allocator.free_cache()
        gpu.context.synchronize()
    return gpu.library.left()


@pytest.mark.parametrize("what", OPERATIONS)
def test_an_interrupt_behind_every_call(gpu: Interrupted, what: str) -> None:
    run = OPERATIONS[what](gpu)
    owned = [*gpu.live]
    for _ in range(SLOTS):
        run()
    kept = _left(gpu, owned)
    gpu.cuda.begin(-1)
    run()
    seen, came = gpu.cuda.seen, 0
    places = {seen.index(name) for name in seen}
    places |= {len(seen) - 1 - seen[::-1].index(name) for name in seen}
    for at in sorted(places):  # the first call of each function, and the last
        gpu.cuda.begin(at)
        try:
            run()
        except KeyboardInterrupt:
            came += 1
        gpu.cuda.begin(-1)
        run()
        assert _left(gpu, owned) == kept, (at, gpu.cuda.seen)
    assert came > len(places) // 2  # finalizers let go what they raise

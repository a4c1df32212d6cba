"""What a launch and a replay do on the host: counted, as time is the machine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
from gpu.backends.cuda.exchange import AdoptedMemory
from gpu.backends.cuda.graph import ONE_BY_ONE, CudaGraph
from gpu.backends.cuda.memory import CudaMemory
from libcuda.conftest import Opened
from unit.python_calls import python_calls

_OURS = str(Path(gpu.__file__).parent)
_LAUNCH_CALLS, _REPLAY_CALLS = 6, 10


class Watched(CudaMemory):
    """Memory that counts how often its address is asked for."""

    looks = 0

    @property
    def address(self) -> int | None:  # type: ignore[override]
        Watched.looks += 1
        return self._at

    @address.setter
    def address(self, address: int | None) -> None:
        self._at = address


def test_a_launch_is_a_few_calls(cuda: Opened) -> None:
    program, memories = cuda.program(buffers=6), [cuda.allocator.alloc(8) for _ in range(6)]
    program(*memories)
    cuda.stand_in.calls.clear()
    assert python_calls(lambda: program(*memories), _OURS) <= _LAUNCH_CALLS
    assert [name for name, _ in cuda.stand_in.calls] == ["cuCtxGetCurrent", "cuLaunchKernelEx"]


@pytest.mark.parametrize("kernels", [10, 100])
@pytest.mark.parametrize("changed", [1, 10])
def test_a_replay_looks_at_what_changes(cuda: Opened, kernels: int, changed: int) -> None:
    """As many calls for any number of kernels; one of libcuda for each that is changed."""
    programs = [cuda.program(f"k{i}", buffers=3) for i in range(kernels)]
    launches = [(program, (i, i + 1, i + 2), ()) for i, program in enumerate(programs)]
    graph = CudaGraph(launches, 2 * kernels)  # some of which no launch has

    def memory() -> CudaMemory:
        with cuda.context.lock:
            return Watched(cuda.context, 64)

    memories = [memory() for _ in range(2 * kernels)]
    moves = range(0, changed * (kernels // changed), kernels // changed)
    nodes = len({i - back for i in moves for back in range(3) if i >= back})
    other = [list(memories) for _ in range(2)]
    for each in other:
        for i in moves:
            each[i] = memory()
    for each in (*[memories] * (ONE_BY_ONE + 1), *other):
        graph(each)
    cuda.stand_in.calls.clear()
    Watched.looks = 0
    assert python_calls(lambda: graph(other[0]), _OURS) <= _REPLAY_CALLS
    assert Watched.looks == changed
    names = [name for name, _ in cuda.stand_in.calls]
    sets = ["cuGraphExecKernelNodeSetParams_v2"] * nodes
    assert names == ["cuCtxGetCurrent", *sets, "cuGraphLaunch"]


def test_a_replay_tells_all_its_memory_that_it_used_it(cuda: Opened) -> None:
    """Drawn replays: some memory changes, ours and theirs; a kernel has what it was launched on."""
    rng = np.random.default_rng(4)
    seen: list[tuple[object, ...]] = []
    for _ in range(12):
        count, slots = int(rng.integers(1, 8)), int(rng.integers(2, 9))
        launches, moves = [], rng.random(slots) < rng.random()
        for number in range(count):
            used = tuple(int(i) for i in rng.integers(0, slots, 3))
            name, room = f"k{number}", 64 * int(rng.integers(0, 2))
            program = cuda.program(name, buffers=3, values=2, workspace=room)
            taken = tuple(int(i) for i in rng.integers(0, 3, 2))
            cuda.stand_in.kernels[name] = lambda *words, name=name: seen.append((name, *words))
            launches.append((program, used, taken))
        graph = CudaGraph(launches, slots)
        memories: list[Any] = [cuda.allocator.alloc(64) for _ in range(slots)]
        vals = [0, 0, 0]
        for _ in range(15):
            for slot in range(slots):
                if rng.random() < (0.5 if moves[slot] else 0.03):
                    memories[slot] = cuda.allocator.alloc(64)
                    if rng.random() < 0.3:
                        with cuda.context.lock:
                            at = 0x1000 + 32 * int(rng.integers(0, 20))
                            memories[slot] = AdoptedMemory(cuda.context, at, 64)
            vals[int(rng.integers(3))] += int(rng.integers(-1, 2))
            seen.clear()
            graph(memories, vals)
            want = [
                (program.name, *(m.address for m in (*[memories[i] for i in used], *room)),
                 *(vals[i] % 2**64 for i in taken))
                for program, used, taken in launches
                for room in [program.workspace]
            ]  # fmt: skip
            assert seen == want
            latest = cuda.context.streams.ticket
            for program, used, _ in launches:
                for memory in (*(memories[i] for i in used), *program.workspace):
                    assert latest - count < memory.last_use() <= latest


def test_memory_remembers_the_last_replay_of_a_graph_that_is_gone(cuda: Opened) -> None:
    memories = [cuda.allocator.alloc(64) for _ in range(2)]
    for _ in range(5):
        graph = CudaGraph([(cuda.program(), (0, 1), ())], 2)
        for _ in range(ONE_BY_ONE + 2):
            graph(memories)
        ticket = cuda.context.streams.ticket
        cuda.context.launched.forget(ticket)
        del graph
        assert [memory.last_use() for memory in memories] == [ticket] * 2
        assert all(len(memory.replays) == 1 for memory in memories)

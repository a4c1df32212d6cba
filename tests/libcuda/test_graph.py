"""Replays: the graph that is made, and what a call changes of it."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

from gpu.backends.cuda.exchange import AdoptedMemory
from gpu.backends.cuda.graph import ONE_BY_ONE, CudaGraph, _shared, dependencies
from gpu.core.errors import DeviceError, InvalidValue
from libcuda.conftest import Opened


def chain(cuda: Opened, count: int) -> tuple[CudaGraph, list[tuple[object, ...]]]:
    """Slot i + 1 of slot i, and what was launched."""
    seen: list[tuple[object, ...]] = []
    programs = [cuda.program(f"k{i}", values=1) for i in range(count)]
    for program in programs:
        cuda.stand_in.kernels[program.name] = lambda *w, name=program.name: seen.append((name, *w))
    launches = [(program, (i + 1, i), (0,)) for i, program in enumerate(programs)]
    return CudaGraph(launches, count + 1), seen


def test_replays_run_what_launches_ran(cuda: Opened) -> None:
    graph, seen = chain(cuda, 5)
    rng = np.random.default_rng(0)
    pool = [cuda.allocator.alloc(64) for _ in range(12)]
    for call in range(8):
        memories = [pool[i] for i in rng.permutation(12)[:6]]
        seen.clear()
        graph(memories, [call])
        want = [
            (f"k{i}", to.address, of.address, call)
            for i, (of, to) in enumerate(itertools.pairwise(memories))
        ]
        assert seen == want
    assert len(cuda.stand_in.given("cuGraphInstantiateWithFlags")) == 1
    assert len(cuda.stand_in.given("cuGraphLaunch")) == 8 - ONE_BY_ONE


def test_a_call_sets_the_nodes_that_have_other_arguments(cuda: Opened) -> None:
    graph, _ = chain(cuda, 6)
    memories = [cuda.allocator.alloc(64) for _ in range(7)]
    for _ in range(ONE_BY_ONE + 1):
        graph(memories, [0])
    nodes = list(cuda.stand_in.nodes)
    for changed, value, want in (
        ((), 0, []), ((0,), 0, [0]), ((3,), 0, [2, 3]), ((1, 2), 0, [0, 1, 2]), ((), 9, range(6)),
        ((), 9, []),
    ):  # fmt: skip
        for slot in changed:
            memories[slot] = cuda.allocator.alloc(64)
        cuda.stand_in.calls.clear()
        graph(memories, [value])
        set_ = [node for _, node, _ in cuda.stand_in.given("cuGraphExecKernelNodeSetParams_v2")]
        assert sorted(set_) == [nodes[i] for i in want]
        assert not cuda.stand_in.named("cuLaunchKernelEx")


def test_memory_that_coincides_otherwise_is_launched_in_order(cuda: Opened) -> None:
    graph, _ = chain(cuda, 3)
    memories = [cuda.allocator.alloc(64) for _ in range(4)]
    for _ in range(ONE_BY_ONE + 1):
        graph(memories, [0])
    cuda.stand_in.calls.clear()
    memories[3] = memories[0]  # the last writes what the first reads
    graph(memories, [0])
    assert len(cuda.stand_in.given("cuLaunchKernelEx")) == 3
    assert not cuda.stand_in.named("cuGraphLaunch", "cuGraphExecKernelNodeSetParams_v2")


def test_an_error_between_has_all_nodes_set_again(cuda: Opened) -> None:
    graph, _ = chain(cuda, 3)
    memories = [cuda.allocator.alloc(64) for _ in range(4)]
    for _ in range(ONE_BY_ONE + 1):
        graph(memories, [0])
    before = list(memories)
    memories[1] = cuda.allocator.alloc(64)
    cuda.stand_in.fails["cuGraphExecKernelNodeSetParams_v2"] = 1
    with pytest.raises(DeviceError, match="new arguments in a graph"):
        graph(memories, [0])
    cuda.stand_in.fails.clear()
    cuda.stand_in.calls.clear()
    graph(before, [0])
    assert len(cuda.stand_in.given("cuGraphExecKernelNodeSetParams_v2")) == 3


def test_edges_are_those_that_memory_makes(cuda: Opened) -> None:
    """Random launches: two are ordered, by way of others or not, if one writes what both touch."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        slots, launches = int(rng.integers(2, 9)), []
        for _ in range(int(rng.integers(1, 12))):
            used = tuple(int(i) for i in rng.integers(0, slots, int(rng.integers(1, 4))))
            written = int(rng.integers(0, 1 << len(used)))
            launches.append((cuda.program(buffers=len(used), written=written), used, ()))
        shared = [int(rng.integers(0, i + 1)) if rng.random() < 0.2 else i for i in range(slots)]
        found = dependencies(launches, shared)
        reached: list[set[int]] = []
        for number, after in enumerate(found):
            assert all(earlier < number for earlier in after)
            reached.append(set(after).union(*(reached[i] for i in after)))
        for later, earlier in itertools.combinations(range(len(launches))[::-1], 2):
            one, other = ({shared[slot]: 0 for slot in launches[i][1]} for i in (earlier, later))
            for touched, i in ((one, earlier), (other, later)):
                program, used, _ = launches[i]
                for bit, slot in enumerate(used):
                    touched[shared[slot]] |= program.written >> bit & 1
            conflict = any(one[m] or other[m] for m in one.keys() & other.keys())
            assert conflict <= (earlier in reached[later])
            if not conflict:  # then no edge joins the two directly
                assert earlier not in found[later]


def test_bytes_of_others_that_overlap_are_one_memory(cuda: Opened) -> None:
    """Drawn ranges, ours and theirs: two are ordered if they share a byte, by way of others too."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        ranges = [(int(a), int(n)) for a, n in rng.integers(1, 40, (int(rng.integers(1, 9)), 2))]
        with cuda.context.lock:
            memories = [AdoptedMemory(cuda.context, *each) for each in ranges]
        found = _shared(memories)
        want = list(range(len(ranges)))
        for _ in ranges:  # until nothing spreads any further
            for (i, (a, n)), (j, (b, m)) in itertools.permutations(enumerate(ranges), 2):
                if a < b + m and b < a + n:
                    want[i] = want[j] = min(want[i], want[j])
        assert found == want


def test_a_replay_orders_what_overlaps(cuda: Opened) -> None:
    """The second kernel writes bytes that the first reads, in memory of another name."""
    read, write = cuda.program("read"), cuda.program("write")
    graph = CudaGraph([(read, (0, 1), ()), (write, (2, 3), ())], 4)
    own = cuda.allocator.alloc(64), cuda.allocator.alloc(64)
    with cuda.context.lock:
        theirs = [AdoptedMemory(cuda.context, at, 64) for at in (0x1000, 0x1020, 0x2000)]
    for _ in range(ONE_BY_ONE + 1):
        graph([own[0], theirs[0], theirs[1], own[1]], [])
    (first, before), (_, after) = cuda.stand_in.nodes.items()
    assert before[1] == [] and after[1] == [first]
    cuda.stand_in.calls.clear()
    graph([own[0], theirs[0], theirs[2], own[1]], [])  # which shares nothing: another order
    assert not cuda.stand_in.named("cuGraphLaunch")


def test_memory_at_the_same_place_sets_nothing(cuda: Opened) -> None:
    """Another library's array is new memory in each call, where that has it each time."""
    graph, _ = chain(cuda, 2)
    own = [cuda.allocator.alloc(64) for _ in range(2)]
    for _ in range(ONE_BY_ONE + 3):
        with cuda.context.lock:
            theirs = AdoptedMemory(cuda.context, 0x1000, 64)
        graph([theirs, *own], [0])
    assert not cuda.stand_in.named("cuGraphExecKernelNodeSetParams_v2")
    assert len(cuda.stand_in.given("cuGraphLaunch")) == 3


def test_our_memory_that_comes_back_from_others_is_the_same(cuda: Opened) -> None:
    """Lent and taken back it has another name, here in one slot and not in another."""
    graph, _ = chain(cuda, 2)
    one, two, three = (cuda.allocator.alloc(64) for _ in range(3))
    for _ in range(ONE_BY_ONE + 1):
        graph([one, two, three], [0])
    with cuda.context.lock:
        back = AdoptedMemory(cuda.context, one.address, 64)
    graph([back, two, three], [0])
    cuda.stand_in.calls.clear()
    graph([back, two, one], [0])  # the last writes what the first reads
    assert not cuda.stand_in.named("cuGraphLaunch")
    graph([back, three, two], [0])
    assert len(cuda.stand_in.given("cuGraphLaunch")) == 1


def test_copies_wait_for_replays_on_that_memory(cuda: Opened) -> None:
    graph, _ = chain(cuda, 3)
    memories = [cuda.allocator.alloc(64) for _ in range(4)]
    for _ in range(ONE_BY_ONE + 1):
        graph(memories, [0])
        cuda.context.synchronize()
    memories[2] = cuda.allocator.alloc(64)
    for copied in memories[1:3]:  # which stayed, and which is another
        graph(memories, [0])
        cuda.stand_in.calls.clear()
        cuda.allocator.copy_in(copied, memoryview(bytes(64)))
        names = cuda.stand_in.named("cuStreamWaitEvent", "cuMemcpyHtoDAsync_v2")
        assert names == ["cuStreamWaitEvent", "cuMemcpyHtoDAsync_v2", "cuStreamWaitEvent"]


def test_a_graph_is_given_back_when_its_launches_are_done(cuda: Opened) -> None:
    graph, _ = chain(cuda, 3)
    memories = [cuda.allocator.alloc(64) for _ in range(4)]
    for _ in range(ONE_BY_ONE + 1):
        graph(memories, [0])
    cuda.context.launched.forget(cuda.context.streams.ticket)
    del graph
    gc.collect()
    assert not cuda.stand_in.named("cuGraphExecDestroy", "cuGraphDestroy")
    cuda.context.synchronize()
    assert cuda.stand_in.named("cuGraphExecDestroy", "cuGraphDestroy") == [
        "cuGraphExecDestroy",
        "cuGraphDestroy",
    ]


def test_slots_that_there_are_not_are_refused(cuda: Opened) -> None:
    with pytest.raises(InvalidValue, match="beyond them"):
        CudaGraph([(cuda.program(), (0, 5), ())], 3)

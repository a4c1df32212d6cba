"""Graphs: order of nodes, launches that wait for each other, and what an update may change."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpu.sim.cuda.library import Library
from sim.cuda.kernels import module
from sim.cuda.raw_cuda import RawCuda

INVALID_VALUE = 1


class Builder:
    """A graph under construction."""

    def __init__(self, raw: RawCuda):
        self.raw = raw
        self.graph = raw.get("cuGraphCreate", 0)
        self.context = raw.get("cuCtxGetCurrent")
        self._kept: list[Any] = []

    def kernel_params(self, function: int, threads: int, *arguments: Any) -> Any:
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(
            *(ctypes.addressof(each) for each in arguments)
        )
        words = np.zeros(9, np.uint64)
        words[0] = function
        words[1:5].view(np.uint32)[:7] = 1, 1, 1, threads, 1, 1, 0
        words[5] = ctypes.addressof(pointers)
        self._kept += [pointers, words, arguments]
        return words.ctypes.data

    def copy_params(self, target: int, source: int, size: int, kinds: tuple[int, int]) -> Any:
        """`kinds` are CUmemorytype of the target and the source."""
        words = np.zeros(25, np.uint64)
        words[4], words[15] = kinds[1], kinds[0]
        words[5 if kinds[1] == 1 else 6] = source
        words[16 if kinds[0] == 1 else 17] = target
        words[22:25] = size, 1, 1
        self._kept.append(words)
        return words.ctypes.data

    def fill_params(self, target: int, value: int, count: int, rows: int = 1) -> Any:
        words = np.zeros(5, np.uint64)
        words[0], words[1], words[3], words[4] = target, 4 * count, count, rows
        words[2:3].view(np.uint32)[:] = value, 4
        self._kept.append(words)
        return words.ctypes.data

    def add(self, kind: str, waits: Sequence[int], *arguments: Any) -> int:
        nodes = (ctypes.c_void_p * max(1, len(waits)))(*waits)
        node: int = self.raw.get(
            f"cuGraphAdd{kind}", self.graph, nodes if waits else None, len(waits), *arguments
        )
        return node

    def kernel(
        self, function: int, threads: int, *arguments: Any, waits: Sequence[int] = ()
    ) -> int:
        params = self.kernel_params(function, threads, *arguments)
        return self.add("KernelNode_v2", waits, params)

    def copy(self, *copy: Any, waits: Sequence[int] = ()) -> int:
        return self.add("MemcpyNode", waits, self.copy_params(*copy), self.context)

    def fill(self, *fill: int, waits: Sequence[int] = ()) -> int:
        return self.add("MemsetNode", waits, self.fill_params(*fill), self.context)

    def instantiate(self) -> int:
        made: int = self.raw.get("cuGraphInstantiateWithFlags", self.graph, 0)
        return made


def test_nodes_run_in_their_order(cuda: RawCuda) -> None:
    kernels, size = cuda.module(module()), 64
    twice = cuda.function(kernels, "twice")
    data = np.arange(size // 4, dtype=np.uint32)
    one, other = cuda.alloc(size), cuda.alloc(size)
    host = cuda.pinned(size).view(np.uint32)
    source = cuda.pinned(size).view(np.uint32)
    builder = Builder(cuda)
    up = builder.copy(one, source.ctypes.data, size, (2, 1))
    first = builder.kernel(twice, size // 4, ctypes.c_uint64(one), waits=[up])
    over = builder.copy(other, one, size, (2, 2), waits=[first])
    second = builder.kernel(twice, size // 4, ctypes.c_uint64(other), waits=[over])
    wiped = builder.fill(one, 7, size // 4, waits=[over])
    both = builder.add("EmptyNode", [second, wiped])
    builder.copy(host.ctypes.data, other, size, (1, 2), waits=[both])
    made, stream = builder.instantiate(), cuda.stream(1)
    for turn in range(3):
        source[:] = data + turn
        cuda.call("cuGraphLaunch", made, stream)
        cuda.call("cuStreamSynchronize", stream)
        assert (host == 4 * (data + turn)).all()
        assert (cuda.download(one, data) == 7).all()
    count = ctypes.c_size_t()
    cuda.call("cuGraphGetNodes", builder.graph, None, ctypes.byref(count))
    assert count.value == 7
    assert cuda.get_second("cuGraphNodeGetType", both, kind=ctypes.c_int) == 5
    cuda.call("cuGraphDestroy", builder.graph)
    cuda.call("cuGraphLaunch", made, stream)  # what was made of it stays
    cuda.call("cuGraphExecDestroy", made)
    cuda.call("cuStreamSynchronize", stream)


def test_random_graphs_agree_with_numpy(cuda: RawCuda, seed: int) -> None:
    """Launched several times in several streams, with order among them."""
    rng = np.random.default_rng(seed)
    builder, slots = Builder(cuda), 6
    device = [cuda.upload(np.full(16, n, np.uint32)) for n in range(slots)]
    model = list(range(slots))
    steps: list[tuple[str, int, int]] = []
    users: dict[int, list[int]] = {n: [] for n in range(slots)}
    writer: dict[int, int] = {}
    for _ in range(24):
        to, source = (int(n) for n in rng.permutation(slots)[:2])
        waits = {*users[to], *([writer[to]] if to in writer else [])}
        if rng.random() < 0.5:
            waits |= {writer[source]} if source in writer else set()
            node = builder.copy(device[to], device[source], 64, (2, 2), waits=sorted(waits))
            steps.append(("copy", to, source))
            users[source].append(node)
        else:
            value = int(rng.integers(0, 1 << 20))
            node = builder.fill(device[to], value, 16, waits=sorted(waits))
            steps.append(("fill", to, value))
        users[to], writer[to] = [], node
    made = builder.instantiate()
    cuda.call("cuCtxSynchronize")  # a copy from pageable memory may be on its way still
    streams = [cuda.stream(1), cuda.stream(1)]
    event = cuda.event(2)
    for turn in range(4):
        stream = streams[turn % 2]
        cuda.call("cuStreamWaitEvent", stream, event, 0)
        cuda.call("cuGraphLaunch", made, stream)
        cuda.call("cuEventRecord", event, stream)
        for kind, to, value in steps:
            model[to] = model[value] if kind == "copy" else value
    cuda.call("cuCtxSynchronize")
    for address, value in zip(device, model, strict=True):
        assert (cuda.download(address, np.zeros(16, np.uint32)) == value).all()


def test_launches_of_one_graph_are_in_order(cuda: RawCuda) -> None:
    """Also in streams that nothing else orders: it does not run beside itself."""
    builder = Builder(cuda)
    address = cuda.upload(np.ones(16, np.uint32))
    twice = cuda.function(cuda.module(module()), "twice")
    cuda.call("cuCtxSynchronize")
    first = builder.kernel(twice, 16, ctypes.c_uint64(address))
    for _ in range(2):  # two branches that read what the next launch writes
        builder.copy(cuda.alloc(64), address, 64, (2, 2), waits=[first])
    made = builder.instantiate()
    for _ in range(5):
        cuda.call("cuGraphLaunch", made, cuda.stream(1))
    cuda.call("cuCtxSynchronize")
    assert (cuda.download(address, np.zeros(16, np.uint32)) == 32).all()


def test_a_graph_is_work_of_its_stream(cuda: RawCuda) -> None:
    builder, address = Builder(cuda), cuda.alloc(64)
    twice = cuda.function(cuda.module(module()), "twice")
    builder.kernel(twice, 16, ctypes.c_uint64(address))
    made, stream = builder.instantiate(), cuda.stream(1)
    for _ in range(4):
        cuda.call("cuMemsetD32Async", address, 3, 16, stream)
        cuda.call("cuGraphLaunch", made, stream)
        assert cuda.launch(twice, (1,), (16,), ctypes.c_uint64(address), stream=stream) == 0
        cuda.call("cuStreamSynchronize", stream)
        assert (cuda.download(address, np.zeros(16, np.uint32)) == 12).all()


def test_updates_are_for_launches_to_come(cuda: RawCuda) -> None:
    kernels, one, other = cuda.module(module()), cuda.alloc(64), cuda.alloc(64)
    store = cuda.function(kernels, "store")
    for address in (one, other):
        cuda.call("cuMemsetD8_v2", address, 0, 64)
    builder = Builder(cuda)
    node = builder.kernel(store, 1, ctypes.c_uint64(one), ctypes.c_uint32(1))
    filled = builder.fill(one + 16, 5, 2, waits=[node])
    copied = builder.copy(one + 32, one, 4, (2, 2), waits=[filled])
    made = builder.instantiate()
    cuda.call("cuGraphLaunch", made, 0)
    params = builder.kernel_params(store, 1, ctypes.c_uint64(other), ctypes.c_uint32(2))
    cuda.call("cuGraphExecKernelNodeSetParams_v2", made, node, params)
    fill = builder.fill_params(other + 16, 6, 3)
    cuda.call("cuGraphExecMemsetNodeSetParams", made, filled, fill, builder.context)
    copy = builder.copy_params(other + 32, other, 8, (2, 2))
    cuda.call("cuGraphExecMemcpyNodeSetParams", made, copied, copy, builder.context)
    cuda.call("cuGraphLaunch", made, 0)
    expected = np.zeros((2, 16), np.uint32)
    expected[0, [0, 4, 5, 8]] = 1, 5, 5, 1
    expected[1, [0, 4, 5, 6, 8]] = 2, 6, 6, 6, 2
    for address, row in zip((one, other), expected, strict=True):
        assert (cuda.download(address, row) == row).all()
    cuda.call("cuGraphLaunch", builder.instantiate(), 0)  # the graph itself is as it was
    assert cuda.download(other, row)[0] == 2


def test_what_an_update_may_not_change(cuda: RawCuda) -> None:
    address, host = cuda.alloc(256), cuda.pinned(64)
    store = cuda.function(cuda.module(module()), "store")
    builder = Builder(cuda)
    copied = builder.copy(address, host.ctypes.data, 64, (2, 1))
    filled = builder.fill(address + 64, 1, 4, waits=[copied])
    rows = builder.fill(address + 128, 1, 4, 2, waits=[filled])
    kernel = builder.kernel(store, 1, ctypes.c_uint64(address), ctypes.c_uint32(2), waits=[rows])
    made, context = builder.instantiate(), builder.context
    copy, fill = "cuGraphExecMemcpyNodeSetParams", "cuGraphExecMemsetNodeSetParams"
    on_device = builder.copy_params(address, address + 64, 64, (2, 2))
    assert cuda.result(copy, made, copied, on_device, context) == INVALID_VALUE
    nothing = builder.copy_params(address, host.ctypes.data, 0, (2, 1))
    assert cuda.result(copy, made, copied, nothing, context) == INVALID_VALUE
    assert cuda.result(fill, made, copied, builder.fill_params(address, 1, 4), context) == 1
    flat = builder.fill_params(address, 1, 4)
    assert cuda.result(fill, made, rows, flat, context) == INVALID_VALUE
    two = builder.fill_params(address, 1, 4, 2)
    assert cuda.result(fill, made, filled, two, context) == INVALID_VALUE
    params = builder.kernel_params(store, 1, ctypes.c_uint64(address), ctypes.c_uint32(2))
    update = "cuGraphExecKernelNodeSetParams_v2"
    assert cuda.result(update, made, filled, params) == INVALID_VALUE
    foreign = Builder(cuda).kernel(store, 1, ctypes.c_uint64(address), ctypes.c_uint32(2))
    assert cuda.result(update, made, foreign, params) == INVALID_VALUE
    cuda.call(update, made, kernel, params)
    cuda.call(fill, made, filled, flat, context)


def test_bad_graphs(cuda: RawCuda) -> None:
    builder, other = Builder(cuda), Builder(cuda)
    nodes = [builder.add("EmptyNode", []) for _ in range(3)]
    foreign = other.add("EmptyNode", [])
    place = ctypes.byref(ctypes.c_void_p())
    for waits in ([foreign], [nodes[0], nodes[0]]):
        array = (ctypes.c_void_p * len(waits))(*waits)
        added = cuda.result("cuGraphAddEmptyNode", place, builder.graph, array, len(waits))
        assert added == INVALID_VALUE

    def connect(before: int, after: int) -> int:
        pair = [(ctypes.c_void_p * 1)(node) for node in (before, after)]
        return cuda.result("cuGraphAddDependencies", builder.graph, *pair, 1)

    assert connect(nodes[0], nodes[1]) == 0
    assert connect(nodes[1], nodes[2]) == 0
    assert connect(nodes[0], nodes[1]) == INVALID_VALUE
    assert connect(nodes[2], nodes[0]) == INVALID_VALUE
    assert connect(nodes[1], nodes[1]) == INVALID_VALUE
    assert cuda.result("cuGraphCreate", place, 1) == INVALID_VALUE


def test_nodes_that_nothing_orders_may_race(raw: RawCuda, library: Library) -> None:
    raw.start()
    builder, address = Builder(raw), raw.alloc(64)
    builder.fill(address, 1, 16)
    builder.fill(address, 2, 16)
    raw.call("cuGraphLaunch", builder.instantiate(), 0)
    raw.call("cuCtxSynchronize")
    assert "nothing orders" in library.violations[0]


@pytest.mark.parametrize("count", [300])
def test_many_nodes(cuda: RawCuda, count: int) -> None:
    builder, address = Builder(cuda), cuda.alloc(4 * count)
    last: list[int] = []
    for number in range(count):
        last = [builder.fill(address + 4 * number, number, 1, waits=last)]
    cuda.call("cuGraphLaunch", builder.instantiate(), 0)
    expected = np.arange(count, dtype=np.uint32)
    assert (cuda.download(address, expected) == expected).all()


def test_a_fault_in_a_graph(raw: RawCuda) -> None:
    raw.start()
    builder = Builder(raw)
    store = raw.function(raw.module(module()), "store")
    builder.kernel(store, 1, ctypes.c_uint64(4), ctypes.c_uint32(1))
    raw.call("cuGraphLaunch", builder.instantiate(), 0)
    assert raw.result("cuCtxSynchronize") == 700


def test_a_graph_is_instantiated_as_before_cuda_12(cuda: RawCuda) -> None:
    graph, log = cuda.get("cuGraphCreate", 0), ctypes.create_string_buffer(b"x" * 8, 8)
    node = ctypes.c_uint64(5)
    made = cuda.get("cuGraphInstantiate_v2", graph, ctypes.byref(node), log, 8)
    assert (log.value, node.value) == (b"", 0)
    cuda.call("cuGraphLaunch", made, None)
    cuda.call("cuGraphExecDestroy", made)
    cuda.call("cuGraphDestroy", graph)

"""OpenCL queues that reorder (`CL_REORDER=1`): what waits for what."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import Device, Tensor, jit
from gpu.backends.cl.context import CLContext
from gpu.backends.cl.device import CLDevice
from gpu.backends.cl.memory import CLAllocator, CLMemory
from gpu.backends.cl.order import Order
from gpu.backends.cl.target import device_target
from gpu.core.config import Context
from gpu.runtime.program import Program
from unit.cl_kernels import cl_device

NAME = "CL:7"
MIX = """
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void SYMBOL(mix)(__global float *out, __global const float *a, __global const float *b) {
  for (int round = 0; round < 50; round++)
    for (int i = 0; i < 64; i++) out[i] = 0.5f * a[i] + b[i];
}
"""
DATA = {
    **{f"{kind}{i}": 1 for kind in ("items", "group") for i in range(3)},
    "scratch": 0,
    "parameters": 3,
    "written": 1,
}


@pytest.fixture(scope="module")
def opened(need: Callable[[str], None]) -> Iterator[CLDevice]:
    need("opencl")
    plain = cl_device().context
    context = CLContext(plain.api, plain.info, reorder=True)
    device = CLDevice(NAME, context, device_target(plain.info))
    Device._open[NAME] = device
    yield device
    gc.collect()
    context.finish()
    del Device._open[NAME]


@pytest.fixture
def device(opened: CLDevice) -> CLDevice:
    if opened.context.order is None:
        pytest.skip(f"{opened.context.info.name} has no queues that reorder")
    return opened


def test_queues_keep_their_order_unless_told(need: Callable[[str], None]) -> None:
    need("opencl")
    context = cl_device().context
    assert context.order is None
    never = CLContext(context.api, context.info._replace(reorders=False), reorder=True)
    assert never.order is None


class Recorder:
    """Stands for a context: makes up events, and tells which commands each one waits for."""

    is_lost = False

    def __init__(self) -> None:
        self.api, self.queue = self, 0
        self.released: list[int] = []
        self.count = 0
        self.waits: dict[int, set[int]] = {}

    def __call__(self, *arguments: object) -> int:
        count, waits, event = arguments[-3:]
        self.count += 1
        self.waits[self.count] = {w for w in waits if w} if count else set()  # type: ignore
        event._obj.value = self.count  # type: ignore[attr-defined]
        return 0

    clEnqueueMarkerWithWaitList = __call__

    def check(self, code: int, what: str) -> None:
        assert code == 0, what

    def clReleaseEvent(self, handle: int) -> None:
        self.released.append(handle)


Command = tuple[list[int], list[int]]
COMMANDS = st.lists(
    st.tuples(st.lists(st.integers(0, 4), max_size=3), st.lists(st.integers(0, 4), max_size=2)),
    max_size=24,
)


@settings(deadline=None, max_examples=60)
@given(COMMANDS)
def test_commands_wait_for_all_they_depend_on_and_no_more(commands: list[Command]) -> None:
    recorder = Recorder()
    order = Order(recorder)  # type: ignore[arg-type]
    memory = [CLMemory(number + 1) for number in range(5)]
    for reads, writes in commands:
        order.run(recorder, (), [memory[i] for i in reads], [memory[i] for i in writes])
    before: dict[int, set[int]] = {}
    for number, (reads, writes) in enumerate(commands, 1):
        direct = {
            other
            for other, (read, written) in enumerate(commands[: number - 1], 1)
            if {*reads, *writes} & {*written} or {*writes} & {*read}
        }
        assert recorder.waits[number] <= direct
        before[number] = set().union(*({w, *before[w]} for w in recorder.waits[number]))
        assert direct <= before[number]


def test_many_readers_are_waited_for_as_one() -> None:
    recorder = Recorder()
    order, memory = Order(recorder), CLMemory(1)  # type: ignore[arg-type]
    for _ in range(200):
        order.run(recorder, (), [memory], [])
    order.run(recorder, (), [], [memory])
    assert len(recorder.waits[recorder.count]) <= 33
    order.finished()
    order.run(recorder, (), [memory], [memory])
    assert recorder.waits[recorder.count] == set()  # of what is done nobody waits
    del order, memory
    gc.collect()
    assert sorted(recorder.released) == list(range(1, recorder.count + 1))


@pytest.fixture(scope="module")
def mix(opened: CLDevice) -> Program:
    return opened.runtime("mix", opened.compiler.compile(MIX), DATA)


@pytest.mark.parametrize("seed", range(3))
def test_random_launches_and_copies_are_as_in_order(
    device: CLDevice, mix: Program, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    allocator = CLAllocator(device.context)
    allocator.in_host_memory = bool(seed)  # 0: as on a GPU, where copies are commands too
    nbytes = 256
    whole = allocator.alloc(4 * nbytes)
    memory = [allocator.alloc(nbytes) for _ in range(5)]
    memory += [allocator.view(whole, i * nbytes, nbytes) for i in range(4)]
    values = [rng.standard_normal(64).astype(np.float32) for _ in memory]
    for each, value in zip(memory, values, strict=True):
        allocator.copy_in(each, value.view(np.uint8).data)
    for _ in range(150):
        out, a, b = (int(i) for i in rng.choice(len(memory), 3, replace=False))
        match rng.integers(0, 12):
            case 0:
                allocator.copy(memory[out], memory[a], nbytes)
                values[out] = values[a].copy()
            case 1:
                values[out] = rng.standard_normal(64).astype(np.float32)
                allocator.copy_in(memory[out], values[out].view(np.uint8).data)
            case _:
                mix(memory[out], memory[a], memory[b])
                values[out] = np.float32(0.5) * values[a] + values[b]
    got = np.empty(64, np.float32)
    for each, value in zip(memory, values, strict=True):
        allocator.copy_out(got.view(np.uint8).data, each)
        np.testing.assert_array_equal(got, value)


def test_a_launch_can_be_timed(device: CLDevice, mix: Program) -> None:
    memory = [device.allocator.alloc(256) for _ in range(3)]
    seconds = mix(*memory, wait=True)
    assert seconds is not None and 0 < seconds < 10


@pytest.mark.parametrize("images", [0, 1])
def test_replays_are_as_in_order(device: CLDevice, images: int) -> None:
    @jit
    def step(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        branches = [(x * (i + 1)).contiguous().softmax(1) @ w for i in range(3)]
        total = (branches[0] + branches[1] * branches[2]).contiguous()
        return (*branches, total)

    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 8)).astype(np.float32)
    with Context(IMAGE=images):
        for _ in range(4):
            x = rng.standard_normal((32, 16)).astype(np.float32)
            got = [y.numpy() for y in step(Tensor(x, device=NAME), Tensor(w, device=NAME))]
            wanted = []
            for i in range(3):
                grown = np.exp(x * (i + 1))
                wanted.append(grown / grown.sum(1, keepdims=True) @ w)
            wanted.append(wanted[0] + wanted[1] * wanted[2])
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

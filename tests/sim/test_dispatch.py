"""Dispatches up to the executor, and kernels that run beside packets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu.sim.amd.chip.dispatch import Dispatch, KernelMemory
from gpu.sim.amd.chips import Chip
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.executor import RunningKernel, Size3
from sim.aql_packets import BARRIER, descriptor, kernel, signal
from sim.raw_kfd import (
    ACCESS,
    AQL,
    GTT,
    PAGE,
    PM4,
    SIGNAL,
    VRAM,
    RawKfd,
    halves,
    packet3,
    release_mem,
)


class Recorder:
    """An executor that notes dispatches and writes a word after some turns."""

    def __init__(self, turns: int = 1) -> None:
        self.seen: list[Dispatch] = []
        self.turns = turns
        self.target = 0
        self.running = 0
        self.overlapped = False

    def check(self, chip: Chip) -> None:
        pass

    def launch(self, dispatch: Dispatch, memory: KernelMemory) -> RunningKernel:
        self.seen.append(dispatch)
        self.overlapped |= self.running > 0
        self.running += 1
        return _Grid(self, memory)


class _Grid:
    instructions = 0

    def __init__(self, recorder: Recorder, memory: KernelMemory):
        self.left = recorder.turns
        self.recorder = recorder
        self.memory = memory

    def why_stuck(self) -> str:
        return ""

    def step(self, budget: int) -> bool:
        self.left -= 1
        if self.left == 0 and self.recorder.target:
            self.memory.vector.write(self.recorder.target, (1).to_bytes(4, "little"))
        self.recorder.running -= self.left == 0
        return self.left == 0


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def user_with_kernels(recorder: Recorder) -> Iterator[RawKfd]:
    world = KfdWorld(seed=3, executor=recorder)
    yield RawKfd(world.process)
    world.close()


def test_empty_dispatch(user_with_kernels: RawKfd, recorder: Recorder) -> None:
    """EmptyDispatch as far as the seam: what an executor is told."""
    user = user_with_kernels
    code, memory = descriptor(user), user.alloc(PAGE, SIGNAL)
    done = signal(memory, 1)
    queue = user.queue(AQL)
    queue.submit_aql(kernel(code.va, kernarg=memory.va + 512, completion=done, grid=(65, 2, 1)))
    queue.run()
    assert memory.host.read(8, 8) == 0
    (seen,) = recorder.seen
    assert seen.entry == code.va + 256
    assert (seen.groups, seen.threads) == (Size3(3, 2, 1), Size3(32, 1, 1))
    assert (seen.wave_size, seen.rsrc1, seen.rsrc2) == (32, 0x60AF0000, 0x84)
    assert seen.user_sgprs == halves(memory.va + 512)
    assert seen.aql_packet == queue.ring.va


def test_user_registers_come_in_order(user_with_kernels: RawKfd, recorder: Recorder) -> None:
    user = user_with_kernels
    code = descriptor(user, properties=0b1111110)
    queue = user.queue(AQL)
    queue.submit_aql(kernel(code.va, kernarg=0x1234500000))
    queue.run()
    words = recorder.seen[0].user_sgprs
    amd_queue = queue.pointers.va
    expected = [*halves(queue.ring.va), *halves(amd_queue), *halves(0x1234500000)]
    assert list(words) == [*expected, 0, 0, 0, 0, 0]
    assert recorder.seen[0].wave_size == 64


def test_group_segment_must_be_large_enough(user_with_kernels: RawKfd) -> None:
    user = user_with_kernels
    queue = user.queue(AQL)
    queue.submit_aql(kernel(descriptor(user, lds=1024).va, lds=512))
    queue.run()
    assert "1024" in user.world.debug.violations[0]


def _launch(entry: int, user_data: tuple[int, ...] = (), initiator: int = 0x8001) -> list[int]:
    """The registers of a dispatch and the dispatch; offsets from COMPUTE_PGM_LO = 0x20c."""
    rsrc2 = len(user_data) << 1
    words = packet3(0x76, 0x20C, *halves(entry >> 8)) + packet3(0x76, 0x212, 0x60AF0000, rsrc2)
    words += packet3(0x76, 0x204, 0, 0, 0, 32, 2, 1)
    if user_data:
        words += packet3(0x76, 0x240, *user_data)
    return words + packet3(0x15, 4, 5, 6, initiator)


def test_pm4_dispatch(user_with_kernels: RawKfd, recorder: Recorder) -> None:
    user = user_with_kernels
    code = user.alloc(PAGE, VRAM | ACCESS)
    queue = user.queue(PM4)
    queue.submit(_launch(code.va, (7, 8, 9)))
    queue.run()
    (seen,) = recorder.seen
    assert (seen.entry, seen.groups, seen.threads) == (code.va, Size3(4, 5, 6), Size3(32, 2, 1))
    assert (seen.user_sgprs, seen.wave_size, seen.source) == ((7, 8, 9), 32, "pm4")
    indirect = user.alloc(PAGE, GTT | ACCESS)
    for i in range(3):
        indirect.host.write(4 * i, 4, i + 1)
    queue.submit(packet3(0x16, *halves(indirect.va), 1))
    queue.run()
    assert recorder.seen[1].groups == Size3(1, 2, 3)
    assert recorder.seen[1].wave_size == 64


@pytest.mark.parametrize("flush", [False, True])
def test_kernels_run_beside_packets(recorder: Recorder, flush: bool) -> None:
    """Only a flush or an end-of-pipe event waits for a kernel; a plain write does not."""
    recorder.turns = 50
    early = 0
    for seed in range(20):
        user = RawKfd(KfdWorld(seed, executor=recorder).process)
        code, memory = user.alloc(PAGE, VRAM | ACCESS), user.alloc(PAGE, SIGNAL)
        recorder.target = memory.va
        copy = packet3(0x40, 1 | 5 << 8, *halves(memory.va), *halves(memory.va + 8))
        queue = user.queue(PM4)
        flushing = packet3(0x46, 7 | 4 << 8) if flush else []
        release = release_mem(memory.va + 16, 1)
        queue.submit(_launch(code.va) + release + flushing + copy)
        host, ended = memory.host, 0
        while not host.read(16, 4):
            user.world.waiter.idle(1000)
        ended = host.read(0, 4)
        queue.run()
        assert ended == 1  # the release waited
        early += host.read(8, 4) == 0
        user.world.close()
    assert early == 0 if flush else early > 0


@pytest.mark.parametrize("flags", [0, BARRIER])
def test_barrier_bit(recorder: Recorder, flags: int) -> None:
    """Kernels may overlap, unless the later one has the bit."""
    recorder.turns = 20
    for seed in range(10):
        user = RawKfd(KfdWorld(seed, executor=recorder).process)
        code = descriptor(user)
        queue = user.queue(AQL)
        queue.submit_aql(kernel(code.va))
        queue.submit_aql(kernel(code.va, flags=flags))
        queue.run()
        user.world.close()
    assert recorder.overlapped == (not flags)


def test_dispatch_of_what_is_not_code(user_with_kernels: RawKfd) -> None:
    user = user_with_kernels
    data = user.alloc(PAGE, VRAM)
    queue = user.queue(PM4)
    queue.submit(_launch(data.va))
    queue.run()
    assert user.world.debug.faults


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (_launch(0x100000)[:4] + packet3(0x15, 1, 1, 1, 1), "PGM_RSRC1"),
        (_launch(0x100000, (1,))[:-8] + packet3(0x15, 1, 1, 1, 1), "USER_DATA_0"),
        (_launch(0x100000) + packet3(0x15, 0, 1, 1, 1), "empty"),
    ],
    ids=["no resources", "no user data", "empty grid"],
)
def test_bad_pm4_dispatch(user_with_kernels: RawKfd, words: list[int], text: str) -> None:
    user = user_with_kernels
    code = user.alloc(PAGE, VRAM | ACCESS)
    fixed = [code.va >> 8 & 0xFFFFFFFF if word == 0x1000 else word for word in words]
    fixed = [code.va >> 40 if i == 3 else word for i, word in enumerate(fixed)]
    queue = user.queue(PM4)
    queue.submit(fixed)
    queue.run()
    assert text in user.world.debug.violations[0]

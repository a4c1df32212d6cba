"""The copy engine: what each packet does, and everything that it refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu.core.errors import HwTimeout
from gpu.sim.amd.chips import CHIPS
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    GTT,
    PAGE,
    SDMA,
    SIGNAL,
    VRAM,
    Buffer,
    RawKfd,
    halves,
    sdma_copy,
    sdma_fence,
    sdma_fill,
    sdma_poll,
    sdma_write,
)


@pytest.fixture
def memory(user: RawKfd) -> Buffer:
    return user.alloc(PAGE, SIGNAL)


def _run(user: RawKfd, packet: list[int]) -> None:
    queue = user.queue(SDMA)
    queue.submit(packet)
    queue.run()


@pytest.mark.parametrize("chip", CHIPS)
def test_copy_linear(chip: str) -> None:
    """SubmitPacketSdmaQueue, on each chip: any offsets and sizes, across buffers in pieces."""
    world = KfdWorld(chip=chip)
    user = RawKfd(world.process)
    rng = np.random.default_rng(3)
    source, target = user.alloc(1 << 20, GTT | ACCESS), user.alloc(1 << 20, VRAM | ACCESS)
    data = rng.bytes(1 << 20)
    source.host.store(0, data)
    queue = user.queue(SDMA)
    for _ in range(20):
        size = int(rng.integers(1, 5 * PAGE))
        here, there = (int(rng.integers(0, (1 << 20) - size)) for _ in range(2))
        queue.submit(sdma_copy(source.va + here, target.va + there, size))
        queue.run()
        assert target.host.load(there, size) == data[here : here + size]
    assert not world.debug.violations
    world.close()


def test_largest_copy_of_one_packet(user: RawKfd) -> None:
    size = 64 << 20
    source, target = user.alloc(size, GTT | ACCESS), user.alloc(size, VRAM | ACCESS)
    source.host.write(size - 4, 4, 0xFEED)
    _run(user, sdma_copy(source.va, target.va, size))
    assert target.host.read(size - 4, 4) == 0xFEED


def test_the_count_of_old_engines_is_narrow() -> None:
    world = KfdWorld(chip="gfx942")
    user = RawKfd(world.process)
    _run(user, sdma_copy(1 << 20, 1 << 24, (4 << 20) + 1))
    assert "dword 1" in world.debug.violations[0]
    world.close()


def test_broadcast(user: RawKfd, memory: Buffer) -> None:
    memory.host.write(0, 4, 7)
    one, two = user.alloc(PAGE, GTT | ACCESS), user.alloc(PAGE, VRAM | ACCESS)
    _run(user, [1 | 1 << 27, 3, 0, *halves(memory.va), *halves(one.va), *halves(two.va)])
    assert (one.host.read(0, 4), two.host.read(0, 4)) == (7, 7)


@pytest.mark.parametrize(("fill", "width"), [(0, 1), (1, 2), (2, 4)])
def test_const_fill(user: RawKfd, memory: Buffer, fill: int, width: int) -> None:
    _run(user, [11 | fill << 30, *halves(memory.va), 0x04030201, 63])
    pattern = bytes([1, 2, 3, 4])[:width]
    assert memory.host.load(0, 65) == pattern * (64 // width) + b"\0"


def test_write_fence_and_timestamp(user: RawKfd, memory: Buffer) -> None:
    stamp = [13 | 2 << 8, *halves(memory.va + 64)]
    _run(user, sdma_write(memory.va, 1, 2, 3) + sdma_fence(memory.va + 12, 4) + stamp)
    assert [memory.host.read(4 * i, 4) for i in range(5)] == [1, 2, 3, 4, 0]
    assert 100_000_000 < memory.host.read(64, 8) < user.world.clock.gpu_ticks


def test_atomic(user: RawKfd, memory: Buffer) -> None:
    memory.host.write(0, 8, 1 << 40)
    _run(user, [10 | 0x2F << 25, *halves(memory.va), 5, 0, 0, 0, 0])
    assert memory.host.read(0, 8) == 1 << 40 | 5


def test_poll(user: RawKfd, memory: Buffer) -> None:
    queue = user.queue(SDMA)
    queue.submit(sdma_poll(memory.va, 3, 5) + sdma_fence(memory.va + 8, 1))
    queue.run()
    with pytest.raises(HwTimeout, match="POLL_REGMEM"):
        user.world.waiter.idle(1000)
    memory.host.write(0, 4, 4)
    queue.run()
    assert memory.host.read(8, 4) == 1


def _indirect(user: RawKfd, words: list[int], pad: int = 2) -> list[int]:
    buffer = user.alloc(PAGE, GTT | ACCESS)
    for i, word in enumerate(words):
        buffer.host.write(4 * i, 4, word)
    return [0] * pad + [4, *halves(buffer.va), len(words), 0, 0]


def test_indirect(user: RawKfd, memory: Buffer) -> None:
    _run(user, _indirect(user, sdma_fence(memory.va, 1)) + sdma_fence(memory.va + 4, 2))
    assert memory.host.read(0, 8) == 2 << 32 | 1


Make = Callable[[RawKfd, Buffer], list[int]]
BAD: dict[str, tuple[Make, str]] = {
    "unknown operation": (lambda u, m: [0x33], "0x33"),
    "unknown sub-operation": (lambda u, m: [1 | 1 << 8], "0x1, 0x1"),
    "register write": (lambda u, m: [14, 0, 0], "0xe"),
    "page tables": (lambda u, m: [12, 0, 0], "0xc"),
    "copy with reserved bits": (lambda u, m: [1 | 1 << 17, 3, 0, 0, 0, 0, 0], "dword 0"),
    "encrypted copy": (lambda u, m: [1 | 1 << 16, 3, 0, 0, 0, 0, 0], "encrypt"),
    "fence misaligned": (lambda u, m: sdma_fence(m.va + 2, 1), "multiple of 4"),
    "fence with reserved bits": (lambda u, m: [5 | 1 << 29, *halves(m.va), 1], "dword 0"),
    "write misaligned": (lambda u, m: sdma_write(m.va + 2, 1), "multiple of 4"),
    "fill with size 3": (lambda u, m: [11 | 3 << 30, *halves(m.va), 0, 3], "fillsize 3"),
    "fill misaligned": (lambda u, m: sdma_fill(m.va + 1, 0, 4), "multiple of 4"),
    "fill of a part": (lambda u, m: sdma_fill(m.va, 0, 6), "6 bytes by 4"),
    "poll of a register": (lambda u, m: [8 | 3 << 28, 0, 0, 0, 0, 0xFFF << 16], "register"),
    "poll with function 7": (lambda u, m: sdma_poll(m.va, 0, 7), "function 7"),
    "poll misaligned": (lambda u, m: sdma_poll(m.va + 1, 0), "multiple of 4"),
    "trap with reserved bits": (lambda u, m: [6, 1 << 28], "dword 1"),
    "time stamp misaligned": (lambda u, m: [13 | 2 << 8, *halves(m.va + 4)], "dword 1"),
    "atomic unknown": (lambda u, m: [10 | 1 << 25, *halves(m.va), 0, 0, 0, 0, 0], "0x1"),
    "atomic misaligned": (
        lambda u, m: [10 | 0x2F << 25, *halves(m.va + 4), 0, 0, 0, 0, 0],
        "multiple of 8",
    ),
    "atomic loop": (lambda u, m: [10 | 1 << 16, *halves(m.va), 0, 0, 0, 0, 0], "loop"),
    "indirect, badly placed": (
        lambda u, m: _indirect(u, sdma_fence(m.va, 1), pad=1),
        "end on 8 dwords",
    ),
    "indirect misaligned": (lambda u, m: [0, 0, 4, *halves(m.va + 4), 4, 0, 0], "multiple of 32"),
    "indirect of size 0": (lambda u, m: [0, 0, 4, *halves(m.va), 0, 0, 0], "size 0"),
    "indirect with VMID": (lambda u, m: [0, 0, 4 | 1 << 16, *halves(m.va), 4, 0, 0], "VMID"),
    "indirect in indirect": (
        lambda u, m: _indirect(u, [4, *halves(m.va), 4, 0, 0]),
        "in an indirect",
    ),
    "indirect ends in a packet": (lambda u, m: _indirect(u, [5, 0, 0]), "beyond its"),
    "beyond the write pointer": (lambda u, m: [5, 0, 0], "write pointer"),
    "across the end of the ring": (lambda u, m: [0] * 1022 + [2 << 16, 0], "across the end"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_packet(user: RawKfd, memory: Buffer, name: str) -> None:
    make, text = BAD[name]
    _run(user, make(user, memory))
    assert len(user.world.debug.violations) == 1
    assert text in user.world.debug.violations[0]
    assert memory.host.load(0, PAGE) == bytes(PAGE)


def test_no_packet_goes_across_the_end_of_the_ring(user: RawKfd, memory: Buffer) -> None:
    queue = user.queue(SDMA)
    queue.submit([0] * 1022)
    queue.run()
    queue.submit(sdma_fence(memory.va, 1))
    queue.run()
    assert "across the end" in user.world.debug.violations[0]
    assert memory.host.read(0, 4) == 0


def test_odd_pointers_and_impatience(user: RawKfd, memory: Buffer) -> None:
    queue = user.queue(SDMA)
    header = 8 | 3 << 28 | 1 << 31
    queue.submit([header, *halves(memory.va), 0, 0xFFFFFFFF, 10 << 16])
    queue.run()
    assert "gives up" in user.world.debug.violations[0]
    queue.pointers.host.write(0x38, 8, 26)
    queue.ring_doorbell(26)
    queue.run()
    assert "multiples of 4" in user.world.debug.violations[1]

"""PM4 packets: what each does, and everything that the packet processor refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu.core.errors import HwTimeout
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    GTT,
    PAGE,
    PM4,
    SIGNAL,
    Buffer,
    RawKfd,
    acquire_mem,
    halves,
    nop,
    packet3,
    release_mem,
    wait_mem,
    write_data,
)

SET_SH_REG, DISPATCH, IB = 0x76, 0x15, 0x3F
VALID = 1 << 23


@pytest.fixture
def memory(user: RawKfd) -> Buffer:
    return user.alloc(PAGE, SIGNAL)


def _run(user: RawKfd, packet: list[int]) -> None:
    queue = user.queue(PM4)
    queue.submit(packet)
    queue.run()


def _indirect(user: RawKfd, words: list[int], extra: int = 0) -> list[int]:
    buffer = user.alloc(PAGE, GTT | ACCESS)
    for i, word in enumerate(words):
        buffer.host.write(4 * i, 4, word)
    return packet3(IB, *halves(buffer.va), len(words) | VALID | extra)


def test_write_data(user: RawKfd, memory: Buffer) -> None:
    one_address = packet3(0x37, 5 << 8 | 1 << 16, *halves(memory.va + 64), 1, 2, 3)
    _run(user, write_data(memory.va, 1, 2, 3, 4, 5) + one_address)
    assert [memory.host.read(4 * i, 4) for i in range(5)] == [1, 2, 3, 4, 5]
    assert (memory.host.read(64, 4), memory.host.read(68, 4)) == (3, 0)


def test_copy_data(user: RawKfd, memory: Buffer) -> None:
    memory.host.write(0, 8, 0x1122334455667788)
    wide = packet3(0x40, 1 | 5 << 8 | 1 << 16, *halves(memory.va), *halves(memory.va + 8))
    narrow = packet3(0x40, 1 | 5 << 8, *halves(memory.va), *halves(memory.va + 16))
    immediate = packet3(0x40, 5 | 5 << 8 | 1 << 16, 7, 8, *halves(memory.va + 24))
    clock = packet3(0x40, 9 | 5 << 8 | 1 << 16, 0, 0, *halves(memory.va + 32))
    _run(user, wide + narrow + immediate + clock)
    assert memory.host.read(8, 8) == 0x1122334455667788
    assert memory.host.read(16, 8) == 0x55667788
    assert memory.host.read(24, 8) == 8 << 32 | 7
    assert memory.host.read(32, 8) >= 100_000_000


@pytest.mark.parametrize(
    ("function", "value", "met"),
    [
        *[(0, 0, True), (1, 4, True), (1, 5, False), (2, 5, True), (2, 6, False)],
        *[(3, 5, True), (3, 4, False), (4, 4, True), (4, 5, False), (5, 5, True)],
        *[(5, 4, False), (6, 6, True), (6, 5, False)],
        (5, 0xFFFFFFFF, True),  # the comparison is unsigned, of 32 bits
    ],
)
def test_wait_reg_mem(user: RawKfd, memory: Buffer, function: int, value: int, met: bool) -> None:
    memory.host.write(0, 8, 0xABCD << 32 | value)
    _run(user, wait_mem(memory.va, 5, function) + write_data(memory.va + 8, 1))
    assert memory.host.read(8, 4) == met


def test_wait_reg_mem_mask_and_64(user: RawKfd, memory: Buffer) -> None:
    memory.host.write(0, 8, 0x5_0000_1234)
    masked = wait_mem(memory.va, 0x34, mask=0xFF)
    wide = packet3(0x93, 3 | 1 << 4, *halves(memory.va), 0x1234, 5, 0xFFFFFFFF, 0xF, 4)
    _run(user, masked + wide + write_data(memory.va + 8, 1))
    assert memory.host.read(8, 4) == 1


@pytest.mark.parametrize(("data", "width"), [(1, 4), (2, 8)])
def test_release_mem(user: RawKfd, memory: Buffer, data: int, width: int) -> None:
    memory.host.write(0, 8, (1 << 64) - 1)
    _run(user, release_mem(memory.va, 0x1_2345_6789, data=data))
    wanted = 0x1_2345_6789 if width == 8 else 0xFFFFFFFF_2345_6789
    assert memory.host.read(0, 8) == wanted


def test_release_mem_time_stamps_grow(user: RawKfd, memory: Buffer) -> None:
    packets: list[int] = []
    for i in range(3):
        packets += release_mem(memory.va + 8 * i, 0, data=3) + nop() * 200
    _run(user, packets)
    seen = [memory.host.read(8 * i, 8) for i in range(3)]
    assert seen == sorted(set(seen))
    assert seen[0] > 0


@pytest.mark.parametrize(
    ("number", "old", "source", "compare", "new"),
    [
        (0x0F, 5, 3, 0, 8),  # add
        (0x4F, 0xFFFFFFFF, 2, 0, 1),
        (0x10, 1, 2, 0, 0xFFFFFFFF),  # subtract
        (0x07, 1, 2, 0, 2),  # swap
        (0x08, 1, 2, 1, 2),  # compare and swap
        (0x08, 1, 2, 9, 1),
        (0x11, 1, 0xFFFFFFFF, 0, 0xFFFFFFFF),  # signed minimum
        (0x12, 1, 0xFFFFFFFF, 0, 1),
        (0x13, 1, 0xFFFFFFFF, 0, 1),
        (0x14, 1, 0xFFFFFFFF, 0, 0xFFFFFFFF),
        (0x15, 6, 3, 0, 2),
        (0x16, 6, 3, 0, 7),
        (0x17, 6, 3, 0, 5),
        (0x18, 6, 6, 0, 0),  # increment, up to a limit
        (0x19, 0, 6, 0, 6),  # decrement, down to 0
        (0x2F, 1 << 40, 1, 0, 1 << 40 | 1),  # 64 bits
    ],
)
def test_atomic_mem(
    user: RawKfd, memory: Buffer, number: int, old: int, source: int, compare: int, new: int
) -> None:
    memory.host.write(0, 8, old)
    _run(user, packet3(0x1E, number, *halves(memory.va), *halves(source), *halves(compare), 0))
    assert memory.host.read(0, 8) == new


def test_atomic_loop_waits_for_its_value(user: RawKfd, memory: Buffer) -> None:
    queue = user.queue(PM4)
    queue.submit(packet3(0x1E, 8 | 1 << 8, *halves(memory.va), 9, 0, 1, 0, 4))
    queue.run()
    assert memory.host.read(0, 4) == 0
    memory.host.write(0, 4, 1)
    queue.run()
    assert memory.host.read(0, 4) == 9


def test_indirect_buffers(user: RawKfd, memory: Buffer) -> None:
    inner = _indirect(user, write_data(memory.va, 1))
    outer = _indirect(user, inner + write_data(memory.va + 4, 2))
    _run(user, outer + write_data(memory.va + 8, 3))
    assert [memory.host.read(4 * i, 4) for i in range(3)] == [1, 2, 3]


def test_a_wait_inside_an_indirect_buffer_blocks_what_follows(user: RawKfd, memory: Buffer) -> None:
    queue = user.queue(PM4)
    queue.submit(_indirect(user, wait_mem(memory.va, 1)) + write_data(memory.va + 4, 2))
    queue.run()
    assert memory.host.read(4, 4) == 0
    memory.host.write(0, 4, 1)
    queue.run()
    assert memory.host.read(4, 4) == 2


def test_pred_exec_skips_for_other_parts_of_the_chip(user: RawKfd, memory: Buffer) -> None:
    one, two = write_data(memory.va, 1), write_data(memory.va + 4, 1)
    _run(
        user,
        packet3(0x23, 2 << 24 | len(one)) + one + packet3(0x23, 1 << 24 | len(two)) + two,
    )
    assert memory.host.read(0, 8) == 1 << 32


def test_filler_and_flush(user: RawKfd) -> None:
    _run(user, [2 << 30, *packet3(0x46, 7 | 4 << 8), *acquire_mem(0x7FFFF)])
    assert not user.world.debug.violations


Make = Callable[[RawKfd, Buffer], list[int]]
BAD: dict[str, tuple[Make, str]] = {
    "type 0 header": (lambda u, m: [0x00001234, 0], "type 0"),
    "type 1 header": (lambda u, m: [0x40001234, 0], "type 1"),
    "reserved header bits": (lambda u, m: [packet3(0x37, 0)[0] | 0x10, 0], "header"),
    "predicate bit": (lambda u, m: [packet3(0x10, 0)[0] | 1, 0], "header"),
    "unknown opcode": (lambda u, m: packet3(0x00, 0), "unknown"),
    "graphics opcode": (lambda u, m: packet3(0x2D, 0), "DRAW_INDEX_AUTO"),
    "scheduler opcode": (lambda u, m: packet3(0xA5, 0), "RUN_LIST"),
    "beyond the write pointer": (lambda u, m: [packet3(0x10, 0, 0, 0)[0], 0], "write pointer"),
    "SH register below": (lambda u, m: packet3(SET_SH_REG, 0x000, 1), "0x0"),
    "SH register beyond": (lambda u, m: packet3(SET_SH_REG, 0x3FF, 1, 2), "beyond"),
    "SH register unknown": (lambda u, m: packet3(SET_SH_REG, 0x2FF, 1), "0x2ff"),
    "SH register reserved bits": (lambda u, m: packet3(SET_SH_REG, 1 << 20, 1), "0x100000"),
    "SH register without value": (lambda u, m: packet3(SET_SH_REG, 0x20C), "without"),
    "UCONFIG register": (lambda u, m: packet3(0x79, 0, 0), "UCONFIG"),
    "IB length": (lambda u, m: packet3(IB, 0, 0), "3 expected"),
    "IB without VALID": (lambda u, m: packet3(IB, *halves(m.va), 4), "VALID"),
    "IB of size 0": (lambda u, m: packet3(IB, *halves(m.va), VALID), "size 0"),
    "IB misaligned": (
        lambda u, m: packet3(IB, m.va + 2 & 0xFFFFFFFF, m.va >> 32, 4 | VALID),
        "multiple",
    ),
    "IB with VMID": (lambda u, m: packet3(IB, *halves(m.va), 4 | VALID | 1 << 24), "VMID"),
    "IB reserved bits": (lambda u, m: packet3(IB, *halves(m.va), 4 | VALID | 1 << 22), "0x400000"),
    "IB high address": (lambda u, m: packet3(IB, 0, 1 << 20, 4 | VALID), "dword 2"),
    "IB three deep": (
        lambda u, m: _indirect(u, _indirect(u, _indirect(u, nop(4)))),
        "in an indirect buffer in",
    ),
    "IB ends in a packet": (lambda u, m: _indirect(u, nop(4)[:2]), "its buffer"),
    "WRITE_DATA without data": (lambda u, m: packet3(0x37, 5 << 8, *halves(m.va)), "at least 4"),
    "WRITE_DATA to a register": (lambda u, m: write_data(m.va, 1, target=0), "to 0"),
    "WRITE_DATA by graphics": (lambda u, m: write_data(m.va, 1, target=1), "to 1"),
    "WRITE_DATA by an engine": (
        lambda u, m: packet3(0x37, 5 << 8 | 1 << 30, *halves(m.va), 1),
        "engine 1",
    ),
    "WRITE_DATA misaligned": (lambda u, m: write_data(m.va + 1, 1), "multiple of 4"),
    "WRITE_DATA reserved bits": (
        lambda u, m: packet3(0x37, 5 << 8 | 1, *halves(m.va), 1),
        "0x1 set",
    ),
    "COPY_DATA from a register": (
        lambda u, m: packet3(0x40, 5 << 8, 0x1234, 0, *halves(m.va)),
        "from 0",
    ),
    "COPY_DATA to a register": (lambda u, m: packet3(0x40, 5, 1, 0, 0x1234, 0), "to 0"),
    "COPY_DATA misaligned": (
        lambda u, m: packet3(0x40, 5 | 5 << 8 | 1 << 16, 1, 0, *halves(m.va + 4)),
        "multiple of 8",
    ),
    "COPY_DATA length": (lambda u, m: packet3(0x40, 5 | 5 << 8, 1, 0), "5 expected"),
    "WAIT on a register": (lambda u, m: packet3(0x3C, 3, 0x1234, 0, 0, 0, 4), "register"),
    "WAIT with function 7": (lambda u, m: wait_mem(m.va, 0, 7), "function 7"),
    "WAIT that writes": (
        lambda u, m: packet3(0x3C, 3 | 1 << 4 | 1 << 6, *halves(m.va), 0, 0, 4),
        "only waits",
    ),
    "WAIT by another engine": (
        lambda u, m: packet3(0x3C, 3 | 1 << 4 | 1 << 8, *halves(m.va), 0, 0, 4),
        "engine 0",
    ),
    "WAIT misaligned": (lambda u, m: wait_mem(m.va + 2, 0), "multiple of 4"),
    "WAIT length": (lambda u, m: packet3(0x3C, 3 | 1 << 4, 0, 0), "6 expected"),
    "WAIT64 misaligned": (
        lambda u, m: packet3(0x93, 3 | 1 << 4, *halves(m.va + 4), 0, 0, 0, 0, 4),
        "multiple of 8",
    ),
    "RELEASE misaligned 64": (lambda u, m: release_mem(m.va + 4, 1), "multiple of 8"),
    "RELEASE misaligned 32": (lambda u, m: release_mem(m.va + 2, 1, data=1), "multiple of 4"),
    "RELEASE data selector": (lambda u, m: release_mem(m.va, 1, data=6), "selector"),
    "RELEASE interrupt selector": (lambda u, m: release_mem(m.va, 1, interrupt=5), "selector"),
    "RELEASE of no event": (
        lambda u, m: packet3(0x49, 0x3F | 5 << 8, 2 << 29, *halves(m.va), 0, 0, 0),
        "event 0x3f",
    ),
    "RELEASE with a wrong index": (
        lambda u, m: packet3(0x49, 0x14 | 6 << 8, 2 << 29, *halves(m.va), 0, 0, 0),
        "index 6",
    ),
    "RELEASE reserved bits": (lambda u, m: release_mem(m.va, 1, gcr=1 << 6), "0x40"),
    "RELEASE length": (lambda u, m: packet3(0x49, 0x14 | 5 << 8, 0), "7 expected"),
    "ACQUIRE of GFX9's length": (lambda u, m: packet3(0x58, 0, 0, 0, 0, 0, 0), "7 expected"),
    "ACQUIRE reserved bits": (lambda u, m: acquire_mem(1 << 20), "0x100000"),
    "ACQUIRE with GFX9's bits": (
        lambda u, m: packet3(0x58, 1 << 27, 0xFFFFFFFF, 0, 0, 0, 0xA, 0),
        "0x8000000",
    ),
    "ACQUIRE of nothing": (lambda u, m: packet3(0x58, 0, 0, 0, 0, 0, 0xA, 0), "size 0"),
    "ATOMIC unknown": (lambda u, m: packet3(0x1E, 0x3F, *halves(m.va), 0, 0, 0, 0, 0), "0x3f"),
    "ATOMIC misaligned": (
        lambda u, m: packet3(0x1E, 0x2F, *halves(m.va + 4), 0, 0, 0, 0, 0),
        "multiple of 8",
    ),
    "ATOMIC command": (
        lambda u, m: packet3(0x1E, 0x0F | 2 << 8, *halves(m.va), 0, 0, 0, 0, 0),
        "command 2",
    ),
    "EVENT_WRITE of graphics": (lambda u, m: packet3(0x46, 0x10), "0x10"),
    "EVENT_WRITE index": (lambda u, m: packet3(0x46, 7), "index 0"),
    "EVENT_WRITE length": (lambda u, m: packet3(0x46, 7 | 4 << 8, 0, 0), "1 expected"),
    "PRED_EXEC reserved bits": (lambda u, m: packet3(0x23, 1 << 20), "0x100000"),
    "DISPATCH without registers": (lambda u, m: packet3(DISPATCH, 1, 1, 1, 1), "PGM_LO"),
    "DISPATCH without enable": (lambda u, m: packet3(DISPATCH, 1, 1, 1, 0), "SHADER_EN"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_packet(user: RawKfd, memory: Buffer, name: str) -> None:
    """A bad packet is recorded with its value, has no effect and stops the queue."""
    make, text = BAD[name]
    queue = user.queue(PM4)
    queue.submit(make(user, memory))
    queue.run()
    assert len(user.world.debug.violations) == 1
    assert text in user.world.debug.violations[0]
    assert memory.host.load(0, PAGE) == bytes(PAGE)
    queue.submit(write_data(memory.va, 1))
    with pytest.raises(HwTimeout, match="stopped"):
        user.world.waiter.idle(1000)
    queue.destroy()
    _run(user, write_data(memory.va, 1))
    assert memory.host.read(0, 4) == 1


def test_sizes_of_acquires_past_their_bits_are_noted(user: RawKfd) -> None:
    """Hardware ignores the reserved bits of COHER_SIZE_HI."""
    _run(user, packet3(0x58, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 0xA, 0x7FFFF))
    debug = user.world.debug
    assert any("COHER_SIZE_HI is 0xffffffff" in record.what for record in debug.records)
    assert not debug.violations


def test_gfx9_layouts() -> None:
    """Releases and acquires of GFX9 have other bits, and 64-bit waits are not there."""
    world = KfdWorld(chip="gfx942")
    user = RawKfd(world.process)
    memory = user.alloc(PAGE, SIGNAL)
    acquire = packet3(0x58, 1 << 27 | 1 << 29, 0xFFFFFFFF, 0xFFFFFF, 0, 0, 0xA)
    _run(user, acquire + release_mem(memory.va, 3, gcr=1 << 15 | 1 << 17))
    assert memory.host.read(0, 8) == 3
    assert not world.debug.violations
    _run(user, acquire_mem(0))
    assert "6 expected" in world.debug.violations[0]
    _run(user, packet3(0x93, 3 | 1 << 4, *halves(memory.va), 0, 0, 0, 0, 4))
    assert "GFX11" in world.debug.violations[1]
    world.close()

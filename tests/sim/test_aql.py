"""AQL queues: headers, barriers, vendor packets, and dispatches up to the executor."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from gpu.core.errors import HwTimeout
from gpu.sim.amd.kfd.world import KfdWorld
from sim.aql_packets import AGENT, AND, INVALID, OR, barrier, descriptor, kernel, signal, vendor
from sim.raw_kfd import (
    AQL,
    PAGE,
    SIGNAL,
    Buffer,
    RawKfd,
    nop,
    packet3,
    release_mem,
    wait_mem,
    write_data,
)


def test_barrier_completes(user: RawKfd) -> None:
    memory = user.alloc(PAGE, SIGNAL)
    queue = user.queue(AQL)
    queue.submit_aql(barrier(completion=signal(memory, 5)))
    queue.run()
    assert memory.host.read(8, 8) == 4
    assert queue.rptr == 1
    assert queue.ring.host.read(0, 1) == INVALID  # the slot is free again


def test_dies_write_once() -> None:
    """Each die carries out a vendor's packet: PRED_EXEC gives one of them what is done once."""
    world = KfdWorld(seed=1, chip="gfx942")
    user = RawKfd(world.process)
    memory, queue = user.alloc(PAGE, SIGNAL), user.queue(AQL)
    for at, mask in enumerate((1, 2, 1)):  # another die's write is not modelled
        words = packet3(0x23, mask << 24 | 5) + write_data(memory.va + 4 * at, 7)
        queue.submit_aql(vendor(user, words + wait_mem(memory.va, 0, 4)))
        queue.run()
    assert [memory.host.read(4 * at, 4) for at in range(3)] == [7, 0, 7]
    assert not world.debug.violations
    words = packet3(0x23, 1 << 24 | 5) + write_data(memory.va, 8) + write_data(memory.va, 9)
    queue.submit_aql(vendor(user, words))
    queue.run()
    assert memory.host.read(0, 4) == 8
    assert "WRITE_DATA on 8 dies" in str(world.debug.violations[0])
    world.close()


def test_completion_with_an_event(user: RawKfd) -> None:
    page = user.event_page()
    event = user.event(page=page.handle).event_id
    memory = user.alloc(PAGE, SIGNAL)
    memory.host.write(16, 8, page.va + 8 * event)
    memory.host.write(24, 4, event)
    user.queue(AQL).submit_aql(barrier(completion=signal(memory, 1)))
    assert user.wait([event])[0] == 0
    assert memory.host.read(8, 8) == 0


@pytest.mark.parametrize(("kind", "first"), [(AND, False), (OR, True)])
def test_barriers_wait(user: RawKfd, kind: int, first: bool) -> None:
    memory = user.alloc(PAGE, SIGNAL)
    one, two = signal(memory, 1), signal(memory, 1, 64)
    done = signal(memory, 9, 128)
    queue = user.queue(AQL)
    queue.submit_aql(barrier(kind, (one, two), done))
    with pytest.raises(HwTimeout, match="signals of barrier"):
        while True:
            user.world.waiter.idle(1000)
    memory.host.write(8, 8, 0)
    queue.run()
    assert (memory.host.read(136, 8) == 8) == first
    memory.host.write(72, 8, 0)
    queue.run()
    assert memory.host.read(136, 8) == 8


def test_vendor_packet_runs_pm4(user: RawKfd) -> None:
    memory = user.alloc(PAGE, SIGNAL)
    queue = user.queue(AQL)
    queue.submit_aql(vendor(user, write_data(memory.va + 256, 7) + release_mem(memory.va, 3)))
    queue.run()
    assert (memory.host.read(256, 4), memory.host.read(0, 8)) == (7, 3)


def test_a_vendor_packet_completes_after_its_buffer(user: RawKfd) -> None:
    memory = user.alloc(PAGE, SIGNAL)
    queue = user.queue(AQL)
    words = wait_mem(memory.va + 256, 1) + write_data(memory.va + 260, 2)
    queue.submit_aql(vendor(user, words, completion=signal(memory, 1)))
    queue.run()
    assert memory.host.read(8, 8) == 1
    memory.host.write(256, 4, 1)
    queue.run()
    assert (memory.host.read(8, 8), memory.host.read(260, 4)) == (0, 2)


def test_wraparound(user: RawKfd) -> None:
    memory = user.alloc(PAGE, SIGNAL)
    done = signal(memory, 1000)
    queue = user.queue(AQL)
    for _ in range(200):
        queue.submit_aql(barrier(completion=done))
        queue.run()
    assert memory.host.read(8, 8) == 800
    assert queue.rptr == 200
    assert not user.world.debug.violations


def test_a_header_that_is_not_valid_yet_holds_the_queue(user: RawKfd) -> None:
    memory = user.alloc(PAGE, SIGNAL)
    queue = user.queue(AQL)
    packet = barrier(completion=signal(memory, 1))
    queue.ring.host.store(2, packet[2:])
    queue.pointers.host.write(0x38, 8, 1)
    queue.ring_doorbell(0)
    with pytest.raises(HwTimeout, match="still INVALID"):
        while True:
            user.world.waiter.idle(1000)
    queue.ring.host.write(0, 2, AND)
    queue.run()
    assert memory.host.read(8, 8) == 0


Make = Callable[[RawKfd, Buffer], bytes]
BAD: dict[str, tuple[Make, str]] = {
    "unknown type": (lambda u, m: barrier(9), "header"),
    "agent dispatch": (lambda u, m: barrier(AGENT), "type 4"),
    "header reserved bits": (lambda u, m: barrier(flags=1 << 14), "header"),
    "fence scope 3": (lambda u, m: barrier(flags=3 << 9), "header"),
    "barrier reserved field": (lambda u, m: b"\3\0\1\0" + bytes(60), "reserved"),
    "signal misaligned": (lambda u, m: barrier(completion=m.va + 8), "multiple of 64"),
    "vendor format": (lambda u, m: bytes(64), "format 0x0"),
    "vendor without IB": (
        lambda u, m: struct.pack("<16I", 1 << 16, 3 << 30 | 0x10 << 8, *[0] * 14),
        "INDIRECT_BUFFER",
    ),
    "vendor count": (lambda u, m: vendor(u, nop())[:20] + bytes(44), "0xa"),
    "dispatch without dimensions": (lambda u, m: kernel(m.va, setup=0), "setup"),
    "empty grid": (lambda u, m: kernel(m.va, grid=(0, 1, 1)), "empty"),
    "too many work-items": (lambda u, m: kernel(m.va, group=(2048, 1, 1)), "1024"),
    "empty group": (lambda u, m: kernel(m.va, group=(0, 1, 1)), "1 to 1024"),
    "descriptor misaligned": (lambda u, m: kernel(m.va + 32), "multiple of 64"),
    "entry misaligned": (lambda u, m: kernel(m.va + 64), "multiple of 256"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_packet(user: RawKfd, name: str) -> None:
    make, text = BAD[name]
    memory = user.alloc(PAGE, SIGNAL)
    queue = user.queue(AQL)
    queue.submit_aql(make(user, memory))
    queue.run()
    assert len(user.world.debug.violations) == 1
    assert text in user.world.debug.violations[0]


def test_index_rules(user: RawKfd) -> None:
    queue = user.queue(AQL)
    queue.pointers.host.write(0x38, 8, 1)
    queue.ring_doorbell(2)
    queue.run()
    assert "index of the last packet" in user.world.debug.violations[0]
    full = user.queue(AQL)
    full.pointers.host.write(0x38, 8, 65)
    full.ring_doorbell(64)
    full.run()
    assert "overwritten" in user.world.debug.violations[1]


def test_without_an_executor(user: RawKfd) -> None:
    queue = user.queue(AQL)
    queue.submit_aql(kernel(descriptor(user).va))
    queue.run()
    assert "no executor" in user.world.debug.violations[0]

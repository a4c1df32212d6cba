"""Memory violations: KFDExceptionTest by copy engine and packet processor, and what follows."""

from __future__ import annotations

import pytest

from gpu.autogen import kfd
from gpu.core import hostmem
from gpu.core.errors import HwTimeout
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    AQL,
    GTT,
    PAGE,
    PM4,
    SDMA,
    Buffer,
    RawKfd,
    halves,
    nop,
    packet3,
    release_mem,
    sdma_copy,
    sdma_fence,
    sdma_fill,
    sdma_write,
    wait_mem,
    write_data,
)

MEMORY = kfd.KFD_IOC_EVENT_MEMORY
BAD = 0x7000_0000_0000


def _violation(user: RawKfd, event: int) -> kfd.kfd_hsa_memory_exception_data:
    result, data = user.wait([event], timeout=100)
    assert result == 0
    found: kfd.kfd_hsa_memory_exception_data = data[0].memory_exception_data
    return found


def test_address_fault(user: RawKfd) -> None:
    """The event names the page, not the byte; nothing else of the copy happened."""
    event = user.event(MEMORY).event_id
    target = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(SDMA)
    queue.submit(sdma_copy(BAD + 0x1234, target.va, 64) + sdma_fence(target.va, 1))
    found = _violation(user, event)
    assert found.va == BAD + 0x1000
    assert found.gpu_id == user.gpu_id
    assert (found.failure.NotPresent, found.failure.ReadOnly, found.failure.imprecise) == (1, 0, 0)
    assert target.host.read(0, 4) == 0
    assert f"{BAD + 0x1234:#x}" in user.world.debug.faults[0]  # the exact record is here


def test_permission_fault(user: RawKfd) -> None:
    event = user.event(MEMORY).event_id
    target = user.alloc(PAGE, GTT)
    queue = user.queue(SDMA)
    queue.submit(sdma_write(target.va + 8, 1))
    found = _violation(user, event)
    assert (found.failure.NotPresent, found.failure.ReadOnly) == (0, 1)
    assert found.va == target.va
    assert target.host.read(8, 4) == 0


def test_permission_fault_user_pointer(user: RawKfd) -> None:
    event = user.event(MEMORY).event_id
    at = hostmem.map_anonymous(PAGE)
    fields = {"va_addr": at, "size": PAGE, "gpu_id": user.gpu_id, "mmap_offset": at}
    flags = kfd.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR
    handle = user.call("alloc_memory_of_gpu", flags=flags, **fields).handle
    user.map(Buffer(at, PAGE, handle))
    user.queue(SDMA).submit(sdma_write(at, 1))
    found = _violation(user, event)
    assert (found.va, found.failure.ReadOnly) == (at, 1)


def test_fault_storm(user: RawKfd) -> None:
    """Several queues fault; the event stays one."""
    event = user.event(MEMORY, auto=0).event_id
    for i in range(6):
        user.queue(SDMA).submit(sdma_fill(BAD + i * PAGE, 0, 4))
    assert _violation(user, event).failure.NotPresent == 1
    assert user.wait([event], timeout=0)[0] == 0


def test_sdma_queue_exception_and_eviction(world: KfdWorld) -> None:
    """The process has lost the GPU for good; others and new processes have not."""
    user, other = RawKfd(world.process), RawKfd(world.new_process())
    memory = user.alloc(PAGE, GTT | ACCESS)
    healthy = user.queue(PM4)
    user.queue(SDMA).submit(sdma_write(BAD, 1))
    world.run_until_idle()
    for queue in (healthy, user.queue(PM4)):
        queue.submit(write_data(memory.va, 1))
    with pytest.raises(HwTimeout, match="evicted"):
        world.waiter.idle(1000)
    assert memory.host.read(0, 4) == 0
    theirs = other.alloc(PAGE, GTT | ACCESS)
    other.queue(PM4).submit(write_data(theirs.va, 5))
    world.run_until_idle()
    assert theirs.host.read(0, 4) == 5


@pytest.mark.parametrize(
    "packet",
    [
        write_data(BAD, 1),
        wait_mem(BAD, 1),
        release_mem(BAD, 1),
        packet3(0x40, 1 | 5 << 8, *halves(BAD), *halves(BAD)),
        packet3(0x1E, 0x0F, *halves(BAD), 0, 0, 0, 0, 0),
        packet3(0x3F, *halves(BAD), 4 | 1 << 23),
    ],
    ids=["WRITE_DATA", "WAIT_REG_MEM", "RELEASE_MEM", "COPY_DATA", "ATOMIC_MEM", "IB"],
)
def test_packet_processor_faults(user: RawKfd, packet: list[int]) -> None:
    event = user.event(MEMORY).event_id
    user.queue(PM4).submit(packet)
    assert _violation(user, event).va == BAD


def test_a_fault_that_begins_while_it_waits(user: RawKfd) -> None:
    memory = user.alloc(PAGE, GTT | ACCESS)
    event = user.event(MEMORY).event_id
    queue = user.queue(PM4)
    queue.submit(wait_mem(memory.va, 1))
    queue.run()
    user.unmap(memory)
    assert _violation(user, event).va == memory.va


def test_a_write_across_pages_is_whole_or_not_at_all(user: RawKfd) -> None:
    page = user.alloc(PAGE, GTT | ACCESS)
    user.queue(SDMA).submit(sdma_fill(page.va + PAGE - 8, 0xFFFFFFFF, 64))
    user.world.run_until_idle()
    if user.world.debug.faults:  # what lies behind the page is the test machine's choice
        assert page.host.read(PAGE - 8, 8) == 0


def test_unmapping_takes_effect(user: RawKfd) -> None:
    """The TLB knew the page; the kernel flushes it with the unmapping."""
    memory = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(SDMA)
    queue.submit(sdma_write(memory.va, 1))
    queue.run()
    user.unmap(memory)
    queue.submit(sdma_write(memory.va, 2))
    queue.run()
    assert user.world.debug.faults
    assert memory.host.read(0, 4) == 1


def test_a_stale_tlb_would_be_noticed(user: RawKfd) -> None:
    """Mutation of the model: an unmap without its flush lets the access through."""
    memory = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(SDMA)
    queue.submit(sdma_write(memory.va, 1))
    queue.run()
    device = next(iter(user.process.state.values())).device(user.gpu_id)
    allocation = device.space.unmap(memory.va).owner
    del allocation.mapped[device]
    queue.submit(sdma_write(memory.va, 2))
    queue.run()
    assert memory.host.read(0, 4) == 2
    device.space.flush_tlb()
    queue.submit(sdma_write(memory.va, 3))
    queue.run()
    assert user.world.debug.faults


@pytest.mark.parametrize("kind", [PM4, AQL])
def test_no_event_is_needed(user: RawKfd, kind: int) -> None:
    """Without a MEMORY event the process just loses the GPU."""
    user.queue(kind)
    user.queue(SDMA).submit(sdma_write(BAD, 1))
    user.world.run_until_idle()
    queue = user.queue(PM4)
    queue.submit(nop())
    with pytest.raises(HwTimeout, match="evicted"):
        user.world.waiter.idle(1)

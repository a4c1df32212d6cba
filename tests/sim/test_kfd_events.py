"""Events: KFDEventTest, the interrupts of KFDQMTest, and the kernel's rules for waits."""

from __future__ import annotations

import errno

import pytest

from gpu.autogen import kfd
from gpu.core import hostmem
from gpu.core.errors import HwTimeout
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    GTT,
    PAGE,
    PM4,
    READ_WRITE,
    SDMA,
    VRAM,
    RawKfd,
    fails,
    release_mem,
    sdma_fence,
    sdma_trap,
    wait_mem,
)

COMPLETE, TIMEOUT, FAIL = 0, 1, 2
HW_EXCEPTION, MEMORY = kfd.KFD_IOC_EVENT_HW_EXCEPTION, kfd.KFD_IOC_EVENT_MEMORY
INFINITE = 0xFFFFFFFF


def test_create_destroy_event(user: RawKfd) -> None:
    page = user.event_page()
    first = user.event(page=page.handle)
    assert first.event_id == 1  # 0 is kept for interrupts that name none
    assert first.event_slot_index == first.event_trigger_data == 1
    assert page.host.read(8, 8) == (1 << 64) - 1
    user.call("destroy_event", event_id=1)
    with fails(errno.EINVAL):
        user.call("destroy_event", event_id=1)
    assert user.event().event_id == 1


def test_create_max_events(user: RawKfd) -> None:
    page = user.event_page()
    user.event(page=page.handle)
    for _ in range(kfd.KFD_SIGNAL_EVENT_LIMIT - 2):
        user.event()
    with fails(errno.ENOSPC):
        user.event()
    user.call("destroy_event", event_id=77)
    assert user.event().event_id == 77


def test_event_page_rules(user: RawKfd) -> None:
    small = user.alloc(PAGE, GTT | ACCESS)
    with fails(errno.EINVAL):
        user.event(page=small.handle)
    with fails(errno.EINVAL):
        user.event(page=user.gpu_id << 32 | 999)
    with fails(errno.EINVAL):
        user.event(page=5)
    page = user.event_page()
    user.event(page=page.handle)
    with fails(errno.EINVAL):
        user.event(page=page.handle)
    user.unmap(page)
    with fails(errno.EPERM):
        user.free(page)


def test_event_page_in_vram_is_recorded(user: RawKfd) -> None:
    user.event(page=user.alloc(1 << 16, VRAM).handle)
    assert "event page" in user.world.debug.violations[0]


def test_the_kernels_own_event_page(user: RawKfd) -> None:
    """Without a page of the process there are 256 slots until it maps more."""
    offset = user.event().event_page_offset
    assert offset == 2 << 62
    for _ in range(254):
        user.event()
    with fails(errno.ENOSPC):
        user.event()
    assert user.os.mmap(user.kfd_fd, 0x8000, READ_WRITE, hostmem.MAP_SHARED, offset)
    user.event()


@pytest.mark.parametrize("auto", [0, 1])
def test_signal_event(user: RawKfd, auto: int) -> None:
    event = user.event(auto=auto).event_id
    assert user.wait([event], timeout=0)[0] == TIMEOUT
    user.call("set_event", event_id=event)
    assert user.wait([event], timeout=0)[0] == COMPLETE
    assert user.wait([event], timeout=0)[0] == (TIMEOUT if auto else COMPLETE)
    user.call("set_event", event_id=event)
    user.call("reset_event", event_id=event)
    assert user.wait([event], timeout=0)[0] == TIMEOUT


def test_signal_event_ext(user: RawKfd) -> None:
    """An event's age tells a waiter of signals that it did not see."""
    event = user.event().event_id
    _, data = user.wait([event], timeout=0, ages=[1])
    user.call("set_event", event_id=event)
    result, data = user.wait([event], timeout=0, ages=[1])
    assert (result, data[0].signal_event_data.last_event_age) == (COMPLETE, 2)
    assert user.wait([event], timeout=0, ages=[2])[0] == TIMEOUT
    assert user.wait([event], timeout=0, ages=[1])[0] == COMPLETE


def test_signal_invalid_event(user: RawKfd) -> None:
    other = user.event(HW_EXCEPTION).event_id
    assert other == 0x40000000
    for name in ("set_event", "reset_event"):
        with fails(errno.EINVAL):
            user.call(name, event_id=0)
        with fails(errno.EINVAL):
            user.call(name, event_id=other)
    with fails(errno.EINVAL):
        user.wait([1234])
    args = kfd.kfd_ioctl_wait_events_args(events_ptr=8, num_events=1, timeout=1)
    with fails(errno.EFAULT):
        user.os.ioctl(user.kfd_fd, kfd.AMDKFD_IOC_WAIT_EVENTS, args)
    assert args.wait_result == FAIL


def test_signal_multiple_events_wait_for_all(user: RawKfd) -> None:
    events = [user.event().event_id for _ in range(3)]
    user.call("set_event", event_id=events[1])
    assert user.wait(events, every=True, timeout=0)[0] == TIMEOUT
    for event in events:
        user.call("set_event", event_id=event)
    assert user.wait(events, every=True, timeout=0)[0] == COMPLETE
    assert user.wait([], timeout=0)[0] == COMPLETE


def test_timeouts_pass_virtual_time(user: RawKfd) -> None:
    event = user.event().event_id
    clock = user.world.clock
    before = clock.now_ns
    assert user.wait([event], timeout=20)[0] == TIMEOUT
    assert clock.now_ns - before == 24_000_000  # five jiffies of 4 ms, and one more
    with pytest.raises(HwTimeout, match="WAIT_EVENTS"):
        user.wait([event], timeout=INFINITE)


def test_sdma_event_interrupt(user: RawKfd) -> None:
    page = user.event_page()
    events = [user.event(page=page.handle).event_id, user.event().event_id]
    queue = user.queue(SDMA)
    queue.submit(sdma_fence(page.va + 8 * events[1], 1) + sdma_trap(events[1]))
    assert user.wait([events[1]], timeout=INFINITE)[0] == COMPLETE
    assert user.wait([events[0]], timeout=0)[0] == TIMEOUT
    assert page.host.read(8 * events[1], 8) == (1 << 64) - 1  # the kernel acknowledged


@pytest.mark.parametrize("context", ["right", "wrong"])
def test_pm4_event_interrupt(user: RawKfd, context: str) -> None:
    """A context that names no written slot makes the kernel search them all."""
    page = user.event_page()
    first = user.event(page=page.handle).event_id
    event = user.event().event_id
    queue = user.queue(PM4)
    number = event if context == "right" else first
    queue.submit(release_mem(page.va + 8 * event, event, interrupt=2, context=number))
    assert user.wait([event], timeout=INFINITE)[0] == COMPLETE
    assert user.wait([first], timeout=0)[0] == TIMEOUT


def test_an_interrupt_without_a_written_slot_signals_nothing(user: RawKfd) -> None:
    page = user.event_page()
    event = user.event(page=page.handle).event_id
    queue = user.queue(SDMA)
    queue.submit(sdma_trap(event))
    queue.run()
    assert user.wait([event], timeout=0)[0] == TIMEOUT


@pytest.mark.parametrize("fault", ["stuck-fence", "lost-interrupt"])
def test_lost_on_purpose(fault: str) -> None:
    world = KfdWorld(faults=[fault])
    user = RawKfd(world.process)
    page = user.event_page()
    event = user.event(page=page.handle).event_id
    queue = user.queue(PM4)
    queue.submit(release_mem(page.va + 8 * event, event, interrupt=2, context=event))
    assert user.wait([event], timeout=10)[0] == TIMEOUT
    arrived = page.host.read(8 * event, 8) == event
    assert arrived == (fault == "lost-interrupt")
    world.close()


def test_hw_exception_of_a_stuck_wait(user: RawKfd) -> None:
    """Removing a queue that stands at an unmet wait resets the GPU; the process has lost it."""
    event = user.event(HW_EXCEPTION).event_id
    memory = user.alloc(PAGE, GTT | ACCESS)
    queue, other = user.queue(PM4), user.queue(SDMA)
    queue.submit(wait_mem(memory.va, 1))
    queue.run()
    with fails(errno.ETIMEDOUT):
        queue.destroy()
    result, data = user.wait([event], timeout=0)
    assert result == COMPLETE
    found = data[0].hw_exception_data
    assert (found.memory_lost, found.reset_cause, found.gpu_id) == (1, 0, user.gpu_id)
    with fails(errno.EACCES):
        other.update()
    late = user.queue(SDMA)
    late.submit(sdma_fence(memory.va, 1))
    with pytest.raises(HwTimeout, match="evicted"):
        user.world.waiter.idle(1000)
    fresh = RawKfd(user.world.new_process())
    target = fresh.alloc(PAGE, GTT | ACCESS)
    fresh.queue(SDMA).submit(sdma_fence(target.va, 3))
    user.world.run_until_idle()
    assert target.host.read(0, 4) == 3


def test_updating_a_stuck_queue_resets_too(user: RawKfd) -> None:
    memory = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(PM4)
    queue.submit(wait_mem(memory.va, 1))
    queue.run()
    with fails(errno.EACCES):
        queue.update(queue_percentage=50)


def test_a_stuck_wait_need_not_reset() -> None:
    world = KfdWorld(stuck_wait_resets=False)
    user = RawKfd(world.process)
    memory = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(PM4)
    queue.submit(wait_mem(memory.va, 1))
    queue.run()
    queue.destroy()
    assert not world.debug.faults
    world.close()


def test_a_satisfied_wait_is_removed_without_a_reset(user: RawKfd) -> None:
    memory = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(PM4)
    queue.submit(wait_mem(memory.va, 1))
    queue.run()
    memory.host.write(0, 4, 1)
    queue.destroy()
    assert not user.world.debug.faults

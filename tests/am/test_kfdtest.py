"""Cases of kfdtest that run kernels, under the upstream names in lower case."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from am.kfdtest_kernels import (
    COPY,
    COUNT,
    FLAG,
    FOREVER,
    NOTHING,
    PERSISTENT,
    POLL,
    POLL_AND_COPY,
    STOP,
    WRITE_AND_FLAG,
    idle,
    kept,
    launch,
    load,
)
from gpu.autogen import kfd
from gpu.core.errors import HwTimeout
from gpu.sim.amd.chip.lanes import LaneExecutor
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    PAGE,
    PM4,
    SIGNAL,
    UNCACHED,
    VRAM,
    RawKfd,
    halves,
    packet3,
    release_mem,
)

DONE = 0x600D


@pytest.fixture(autouse=True)
def needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


@pytest.fixture
def user() -> Iterator[RawKfd]:
    world = KfdWorld(seed=11, executor=LaneExecutor(11))
    yield RawKfd(world.process)
    assert not world.debug.violations
    world.close()


def test_simple_write_dispatch(user: RawKfd) -> None:
    source, target = user.alloc(PAGE, SIGNAL), user.alloc(PAGE, SIGNAL)
    source.host.write(0, 4, 0x01010101)
    queue = user.queue(PM4)
    queue.submit(launch(load(user, COPY), (source.va, target.va), items=1))
    queue.run()
    assert (target.host.read(0, 4), target.host.read(4, 4)) == (0x01010101, 0)


def test_multiple_cp_queues_stress_dispatch(user: RawKfd) -> None:
    """16 queues; each round every one copies a word of its own, and the next waits for all."""
    source, target = user.alloc(PAGE, SIGNAL), user.alloc(PAGE, SIGNAL)
    code, queues = load(user, COPY), [user.queue(PM4) for _ in range(16)]
    for turn in range(5):
        for number, queue in enumerate(queues):
            source.host.write(4 * number, 4, 100 * turn + number)
            queue.submit(launch(code, (source.va + 4 * number, target.va + 4 * number), items=1))
        user.world.run_until_idle()
        found = [target.host.read(4 * number, 4) for number in range(16)]
        assert found == [100 * turn + number for number in range(16)]


def test_cpu_write_coherence(user: RawKfd) -> None:
    """A kernel that is under way sees what the CPU writes."""
    polled, target = user.alloc(PAGE, SIGNAL), user.alloc(PAGE, SIGNAL)
    queue = user.queue(PM4)
    queue.submit(launch(load(user, POLL), (polled.va, target.va), items=1))
    with pytest.raises(HwTimeout, match="only a write to memory by others can end"):
        idle(queue, 100)
    assert target.host.read(0, 4) == 0
    polled.host.write(0, 4, FLAG)
    queue.run()
    assert target.host.read(0, 4) == FLAG


def test_atomics(user: RawKfd) -> None:
    counter = user.alloc(PAGE, SIGNAL)
    queue = user.queue(PM4)
    queue.submit(launch(load(user, COUNT), (counter.va,), groups=16, items=64))
    queue.run()
    assert counter.host.read(0, 4) == 1024


@pytest.mark.parametrize(("groups", "switches"), [(1, 5), (4, 3), (16, 2)])
def test_cwsr_basic_test(user: RawKfd, groups: int, switches: int) -> None:
    """A queue that is disabled takes its waves off the GPU; they go on where they were."""
    stop, target, beat = (user.alloc(PAGE, SIGNAL) for _ in range(3))
    queue = user.queue(PM4)
    arguments = (stop.va, target.va, beat.va)
    queue.submit(launch(load(user, PERSISTENT), arguments, groups=groups, items=64))
    idle(queue)
    for _ in range(switches):
        queue.update(queue_percentage=0)
        before = beat.host.read(0, 4)
        with pytest.raises(HwTimeout, match="disabled"):
            idle(queue)
        assert beat.host.read(0, 4) == before > 0
        queue.update()
        beat.host.write(0, 4, 0)
        idle(queue)
        assert beat.host.read(0, 4) > 0
    assert target.host.load(0, PAGE) == bytes(PAGE)
    stop.host.write(0, 4, STOP)
    queue.run()
    count = 64 * groups
    assert [target.host.read(4 * i, 4) for i in range(count)] == [kept(i) for i in range(count)]
    queue.destroy()


def test_cwsr_interrupt_restore(user: RawKfd) -> None:
    """Queues whose kernels never end are destroyed while they take turns."""
    forever = load(user, FOREVER)
    queues = [user.queue(PM4) for _ in range(2)]
    for queue in queues:
        queue.submit(launch(forever, groups=64, items=64))
        idle(queue)
    last = user.queue(PM4)
    for queue in (*queues, last):
        queue.destroy()
    target = user.alloc(PAGE, SIGNAL)
    again = user.queue(PM4)
    again.submit(launch(load(user, NOTHING)) + release_mem(target.va, DONE))
    again.run()
    assert target.host.read(0, 4) == DONE


@pytest.mark.parametrize("others", [0, 11], ids=["different_pipe", "same_pipe"])
def test_queue_priority(user: RawKfd, others: int) -> None:
    """Kernels of a low and a high priority both end, and say so; upstream prints the times."""
    page = user.event_page()
    events = [user.event(page=page.handle).event_id, user.event().event_id]
    queues = [user.queue(PM4) for _ in range(2 + others)]
    counter = user.alloc(PAGE, SIGNAL)
    code = load(user, COUNT)
    for queue, priority, event in zip((queues[0], queues[-1]), (3, 11), events, strict=True):
        queue.update(queue_priority=priority)
        done = release_mem(page.va + 8 * event, event, interrupt=2, context=event)
        queue.submit(launch(code, (counter.va,), groups=64, items=64) + done)
    assert user.wait(events, every=True, timeout=0xFFFFFFFF)[0] == 0
    assert counter.host.read(0, 4) == 2 * 64 * 64


def test_signal_max_events(user: RawKfd) -> None:
    """4095 events, each signalled by a packet of one submission."""
    count = kfd.KFD_SIGNAL_EVENT_LIMIT - 1
    page = user.event_page()
    events = [user.event(page=page.handle if not n else 0).event_id for n in range(count)]
    queue = user.queue(PM4, 32 * kfd.KFD_SIGNAL_EVENT_LIMIT)
    for event in events:
        queue.place(release_mem(page.va + 8 * event, event, interrupt=2, context=event))
    queue.submit()
    assert all(user.wait([event], timeout=0xFFFFFFFF)[0] == 0 for event in events)
    assert user.wait(events, timeout=0)[0] == 1  # each was reset by the wait for it


@pytest.mark.parametrize(("register", "operation"), [(0xE26, 1), (0xE26, 0), (0xE2A, 1)])
def test_hdp_flush_of_a_compute_queue(register: int, operation: int) -> None:
    """Like DeviceHdpFlush, by the packet that a kernel's ring has for it."""
    world = KfdWorld(seed=4, coherence="oldest")
    user = RawKfd(world.process)
    memory, target = user.alloc(PAGE, VRAM | ACCESS), user.alloc(PAGE, SIGNAL)
    memory.host.write(0, 4, 7)
    copy = packet3(0x40, 1 | 5 << 8, *halves(memory.va), *halves(target.va))
    flush = packet3(0x3C, 5 | operation << 6, register, 0xE27, 0xFFFFFFFF, 0xFFFFFFFF, 4)
    queue = user.queue(PM4)
    queue.submit(flush + copy)
    queue.run()
    allowed = (register, operation) == (0xE26, 1)
    assert target.host.read(0, 4) == (7 if allowed else 0)
    assert any("user queues wait on memory" in v for v in world.debug.violations) != allowed
    world.close()


@pytest.mark.parametrize("flags", [SIGNAL, VRAM | ACCESS | UNCACHED], ids=["system", "vram"])
def test_writes_of_a_remote_gpu(flags: int) -> None:
    """CacheInvalidateOnRemoteWrite, VramCacheCoherenceWithRemoteGPU: one polls, a peer writes."""
    world = KfdWorld(seed=3, chip=("gfx1100", "gfx1100"), executor=LaneExecutor(3))
    near, far = RawKfd(world.process), RawKfd(world.process, index=1)
    shared = near.alloc(PAGE, flags, map_gpu=False)
    near.map(shared, [near.gpu_id, far.gpu_id])
    target, value = near.alloc(PAGE, SIGNAL), far.alloc(PAGE, SIGNAL)
    value.host.write(0, 4, 0xBEEF)
    waiting, writing = near.queue(PM4), far.queue(PM4)
    waiting.submit(launch(load(near, POLL_AND_COPY), (shared.va, target.va), items=1))
    with pytest.raises(HwTimeout, match="only a write to memory by others can end"):
        idle(waiting, 100)
    assert target.host.read(0, 4) == 0
    writing.submit(launch(load(far, WRITE_AND_FLAG), (shared.va, value.va), items=1))
    world.run_until_idle()
    assert target.host.read(0, 4) == 0xBEEF
    assert not world.debug.violations
    world.close()

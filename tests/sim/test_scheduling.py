"""Rings, doorbells, turns and waits: how the engines come to work, and when they cannot."""

from __future__ import annotations

import pytest

from gpu.core.errors import HwTimeout
from gpu.core.wait import wait_until
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    AQL,
    GTT,
    PAGE,
    PM4,
    SDMA,
    VRAM,
    RawKfd,
    RawQueue,
    nop,
    release_mem,
    sdma_copy,
    sdma_fence,
    sdma_poll,
    wait_mem,
    write_data,
)

KINDS = {"pm4": PM4, "sdma": SDMA, "aql": AQL}


def test_over_subscribe_cp_queues(user: RawKfd) -> None:
    """More queues than hardware has take turns; the scheduler reads pointers from memory."""
    target = user.alloc(PAGE, GTT | ACCESS)
    queues = [user.queue(PM4) for _ in range(25)]
    assert user.gpu.oversubscribed
    for i, queue in enumerate(queues):
        queue.submit(write_data(target.va + 4 * i, i + 1) + nop(30))
    user.world.run_until_idle()
    assert [target.host.read(4 * i, 4) for i in range(25)] == list(range(1, 26))


def test_over_subscription_finds_a_forgotten_write_pointer(user: RawKfd) -> None:
    queues = [user.queue(PM4) for _ in range(25)]
    queues[0].place(nop())
    queues[0].ring_doorbell(1)
    user.world.run_until_idle()
    assert "write pointer in memory" in user.world.debug.violations[0]
    assert queues[0].rptr == 0  # taken off and put back, it has no work
    queues[1].place(nop())
    queues[1].pointers.host.write(0x38, 8, 1)
    user.world.run_until_idle()
    assert queues[1].rptr == 1  # the scheduler polls the pointers of queues that wait for a turn


def test_enabling_reads_the_write_pointer_from_memory(user: RawKfd) -> None:
    queue = user.queue(PM4)
    queue.update(queue_percentage=0)
    queue.place(nop())
    queue.pointers.host.write(0x38, 8, 1)
    queue.run()
    assert queue.rptr == 0
    queue.update()
    queue.run()
    assert queue.rptr == 1


def test_multi_process_oversubscribed(world: KfdWorld) -> None:
    """KFDHWSTest.MultiProcessOversubscribed: each process sees its own memory."""
    users = [RawKfd(world.process)] + [RawKfd(world.new_process()) for _ in range(3)]
    targets = []
    for number, user in enumerate(users):
        target = user.alloc(PAGE, GTT | ACCESS)
        targets.append(target)
        for i in range(4):
            user.queue(PM4).submit(write_data(target.va + 4 * i, 16 * number + i))
    world.run_until_idle()
    for number, target in enumerate(targets):
        assert [target.host.read(4 * i, 4) for i in range(4)] == [16 * number + i for i in range(4)]


def test_sdma_concurrent_copies_interleave(world: KfdWorld) -> None:
    """SdmaConcurrentCopies: long copies of two queues share the engine's time."""
    user = RawKfd(world.process)
    size = 8 << 20
    data = bytes(range(256)) * (size // 256)
    queues, targets = [], []
    for _ in range(2):
        source, target = user.alloc(size, GTT | ACCESS), user.alloc(size, VRAM | ACCESS)
        source.host.store(0, data)
        queues.append(user.queue(SDMA))
        queues[-1].submit(sdma_copy(source.va, target.va, size))
        targets.append(target)
    world.run_until_idle()
    assert all(target.host.load(0, size) == data for target in targets)


def _order(seed: int) -> list[int]:
    """In which order two queues write ten values each to one place."""
    world = KfdWorld(seed)
    user = RawKfd(world.process)
    log = user.alloc(PAGE, GTT | ACCESS)
    first, second = user.queue(PM4), user.queue(PM4)
    add = 0x2F  # a 64-bit atomic add that returns
    for value, queue in ((1, first), (2, second)):
        for _ in range(10):
            queue.place([3 << 30 | 7 << 16 | 0x1E << 8, add, log.va & 0xFFFFFFFF, log.va >> 32])
            queue.place([value, 0, 0, 0, 0])
            queue.place(nop(60))
    for queue in (first, second):
        queue.submit()
    seen = []
    while True:
        try:
            world.waiter.idle(1000)
        except HwTimeout:
            break
        seen.append(log.host.read(0, 8))
    world.close()
    return seen


def test_a_seed_reproduces_and_others_differ() -> None:
    assert _order(1) == _order(1)
    assert len({tuple(_order(seed)) for seed in range(6)}) > 2
    assert _order(1)[-1] == 30


def test_waiting_on_the_model(user: RawKfd) -> None:
    """A driver's wait goes through the waiter; what cannot come fails at once."""
    target = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(PM4)
    queue.submit(release_mem(target.va, 5))
    host, waiter = target.host, user.world.waiter
    assert wait_until(waiter, lambda: host.read(0, 8), 5, what="signal", timeout=1) == 5
    with pytest.raises(HwTimeout, match="signal"):
        wait_until(waiter, lambda: host.read(0, 8), 6, what="signal", timeout=1000)


def test_a_stuck_wait_is_named(user: RawKfd) -> None:
    target = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(PM4)
    queue.submit(wait_mem(target.va, 1))
    queue.run()
    with pytest.raises(HwTimeout, match=f"WAIT_REG_MEM of {target.va:#x}"):
        user.world.waiter.idle(1000)
    target.host.write(0, 4, 1)
    queue.run()
    assert queue.rptr == queue.put


def test_queues_wait_for_each_other(user: RawKfd) -> None:
    target = user.alloc(PAGE, GTT | ACCESS)
    pm4, sdma = user.queue(PM4), user.queue(SDMA)
    pm4.submit(wait_mem(target.va, 1) + write_data(target.va + 4, 2))
    sdma.submit(sdma_fence(target.va, 1) + sdma_poll(target.va + 4, 2) + sdma_fence(target.va, 3))
    user.world.run_until_idle()
    assert target.host.read(0, 4) == 3


@pytest.mark.parametrize("kind", ["pm4", "sdma"])
def test_a_doorbell_that_was_never_rung(user: RawKfd, kind: str) -> None:
    queue = user.queue(KINDS[kind])
    queue.place(nop() if kind == "pm4" else [0])
    queue.pointers.host.write(0x38, 8, queue.put)
    with pytest.raises(HwTimeout, match="never rung"):
        user.world.waiter.idle(1000)


def _ring_size(queue: RawQueue) -> int:
    return queue.size if queue.kind == SDMA else queue.size // 4


@pytest.mark.parametrize("kind", ["pm4", "sdma"])
def test_doorbell_rules(user: RawKfd, kind: str) -> None:
    debug = user.world.debug
    unit = 4 if kind == "sdma" else 1
    queue = user.queue(KINDS[kind])
    queue.place(nop() * 4 if kind == "pm4" else [0] * 4)
    queue.pointers.host.write(0x38, 8, unit)
    queue.ring_doorbell(unit, width=4)
    queue.run()
    assert "32" in debug.violations[-1]
    queue.ring_doorbell(2 * unit)
    queue.run()
    assert "in memory" in debug.violations[-1]
    queue.pointers.host.write(0x38, 8, unit)
    queue.ring_doorbell(unit)
    queue.run()
    assert "only grow" in debug.violations[-1]
    full = user.queue(KINDS[kind])
    full.pointers.host.write(0x38, 8, _ring_size(full) + unit)
    full.ring_doorbell(_ring_size(full) + unit)
    full.run()
    assert "overwritten" in debug.violations[-1]
    with pytest.raises(HwTimeout, match="stopped"):
        user.world.waiter.idle(1000)


def test_delayed_doorbell() -> None:
    world = KfdWorld(faults=["late-doorbell:7000000@1+"])
    user = RawKfd(world.process)
    target = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(PM4)
    before = world.clock.now_ns
    queue.submit(write_data(target.va, 1))
    host = target.host
    wait_until(world.waiter, lambda: host.read(0, 4), 1, what="it", timeout=1)
    assert world.clock.now_ns - before >= 7_000_000
    world.close()


def test_destroy_with_packets_left_is_noted(user: RawKfd) -> None:
    queue = user.queue(PM4)
    queue.submit(nop() * 1000)
    user.gpu.sample()
    queue.destroy()
    notes = [record.what for record in user.world.debug.records if record.kind == "note"]
    assert any("before it read all" in note for note in notes)

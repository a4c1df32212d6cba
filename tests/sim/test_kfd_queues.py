"""Queues: KFDQMTest as far as it needs no kernel, and what CREATE_QUEUE refuses."""

from __future__ import annotations

import ctypes
import errno

import pytest

from gpu.autogen import kfd
from gpu.core.errors import HwTimeout
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.kernel import ENOTSUPP
from sim.raw_kfd import (
    ACCESS,
    AQL,
    GTT,
    PAGE,
    PM4,
    SDMA,
    RawKfd,
    fails,
    nop,
    sdma_write,
    write_data,
)

KINDS = {"pm4": PM4, "sdma": SDMA, "aql": AQL}


@pytest.mark.parametrize("kind", KINDS)
def test_create_destroy_queue(user: RawKfd, kind: str) -> None:
    """CreateDestroyCpQueue, CreateDestroySdmaQueue, CreateAqlCpQueue."""
    queue = user.queue(KINDS[kind])
    assert queue.doorbell_offset >> 62 == 3
    assert queue.doorbell_offset >> 46 & 0xFFFF == user.gpu_id
    queue.destroy()
    with fails(errno.EINVAL):
        queue.destroy()


def test_submit_nop_cp_queue(user: RawKfd) -> None:
    queue = user.queue(PM4)
    queue.submit(nop() + nop(7))
    queue.run()
    assert queue.rptr == 8


def test_submit_nop_sdma_queue(user: RawKfd) -> None:
    queue = user.queue(SDMA)
    queue.submit([0, 2 << 16, 0, 0, 0])
    queue.run()
    assert queue.rptr == 20


def test_submit_packet_cp_queue(user: RawKfd) -> None:
    target = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(PM4)
    queue.submit(write_data(target.va, 0x1234, 0x5678))
    queue.run()
    assert target.host.read(0, 8) == 0x5678_0000_1234


@pytest.mark.parametrize("kind", ["pm4", "sdma"])
def test_queue_wraparound(user: RawKfd, kind: str) -> None:
    """CpQueueWraparound, SdmaQueueWraparound: PM4 packets may lie across the end."""
    target = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(KINDS[kind])
    for value in range(600):
        packet = write_data(target.va, value) if kind == "pm4" else sdma_write(target.va, value)
        if kind == "sdma" and queue.put % 1024 + len(packet) > 1024:
            queue.place([0] * (1024 - queue.put % 1024))
        queue.submit(packet)
        queue.run()
        assert target.host.read(0, 4) == value
    assert queue.put > 2 * 1024
    assert queue.rptr == (queue.put % 1024 if kind == "pm4" else 4 * queue.put)
    assert not user.world.debug.violations


def test_all_cp_and_sdma_queues(user: RawKfd) -> None:
    """AllCpQueues, AllSdmaQueues, AllQueues, and their doorbells."""
    sdma = [user.queue(SDMA) for _ in range(12)]
    with fails(errno.ENOMEM):
        user.queue(SDMA)
    compute = [user.queue(PM4) for _ in range(20)]
    slots = [queue.slot for queue in sdma + compute]
    assert len(set(slots)) == len(slots)
    assert sdma[0].slot == 8 * (0x100 + 1)  # engine 0, queue 2: the kernel keeps the first two
    assert sdma[1].slot == 8 * (0x10A + 1)
    target = user.alloc(PAGE, GTT | ACCESS)
    for i, queue in enumerate(sdma):
        queue.submit(sdma_write(target.va + 4 * i, i + 1))
    for i, queue in enumerate(compute):
        queue.submit(write_data(target.va + 256 + 4 * i, i + 1))
    user.world.run_until_idle()
    assert [target.host.read(4 * i, 4) for i in range(12)] == list(range(1, 13))
    assert [target.host.read(256 + 4 * i, 4) for i in range(20)] == list(range(1, 21))


def test_sdma_by_engine(user: RawKfd) -> None:
    first = user.queue(4, sdma_engine_id=1)
    assert first.slot == 8 * (0x10A + 1)
    with fails(errno.EINVAL):
        user.queue(4, sdma_engine_id=2)
    with fails(errno.ENOMEM):
        user.queue(3)  # this chip has no engines for XGMI


def test_all_xgmi_sdma_queues() -> None:
    world = KfdWorld(chip="gfx942")
    user = RawKfd(world.process)
    queues = [user.queue(3) for _ in range(14)]
    assert len({queue.slot for queue in queues}) == 14
    world.close()


def test_most_queues(user: RawKfd) -> None:
    """CreateQueueStressSingleThreaded, and the limit of the scheduler's firmware."""
    for _ in range(127):
        user.queue(PM4)
    with fails(errno.ENOSPC):
        user.queue(PM4)
    for queue in user.queues:
        queue.destroy()
    user.queue(PM4)


BAD = {
    "percentage": ({"queue_percentage": 101}, errno.EINVAL),
    "priority": ({"queue_priority": 16}, errno.EINVAL),
    "ring size": ({"ring_size": 3000}, errno.EINVAL),
    "ring address": ({"ring_base_address": 1 << 50}, errno.EFAULT),
    "read pointer": ({"read_pointer_address": 1 << 50}, errno.EFAULT),
    "write pointer": ({"write_pointer_address": 1 << 50}, errno.EFAULT),
    "type": ({"queue_type": 9}, ENOTSUPP),
    "gpu": ({"gpu_id": 1}, errno.EINVAL),
    "null ring": ({"ring_base_address": 0}, errno.EINVAL),
    "ring larger than its buffer": ({"ring_size": 2 * PAGE}, errno.EINVAL),
    "no read pointer": ({"read_pointer_address": 0x5000}, errno.EINVAL),
    "no write pointer": ({"write_pointer_address": 0x5000}, errno.EINVAL),
    "small EOP": ({"eop_buffer_size": 2048}, errno.EINVAL),
    "large EOP": ({"eop_buffer_size": 2 * PAGE}, errno.EINVAL),
    "EOP not mapped": ({"eop_buffer_address": 0x5000}, errno.EINVAL),
    "control stack": ({"ctl_stack_size": PAGE}, errno.EINVAL),
    "save area": ({"ctx_save_restore_size": PAGE}, errno.EINVAL),
    "save area not mapped": ({"ctx_save_restore_address": 0x5000}, errno.EINVAL),
    "save area larger than its buffer": ({"ctx_save_restore_size": 1 << 30}, errno.EINVAL),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_queue(user: RawKfd, name: str) -> None:
    changes, number = BAD[name]
    with fails(number):
        user.queue(PM4, **changes)
    assert not user.gpu.queues


def test_queue_before_the_vm(world: KfdWorld) -> None:
    user = RawKfd(world.process, acquire=False)
    with fails(errno.ESRCH):
        user.call("create_queue", gpu_id=user.gpu_id)


def test_pointers_need_a_page_of_their_own(user: RawKfd) -> None:
    two = user.alloc(2 * PAGE, GTT | ACCESS)
    with fails(errno.EINVAL):
        user.queue(PM4, write_pointer_address=two.va)
    with fails(errno.EINVAL):
        user.queue(PM4, ring_base_address=two.va + PAGE)


@pytest.mark.parametrize("changes", [{"ring_base_address": 0}, {"queue_percentage": 0}])
@pytest.mark.parametrize("kind", ["pm4", "sdma"])
def test_disable_queue_by_update(user: RawKfd, kind: str, changes: dict[str, int]) -> None:
    """Disable{Cp,Sdma}QueueByUpdateWithNullAddress, DisableCpQueueByUpdateWithZeroPercentage."""
    target = user.alloc(PAGE, GTT | ACCESS)
    queue = user.queue(KINDS[kind])
    packet = write_data if kind == "pm4" else sdma_write
    queue.update(**changes)
    queue.submit(packet(target.va, 1))
    with pytest.raises(HwTimeout, match="disabled"):
        user.world.waiter.idle(1000)
    assert target.host.read(0, 4) == 0
    queue.update()
    queue.run()
    assert target.host.read(0, 4) == 1


def test_invalid_update(user: RawKfd) -> None:
    queue = user.queue(PM4)
    with fails(errno.EFAULT):
        user.call("update_queue", queue_id=99)
    for change in ({"queue_percentage": 101}, {"queue_priority": 16}, {"ring_size": 3000}):
        with fails(errno.EINVAL):
            queue.update(**change)
    with fails(errno.EFAULT):
        queue.update(ring_base_address=0x5000)
    with fails(errno.EFAULT):
        queue.update(ring_size=2 * PAGE)


def test_cu_mask(user: RawKfd) -> None:
    """BasicCuMaskingLinear without its dispatches: compute units come in pairs."""
    queue = user.queue(PM4)
    mask = (ctypes.c_uint32 * 4)(3)
    at = ctypes.addressof(mask)
    user.call("set_cu_mask", queue_id=queue.id, num_cu_mask=128, cu_mask_ptr=at)
    mask[0] = 1
    with fails(errno.EINVAL):
        user.call("set_cu_mask", queue_id=queue.id, num_cu_mask=128, cu_mask_ptr=at)
    for count in (0, 33):
        with fails(errno.EINVAL):
            user.call("set_cu_mask", queue_id=queue.id, num_cu_mask=count, cu_mask_ptr=at)
    with fails(errno.EFAULT):
        user.call("set_cu_mask", queue_id=99, num_cu_mask=32, cu_mask_ptr=at)


def test_another_processes_memory_is_not_there(world: KfdWorld) -> None:
    first, second = RawKfd(world.process), RawKfd(world.new_process())
    secret = first.alloc(PAGE, GTT | ACCESS)
    queue = second.queue(SDMA)
    queue.submit(sdma_write(secret.va, 1))
    queue.run()
    assert world.debug.faults
    assert secret.host.read(0, 4) == 0


def test_gpu_doorbell_write(user: RawKfd) -> None:
    """GPUDoorbellWrite: one queue rings another through a doorbell allocation."""
    page = user.alloc(0x2000, kfd.KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | ACCESS, map_cpu=False)
    target = user.alloc(PAGE, GTT | ACCESS)
    queue, ringer = user.queue(PM4), user.queue(PM4)
    queue.place(write_data(target.va, 9))
    queue.pointers.host.write(0x38, 8, queue.put)
    queue.run()
    assert target.host.read(0, 4) == 0
    ringer.submit(write_data(page.va + queue.slot, queue.put, 0))
    user.world.run_until_idle()
    assert target.host.read(0, 4) == 9

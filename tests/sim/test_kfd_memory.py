"""Memory calls: KFDMemoryTest and KFDLocalMemoryTest as far as they need no kernel, and what fails.

Access by the GPU is by the copy engine, where kfdtest runs a shader.
"""

from __future__ import annotations

import ctypes
import errno

import numpy as np
import pytest

from gpu.autogen import kfd
from gpu.core import hostmem
from gpu.core.errors import OutOfMemory
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    GTT,
    PAGE,
    PM4,
    READ_WRITE,
    SDMA,
    VRAM,
    Buffer,
    RawKfd,
    RawQueue,
    fails,
    sdma_copy,
    sdma_fill,
    sdma_write,
)

FLAGS = {
    "USERPTR": kfd.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR,
    "DOORBELL": kfd.KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL,
    "MMIO": kfd.KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP,
}


def _copy(queue: RawQueue, source: int, target: int, size: int) -> None:
    queue.submit(sdma_copy(source, target, size))
    queue.run()


@pytest.mark.parametrize("flags", [GTT, VRAM])
def test_memory_alloc_map_access(user: RawKfd, flags: int) -> None:
    """MapMemoryToGPU, AccessLocalMem: both sides see the same bytes at the same address."""
    buffer = user.alloc(16 * PAGE, flags | ACCESS)
    other = user.alloc(16 * PAGE, GTT | ACCESS)
    data = np.random.default_rng(1).bytes(16 * PAGE)
    buffer.host.store(0, data)
    _copy(user.queue(SDMA), buffer.va, other.va, 16 * PAGE)
    assert other.host.load(0, 16 * PAGE) == data
    for each in (buffer, other):
        user.unmap(each)
        user.free(each)


def test_verify_contents_after_unmap_and_map(user: RawKfd) -> None:
    buffer = user.alloc(PAGE, VRAM | ACCESS)
    queue = user.queue(SDMA)
    queue.submit(sdma_fill(buffer.va, 0xABCD1234, PAGE))
    queue.run()
    user.unmap(buffer)
    user.map(buffer)
    target = user.alloc(PAGE, GTT | ACCESS)
    _copy(queue, buffer.va, target.va, PAGE)
    assert target.host.read(PAGE - 4, 4) == 0xABCD1234


def test_check_zero_initialization(user: RawKfd) -> None:
    """CheckZeroInitializationVram, CheckZeroInitializationSysMem, also for memory used before."""
    for flags in (VRAM, GTT):
        first = user.alloc(4 * PAGE, flags | ACCESS)
        first.host.store(0, b"\xff" * 4 * PAGE)
        user.unmap(first)
        user.free(first)
        again = user.alloc(4 * PAGE, flags | ACCESS)
        assert again.host.load(0, 4 * PAGE) == bytes(4 * PAGE)


def test_fragmentation(user: RawKfd) -> None:
    """Buffers in pieces: VRAM is filled, every second one freed, and one larger one taken."""
    gpu = user.gpu
    page = 2 << 20
    hold = [user.alloc(page, VRAM | ACCESS, map_cpu=False) for _ in range(16)]
    rest = gpu.asic.vram.free_bytes
    filler = gpu.asic.vram.allocate(rest)
    for each in hold[::2]:
        user.unmap(each)
        user.free(each)
    large = user.alloc(4 * page, VRAM | ACCESS)
    assert len(gpu.asic.vram._holes) == 4
    queue = user.queue(SDMA)
    queue.submit(sdma_write(large.va + page - 4, 1, 2) + sdma_write(large.va + 4 * page - 4, 3))
    queue.run()
    assert large.host.read(page - 4, 4) == 1
    assert large.host.read(page, 4) == 2
    assert large.host.read(4 * page - 4, 4) == 3
    gpu.asic.vram.release(filler)


def test_zero_memory_size_alloc(user: RawKfd) -> None:
    with fails(errno.EINVAL):
        user.call("alloc_memory_of_gpu", va_addr=1 << 20, gpu_id=user.gpu_id, flags=GTT)


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({"gpu_id": 1}, errno.EINVAL),
        ({"flags": 0}, errno.EINVAL),
        ({"flags": FLAGS["USERPTR"]}, errno.EINVAL),
        ({"flags": FLAGS["DOORBELL"]}, errno.EINVAL),
        ({"flags": FLAGS["MMIO"], "size": 2 * PAGE}, errno.EINVAL),
        ({"flags": FLAGS["USERPTR"], "mmap_offset": 0x1000}, errno.EFAULT),
        ({"flags": FLAGS["USERPTR"], "mmap_offset": 0x1001}, errno.EINVAL),
        ({"flags": VRAM, "size": 25 << 30}, errno.ENOMEM),
        ({"flags": GTT, "size": 40 << 30}, errno.ENOMEM),
        ({"flags": GTT | kfd.KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM, "size": 1}, errno.EINVAL),
    ],
)
def test_invalid_alloc(user: RawKfd, change: dict[str, int], number: int) -> None:
    fields = {"va_addr": 1 << 20, "size": PAGE, "gpu_id": user.gpu_id, "flags": GTT}
    with fails(number):
        user.call("alloc_memory_of_gpu", **(fields | change))


def test_odd_flags_are_recorded(user: RawKfd) -> None:
    user.alloc(PAGE, GTT | VRAM | ACCESS)
    assert "one domain" in user.world.debug.violations[0]
    user.alloc(PAGE, GTT | 1 << 9)
    assert "0x200" in user.world.debug.violations[1]


def test_big_sys_buffer_stress(user: RawKfd) -> None:
    """BigSysBufferStressTest: system memory runs out and comes back."""
    for _ in range(3):
        held = []
        with fails(errno.ENOMEM):
            while True:
                held.append(user.alloc(1 << 30, GTT | ACCESS, map_cpu=False))
        assert len(held) == 32
        for buffer in held:
            user.unmap(buffer)
            user.free(buffer)


def test_map_errors(user: RawKfd) -> None:
    buffer = user.alloc(PAGE, GTT | ACCESS)
    user.map(buffer)  # a second time is no error
    with fails(errno.EINVAL):
        user.call("map_memory_to_gpu", handle=buffer.handle)
    with fails(errno.EFAULT):
        user.call("map_memory_to_gpu", handle=buffer.handle, n_devices=1)
    with fails(errno.EINVAL):
        user.map(buffer, done=2)
    with fails(errno.ENOMEM):
        user.map(Buffer(0, PAGE, buffer.handle + 999))
    with fails(errno.EINVAL):
        user.map(Buffer(0, PAGE, 5))


def test_n_success(user: RawKfd) -> None:
    """An unknown GPU in the list ends the call; the ones before it stay mapped and counted."""
    buffer = user.alloc(PAGE, GTT | ACCESS, map_gpu=False)
    ids = (ctypes.c_uint32 * 2)(user.gpu_id, 1)
    args = kfd.kfd_ioctl_map_memory_to_gpu_args(buffer.handle, ctypes.addressof(ids), 2, 0)
    with fails(errno.EINVAL):
        user.os.ioctl(user.kfd_fd, kfd.AMDKFD_IOC_MAP_MEMORY_TO_GPU, args)
    assert args.n_success == 1
    with fails(errno.EBUSY):
        user.free(buffer)
    user.unmap(buffer)
    with fails(errno.EINVAL):
        user.unmap(buffer)
    user.free(buffer)
    with fails(errno.EINVAL):
        user.free(buffer)


@pytest.mark.parametrize("va", [0, 0x1234, 1 << 48])
def test_addresses_that_cannot_be(user: RawKfd, va: int) -> None:
    fields = {"va_addr": va, "size": PAGE, "gpu_id": user.gpu_id, "flags": VRAM}
    handle = user.call("alloc_memory_of_gpu", **fields).handle  # VA_VRAM_Only_AllocTest: fine
    with fails(errno.EINVAL):
        user.map(Buffer(va, PAGE, handle))


def test_address_conflict(user: RawKfd) -> None:
    buffer = user.alloc(4 * PAGE, GTT | ACCESS)
    fields = {"va_addr": buffer.va + PAGE, "size": PAGE, "gpu_id": user.gpu_id, "flags": GTT}
    handle = user.call("alloc_memory_of_gpu", **fields).handle
    with fails(errno.EINVAL):
        user.map(Buffer(buffer.va + PAGE, PAGE, handle))


def test_mmap_rules(world: KfdWorld) -> None:
    user = RawKfd(world.process)
    fields = {"va_addr": 1 << 30, "size": PAGE, "gpu_id": user.gpu_id}
    at = user.call("alloc_memory_of_gpu", flags=GTT | ACCESS, **fields).mmap_offset
    shared = hostmem.MAP_SHARED
    with fails(errno.EINVAL):
        user.os.mmap(user.drm_fd, 2 * PAGE, READ_WRITE, shared, at)
    with fails(errno.EINVAL):
        user.os.mmap(user.drm_fd, PAGE, READ_WRITE, shared, at + PAGE)
    with fails(errno.EINVAL):
        user.os.mmap(user.drm_fd, PAGE, READ_WRITE, hostmem.MAP_PRIVATE, at)
    assert user.os.mmap(user.drm_fd, PAGE, hostmem.PROT_NONE, hostmem.MAP_PRIVATE, at)
    other = user.os.open("/dev/dri/renderD128", 2)
    with fails(errno.EACCES):
        user.os.mmap(other, PAGE, READ_WRITE, shared, at)
    doorbell = user.call(
        "alloc_memory_of_gpu", **(fields | {"size": 0x2000}), flags=FLAGS["DOORBELL"]
    )
    with fails(errno.EPERM):
        user.os.mmap(user.drm_fd, 0x2000, READ_WRITE, shared, doorbell.mmap_offset)


def test_private_vram_is_recorded(user: RawKfd) -> None:
    user.alloc(PAGE, kfd.KFD_IOC_ALLOC_MEM_FLAGS_VRAM)
    assert "PUBLIC" in user.world.debug.violations[0]


def test_available_memory(user: RawKfd) -> None:
    before = user.call("available_memory", gpu_id=user.gpu_id).available
    user.alloc(PAGE, VRAM)
    after = user.call("available_memory", gpu_id=user.gpu_id).available
    assert before - after == 2 << 20  # pieces of 2 MiB
    assert before % (2 << 20) == 0
    with fails(errno.EINVAL):
        user.call("available_memory", gpu_id=0)


@pytest.mark.parametrize(("flags", "size"), [(VRAM, 23 << 30), (GTT, 31 << 30)])
def test_largest_buffers(user: RawKfd, flags: int, size: int) -> None:
    """LargestVramBufferTest, LargestSysBufferTest: only what is touched costs memory."""
    buffer = user.alloc(size, flags | ACCESS)
    queue = user.queue(SDMA)
    queue.submit(sdma_write(buffer.va + size - 4, 77))
    queue.run()
    assert buffer.host.read(size - 4, 4) == 77
    with fails(errno.ENOMEM):
        user.alloc(2 << 30, flags)


def test_mmap_without_room_is_out_of_memory(user: RawKfd) -> None:
    with pytest.raises(OutOfMemory):
        user.os.mmap(-1, 1 << 60, READ_WRITE, 0x22)


def test_queue_pins_its_buffers(user: RawKfd) -> None:
    queue = user.queue(PM4)
    for buffer in (queue.ring, queue.pointers, queue.eop, queue.cwsr):
        with fails(errno.EBUSY):
            user.unmap(buffer)
    queue.destroy()
    user.unmap(queue.ring)


def test_remapped_registers(user: RawKfd) -> None:
    fields = {"va_addr": hostmem.reserve(PAGE), "size": PAGE, "gpu_id": user.gpu_id}
    got = user.call("alloc_memory_of_gpu", flags=FLAGS["MMIO"] | ACCESS, **fields)
    assert got.mmap_offset == user.gpu_id << 46
    assert user.os.mmap(user.kfd_fd, PAGE, READ_WRITE, hostmem.MAP_SHARED, got.mmap_offset)

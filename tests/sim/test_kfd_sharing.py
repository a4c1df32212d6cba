"""Memory of the process itself, of other processes and of other GPUs."""

from __future__ import annotations

import ctypes
import errno
from concurrent.futures import ThreadPoolExecutor

from gpu.autogen import kfd
from gpu.core import hostmem
from gpu.sim.amd.kfd.memory import DmaBuf
from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import (
    ACCESS,
    GTT,
    PAGE,
    SDMA,
    VRAM,
    Buffer,
    RawKfd,
    RawQueue,
    fails,
    sdma_copy,
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


def test_read_only_user_memory(user: RawKfd) -> None:
    at = hostmem.map_file(-1, 0, PAGE, hostmem.PROT_READ, 0x22)
    with fails(errno.EPERM):
        user.call(
            "alloc_memory_of_gpu",
            va_addr=at,
            size=PAGE,
            gpu_id=user.gpu_id,
            flags=FLAGS["USERPTR"],
            mmap_offset=at,
        )


def _register(user: RawKfd, at: int, size: int, va: int = 0) -> Buffer:
    """MemoryRegister: the process's own memory, at its own address or another."""
    flags = FLAGS["USERPTR"] | ACCESS
    fields = {"va_addr": va or at, "size": size, "gpu_id": user.gpu_id, "flags": flags}
    buffer = Buffer(
        va or at, size, user.call("alloc_memory_of_gpu", **fields, mmap_offset=at).handle
    )
    user.map(buffer)
    return buffer


def test_memory_register(user: RawKfd) -> None:
    size = 4 * PAGE
    at = hostmem.map_anonymous(size)
    ctypes.memset(at, 0x5A, size)
    buffer = _register(user, at, size)
    target = user.alloc(size, VRAM | ACCESS)
    _copy(user.queue(SDMA), buffer.va, target.va, size)
    assert target.host.load(0, size) == b"\x5a" * size
    with fails(errno.EINVAL):  # the same address once more
        _register(user, at, size)
    _register(user, at, size, va=hostmem.reserve(size))  # MemoryRegisterSamePtr: another one


def test_mmap_large(user: RawKfd) -> None:
    """MMapLarge: one piece of memory at very many addresses."""
    size, count = 64 * PAGE, 128
    at = hostmem.map_anonymous(size)
    ctypes.memset(at, 0x77, size)
    base = hostmem.reserve(size * count)
    for i in range(count):
        _register(user, at, size, va=base + i * size)
    target = user.alloc(PAGE, GTT | ACCESS)
    _copy(user.queue(SDMA), base + size * count - PAGE, target.va, PAGE)
    assert target.host.load(0, PAGE) == b"\x77" * PAGE


def test_multi_thread_register_userptr(user: RawKfd) -> None:
    """MultiThreadRegisterUserptrTest: calls of several threads are taken one after another."""
    memory = [hostmem.map_anonymous(4 * PAGE) for _ in range(4)]

    def register(at: int) -> None:
        for _ in range(20):
            buffer = _register(user, at, 4 * PAGE)
            user.unmap(buffer)
            user.free(buffer)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(register, memory))
    assert not len(next(iter(user.process.state.values())).device(user.gpu_id).allocations)


def test_memory_of_another_process(user: RawKfd) -> None:
    """KFDIPCTest.BasicTest: a child uses its parent's buffer by a descriptor of it."""
    buffer = user.alloc(PAGE, VRAM | ACCESS)
    buffer.host.write(0, 4, 0xD00D)
    fd = user.call("export_dmabuf", handle=buffer.handle).dmabuf_fd
    child = RawKfd(user.process.fork())
    va = hostmem.reserve(PAGE)
    fields = {"va_addr": va, "gpu_id": child.gpu_id, "dmabuf_fd": fd}
    child.map(Buffer(va, PAGE, child.call("import_dmabuf", **fields).handle))
    target = child.alloc(PAGE, GTT | ACCESS)
    _copy(child.queue(SDMA), va, target.va, 4)
    assert target.host.read(0, 4) == 0xD00D


def test_user_memory_that_went_away_faults(user: RawKfd) -> None:
    at = hostmem.map_anonymous(PAGE)
    buffer = _register(user, at, PAGE)
    queue = user.queue(SDMA)
    hostmem.unmap(at, PAGE)
    queue.submit(sdma_write(buffer.va, 1))
    queue.run()
    assert "not mapped" in user.world.debug.faults[0]


def test_export_dmabuf(user: RawKfd) -> None:
    """ExportDMABufTest, mGPUShareBO within one GPU: a second handle of the same bytes."""
    buffer = user.alloc(PAGE, VRAM | ACCESS)
    buffer.host.write(0, 4, 0xCAFE)
    fd = user.call("export_dmabuf", handle=buffer.handle).dmabuf_fd
    assert isinstance(user.process.file(fd).file, DmaBuf)
    info = user.call("get_dmabuf_info", dmabuf_fd=fd)
    assert (info.size, info.gpu_id) == (PAGE, user.gpu_id)
    va = hostmem.reserve(PAGE)
    again = user.call("import_dmabuf", va_addr=va, gpu_id=user.gpu_id, dmabuf_fd=fd)
    copy = Buffer(va, PAGE, again.handle)
    user.map(copy)
    user.unmap(buffer)
    user.free(buffer)
    target = user.alloc(PAGE, GTT | ACCESS)
    _copy(user.queue(SDMA), va, target.va, 4)
    assert target.host.read(0, 4) == 0xCAFE
    used = user.gpu.vram_used
    user.unmap(copy)
    user.free(copy)
    assert user.gpu.vram_used == used
    user.os.close(fd)
    assert user.gpu.vram_used == used - PAGE


def test_dmabuf_errors(user: RawKfd) -> None:
    at = hostmem.map_anonymous(PAGE)
    with fails(errno.EPERM):
        user.call("export_dmabuf", handle=_register(user, at, PAGE).handle)
    with fails(errno.EINVAL):
        user.call("export_dmabuf", handle=user.gpu_id << 32 | 99)
    with fails(errno.EBADF):
        user.call("import_dmabuf", gpu_id=user.gpu_id, dmabuf_fd=999)
    with fails(errno.EINVAL):
        user.call("import_dmabuf", gpu_id=user.gpu_id, dmabuf_fd=user.kfd_fd)


def test_peers() -> None:
    """MapUnmapToNodes, MapVramToGPUNodesTest: VRAM of one GPU at the same address on another."""
    world = KfdWorld(chip=("gfx1100", "gfx1100"))
    first, second = RawKfd(world.process), RawKfd(world.process, index=1)
    buffer = first.alloc(PAGE, VRAM | ACCESS, map_gpu=False)
    first.map(buffer, [first.gpu_id, second.gpu_id])
    queue = second.queue(SDMA)
    queue.submit(sdma_write(buffer.va, 0xBEEF))
    queue.run()
    assert buffer.host.read(0, 4) == 0xBEEF
    first.unmap(buffer, [second.gpu_id])
    with fails(errno.EBUSY):
        first.free(buffer)
    queue.submit(sdma_write(buffer.va, 1))
    queue.run()
    assert world.debug.faults
    assert buffer.host.read(0, 4) == 0xBEEF
    world.close()

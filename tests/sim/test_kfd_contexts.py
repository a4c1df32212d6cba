"""Several contexts of KFD in one process (CREATE_PROCESS), and what is lost with one of them."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from gpu.autogen import kfd
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.process import SimProcess
from sim.raw_kfd import ACCESS, GTT, PAGE, SDMA, SIGNAL, VRAM, RawKfd, fails, sdma_write

CREATE_PROCESS = ord("K") << 8 | 0x27
BAD = 0x7000_0000_0000


def another(process: SimProcess) -> RawKfd:
    """A user in a context of its own."""
    user = RawKfd(process, acquire=False)
    user.os.ioctl(user.kfd_fd, CREATE_PROCESS, bytearray(8))
    user.call("acquire_vm", drm_fd=user.drm_fd, gpu_id=user.gpu_id)
    return user


def works(user: RawKfd) -> bool:
    """Whether a copy engine queue of it runs."""
    target = user.alloc(PAGE, SIGNAL)
    user.queue(SDMA).submit(sdma_write(target.va, 7))
    user.world.run_until_idle()
    return target.host.read(0, 4) == 7


def test_a_fault_is_of_one_context() -> None:
    world = KfdWorld(seed=1)
    first, second = RawKfd(world.process), another(world.process)
    event = second.event(kfd.KFD_IOC_EVENT_MEMORY).event_id
    assert works(first) and works(second)
    first.queue(SDMA).submit(sdma_write(BAD, 1))
    world.run_until_idle()
    assert not works(first) and works(second)
    assert second.wait([event], timeout=0)[0] != kfd.KFD_IOC_WAIT_RESULT_COMPLETE
    assert works(another(world.process))
    world.close()


def test_buffers_go_from_one_to_another() -> None:
    """By a dma-buf, at the address they have; the second keeps them when the first lets go."""
    world = KfdWorld(seed=1)
    first, second = RawKfd(world.process), another(world.process)
    for flags in (VRAM | ACCESS, GTT | ACCESS):
        buffer = first.alloc(PAGE, flags)
        buffer.host.write(8, 4, 99)
        fd = first.call("export_dmabuf", handle=buffer.handle).dmabuf_fd
        fields = {"va_addr": buffer.va, "gpu_id": second.gpu_id, "dmabuf_fd": fd}
        there = replace(buffer, handle=second.call("import_dmabuf", **fields).handle)
        second.os.close(fd)
        second.map(there)
        first.unmap(buffer)
        first.free(buffer)
        second.queue(SDMA).submit(sdma_write(buffer.va, 7))
        world.run_until_idle()
        assert (buffer.host.read(0, 4), buffer.host.read(8, 4)) == (7, 99)
    world.close()


def test_what_only_the_first_context_may() -> None:
    world = KfdWorld(seed=1)
    user = another(world.process)
    with fails(errno.EOPNOTSUPP):
        fields = {"va_addr": 1 << 30, "size": PAGE, "gpu_id": user.gpu_id, "mmap_offset": 1 << 30}
        user.call("alloc_memory_of_gpu", flags=kfd.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR, **fields)
    with fails(errno.EINVAL):
        user.os.ioctl(user.kfd_fd, CREATE_PROCESS, bytearray(8))
    with fails(errno.EBADF):
        child = world.process.fork()
        child.os.ioctl(RawKfd(world.process).kfd_fd, CREATE_PROCESS, bytearray(8))
    world.close()


def test_a_context_ends_with_its_descriptor() -> None:
    world = KfdWorld(seed=1)
    first, second = RawKfd(world.process), another(world.process)
    used = first.gpu.vram_used
    second.alloc(1 << 20, VRAM | ACCESS)
    assert works(second) and first.gpu.vram_used > used
    second.os.close(second.kfd_fd)
    assert first.gpu.vram_used == used and works(first)
    assert [queue.host.device.process.is_primary for queue in first.gpu.queues] == [True]
    world.close()


def test_old_kernels_have_one() -> None:
    world = KfdWorld(seed=1, interface=17)
    fd = world.os.open("/dev/kfd", os.O_RDWR)
    with fails(errno.ENOTTY):
        world.os.ioctl(fd, CREATE_PROCESS, bytearray(8))
    world.debug.violations.clear()
    world.close()


@pytest.mark.parametrize("flags", [VRAM | ACCESS, GTT | ACCESS])
def test_a_reset_loses_video_memory(flags: int) -> None:
    world = KfdWorld(seed=1)
    user = RawKfd(world.process)
    buffer = user.alloc(PAGE, flags)
    buffer.host.write(0, 4, 5)
    user.gpu.reset("a test")
    assert buffer.host.read(0, 4) == (5 if flags & GTT else 0)
    assert not works(user) and works(another(world.process))
    world.close()

"""Opening, processes, wrong calls: KFDOpenCloseKFDTest and the character device's rules."""

from __future__ import annotations

import ctypes
import errno
import os

import pytest

from gpu.autogen import amdgpu_drm, kfd
from gpu.core import hostmem
from gpu.core.errors import AccessDenied, TransportError
from gpu.core.wait import Waiter
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.transport.world import World
from sim.raw_kfd import GTT, PAGE, PM4, RawKfd, fails


def test_protocols(world: KfdWorld) -> None:
    waiter: Waiter = world.waiter
    whole = World(world.os, waiter)
    assert whole.waiter.spin_ns == 0


def test_open_close_kfd(world: KfdWorld) -> None:
    fd = world.os.open("/dev/kfd", os.O_RDWR)
    world.os.close(fd)
    with fails(errno.EBADF):
        world.os.close(fd)


def test_open_already_opened_kfd(world: KfdWorld) -> None:
    first = RawKfd(world.process)
    second = RawKfd(world.process, acquire=False)
    assert first.kfd_fd != second.kfd_fd
    buffer = first.alloc(PAGE, GTT)
    first.unmap(buffer)
    second.free(buffer)  # all descriptors of a process share what KFD keeps of it


def test_invalid_kfd_handle(world: KfdWorld) -> None:
    """A child inherits the descriptor and may not use it (kfd_chardev.c `kfd_ioctl`)."""
    user = RawKfd(world.process)
    child = world.process.fork()
    args = kfd.kfd_ioctl_get_version_args()
    with fails(errno.EBADF):
        child.os.ioctl(user.kfd_fd, kfd.AMDKFD_IOC_GET_VERSION, args)
    fresh = child.os.open("/dev/kfd", os.O_RDWR)
    child.os.ioctl(fresh, kfd.AMDKFD_IOC_GET_VERSION, args)
    assert (args.major_version, args.minor_version) == (1, 19)


def test_a_really_forked_process_is_refused(world: KfdWorld) -> None:
    user = RawKfd(world.process)
    child = os.fork()
    if child == 0:
        try:
            user.call("get_version")
        except TransportError as error:
            os._exit(error.errno or 0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EBADF


def test_paths(world: KfdWorld) -> None:
    with fails(errno.ENOENT):
        world.os.open("/dev/nothing", os.O_RDWR)
    with fails(errno.ENOENT):
        world.os.list_dir("/dev/nothing")
    with pytest.raises(AccessDenied):
        world.os.write_file("/dev/kfd", b"x")
    assert world.os.list_dir("/dev") == ["dri", "kfd"]


WRONG = {
    0xC0084BFF: errno.ENOTTY,  # a number past the table
    0xC0084B00: errno.ENOTTY,  # number 0
    0xC0084B0D: errno.EINVAL,  # the old debugger's, which is not modelled
    0xC0184B22: errno.EINVAL,  # CRIU, likewise
}


@pytest.mark.parametrize("request_number", WRONG)
def test_unknown_calls(user: RawKfd, request_number: int) -> None:
    with fails(WRONG[request_number]):
        user.os.ioctl(user.kfd_fd, request_number, bytearray(64))
    assert len(user.world.debug.violations) == 1


def test_only_the_number_of_a_call_counts(user: RawKfd) -> None:
    """The kernel ignores type and size of the request; the model says that they are odd."""
    buffer = bytearray(4)
    user.os.ioctl(user.kfd_fd, 0x80047801, buffer)
    assert buffer == b"\1\0\0\0"
    assert "0x80047801" in user.world.debug.violations[0]


def test_short_argument(user: RawKfd) -> None:
    with fails(errno.EFAULT):
        user.os.ioctl(user.kfd_fd, kfd.AMDKFD_IOC_CREATE_QUEUE, bytearray(8))


def test_acquire_vm(world: KfdWorld) -> None:
    user = RawKfd(world.process, acquire=False)
    with fails(errno.ENODEV):
        user.call("alloc_memory_of_gpu", va_addr=1 << 20, size=PAGE, gpu_id=user.gpu_id, flags=2)
    with fails(errno.EINVAL):
        user.call("acquire_vm", drm_fd=999, gpu_id=user.gpu_id)
    with fails(errno.EINVAL):
        user.call("acquire_vm", drm_fd=user.kfd_fd, gpu_id=user.gpu_id)
    with fails(errno.EINVAL):
        user.call("acquire_vm", drm_fd=user.drm_fd, gpu_id=1)
    user.call("acquire_vm", drm_fd=user.drm_fd, gpu_id=user.gpu_id)
    user.call("acquire_vm", drm_fd=user.drm_fd, gpu_id=user.gpu_id)  # the same again is fine
    other = user.os.open("/dev/dri/renderD128", os.O_RDWR)
    with fails(errno.EBUSY):
        user.call("acquire_vm", drm_fd=other, gpu_id=user.gpu_id)


def test_a_vm_belongs_to_one_process(world: KfdWorld) -> None:
    user = RawKfd(world.process)
    child = world.process.fork()
    fd = child.os.open("/dev/kfd", os.O_RDWR)
    args = kfd.kfd_ioctl_acquire_vm_args(drm_fd=user.drm_fd, gpu_id=user.gpu_id)
    with fails(errno.EINVAL):
        child.os.ioctl(fd, kfd.AMDKFD_IOC_ACQUIRE_VM, args)


def test_runtime_enable(user: RawKfd) -> None:
    user.call("runtime_enable", mode_mask=1)
    with fails(errno.EBUSY):
        user.call("runtime_enable", mode_mask=1)
    user.call("runtime_enable", mode_mask=0)
    user.queue(PM4)
    with fails(errno.EEXIST):
        user.call("runtime_enable", mode_mask=1)


def test_clock_counters_basic(user: RawKfd) -> None:
    first = user.call("get_clock_counters", gpu_id=user.gpu_id)
    second = user.call("get_clock_counters", gpu_id=user.gpu_id)
    assert second.gpu_clock_counter > first.gpu_clock_counter
    assert second.system_clock_counter > first.system_clock_counter
    assert first.system_clock_freq == 1_000_000_000
    assert user.call("get_clock_counters", gpu_id=0).gpu_clock_counter == 0


def test_get_tile_config(user: RawKfd) -> None:
    table = (ctypes.c_uint32 * 64)()
    at = ctypes.addressof(table)
    fields = {"tile_config_ptr": at, "macro_tile_config_ptr": at}
    got = user.call("get_tile_config", gpu_id=user.gpu_id, num_tile_configs=99, **fields)
    assert got.num_tile_configs == 32
    with fails(errno.EINVAL):
        user.call("get_tile_config", gpu_id=1)
    with fails(errno.EFAULT):
        user.call("get_tile_config", gpu_id=user.gpu_id, num_tile_configs=1)


def test_svm_is_not_there(user: RawKfd) -> None:
    for request in (kfd.AMDKFD_IOC_SVM, kfd.AMDKFD_IOC_SET_XNACK_MODE):
        with fails(errno.EPERM):
            user.os.ioctl(user.kfd_fd, request, bytearray(64))


@pytest.mark.parametrize("name", ["set_trap_handler", "set_memory_policy"])
def test_calls_that_need_the_vm(world: KfdWorld, name: str) -> None:
    user = RawKfd(world.process, acquire=False)
    with fails(errno.ESRCH):
        user.call(name, gpu_id=user.gpu_id)
    with fails(errno.EINVAL):
        user.call(name, gpu_id=1)


def test_unplug() -> None:
    world = KfdWorld(faults=["remove@6"])
    user = RawKfd(world.process)
    with fails(errno.ENODEV):
        for _ in range(10):
            user.call("get_version")
    with fails(errno.ENODEV):
        user.os.open("/dev/dri/renderD128", os.O_RDWR)
    world.close()


def test_what_a_process_leaves(world: KfdWorld) -> None:
    user = RawKfd(world.process)
    user.alloc(PAGE, GTT)
    user.queue(PM4)
    left = world.process.exit()
    assert sum("allocation" in thing for thing in left) == 5
    assert sum("queue" in thing for thing in left) == 1
    assert sum(thing.startswith("fd ") for thing in left) == 2  # an address may have those letters
    assert world.gpus[0].vram_used == 0


def test_drm_version(user: RawKfd) -> None:
    args = amdgpu_drm.drm_version()
    user.os.ioctl(user.drm_fd, amdgpu_drm.DRM_IOCTL_VERSION, args)
    name = ctypes.create_string_buffer(args.name_len + 1)
    args.name, args.name_len = ctypes.addressof(name), 6
    user.os.ioctl(user.drm_fd, amdgpu_drm.DRM_IOCTL_VERSION, args)
    assert name.value == b"amdgpu"
    assert args.version_major == 3


def _info(user: RawKfd, query: int, size: int) -> bytes:
    out = ctypes.create_string_buffer(size)
    args = amdgpu_drm.drm_amdgpu_info(ctypes.addressof(out), size, query)
    user.os.ioctl(user.drm_fd, amdgpu_drm.DRM_IOCTL_AMDGPU_INFO, args)
    return out.raw


def test_drm_info(user: RawKfd) -> None:
    size = ctypes.sizeof(amdgpu_drm.drm_amdgpu_info_device)
    data = _info(user, amdgpu_drm.AMDGPU_INFO_DEV_INFO, size)
    device = amdgpu_drm.drm_amdgpu_info_device.from_buffer_copy(data)
    assert (device.device_id, device.cu_active_number) == (0x744C, 96)
    usage = _info(user, amdgpu_drm.AMDGPU_INFO_VRAM_USAGE, 8)
    assert int.from_bytes(usage, "little") == 0
    with fails(errno.EINVAL):
        _info(user, 0x7777, 8)
    with fails(errno.EINVAL):
        user.os.ioctl(user.drm_fd, amdgpu_drm.DRM_IOCTL_AMDGPU_INFO, bytearray(32))
    assert "0x7777" in user.world.debug.violations[0]


def test_drm_rejects(user: RawKfd) -> None:
    with fails(errno.ENOTTY):
        user.os.ioctl(user.drm_fd, kfd.AMDKFD_IOC_GET_VERSION, bytearray(8))
    with fails(errno.EINVAL):
        user.os.ioctl(user.drm_fd, amdgpu_drm.DRM_IOCTL_AMDGPU_GEM_METADATA, bytearray(288))
    assert "not modelled" in user.world.debug.violations[0]


def test_mmap_of_kfd(user: RawKfd) -> None:
    shared, both = hostmem.MAP_SHARED, hostmem.PROT_READ | hostmem.PROT_WRITE
    doorbells = 3 << 62 | user.gpu_id << 46
    with fails(errno.EINVAL):
        user.os.mmap(user.kfd_fd, PAGE, both, shared, doorbells)
    with fails(errno.ENODEV):
        user.os.mmap(user.kfd_fd, 2 * PAGE, both, shared, 3 << 62 | 1 << 46)
    with fails(errno.EINVAL):
        user.os.mmap(user.kfd_fd, PAGE, both, shared, 1 << 62 | user.gpu_id << 46)
    with fails(errno.EINVAL):
        user.os.mmap(user.kfd_fd, PAGE, both, shared, 2 << 62)  # no event page yet
    assert user.os.mmap(user.kfd_fd, 2 * PAGE, both, shared, doorbells)

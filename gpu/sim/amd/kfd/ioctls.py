"""/dev/kfd: the table of calls, and those that concern neither memory, queues nor events.

Linux 6.12 kfd_chardev.c: `kfd_ioctl` looks only at a call's number, copies as many bytes as the
caller's request says, and copies them back also when the call failed.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from typing import Any, Final, get_type_hints

from gpu.autogen import kfd
from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.sim.amd.kfd import memory, queues
from gpu.sim.amd.kfd.drm import DrmFile
from gpu.sim.amd.kfd.events import MMAP_EVENTS
from gpu.sim.amd.kfd.process import DOORBELL_SLICE, KfdProcess
from gpu.sim.amd.kfd.teardown import free_process
from gpu.sim.kernel import SysError
from gpu.sim.physical import Extent
from gpu.sim.process import ArgumentBytes, SimFile, SimProcess
from gpu.sim.translate import PAGE_SIZE

_HAS_CREATE_PROCESS: Final = 19
_TYPE_MASK: Final = 3 << 62
_GPU_MASK: Final = 0xFFFF << memory.MMAP_GPU_SHIFT
_COMMANDS: Final = range(1, 0x27)  # AMDKFD_COMMAND_START, _END
CREATE_PROCESS: Final = ord("K") << 8 | 0x27  # AMDKFD_IO(0x27), from interface 1.19 on


class KfdFile(SimFile):
    """One open /dev/kfd; all of a process's share its `KfdProcess`, until CREATE_PROCESS."""

    def __init__(self, process: KfdProcess, new_context: Callable[[SimProcess], KfdProcess]):
        """`new_context` makes what CREATE_PROCESS gives a process."""
        self.kfd = process
        self._new_context = new_context

    def call_name(self, request: int) -> str:
        """As linux/kfd_ioctl.h has it, without what all begin with."""
        return CALL_NAMES.get(request & 0xFF, "")

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Makes a call of the process that opened the file."""
        number, size = request & 0xFF, request >> 16 & 0x3FFF
        debug = process.world.debug
        if request == CREATE_PROCESS and self.kfd.interface >= _HAS_CREATE_PROCESS:
            self._create_process(process)
            return 0
        if number not in _COMMANDS:
            debug.violation(f"KFD has no call {request:#x}")
            raise SysError(errno.ENOTTY)
        if process is not self.kfd.process:
            raise SysError(errno.EBADF, "only the process that opened KFD may use it")
        if number not in CALLS:
            debug.violation(f"KFD call {number:#x} is not modelled")
            raise SysError(errno.EINVAL)
        known, kind, handler = CALLS[number]
        if request != known:
            debug.violation(f"KFD call {request:#x}: Linux 6.12 knows it as {known:#x}")
        if len(argument) < size:
            raise SysError(errno.EFAULT, f"an argument of {len(argument)} bytes, not {size}")
        for device in self.kfd.devices.values():
            device.gpu.check_plugged()
        given = ctypes.string_at(argument, size) if known & 0x4000_0000 else b""
        args = kind.from_buffer_copy(given.ljust(ctypes.sizeof(kind), b"\0"))
        try:
            handler(self.kfd, args)
        finally:
            if known & 0x8000_0000:
                ctypes.memmove(argument, bytes(args).ljust(size, b"\0"), size)
        return 0

    def mmap(
        self, process: SimProcess, size: int, prot: int, flags: int, offset: int, address: int
    ) -> int:
        """Maps doorbells, the event page or remapped registers, by the type in the offset."""
        size = align_up(size, PAGE_SIZE)
        kind = offset & _TYPE_MASK
        p = self.kfd if self.kfd.process is process else process.state.get(KfdProcess)
        if p is None:
            raise SysError(errno.EINVAL, "this process has not opened KFD")
        kept = flags & (hostmem.MAP_FIXED | hostmem.MAP_FIXED_NOREPLACE) | hostmem.MAP_SHARED
        if kind == MMAP_EVENTS:
            found: int = p.events.mmap(process, size, prot, kept, address)
            return found
        device = p.devices.get((offset & _GPU_MASK) >> memory.MMAP_GPU_SHIFT)
        if device is None:
            raise SysError(errno.ENODEV, f"offset {offset:#x} names no GPU")
        if kind == queues.MMAP_DOORBELL:
            pool, wanted = device.need_doorbells(), DOORBELL_SLICE
        elif kind == memory.MMAP_MMIO:
            pool, wanted = device.gpu.remap, PAGE_SIZE
        else:
            raise SysError(errno.EINVAL, f"offset {offset:#x} is of an unknown type")
        if size != wanted:
            raise SysError(errno.EINVAL, f"{size:#x} bytes: it is mapped whole, {wanted:#x}")
        whole = (Extent(0, size),)
        mapped: int = pool.map_for_cpu(whole, size, prot, kept, address, process.mapper)
        return mapped

    def _create_process(self, process: SimProcess) -> None:
        """CREATE_PROCESS: this descriptor is another context's from now on.

        "amdkfd: introduce new ioctl AMDKFD_IOC_CREATE_PROCESS", amd-gfx, 6 Nov 2025, version 7:
        `kfd_ioctl_create_process` wants the primary process's descriptor, each only once.
        """
        if process is not self.kfd.process:
            raise SysError(errno.EBADF, "only the process that opened KFD may use it")
        if not self.kfd.is_primary:
            raise SysError(errno.EINVAL, "this descriptor has a context of its own already")
        self.kfd = self._new_context(process)

    def released(self) -> None:
        """The end of a context that is not the primary one ("destroy kfd secondary contexts")."""
        if not self.kfd.is_primary:
            for thing in free_process(self.kfd):
                self.kfd.process.world.debug.note(f"a context ended with {thing}")


def _get_version(p: KfdProcess, args: kfd.kfd_ioctl_get_version_args) -> None:
    args.major_version = kfd.KFD_IOCTL_MAJOR_VERSION
    args.minor_version = p.interface


def _acquire_vm(p: KfdProcess, args: kfd.kfd_ioctl_acquire_vm_args) -> None:
    try:
        file = p.process.file(args.drm_fd).file
    except SysError as error:
        raise SysError(errno.EINVAL, error.reason) from error
    device = p.device(args.gpu_id)
    if device.drm is not None:
        if device.drm is not file:
            raise SysError(errno.EBUSY, "the GPU has another render node's VM already")
        return
    if not isinstance(file, DrmFile):
        raise SysError(errno.EINVAL, f"fd {args.drm_fd} is no render node")
    if file.acquired:
        raise SysError(errno.EINVAL, "that VM belongs to a compute process already")
    if file.gpu is not device.gpu:
        p.process.world.debug.violation("ACQUIRE_VM with the render node of another GPU")
        raise SysError(errno.EINVAL)
    file.acquired = True
    device.drm = file


def _runtime_enable(p: KfdProcess, args: kfd.kfd_ioctl_runtime_enable_args) -> None:
    if not args.mode_mask & kfd.KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK:
        p.runtime_enabled = False
        return
    if p.runtime_enabled:
        raise SysError(errno.EBUSY, "the runtime is enabled already")
    if len(p.queues):
        raise SysError(errno.EEXIST, "queues exist already")
    p.runtime_enabled = True


def _clock_counters(p: KfdProcess, args: kfd.kfd_ioctl_get_clock_counters_args) -> None:
    clock = p.process.world.clock
    clock.advance(1_000)  # two calls never see the same time
    args.gpu_clock_counter = clock.gpu_ticks if args.gpu_id in p.devices else 0
    args.cpu_clock_counter = args.system_clock_counter = clock.now_ns
    args.system_clock_freq = 1_000_000_000


def _apertures_new(p: KfdProcess, args: kfd.kfd_ioctl_get_process_apertures_new_args) -> None:
    if args.num_of_nodes == 0:
        args.num_of_nodes = len(p.devices)
        return
    if args.num_of_nodes > len(p.devices) + 1:
        raise SysError(errno.EINVAL, f"{args.num_of_nodes} nodes; there are fewer")
    found = list(p.devices)[: args.num_of_nodes]
    args.num_of_nodes = len(found)
    data = b"".join(bytes(_apertures(gpu_id)) for gpu_id in found)
    p.process.user.write(args.kfd_process_device_apertures_ptr, data)


def _apertures(gpu_id: int) -> kfd.kfd_process_device_apertures:
    """kfd_flat_memory.c `kfd_init_apertures_v9`."""
    lds, scratch, size = 1 << 48, 2 << 48, 0xFFFFFFFF
    return kfd.kfd_process_device_apertures(
        lds_base=lds,
        lds_limit=lds | size,
        scratch_base=scratch,
        scratch_limit=scratch | size,
        gpuvm_base=1 << 16,
        gpuvm_limit=(1 << 47) - 1,
        gpu_id=gpu_id,
    )


def _tile_config(p: KfdProcess, args: kfd.kfd_ioctl_get_tile_config_args) -> None:
    p.device(args.gpu_id)
    user = p.process.user
    args.gb_addr_config, args.num_banks, args.num_ranks = 0x545, 0, 0
    args.num_tile_configs = min(args.num_tile_configs, 32)
    user.write(args.tile_config_ptr, bytes(4 * args.num_tile_configs))
    args.num_macro_tile_configs = min(args.num_macro_tile_configs, 16)
    user.write(args.macro_tile_config_ptr, bytes(4 * args.num_macro_tile_configs))


def _available_memory(p: KfdProcess, args: kfd.kfd_ioctl_get_available_memory_args) -> None:
    args.available = p.device(args.gpu_id).gpu.available


def _trap_handler(p: KfdProcess, args: kfd.kfd_ioctl_set_trap_handler_args) -> None:
    _bound(p, args.gpu_id)


def _scratch_backing(p: KfdProcess, args: kfd.kfd_ioctl_set_scratch_backing_va_args) -> None:
    p.device(args.gpu_id).bind()


def _memory_policy(p: KfdProcess, args: kfd.kfd_ioctl_set_memory_policy_args) -> None:
    if args.default_policy > 1 or args.alternate_policy > 1:
        raise SysError(errno.EINVAL, "cache policies are 0 and 1")
    _bound(p, args.gpu_id)


def _bound(p: KfdProcess, gpu_id: int) -> None:
    if p.device(gpu_id).drm is None:
        raise SysError(errno.ESRCH, "ACQUIRE_VM must come first")


def _svm(p: KfdProcess, args: kfd.kfd_ioctl_svm_args) -> None:
    raise SysError(errno.EPERM, "this kernel has no shared virtual memory")


def _set_xnack_mode(p: KfdProcess, args: kfd.kfd_ioctl_set_xnack_mode_args) -> None:
    raise SysError(errno.EPERM, "this kernel has no shared virtual memory")


def _create_event(p: KfdProcess, args: kfd.kfd_ioctl_create_event_args) -> None:
    if args.event_page_offset:
        _set_event_page(p, args.event_page_offset)
    args.event_page_offset = 0
    event = p.events.create(args.event_type, args.auto_reset != 0)
    args.event_id = args.event_trigger_data = event.number
    if args.event_type in (kfd.KFD_IOC_EVENT_SIGNAL, kfd.KFD_IOC_EVENT_DEBUG_EVENT):
        args.event_page_offset = MMAP_EVENTS
        args.event_slot_index = event.number


def _set_event_page(p: KfdProcess, handle: int) -> None:
    if p.events.has_page:
        raise SysError(errno.EINVAL, "the event page is set already")
    p.device(handle >> 32).bind()
    _, allocation = p.allocation(handle, errno.EINVAL)
    p.events.set_page(allocation.bo, handle)


def _destroy_event(p: KfdProcess, args: kfd.kfd_ioctl_destroy_event_args) -> None:
    p.events.destroy(args.event_id)


def _set_event(p: KfdProcess, args: kfd.kfd_ioctl_set_event_args) -> None:
    p.events.set(args.event_id)


def _reset_event(p: KfdProcess, args: kfd.kfd_ioctl_reset_event_args) -> None:
    p.events.reset(args.event_id)


def _wait_events(p: KfdProcess, args: kfd.kfd_ioctl_wait_events_args) -> None:
    p.events.wait(args)


_Handler = Callable[[KfdProcess, Any], None]
_HANDLERS: Final[dict[int, _Handler]] = {
    kfd.AMDKFD_IOC_GET_VERSION: _get_version,
    kfd.AMDKFD_IOC_CREATE_QUEUE: queues.create_queue,
    kfd.AMDKFD_IOC_DESTROY_QUEUE: queues.destroy_queue,
    kfd.AMDKFD_IOC_SET_MEMORY_POLICY: _memory_policy,
    kfd.AMDKFD_IOC_GET_CLOCK_COUNTERS: _clock_counters,
    kfd.AMDKFD_IOC_UPDATE_QUEUE: queues.update_queue,
    kfd.AMDKFD_IOC_CREATE_EVENT: _create_event,
    kfd.AMDKFD_IOC_DESTROY_EVENT: _destroy_event,
    kfd.AMDKFD_IOC_SET_EVENT: _set_event,
    kfd.AMDKFD_IOC_RESET_EVENT: _reset_event,
    kfd.AMDKFD_IOC_WAIT_EVENTS: _wait_events,
    kfd.AMDKFD_IOC_SET_SCRATCH_BACKING_VA: _scratch_backing,
    kfd.AMDKFD_IOC_GET_TILE_CONFIG: _tile_config,
    kfd.AMDKFD_IOC_SET_TRAP_HANDLER: _trap_handler,
    kfd.AMDKFD_IOC_GET_PROCESS_APERTURES_NEW: _apertures_new,
    kfd.AMDKFD_IOC_ACQUIRE_VM: _acquire_vm,
    kfd.AMDKFD_IOC_ALLOC_MEMORY_OF_GPU: memory.alloc_memory,
    kfd.AMDKFD_IOC_FREE_MEMORY_OF_GPU: memory.free_memory,
    kfd.AMDKFD_IOC_MAP_MEMORY_TO_GPU: memory.map_memory,
    kfd.AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU: memory.unmap_memory,
    kfd.AMDKFD_IOC_SET_CU_MASK: queues.set_cu_mask,
    kfd.AMDKFD_IOC_GET_DMABUF_INFO: memory.dmabuf_info,
    kfd.AMDKFD_IOC_IMPORT_DMABUF: memory.import_dmabuf,
    kfd.AMDKFD_IOC_SVM: _svm,
    kfd.AMDKFD_IOC_SET_XNACK_MODE: _set_xnack_mode,
    kfd.AMDKFD_IOC_AVAILABLE_MEMORY: _available_memory,
    kfd.AMDKFD_IOC_EXPORT_DMABUF: memory.export_dmabuf,
    kfd.AMDKFD_IOC_RUNTIME_ENABLE: _runtime_enable,
}
CALL_NAMES: Final[dict[int, str]] = {
    **{
        request & 0xFF: name.removeprefix("AMDKFD_IOC_")
        for name, request in vars(kfd).items()
        if name.startswith("AMDKFD_IOC_")
    },
    CREATE_PROCESS & 0xFF: "CREATE_PROCESS",
}
"""What faults call them, by number."""
# By number: the request as Linux 6.12 knows it, its argument as the handler says, and the handler.
CALLS: Final = {
    request & 0xFF: (request, get_type_hints(handler)["args"], handler)
    for request, handler in _HANDLERS.items()
}

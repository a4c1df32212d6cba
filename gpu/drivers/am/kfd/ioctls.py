"""The calls of KFD, one method each: arguments and answers as numbers, errors with names.

Numbers and layouts: linux/kfd_ioctl.h, through gpu.autogen.kfd. What the calls check:
kfd_chardev.c, kfd_queue.c and kfd_events.c of Linux 6.12.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from gpu.autogen import kfd
from gpu.core.errors import DeviceError, DeviceLost, OutOfMemory, TransportError, Unsupported
from gpu.transport import amd as nodes
from gpu.transport.missing import no_node
from gpu.transport.os import Argument, Os, Ref

OLDEST: Final = (1, 9)
"""The oldest interface that has all calls made here but one: AVAILABLE_MEMORY came with it."""
HAS_CONTEXTS: Final = (1, 19)
"""The first interface with CREATE_PROCESS ("amdkfd: introduce new ioctl
AMDKFD_IOC_CREATE_PROCESS", amd-gfx, November 2025)."""
_CREATE_PROCESS: Final = ord("K") << 8 | 0x27
_POINTER: Final = 8


class Allocated(NamedTuple):
    """A buffer's handle, and where in the render node (or KFD's file) it is mapped from."""

    handle: int
    mmap_offset: int


class Event(NamedTuple):
    """An event's number, and its slot."""

    number: int
    slot: int


class QueueRequest(NamedTuple):
    """What a queue is made of; addresses are the GPU's, sizes bytes.

    ``kind`` is a ``KFD_IOC_QUEUE_TYPE_``; the end-of-pipe ring and the save area are for compute
    queues only.
    """

    kind: int
    ring: int
    ring_size: int
    read_pointer: int
    write_pointer: int
    eop: int = 0
    eop_size: int = 0
    save_area: int = 0
    save_size: int = 0
    control_stack: int = 0


class Queue(NamedTuple):
    """A queue's number, and where its doorbell is mapped from; low bits are within that page."""

    number: int
    doorbell_offset: int


class Apertures(NamedTuple):
    """Where a process's GPU addresses may lie, and the windows of shaders; ends are inclusive."""

    local: tuple[int, int]
    scratch: tuple[int, int]
    memory: tuple[int, int]


class Kfd:
    """KFD's file.

    All methods raise TransportError with the call and the kernel's errno, and those that do not
    give something back DeviceLost where the GPU is gone.
    """

    def __init__(self, system: Os):
        """Opens it. Raises DeviceError where it is not there, AccessDenied."""
        self.os = system
        self.version = OLDEST
        try:
            self.fd = system.open(nodes.KFD, os.O_RDWR)
        except TransportError as error:
            if error.errno not in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
                raise
            raise DeviceError(str(no_node(system, nodes.KFD))) from error

    def close(self) -> None:
        """Closes the file.

        What the process has from the GPU stays until the process ends; what a context that
        `create_context` made has ends now.
        """
        self.os.close(self.fd)

    def _call(self, request: int, args: Argument, refs: Sequence[Ref] = ()) -> None:
        """Makes a call. Raises DeviceLost where the GPU was unplugged, or its driver unbound."""
        try:
            self.os.ioctl(self.fd, request, args, refs)
        except TransportError as error:
            if error.errno != errno.ENODEV:
                raise
            raise DeviceLost(f"the GPU is gone: {error.message}") from error

    def _give_back(self, request: int, args: Argument, refs: Sequence[Ref] = ()) -> None:
        """Makes a call that gives something back; a GPU that is gone has nothing of ours."""
        with suppress(DeviceLost):
            self._call(request, args, refs)

    def check_version(self) -> None:
        """Asks for ``version``, of the interface. Raises Unsupported for one not known to do."""
        args = kfd.kfd_ioctl_get_version_args()
        self._call(kfd.AMDKFD_IOC_GET_VERSION, args)
        version = args.major_version, args.minor_version
        if version[0] != OLDEST[0] or version < OLDEST:
            raise Unsupported(
                f"KFD's interface {version[0]}.{version[1]}: {OLDEST[0]}.{OLDEST[1]} or a later"
                f" {OLDEST[0]}.x is needed"
            )
        self.version = version

    def create_context(self) -> None:
        """Makes this file one of a new context: page tables, queues and events of its own.

        What the kernel keeps the process's first context from, it does not keep others from. They
        cannot map the process's own memory.
        """
        self._call(_CREATE_PROCESS, bytearray(_POINTER))

    def enable_runtime(self) -> None:
        """Tells that this process has a runtime; under a debugger it waits for that one's answer.

        It must have no queues yet. Without the bit of ``mode_mask`` the call would end the runtime
        of whoever told of one. Raises Unsupported for an old kernel, DeviceError where other code
        of this process has told of its own, or has queues.
        """
        if self.version < (1, 14):
            least = "1.14 is needed for runtime=told of AM_VARIANTS"
            raise Unsupported(f"KFD's interface 1.{self.version[1]} has no RUNTIME_ENABLE: {least}")
        args = kfd.kfd_ioctl_runtime_enable_args(mode_mask=kfd.KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK)
        try:
            self._call(kfd.AMDKFD_IOC_RUNTIME_ENABLE, args)
        except TransportError as error:
            if error.errno not in (errno.EBUSY, errno.EEXIST):
                raise
            raise DeviceError(
                "RUNTIME_ENABLE: this process has told KFD of a runtime, such as ROCm's, or has"
                " queues already; leave the question runtime out of AM_VARIANTS"
            ) from error

    def acquire_vm(self, render_fd: int, gpu_id: int) -> None:
        """Takes the address space of a render node's file for this process's compute."""
        args = kfd.kfd_ioctl_acquire_vm_args(drm_fd=render_fd, gpu_id=gpu_id)
        self._call(kfd.AMDKFD_IOC_ACQUIRE_VM, args)

    def apertures(self) -> dict[int, Apertures]:
        """The apertures of all GPUs, by gpu_id."""
        args = kfd.kfd_ioctl_get_process_apertures_new_args()
        self._call(kfd.AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, args)
        item = ctypes.sizeof(kfd.kfd_process_device_apertures)
        found = (kfd.kfd_process_device_apertures * max(args.num_of_nodes, 1))()
        args.kfd_process_device_apertures_ptr = ctypes.addressof(found)
        refs = (Ref(0, count_offset=8, item_size=item),)
        self._call(kfd.AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, args, refs)
        return {
            one.gpu_id: Apertures(
                (one.lds_base, one.lds_limit),
                (one.scratch_base, one.scratch_limit),
                (one.gpuvm_base, one.gpuvm_limit),
            )
            for one in found[: args.num_of_nodes]
        }

    def available_memory(self, gpu_id: int) -> int:
        """Bytes of a GPU's memory that can still be allocated."""
        args = kfd.kfd_ioctl_get_available_memory_args(gpu_id=gpu_id)
        self._call(kfd.AMDKFD_IOC_AVAILABLE_MEMORY, args)
        return int(args.available)

    def alloc_memory(
        self, gpu_id: int, address: int, size: int, flags: int, user_address: int = 0
    ) -> Allocated:
        """Makes a buffer for an address, not mapped yet; ``user_address`` is for USERPTR.

        Raises OutOfMemory with what is available.
        """
        args = kfd.kfd_ioctl_alloc_memory_of_gpu_args(
            va_addr=address, size=size, gpu_id=gpu_id, flags=flags, mmap_offset=user_address
        )
        try:
            self._call(kfd.AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, args)
        except TransportError as error:
            if error.errno != errno.ENOMEM:
                raise
            left = self.available_memory(gpu_id)
            raise OutOfMemory(
                f"{size:#x} bytes with flags {flags:#x}: the kernel has none; {left:#x} bytes of"
                " the GPU's own memory are left. Free buffers, or end other programs"
            ) from error
        return Allocated(args.handle, args.mmap_offset)

    def free_memory(self, handle: int) -> None:
        """Frees a buffer that no GPU has mapped."""
        args = kfd.kfd_ioctl_free_memory_of_gpu_args(handle=handle)
        self._give_back(kfd.AMDKFD_IOC_FREE_MEMORY_OF_GPU, args)

    def export_memory(self, handle: int) -> int:
        """A descriptor of a buffer; close it through the system."""
        args = kfd.kfd_ioctl_export_dmabuf_args(handle=handle, flags=os.O_CLOEXEC)
        self._call(kfd.AMDKFD_IOC_EXPORT_DMABUF, args)
        return int(args.dmabuf_fd)

    def import_memory(self, gpu_id: int, address: int, descriptor: int) -> int:
        """The handle of another context's buffer in this one, for an address, not mapped yet."""
        args = kfd.kfd_ioctl_import_dmabuf_args(
            va_addr=address, gpu_id=gpu_id, dmabuf_fd=descriptor
        )
        self._call(kfd.AMDKFD_IOC_IMPORT_DMABUF, args)
        return int(args.handle)

    def map_memory(self, handle: int, gpu_ids: Sequence[int]) -> None:
        """Puts a buffer into the page tables of some GPUs, at the address that it was made for.

        Raises OutOfMemory where there is none for page tables.
        """
        ids = (ctypes.c_uint32 * len(gpu_ids))(*gpu_ids)
        args = kfd.kfd_ioctl_map_memory_to_gpu_args(
            handle=handle, device_ids_array_ptr=ctypes.addressof(ids), n_devices=len(ids)
        )
        try:
            self._call(kfd.AMDKFD_IOC_MAP_MEMORY_TO_GPU, args, _IDS)
        except TransportError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise OutOfMemory(
                "the kernel has no memory for page tables. Free buffers, or end other programs"
            ) from error

    def unmap_memory(self, handle: int, gpu_ids: Sequence[int]) -> None:
        """Takes a buffer out of the page tables of some GPUs, and flushes their TLBs."""
        ids = (ctypes.c_uint32 * len(gpu_ids))(*gpu_ids)
        args = kfd.kfd_ioctl_unmap_memory_from_gpu_args(
            handle=handle, device_ids_array_ptr=ctypes.addressof(ids), n_devices=len(ids)
        )
        self._give_back(kfd.AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, args, _IDS)

    def create_queue(self, gpu_id: int, request: QueueRequest) -> Queue:
        """Makes a queue. Raises OutOfMemory where the kernel or the hardware has no more."""
        args = kfd.kfd_ioctl_create_queue_args(
            ring_base_address=request.ring,
            ring_size=request.ring_size,
            read_pointer_address=request.read_pointer,
            write_pointer_address=request.write_pointer,
            gpu_id=gpu_id,
            queue_type=request.kind,
            queue_percentage=kfd.KFD_MAX_QUEUE_PERCENTAGE,
            queue_priority=_NORMAL_PRIORITY,
            eop_buffer_address=request.eop,
            eop_buffer_size=request.eop_size,
            ctx_save_restore_address=request.save_area,
            ctx_save_restore_size=request.save_size,
            ctl_stack_size=request.control_stack,
        )
        try:
            self._call(kfd.AMDKFD_IOC_CREATE_QUEUE, args)
        except TransportError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise OutOfMemory(
                f"no more queues of type {request.kind}: close other devices and programs"
            ) from error
        return Queue(args.queue_id, args.doorbell_offset)

    def destroy_queue(self, number: int) -> None:
        """Takes a queue off the hardware and ends it."""
        args = kfd.kfd_ioctl_destroy_queue_args(queue_id=number)
        self._give_back(kfd.AMDKFD_IOC_DESTROY_QUEUE, args)

    def create_event(self, kind: int, page: int = 0) -> Event:
        """Makes an event that ends one wait each time; ``page`` is the handle of their memory.

        The memory is given once a process, with the first event.
        """
        args = kfd.kfd_ioctl_create_event_args(
            event_type=kind, auto_reset=1, event_page_offset=page
        )
        self._call(kfd.AMDKFD_IOC_CREATE_EVENT, args)
        return Event(args.event_id, args.event_slot_index)

    def destroy_event(self, number: int) -> None:
        """Ends an event; who waits for it is woken."""
        args = kfd.kfd_ioctl_destroy_event_args(event_id=number)
        self._give_back(kfd.AMDKFD_IOC_DESTROY_EVENT, args)

    def wait_events(
        self, numbers: Sequence[int], timeout_ms: int
    ) -> tuple[bool, ctypes.Array[kfd.kfd_event_data]]:
        """Sleeps until one of some events, or the time is over, which is False.

        The data of an event that did not come is zero but for its number.
        """
        data = (kfd.kfd_event_data * len(numbers))()
        for item, number in zip(data, numbers, strict=True):
            item.event_id = number
        args = kfd.kfd_ioctl_wait_events_args(
            events_ptr=ctypes.addressof(data), num_events=len(numbers), timeout=timeout_ms
        )
        self._call(kfd.AMDKFD_IOC_WAIT_EVENTS, args, _EVENTS)
        return args.wait_result == kfd.KFD_IOC_WAIT_RESULT_COMPLETE, data

    def clock(self, gpu_id: int) -> int:
        """The GPU's clock in its ticks."""
        args = kfd.kfd_ioctl_get_clock_counters_args(gpu_id=gpu_id)
        self._call(kfd.AMDKFD_IOC_GET_CLOCK_COUNTERS, args)
        return int(args.gpu_clock_counter)


_NORMAL_PRIORITY: Final = 7
_IDS: Final = (Ref(_POINTER, count_offset=16, item_size=4),)
_EVENTS: Final = (Ref(0, count_offset=8, item_size=ctypes.sizeof(kfd.kfd_event_data)),)

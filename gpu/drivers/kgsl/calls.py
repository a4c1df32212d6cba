"""The calls of KGSL, one method each: arguments and answers as numbers, errors with names.

Numbers and layouts: msm_kgsl.h, through gpu.autogen.kgsl. What the calls check and answer: kgsl.c,
adreno_dispatch.c and adreno_drawctxt.c of Qualcomm's kgsl.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.autogen import kgsl
from gpu.core.errors import DeviceError, DeviceLost, OutOfMemory, TransportError
from gpu.transport import qualcomm as nodes
from gpu.transport.missing import no_kgsl
from gpu.transport.os import Argument, Os, Ref

MOST_BYTES: Final = (1 << 32) - 1
"""Of one object (gpumem_alloc_entry)."""
_LOST: Final = (errno.EDEADLK, errno.ENOENT)
_GONE: Final = (errno.ENODEV, errno.ENXIO)
_WAIT_AT_MOST: Final = 100  # milliseconds of one call, which begins anew when it is interrupted


class ContextLost(DeviceError):
    """A context is invalid, since the GPU failed while it ran, or is gone."""


class DeviceInfo(NamedTuple):
    """What GPU it is: the chip's number, and its name if the driver has one."""

    chip_id: int
    model: str


class Object(NamedTuple):
    """Memory: its number, where the GPU has it, its bytes, and KGSL_MEMFLAGS as they are."""

    id: int
    address: int
    size: int
    flags: int


class Kgsl:
    """KGSL's file, open.

    All methods raise TransportError with the call and the kernel's errno, DeviceLost where the GPU
    is gone, and those of a context ContextLost.
    """

    def __init__(self, system: Os):
        """Opens it. Raises DeviceError where it is not there, AccessDenied."""
        self.os = system
        try:
            self.fd = system.open(nodes.NODE, os.O_RDWR)
        except TransportError as error:
            if error.errno not in (errno.ENOENT, *_GONE):
                raise
            raise DeviceError(str(no_kgsl(system))) from error

    def close(self) -> None:
        """Closes the file; contexts that are left end with it."""
        self.os.close(self.fd)

    def _call(self, request: int, args: Argument, refs: Sequence[Ref] = ()) -> None:
        while True:
            try:
                self.os.ioctl(self.fd, request, args, refs)
            except TransportError as error:
                if error.errno == errno.EAGAIN:
                    continue
                if error.errno in _GONE:
                    raise DeviceLost(f"the GPU is gone: {error.message}") from error
                if error.errno == errno.ENOMEM:
                    raise OutOfMemory(f"KGSL has no more memory: {error.message}") from error
                raise
            return

    def _context_call(self, request: int, args: Argument, refs: Sequence[Ref] = ()) -> None:
        try:
            self._call(request, args, refs)
        except TransportError as error:
            if error.errno in _LOST:
                raise ContextLost(error.message) from error
            raise

    # The device

    def info(self) -> DeviceInfo:
        """What GPU it is."""
        found = kgsl.kgsl_devinfo()
        self._property(kgsl.KGSL_PROP_DEVICE_INFO, found)
        model = kgsl.kgsl_gpu_model()
        try:
            self._property(kgsl.KGSL_PROP_GPU_MODEL, model)
        except (TransportError, DeviceLost):  # what an older module answers, by either errno
            return DeviceInfo(found.chip_id, "")
        return DeviceInfo(found.chip_id, bytes(model.gpu_model).split(b"\0")[0].decode())

    def _property(self, kind: int, value: ctypes.Structure) -> None:
        args = kgsl.kgsl_device_getproperty(
            type=kind, value=ctypes.addressof(value), sizebytes=ctypes.sizeof(value)
        )
        refs = [Ref(8, count_offset=16, count_width=8)]
        self._call(kgsl.IOCTL_KGSL_DEVICE_GETPROPERTY, args, refs)

    # Memory

    def allocate(self, size: int, flags: int) -> Object:
        """Memory of whole pages. Raises OutOfMemory, also for more than one object may have."""
        if size > MOST_BYTES:
            raise OutOfMemory(f"{size} bytes: KGSL gives at most {MOST_BYTES} at once")
        args = kgsl.kgsl_gpuobj_alloc(size=size, flags=flags)
        self._call(kgsl.IOCTL_KGSL_GPUOBJ_ALLOC, args)
        return self._described(args.id)

    def import_host(self, address: int, size: int, flags: int) -> Object:
        """Whole pages of this process as an object."""
        where = kgsl.kgsl_gpuobj_import_useraddr(virtaddr=address)
        args = kgsl.kgsl_gpuobj_import(
            priv=ctypes.addressof(where),
            priv_len=size,
            flags=flags,
            type=kgsl.KGSL_USER_MEM_TYPE_ADDR,
        )
        self._call(kgsl.IOCTL_KGSL_GPUOBJ_IMPORT, args, [Ref(0, ctypes.sizeof(where))])
        return self._described(args.id)

    def _described(self, number: int) -> Object:
        """An object that was just made, which goes again if it cannot be described."""
        args = kgsl.kgsl_gpuobj_info(id=number)
        try:
            self._call(kgsl.IOCTL_KGSL_GPUOBJ_INFO, args)
        except BaseException:
            self.free(number)
            raise
        return Object(number, args.gpuaddr, args.size, args.flags)

    def object_at(self, address: int) -> Object | None:
        """The object of this process that an address of the GPU lies in; None where none does."""
        args = kgsl.kgsl_gpumem_get_info(gpuaddr=address)
        try:
            self._call(kgsl.IOCTL_KGSL_GPUMEM_GET_INFO, args)
        except TransportError as error:
            if error.errno != errno.EINVAL:
                raise
            return None
        return Object(args.id, args.gpuaddr, args.size, args.flags)

    def free(self, number: int) -> None:
        """Gives an object back."""
        self._call(kgsl.IOCTL_KGSL_GPUOBJ_FREE, kgsl.kgsl_gpuobj_free(id=number))

    def sync(self, number: int, offset: int, size: int, operation: int) -> None:
        """Cleans or invalidates the processor's caches over a part of an object."""
        part = kgsl.kgsl_gpuobj_sync_obj(
            offset=offset, length=size, id=number, op=operation | kgsl.KGSL_GPUMEM_CACHE_RANGE
        )
        length = ctypes.sizeof(part)
        args = kgsl.kgsl_gpuobj_sync(objs=ctypes.addressof(part), obj_len=length, count=1)
        self._call(kgsl.IOCTL_KGSL_GPUOBJ_SYNC, args, [Ref(0, count_offset=12, item_size=length)])

    # Contexts

    def create_context(self, flags: int) -> int:
        """A context of KGSL_CONTEXT_ flags; its number."""
        args = kgsl.kgsl_drawctxt_create(flags=flags)
        self._call(kgsl.IOCTL_KGSL_DRAWCTXT_CREATE, args)
        return int(args.drawctxt_id)

    def destroy_context(self, number: int) -> None:
        """Ends a context. One that hangs keeps the kernel for up to 35 seconds."""
        args = kgsl.kgsl_drawctxt_destroy(drawctxt_id=number)
        self._call(kgsl.IOCTL_KGSL_DRAWCTXT_DESTROY, args)

    def constrain_power(self, context: int, level: int) -> None:
        """Asks for a KGSL_CONSTRAINT_PWR_ level while commands of a context run."""
        wanted = kgsl.kgsl_device_constraint_pwrlevel(level=level)
        constraint = kgsl.kgsl_device_constraint(
            type=kgsl.KGSL_CONSTRAINT_PWRLEVEL,
            context_id=context,
            data=ctypes.addressof(wanted),
            size=ctypes.sizeof(wanted),
        )
        args = kgsl.kgsl_device_getproperty(
            type=kgsl.KGSL_PROP_PWR_CONSTRAINT,
            value=ctypes.addressof(constraint),
            sizebytes=ctypes.sizeof(constraint),
        )
        inner = Ref(8, count_offset=16, count_width=8)
        refs = [Ref(8, ctypes.sizeof(constraint), refs=(inner,))]
        self._call(kgsl.IOCTL_KGSL_SETPROPERTY, args, refs)

    def submit(self, command: kgsl.kgsl_gpu_command) -> None:
        """Queues command objects. Blocks while 50 are queued that the GPU was not given."""
        try:
            self._context_call(kgsl.IOCTL_KGSL_GPU_COMMAND, command, _COMMANDS)
        except TransportError as error:
            if error.errno != errno.EPROTO:  # accepted: a command before it failed and was passed
                raise

    def queued(self, context: int) -> int:
        """The timestamp of the last command that was queued in a context."""
        args = kgsl.kgsl_cmdstream_readtimestamp_ctxtid(
            context_id=context, type=kgsl.KGSL_TIMESTAMP_QUEUED
        )
        self._call(kgsl.IOCTL_KGSL_CMDSTREAM_READTIMESTAMP_CTXTID, args)
        return int(args.timestamp)

    def wait(self, context: int, timestamp: int, milliseconds: int) -> bool:
        """Sleeps until a command is done; whether it was within the time, of 1 to 100 ms."""
        args = kgsl.kgsl_device_waittimestamp_ctxtid(
            context_id=context,
            timestamp=timestamp,
            timeout=max(1, min(milliseconds, _WAIT_AT_MOST)),
        )
        try:
            self._context_call(kgsl.IOCTL_KGSL_DEVICE_WAITTIMESTAMP_CTXTID, args)
        except TransportError as error:
            if error.errno != errno.ETIMEDOUT:
                raise
            return False
        return True

    def page_faults(self, context: int) -> list[int]:
        """Addresses of accesses to no memory by an invalid context that asked to be told."""
        faults = (kgsl.kgsl_fault * (kgsl.KGSL_FAULT_TYPE_MAX - 1))()
        self._fault_report(context, faults)
        found: list[int] = []
        reports = []
        for fault in faults:
            many = kgsl.kgsl_pagefault_report * (
                fault.count if fault.type == kgsl.KGSL_FAULT_TYPE_PAGEFAULT else 0
            )
            reports.append(many())
            fault.fault = ctypes.addressof(reports[-1])
            fault.size = ctypes.sizeof(kgsl.kgsl_pagefault_report)
        if any(len(each) for each in reports):
            self._fault_report(context, faults)
        for each in reports:
            found += [report.fault_addr for report in each]
        return found

    def _fault_report(self, context: int, faults: ctypes.Array[kgsl.kgsl_fault]) -> None:
        args = kgsl.kgsl_fault_report(
            faultlist=ctypes.addressof(faults),
            faultnents=len(faults),
            faultsize=ctypes.sizeof(kgsl.kgsl_fault),
            context_id=context,
        )
        report = Ref(0, count_offset=12, item_size=ctypes.sizeof(kgsl.kgsl_pagefault_report))
        refs = [Ref(0, count_offset=8, item_size=ctypes.sizeof(kgsl.kgsl_fault), refs=(report,))]
        self._call(kgsl.IOCTL_KGSL_GET_FAULT_REPORT, args, refs)


_COMMANDS: Final = (Ref(8, count_offset=20, item_size=ctypes.sizeof(kgsl.kgsl_command_object)),)

"""/dev/kgsl-3d0: the table of calls (kgsl_ioctl.c)."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from typing import Any, Final

from gpu.autogen import kgsl
from gpu.core.bits import align_up
from gpu.sim.kernel import SysError
from gpu.sim.kgsl.driver import command_calls, context_calls, memory_calls, properties
from gpu.sim.kgsl.driver.call import Call
from gpu.sim.kgsl.driver.device import Device
from gpu.sim.kgsl.driver.mapping import MapRequest
from gpu.sim.process import ArgumentBytes, SimFile, SimProcess
from gpu.sim.translate import PAGE_SIZE

_PREFIX: Final = "IOCTL_KGSL_"
_IN: Final = 0x4000_0000
_OUT: Final = 0x8000_0000
Handler = Callable[[Call[Any]], None]
_HANDLERS: Final[dict[str, tuple[type[ctypes.Structure], Handler]]] = {
    "DEVICE_GETPROPERTY": (kgsl.kgsl_device_getproperty, properties.get_property),
    "SETPROPERTY": (kgsl.kgsl_device_getproperty, properties.set_property),
    "PERFCOUNTER_READ": (kgsl.kgsl_perfcounter_read, properties.read_counters),
    "DRAWCTXT_CREATE": (kgsl.kgsl_drawctxt_create, context_calls.create),
    "DRAWCTXT_DESTROY": (kgsl.kgsl_drawctxt_destroy, context_calls.destroy),
    "DEVICE_WAITTIMESTAMP_CTXTID": (
        *(kgsl.kgsl_device_waittimestamp_ctxtid, context_calls.wait_timestamp),
    ),
    "CMDSTREAM_READTIMESTAMP_CTXTID": (
        *(kgsl.kgsl_cmdstream_readtimestamp_ctxtid, context_calls.read_timestamp),
    ),
    "GET_FAULT_REPORT": (kgsl.kgsl_fault_report, context_calls.fault_report),
    "GPUOBJ_ALLOC": (kgsl.kgsl_gpuobj_alloc, memory_calls.allocate),
    "GPUOBJ_FREE": (kgsl.kgsl_gpuobj_free, memory_calls.free),
    "GPUOBJ_INFO": (kgsl.kgsl_gpuobj_info, memory_calls.info),
    "GPUOBJ_IMPORT": (kgsl.kgsl_gpuobj_import, memory_calls.import_object),
    "GPUOBJ_SYNC": (kgsl.kgsl_gpuobj_sync, memory_calls.sync),
    "GPUMEM_ALLOC_ID": (kgsl.kgsl_gpumem_alloc_id, memory_calls.allocate_id),
    "GPUMEM_FREE_ID": (kgsl.kgsl_gpumem_free_id, memory_calls.free_id),
    "GPUMEM_GET_INFO": (kgsl.kgsl_gpumem_get_info, memory_calls.get_info),
    "SHAREDMEM_FREE": (kgsl.kgsl_sharedmem_free, memory_calls.free_address),
    "GPU_COMMAND": (kgsl.kgsl_gpu_command, command_calls.gpu_command),
    "TIMESTAMP_EVENT": (kgsl.kgsl_timestamp_event, command_calls.timestamp_event),
    "TIMELINE_CREATE": (kgsl.kgsl_timeline_create, command_calls.timeline_create),
    "TIMELINE_QUERY": (kgsl.kgsl_timeline_val, command_calls.timeline_query),
    "TIMELINE_SIGNAL": (kgsl.kgsl_timeline_signal, command_calls.timeline_signal),
    "TIMELINE_WAIT": (kgsl.kgsl_timeline_wait, command_calls.timeline_wait),
    "TIMELINE_FENCE_GET": (kgsl.kgsl_timeline_fence_get, command_calls.timeline_fence),
    "TIMELINE_DESTROY": (kgsl.kgsl_drawctxt_destroy, command_calls.timeline_destroy),
}
_KNOWN: Final = {
    value & 0xFF: name.removeprefix(_PREFIX)
    for name, value in vars(kgsl).items()
    if name.startswith(_PREFIX) and not name.endswith("_OLD")
}
CALL_NAMES: Final = {getattr(kgsl, _PREFIX + name) & 0xFF: name for name in _HANDLERS}
"""Calls that are modelled, by number."""


class KgslFile(SimFile):
    """One open device. What was opened belongs to the process that did, children may use it."""

    def __init__(self, device: Device, process: SimProcess):
        """Raises SysError(ENODEV)."""
        self._device = device
        self._owner = device.opened(process)

    def call_name(self, request: int) -> str:
        """As msm_kgsl.h has it, without what all begin with."""
        return CALL_NAMES.get(request & 0xFF, "")

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Makes a call. The kernel looks only at its number, and copies what both sides know.

        Results go back only where it succeeds: with EPROTO not even a timestamp.
        """
        device, debug = self._device, self._device.machine.debug
        device.check_plugged()
        number, size = request & 0xFF, request >> 16 & 0x3FFF
        name = CALL_NAMES.get(number)
        if name is None or name in device.release.absent:
            known = _KNOWN.get(number)
            if known and name is None:
                debug.violation(f"the call {known} is not modelled")
            raise SysError(errno.ENOTTY, f"KGSL of {device.release.name} has no call {number:#x}")
        expected = getattr(kgsl, _PREFIX + name)
        if request != expected:
            debug.violation(f"{name} is {expected:#x}, not {request:#x}")
        kind, handler = _HANDLERS[name]
        size = min(size, expected >> 16 & 0x3FFF)
        if len(argument) < size:
            raise SysError(errno.EFAULT, f"an argument of {len(argument)} bytes, not {size}")
        given = ctypes.string_at(argument, size) if expected & request & _IN else b""
        args = kind.from_buffer_copy(given.ljust(ctypes.sizeof(kind), b"\0"))
        handler(Call(device, self._owner, process, self, args))
        if expected & request & _OUT:
            ctypes.memmove(argument, bytes(args)[:size], size)
        return 0

    def mmap(
        self, process: SimProcess, size: int, prot: int, flags: int, offset: int, address: int
    ) -> int:
        """Maps an object, or the memstore."""
        self._device.check_plugged()
        size = align_up(size, PAGE_SIZE)
        return MapRequest(
            self._device, self._owner, process, size, prot, flags, offset, address
        ).carry_out()

    def released(self) -> None:
        """The last descriptor was closed."""
        self._device.closed(self._owner, self)

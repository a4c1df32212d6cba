"""Physical memory and addresses, each by itself: section 6.14, virtual memory management.

Physical memory is a file in memory of the process: so its descriptor is what another one opens it
by, and it is there as long as anyone holds or maps it, whoever made it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Final

from gpu.core import hostmem
from gpu.sim.cuda.calls.reserving import no_longer_used
from gpu.sim.cuda.codes import (
    INVALID_DEVICE,
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    CudaError,
)
from gpu.sim.cuda.context import Allocation, Device
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export, get_bytes, put32, put64
from gpu.sim.isa import layout

GRANULARITY: Final = 2 << 20
_PROP: Final = struct.Struct("<4iQBBH4x")
"""CUmemAllocationProp: type, handle types, type and number of the place, what Windows needs,
compression, RDMA, usage."""
_ACCESS: Final = struct.Struct("<3i")
"""CUmemAccessDesc: type and number of the place, flags."""
_PINNED, _ON_DEVICE, _DESCRIPTOR = 1, 1, 1
_FLAGS: Final = {0: 0, 1: layout.READ, 3: layout.READ | layout.WRITE | layout.ATOMIC}
"""CUmemAccess_flags -> what kernels may do."""
_MARK: Final = struct.Struct("<16s16sQ")
"""Behind the bytes of the memory in its file: what it is, UUID of the device, how many they are."""
_WHAT: Final = b"cuMemCreate's".ljust(16)


@dataclass(eq=False)
class Physical:
    """What a CUmemGenericAllocationHandle stands for.

    Attributes:
        device: whose memory it is.
        file: what holds its bytes.
        shareable: whether it was made to be exported as a file descriptor.
        holds: how many handles and mappings keep it.
        is_counted: whether this process made it, and its bytes count as used here.
    """

    device: Device
    size: int
    file: int
    shareable: bool
    holds: int = 1
    is_counted: bool = True

    def let_go(self) -> None:
        """One handle or mapping less."""
        self.holds -= 1
        if not self.holds:
            os.close(self.file)
            self.device.used -= self.size if self.is_counted else 0


def _properties(call: Call, pointer: int) -> tuple[Device, int]:
    """(the device, types of handles) that a CUmemAllocationProp asks for. Raises CudaError."""
    kind, handles, place, ordinal, *rest = _PROP.unpack(get_bytes(pointer, _PROP.size))
    if kind != _PINNED or place != _ON_DEVICE:
        raise CudaError(NOT_SUPPORTED, f"memory of type {kind} at a place of type {place}")
    if handles not in (0, _DESCRIPTOR) or any(rest):
        raise CudaError(NOT_SUPPORTED, f"handles of types {handles:#x}, or properties {rest}")
    return call.driver.device(ordinal), handles


@export("cuMemGetAllocationGranularity", "ppu", needs="driver", since=10020)
def _granularity(call: Call, result: int, properties: int, option: int) -> None:
    _properties(call, properties)
    if option not in (0, 1):
        raise CudaError(INVALID_VALUE, f"granularity option {option}")
    put64(result, GRANULARITY)


@export("cuMemCreate", "pzpQ", needs="driver", since=10020)
def _create(call: Call, result: int, size: int, properties: int, flags: int) -> None:
    device, handles = _properties(call, properties)
    if not result or flags or not size or size % GRANULARITY:
        raise CudaError(INVALID_VALUE, f"{size} bytes, no multiple of {GRANULARITY}, or flags")
    if size > device.chip.vram_size - device.used:
        raise CudaError(OUT_OF_MEMORY, f"{size} bytes of device {device.index}")
    made = Physical(device, size, _file_of(device, size), bool(handles))
    device.used += size
    put64(result, call.driver.handles.new(made))


def _file_of(device: Device, size: int) -> int:
    file = hostmem.memfd("simulated cuMemCreate", size + _MARK.size)
    os.pwrite(file, _MARK.pack(_WHAT, device.uuid, size), size)
    return file


@export("cuMemRelease", "Q", needs="driver", since=10020)
def _release(call: Call, handle: int) -> None:
    found = call.driver.handles.get(handle, Physical, INVALID_VALUE)
    call.driver.handles.drop(handle)
    found.let_go()


@export("cuMemGetAllocationPropertiesFromHandle", "pQ", needs="driver", since=10020)
def _properties_of(call: Call, result: int, handle: int) -> None:
    found = call.driver.handles.get(handle, Physical, INVALID_VALUE)
    what = _PROP.pack(_PINNED, int(found.shareable), _ON_DEVICE, found.device.index, *(0, 0, 0, 0))
    for at in range(0, len(what), 4):
        put32(result + at if result else 0, int.from_bytes(what[at : at + 4], "little"))


@export("cuMemExportToShareableHandle", "pQiQ", needs="driver", since=10020)
def _export(call: Call, result: int, handle: int, kind: int, flags: int) -> None:
    found = call.driver.handles.get(handle, Physical, INVALID_VALUE)
    if not result or flags or kind != _DESCRIPTOR or not found.shareable:
        raise CudaError(INVALID_VALUE, f"type {kind}, flags {flags}, or it was made for no handles")
    put32(result, os.dup(found.file))


@export("cuMemImportFromShareableHandle", "ppi", needs="driver", since=10020)
def _import(call: Call, result: int, file: int, kind: int) -> None:
    if not result or kind != _DESCRIPTOR:
        raise CudaError(INVALID_VALUE, f"a handle of type {kind}")
    try:
        mark = os.pread(file, _MARK.size, os.fstat(file).st_size - _MARK.size)
    except OSError as error:
        raise CudaError(INVALID_VALUE, f"the file {file}: {error.strerror}") from error
    what, uuid, size = _MARK.unpack(mark.ljust(_MARK.size, b"\0"))
    device = next((each for each in call.driver.devices if each.uuid == uuid), None)
    if what != _WHAT or device is None:
        raise CudaError(INVALID_VALUE, f"the file {file} is no memory of a device here")
    found = Physical(device, size, os.dup(file), shareable=True, is_counted=False)
    put64(result, call.driver.handles.new(found))


@export("cuMemAddressReserve", "pzzQQ", needs="driver", since=10020)
def _reserve(call: Call, result: int, size: int, align: int, wanted: int, flags: int) -> None:
    if not result or flags or not size or size % GRANULARITY or align & (align - 1):
        raise CudaError(INVALID_VALUE, f"{size} bytes of addresses aligned to {align}, or flags")
    if align > GRANULARITY:
        raise CudaError(NOT_SUPPORTED, f"addresses aligned to {align}")
    put64(result, call.driver.memory.reserve(size))


@export("cuMemAddressFree", "Qz", needs="driver", since=10020)
def _address_free(call: Call, start: int, size: int) -> None:
    memory = call.driver.memory
    if memory.reserved.get(start) != size or memory.overlaps(start, size):
        raise CudaError(INVALID_VALUE, f"{start:#x} is no reservation of {size} bytes, or mapped")
    del memory.reserved[start]


@export("cuMemMap", "QzzQQ", since=10020)
def _map(call: Call, start: int, size: int, offset: int, handle: int, flags: int) -> None:
    found = call.driver.handles.get(handle, Physical, INVALID_VALUE)
    if flags or offset or not size or size % GRANULARITY or size > found.size:
        raise CudaError(INVALID_VALUE, f"{size} of {found.size} bytes from {offset}, or flags")
    if call.context.device is not found.device:
        raise CudaError(NOT_SUPPORTED, "memory of another device than the context's")
    memory = call.driver.memory
    if not memory.is_reserved(start, size) or memory.overlaps(start, size):
        raise CudaError(INVALID_VALUE, f"{start:#x} is not reserved, or mapped already")
    made = memory.map_reserved(call.context, start, size, found.file)
    made.physical = found
    found.holds += 1
    call.driver.keep(call.context, made)


@export("cuMemUnmap", "Qz", needs="driver", since=10020)
def _unmap(call: Call, start: int, size: int) -> None:
    found = _mapped(call, start, size)
    no_longer_used(call, found, "unmapped")
    call.driver.free(found)


@export("cuMemSetAccess", "Qzpz", needs="driver", since=10020)
def _set_access(call: Call, start: int, size: int, descriptions: int, count: int) -> None:
    found = _mapped(call, start, size)
    if not count:
        raise CudaError(INVALID_VALUE, "no access is described")
    for number in range(count):
        at = descriptions + number * _ACCESS.size if descriptions else 0
        place, ordinal, flags = _ACCESS.unpack(get_bytes(at, _ACCESS.size))
        if place != _ON_DEVICE or flags not in _FLAGS:
            raise CudaError(INVALID_VALUE, f"access {flags} of a place of type {place}")
        if call.driver.device(ordinal) is not found.context.device:
            raise CudaError(INVALID_DEVICE, f"access of device {ordinal}, which is not modelled")
        call.driver.memory.allow(found, _FLAGS[flags])


def _mapped(call: Call, start: int, size: int) -> Allocation:
    """What cuMemMap put there, all of it. Raises CudaError."""
    found = call.driver.memory.find(start)
    if found is None or (found.kind, found.start, found.size) != ("mapped", start, size):
        raise CudaError(INVALID_VALUE, f"{size} bytes at {start:#x} are not one mapping")
    return found

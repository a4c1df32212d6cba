"""Memory: device, pinned, in the order of streams, and what pointers are: sections 6.13 to 6.16."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from gpu.sim.cuda.codes import (
    HOST_MEMORY_ALREADY_REGISTERED,
    HOST_MEMORY_NOT_REGISTERED,
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    CudaError,
)
from gpu.sim.cuda.context import Allocation
from gpu.sim.cuda.copies import DEVICE_MEMORY, HOST_MEMORY
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export, get32, get64, put32, put64
from gpu.sim.cuda.work import Op
from gpu.sim.races import Access

_HOST_FLAGS: Final = 7  # CU_MEMHOSTALLOC_PORTABLE, DEVICEMAP, WRITECOMBINED
_REGISTER_FLAGS: Final = 3  # CU_MEMHOSTREGISTER_PORTABLE, DEVICEMAP
_PITCH: Final = 512
_THRESHOLD: Final = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD


def _allocate(call: Call, size: int) -> Allocation:
    context = call.context
    device = context.device
    if not size:
        raise CudaError(INVALID_VALUE, "0 bytes of memory")
    if size > device.chip.vram_size - device.used:
        raise CudaError(
            OUT_OF_MEMORY, f"{size} bytes; {device.chip.vram_size - device.used} are free"
        )
    return call.driver.keep(context, call.driver.memory.allocate(context, size))


def exact(call: Call, address: int, kinds: tuple[str, ...], code: int) -> Allocation:
    """The allocation that begins at an address. Raises CudaError."""
    found = call.driver.memory.find(address)
    if found is None or found.start != address or found.kind not in kinds:
        raise CudaError(code, f"{address:#x} is no start of {' or '.join(kinds)} memory")
    if found.ending:
        raise CudaError(code, f"{address:#x} is freed already, in the order of a stream")
    return found


def release(call: Call, allocation: Allocation) -> None:
    """Gives memory back when all that its context has queued is done. Raises CudaError."""
    allocation.context.check()
    call.driver.work.wait([s.tail for s in allocation.context.streams])
    allocation.context.check()
    call.driver.free(allocation)


@export("cuMemAlloc_v2", "pz", since=3020)
def _alloc(call: Call, result: int, size: int) -> None:
    if not result:
        raise CudaError(INVALID_VALUE, "where the address goes is NULL")
    put64(result, _allocate(call, size).start)


@export("cuMemAllocPitch_v2", "ppzzu", since=3020)
def _alloc_pitch(call: Call, result: int, pitch: int, width: int, height: int, size: int) -> None:
    if size not in (4, 8, 16):
        raise CudaError(INVALID_VALUE, f"elements of {size} bytes; they have 4, 8 or 16")
    row = -(-width // _PITCH) * _PITCH
    put64(pitch, row)
    put64(result, _allocate(call, row * height).start)


@export("cuMemFree_v2", "Q", needs="driver", since=3020)
def _free(call: Call, address: int) -> None:
    if address:
        release(call, exact(call, address, ("device",), INVALID_VALUE))


@export("cuMemGetInfo_v2", "pp", since=3020)
def _info(call: Call, free: int, total: int) -> None:
    device = call.context.device
    if free:
        put64(free, device.chip.vram_size - device.used)
    if total:
        put64(total, device.chip.vram_size)


@export("cuMemGetAddressRange_v2", "ppQ", since=3020)
def _address_range(call: Call, base: int, size: int, address: int) -> None:
    found = call.driver.memory.find(address)
    if found is None:
        raise CudaError(INVALID_VALUE, f"{address:#x} is no memory that the driver gave")
    if base:
        put64(base, found.start)
    if size:
        put64(size, found.size)


def _allocate_host(call: Call, result: int, size: int, flags: int) -> None:
    if not size or not result or flags & ~_HOST_FLAGS:
        raise CudaError(INVALID_VALUE, f"{size} bytes of pinned memory with flags {flags:#x}")
    context = call.context
    found = call.driver.memory.allocate_host(context, size, flags)
    put64(result, call.driver.keep(context, found).start)


@export("cuMemAllocHost_v2", "pz", since=3020)
def _alloc_host(call: Call, result: int, size: int) -> None:
    _allocate_host(call, result, size, 0)


@export("cuMemHostAlloc", "pzu", since=2020)
def _host_alloc(call: Call, result: int, size: int, flags: int) -> None:
    _allocate_host(call, result, size, flags)


@export("cuMemFreeHost", "p", needs="driver")
def _free_host(call: Call, address: int) -> None:
    found = exact(call, address, ("host",), INVALID_VALUE)
    no_longer_used(call, found, "freed")
    release(call, found)


@export("cuMemHostRegister_v2", "pzu", since=6050)
def _register(call: Call, address: int, size: int, flags: int) -> None:
    if not address or not size:
        raise CudaError(INVALID_VALUE, f"{size} bytes at {address:#x} to register")
    if flags & ~_REGISTER_FLAGS:
        raise CudaError(NOT_SUPPORTED, f"flags {flags:#x}: I/O and read-only memory")
    if call.driver.memory.overlaps(address, size):
        raise CudaError(HOST_MEMORY_ALREADY_REGISTERED, f"{size} bytes at {address:#x}")
    context = call.context
    call.driver.keep(context, call.driver.memory.register(context, address, size, flags))


@export("cuMemHostUnregister", "p", needs="driver", since=4000)
def _unregister(call: Call, address: int) -> None:
    found = exact(call, address, ("registered",), HOST_MEMORY_NOT_REGISTERED)
    no_longer_used(call, found, "unregistered")
    release(call, found)


def no_longer_used(call: Call, allocation: Allocation, done: str) -> None:
    """Tells of work that is still to use memory which is given back now."""
    what = "pinned memory" if allocation.is_host else "memory"
    for op in call.driver.work.pending():
        if any(a.start < allocation.end and allocation.start < a.end for a in op.touches):
            call.debug.violation(f"{what} is {done} before {op.told()} has run")
            return


@export("cuMemHostGetDevicePointer_v2", "ppu", since=3020)
def _device_pointer(call: Call, result: int, address: int, flags: int) -> None:
    found = call.driver.memory.find(address)
    if flags or found is None or not found.is_host:
        raise CudaError(INVALID_VALUE, f"{address:#x} is no pinned memory, or flags {flags:#x}")
    put64(result, address)


@export("cuMemHostGetFlags", "pp", since=2030)
def _host_flags(call: Call, result: int, address: int) -> None:
    found = call.driver.memory.find(address)
    if found is None or found.kind != "host":
        raise CudaError(INVALID_VALUE, f"{address:#x} is no memory of cuMemHostAlloc")
    put32(result, found.flags | 2)  # under unified addressing all of it is mapped


class Pool:
    """A memory pool of a device: cuMemAllocAsync takes from its current one."""

    def __init__(self, device: int):
        self.device = device
        self.attributes: dict[int, int] = {1: 1, 2: 1, 3: 1, _THRESHOLD: 0}
        self.used = 0
        self.most = 0

    def value(self, attribute: int) -> int:
        """An attribute of CUmemPool_attribute. Raises CudaError."""
        counted = {5: self.used, 6: self.most, 7: self.used, 8: self.most} | self.attributes
        if attribute not in counted:
            raise CudaError(INVALID_VALUE, f"pool attribute {attribute}")
        return counted[attribute]


@export("cuDeviceGetDefaultMemPool", "pi", needs="driver", since=11020)
@export("cuDeviceGetMemPool", "pi", needs="driver", since=11020)
def _default_pool(call: Call, result: int, ordinal: int) -> None:
    device = call.driver.device(ordinal)
    if not device.pool:
        device.pool = call.driver.handles.new(Pool(ordinal))
    put64(result, device.pool)


@export("cuMemPoolGetAttribute", "pip", needs="driver", since=11020)
def _pool_attribute(call: Call, handle: int, attribute: int, value: int) -> None:
    found = call.driver.handles.get(handle, Pool, INVALID_VALUE).value(attribute)
    (put32 if attribute < _THRESHOLD else put64)(value, found)


@export("cuMemPoolSetAttribute", "pip", needs="driver", since=11020)
def _set_pool_attribute(call: Call, handle: int, attribute: int, value: int) -> None:
    pool = call.driver.handles.get(handle, Pool, INVALID_VALUE)
    if attribute not in pool.attributes:
        raise CudaError(INVALID_VALUE, f"pool attribute {attribute} cannot be set")
    pool.attributes[attribute] = (get32 if attribute < _THRESHOLD else get64)(value)


@export("cuMemPoolTrimTo", "pz", needs="driver", since=11020)
def _trim(call: Call, handle: int, _: int) -> None:
    call.driver.handles.get(handle, Pool, INVALID_VALUE)


@export("cuMemAllocAsync", "pzp", twin="ptsz", since=11020)
def _alloc_async(call: Call, result: int, size: int, stream: int) -> None:
    queue = call.own_stream(stream)
    if not result:
        raise CudaError(INVALID_VALUE, "where the address goes is NULL")
    made = _allocate(call, size)
    made.ordered = True
    # Others may use it when this has happened: to them it is as if it was written here.
    whole = Access(made.start, made.end, "write")
    call.driver.work.submit(queue, f"allocation of {size} bytes", lambda _: True, [whole])
    put64(result, made.start)


@export("cuMemFreeAsync", "Qp", twin="ptsz", since=11020)
def _free_async(call: Call, address: int, stream: int) -> None:
    queue, driver = call.own_stream(stream), call.driver
    if not address:
        return
    found = exact(call, address, ("device",), INVALID_VALUE)
    if not found.ordered:
        raise CudaError(INVALID_VALUE, f"{address:#x} does not come from cuMemAllocAsync")
    found.ending = True

    def run(_: Op) -> bool:
        driver.free(found)
        return True

    whole = Access(found.start, found.end, "write")
    driver.work.submit(queue, f"freeing of {found.size} bytes at {address:#x}", run, [whole])


def _set(size: int) -> Callable[[int, int], None]:
    def put(pointer: int, value: int) -> None:
        ctypes.memmove(pointer, (value % (1 << 8 * size)).to_bytes(size, "little"), size)

    return put


def _pointer_values(found: Allocation | None, address: int) -> dict[int, tuple[int, int | None]]:
    """CUpointer_attribute -> (bytes, value); None is what a pointer does not have."""
    if found is None:
        sizes = {1: 8, 2: 4, 3: 8, 4: 8, 6: 4, 7: 8, 8: 4, 9: 4, 11: 8, 12: 8, 13: 4, 17: 8}
        return {key: (size, None) for key, size in sizes.items()}
    return {
        1: (8, 0 if found.kind == "mapped" else found.context.handle),  # 0: of no one context
        2: (4, HOST_MEMORY if found.is_host else DEVICE_MEMORY),
        3: (8, address),
        4: (8, address if found.is_host else None),
        6: (4, 0),
        7: (8, found.number),
        8: (4, 0),
        9: (4, found.context.device.index),
        10: (4, 0),
        11: (8, found.start),
        12: (8, found.size),
        13: (4, 1),
        14: (8, 0),
        15: (4, 0),
        17: (8, found.pool),
    }


@export("cuPointerGetAttribute", "piQ", since=4000)
def _pointer_attribute(call: Call, result: int, attribute: int, address: int) -> None:
    found = call.driver.memory.find(address)
    if found is None:
        raise CudaError(INVALID_VALUE, f"{address:#x} is no memory that the driver gave")
    size, value = _pointer_values(found, address).get(attribute, (0, None))
    if value is None or not result:
        raise CudaError(INVALID_VALUE, f"{address:#x} has no attribute {attribute}")
    _set(size)(result, value)


@export("cuPointerGetAttributes", "uppQ", since=7000)
def _pointer_attributes(
    call: Call, count: int, attributes: int, results: int, address: int
) -> None:
    values = _pointer_values(call.driver.memory.find(address), address)
    for number in range(count):
        attribute = get32(attributes + 4 * number)
        if attribute not in values:
            raise CudaError(INVALID_VALUE, f"pointer attribute {attribute}")
        size, value = values[attribute]
        # Unlike the function for one attribute this gives zeros for memory of others; -2 is
        # CU_DEVICE_INVALID.
        nothing = -2 if attribute == 9 else 0
        _set(size)(get64(results + 8 * number), nothing if value is None else value)

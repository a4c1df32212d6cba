"""Copies and fills: when sources are read, and when the caller goes on.

"CUDA Driver API", "API synchronization behavior".
"""

from __future__ import annotations

import ctypes
import zlib
from typing import Final, NamedTuple

from gpu.sim.cuda.codes import ILLEGAL_ADDRESS, INVALID_VALUE, NOT_SUPPORTED, CudaError
from gpu.sim.cuda.context import Allocation
from gpu.sim.cuda.driver import Call, Driver
from gpu.sim.cuda.work import Op, Run, Stream
from gpu.sim.races import Access, How

HOST_MEMORY, DEVICE_MEMORY, ANY_MEMORY = 1, 2, 4  # CUmemorytype
_NS_PER_KIB: Final = 40  # about 25 GB/s


class End(NamedTuple):
    """One side of a copy.

    Attributes:
        allocation: what lies there; None is memory of the program.
        held: what keeps that memory.
    """

    address: int
    allocation: Allocation | None
    held: object = None

    @property
    def is_host(self) -> bool:
        """Whether it is memory of the host."""
        return self.allocation is None or self.allocation.is_host

    def access(self, how: How, size: int) -> list[Access]:
        """What work that uses it touches: of memory of the program alone nothing is known."""
        return [] if self.allocation is None else [Access(self.address, self.address + size, how)]

    @property
    def bytes_at(self) -> int:
        """Where its bytes are in this process. Raises CudaError where they were freed meanwhile."""
        found = self.allocation
        if found is None:
            return self.address
        if found not in found.context.allocations:
            raise CudaError(ILLEGAL_ADDRESS, f"the memory at {self.address:#x} was freed before")
        return found.host + self.address - found.start


def device_end(driver: Driver, address: int, size: int, what: str) -> End:
    """A side that is given as CUdeviceptr. Raises CudaError."""
    return End(address, driver.memory.span(address, size, what))


def host_end(driver: Driver, address: int, size: int, what: str) -> End:
    """A side that is a pointer of the host, or any pointer. Raises CudaError for NULL."""
    if not address:
        raise CudaError(INVALID_VALUE, f"{what} is NULL")
    found = driver.memory.find(address)
    if found is None:
        return End(address, None)
    return End(address, driver.memory.span(address, size, what))


def described_end(
    driver: Driver, description: ctypes.Structure, side: str, offset: int, size: int, what: str
) -> End:
    """A side of a CUDA_MEMCPY2D or 3D, whose fields begin with `side`: `offset` bytes into it.

    Raises CudaError.
    """
    kind, host, device = (getattr(description, f"{side}_{n}") for n in ("type", "host", "device"))
    if kind == HOST_MEMORY:
        return host_end(driver, host and host + offset, size, what)
    if kind == DEVICE_MEMORY:
        return device_end(driver, device + offset, size, what)
    if kind == ANY_MEMORY:
        return host_end(driver, device + offset, size, what)
    raise CudaError(NOT_SUPPORTED, f"memory type {kind} of {what}: arrays are not modelled")


def copy(call: Call, stream: Stream, target: End, source: End, size: int, waits: bool) -> None:
    """Copies bytes; `waits` as the functions without Async do.

    Raises CudaError for a fault of older work that a wait met.
    """
    if not size:
        return
    if source.is_host and target.is_host:
        _submit(call.driver, stream, target, source, size)
        call.wait([stream.tail])
    elif source.is_host and source.allocation is None:
        # Pageable: what is there now is taken, and reaches the device later.
        if waits or call.driver.rng.random() < 0.5:
            call.wait([*stream.before()])
        staged = ctypes.create_string_buffer(ctypes.string_at(source.address, size), size)
        staging = End(ctypes.addressof(staged), None, staged)
        _submit(call.driver, stream, target, staging, size)
    else:
        _submit(call.driver, stream, target, source, size)
        if (waits and (source.is_host or target.is_host)) or target.allocation is None:
            call.wait([stream.tail])


def copying(driver: Driver, target: End, source: End, size: int) -> tuple[str, Run, list[Access]]:
    """(what it is, what runs, what that touches) of a copy that is queued now."""
    what = f"copy of {size} bytes from {source.address:#x} to {target.address:#x}"
    touches = [*source.access("read", size), *target.access("write", size)]
    return what, _copying(driver, target, source, size), touches


def _submit(driver: Driver, stream: Stream, target: End, source: End, size: int) -> Op:
    return driver.work.submit(stream, *copying(driver, target, source, size))


def _copying(driver: Driver, target: End, source: End, size: int) -> Run:
    """What copies; pinned memory is read when it runs, and must be what it was until then."""
    host, held = source.allocation, 0
    before = (0, 0)
    if host is not None and host.is_host:
        held = source.bytes_at
        before = (host.written, _digest(held, size))

    def run(op: Op) -> bool:
        quiet = host is not None and host.written == before[0]
        if held and quiet and _digest(held, size) != before[1]:
            driver.simulation.debug.violation(
                f"{op.told()}: the program wrote to its pinned source before it ran"
            )
        ctypes.memmove(target.bytes_at, source.bytes_at, size)
        if target.allocation is not None:
            target.allocation.written += 1
        driver.simulation.clock.advance(size * _NS_PER_KIB >> 10)
        return True

    return run


def _digest(address: int, size: int) -> int:
    return zlib.crc32((ctypes.c_char * size).from_address(address))


def fill(call: Call, stream: Stream, target: End, shape: Fill) -> None:
    """Sets rows of memory. The caller goes on before, unless the memory is pinned.

    Raises CudaError.
    """
    if shape.row and shape.height:
        call.driver.work.submit(stream, *filling(call.driver, target, shape))
        if target.is_host:
            call.wait([stream.tail])


class Fill(NamedTuple):
    """Rows of `width` elements of a pattern, `pitch` bytes apart."""

    pattern: bytes
    width: int
    height: int
    pitch: int

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return self.width * len(self.pattern)


def filling(driver: Driver, target: End, shape: Fill) -> tuple[str, Run, list[Access]]:
    """(what it is, what runs, what that touches) of a fill."""
    pattern, row = shape.pattern, shape.row
    starts = range(target.address, target.address + shape.height * shape.pitch, shape.pitch)

    def run(_: Op) -> bool:
        at = target.bytes_at - target.address
        for start in starts:
            if pattern == pattern[:1] * len(pattern):
                ctypes.memset(start + at, pattern[0], row)
            else:
                ctypes.memmove(start + at, pattern * shape.width, row)
        if target.allocation is not None:
            target.allocation.written += 1
        driver.simulation.clock.advance(row * shape.height * _NS_PER_KIB >> 11)
        return True

    touches = [Access(start, start + row, "write") for start in starts]
    return f"fill of {row * shape.height} bytes at {target.address:#x}", run, touches

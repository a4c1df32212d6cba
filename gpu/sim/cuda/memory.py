"""Memory that the driver gives out: of devices, of the host with pages that stay, of modules.

One address space for all of it (unified addressing). Addresses of device memory are no memory of
the process: whoever follows one there stops. None is given out twice while there are others, so
that what was freed is noticed.
"""

from __future__ import annotations

import bisect
import ctypes
import os
from random import Random
from threading import Lock
from typing import Final

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import OutOfMemory
from gpu.sim.cuda.codes import INVALID_VALUE, OUT_OF_MEMORY, CudaError
from gpu.sim.cuda.context import Allocation, Context, MemoryKind
from gpu.sim.isa import layout

_ROOM: Final = 1 << 44  # bytes of addresses for device memory
_ALIGN: Final = 512
_LARGE: Final = 1 << 20
_LARGE_ALIGN: Final = 2 << 20
_GAP: Final = 512  # bytes behind each allocation that belong to none
_POISONED: Final = 1 << 20  # bytes of new memory that hold something
_TAIL: Final = b"\xd7"  # of what is behind the end, up to where kernels may read
_POISONS: Final = (0xFF, 0xCB, 0x7F, 0x01)
_PROTECTION: Final = hostmem.PROT_READ | hostmem.PROT_WRITE
EVERY: Final = layout.READ | layout.WRITE | layout.ATOMIC


class _Addresses:
    """Addresses for device memory, which lead to no memory of the process; for all drivers."""

    def __init__(self) -> None:
        self._next = 0
        self._end = 0
        self._lock = Lock()

    def take(self, size: int) -> int:
        """Addresses that nothing has had before. Raises CudaError where there are no more."""
        with self._lock:
            if not self._end:
                self._next = hostmem.reserve(_ROOM, align=_LARGE_ALIGN)
                self._end = self._next + _ROOM
            start = align_up(self._next, _LARGE_ALIGN if size >= _LARGE else _ALIGN)
            if start + size + _GAP > self._end:
                raise CudaError(OUT_OF_MEMORY, f"no addresses are left for {size} bytes")
            self._next = start + size + _GAP
            return start


_addresses = _Addresses()


class AddressSpace:
    """All allocations of a process, by their addresses."""

    def __init__(self, rng: Random):
        self._rng = rng
        self._starts: list[int] = []
        self._found: list[Allocation] = []
        self._made = 0
        self.reserved: dict[int, int] = {}  # addresses of cuMemAddressReserve -> bytes

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """All of them, by address."""
        return tuple(self._found)

    def allocate(self, context: Context, size: int) -> Allocation:
        """Device memory, whose contents are anything. Raises CudaError."""
        start = _addresses.take(size)
        host, mapped = _map(size)
        made = self._add("device", context, start, size, host)
        made.mapped = mapped
        ctypes.memset(host, self._rng.choice(_POISONS), min(size, _POISONED))
        ctypes.memset(host + size, _TAIL[0], made.reach - size)
        return made

    def allocate_host(self, context: Context, size: int, flags: int) -> Allocation:
        """Memory of the host whose pages stay; the device has it at the same address."""
        host, mapped = _map(size)
        made = self._add("host", context, host, size, host)
        made.mapped, made.flags = mapped, flags
        return made

    def register(self, context: Context, start: int, size: int, flags: int) -> Allocation:
        """Memory of the program whose pages stay from now on."""
        made = self._add("registered", context, start, size, start)
        made.flags = flags
        return made

    def add_module(self, context: Context, start: int, size: int, host: int) -> Allocation:
        """The variables of a module."""
        return self._add("module", context, start, size, host)

    def share(self, allocation: Allocation) -> int:
        """The file that device memory is in from now on, with what it holds. Raises CudaError."""
        if allocation.file < 0:
            size = allocation.mapped
            file = hostmem.memfd("simulated libcuda", size)
            staged = ctypes.string_at(allocation.host, allocation.reach)
            hostmem.map_fixed(file, 0, size, allocation.host, _PROTECTION, hostmem.MAP_SHARED)
            ctypes.memmove(allocation.host, staged, allocation.reach)
            allocation.file = file
        return allocation.file

    def open_shared(self, context: Context, size: int, file: int) -> Allocation:
        """Memory of another process, in a file that its `share` gave. Raises CudaError."""
        start, mapped = _addresses.take(size), align_up(size, hostmem.page_size)
        host = hostmem.map_file(file, 0, mapped, _PROTECTION, hostmem.MAP_SHARED)
        made = self._add("imported", context, start, size, host)
        made.mapped = mapped
        return made

    def reserve(self, size: int) -> int:
        """Addresses without memory. Raises CudaError."""
        start = _addresses.take(size)
        self.reserved[start] = size
        return start

    def is_reserved(self, start: int, size: int) -> bool:
        """Whether all these addresses are of one reservation."""
        return any(at <= start and start + size <= at + n for at, n in self.reserved.items())

    def map_reserved(self, context: Context, start: int, size: int, file: int) -> Allocation:
        """Memory in a file, at reserved addresses; nobody may access it yet."""
        host = hostmem.map_file(file, 0, size, _PROTECTION, hostmem.MAP_SHARED)
        made = self._add("mapped", context, start, size, host, 0)
        made.mapped = size
        return made

    def allow(self, allocation: Allocation, flags: int) -> None:
        """Kernels may access it so from now on; copies may as they may read."""
        self._forbid(allocation)
        allocation.flags = flags
        if flags:
            for context in allocation.context.seen_by():
                context.map.add(allocation.start, allocation.size, allocation.host, flags)

    def _forbid(self, allocation: Allocation) -> None:
        if allocation.kind != "mapped" or allocation.flags:
            for context in allocation.context.seen_by():
                context.map.remove(allocation.start)

    def is_overrun(self, allocation: Allocation) -> bool:
        """Whether something was written right behind the end of device memory."""
        tail = allocation.reach - allocation.size
        return ctypes.string_at(allocation.host + allocation.size, tail) != _TAIL * tail

    def free(self, allocation: Allocation) -> None:
        """Gives memory back."""
        if allocation.file >= 0:
            os.close(allocation.file)
        index = bisect.bisect_left(self._starts, allocation.start)
        assert self._found[index] is allocation
        del self._starts[index], self._found[index]
        self._forbid(allocation)
        if allocation.mapped:
            hostmem.unmap(allocation.host, allocation.mapped)
        if allocation.physical is not None:
            allocation.physical.let_go()

    def find(self, address: int) -> Allocation | None:
        """The allocation that an address lies in."""
        index = bisect.bisect(self._starts, address) - 1
        found = self._found[index] if index >= 0 else None
        return found if found is not None and address < found.end else None

    def overlaps(self, start: int, size: int) -> bool:
        """Whether bytes belong to an allocation already."""
        index = bisect.bisect_left(self._starts, start + size) - 1
        return index >= 0 and self._found[index].end > start

    def span(self, address: int, size: int, what: str) -> Allocation:
        """The allocation that bytes lie in. Raises CudaError where they do not lie in one."""
        found = self.find(address)
        if found is None:
            raise CudaError(INVALID_VALUE, f"{what} {address:#x} is no memory that the driver gave")
        if found.kind == "mapped" and not found.flags:
            raise CudaError(INVALID_VALUE, f"{what} {address:#x}: cuMemSetAccess was not called")
        if address + size > found.end:
            raise CudaError(
                INVALID_VALUE,
                f"{what}: {size} bytes at {address:#x}, and its memory ends at {found.end:#x}",
            )
        return found

    def _add(
        self,
        kind: MemoryKind,
        context: Context,
        start: int,
        size: int,
        host: int,
        flags: int = EVERY,
    ) -> Allocation:
        self._made += 1
        made = Allocation(kind, start, size, host, context, self._made)
        index = bisect.bisect(self._starts, start)
        self._starts.insert(index, start)
        self._found.insert(index, made)
        # Kernels ask before they write to the host's: see `written`.
        flags = layout.READ if made.is_host else flags
        for other in context.seen_by() if flags else ():
            other.map.add(start, made.reach, host, flags)
        return made


def _map(size: int) -> tuple[int, int]:
    """(address, bytes) of new memory of the process, which takes no room until it is touched."""
    flags = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS | hostmem.MAP_NORESERVE
    mapped = align_up(size, hostmem.page_size)
    try:
        return hostmem.map_file(-1, 0, mapped, _PROTECTION, flags), mapped
    except OutOfMemory as error:
        raise CudaError(OUT_OF_MEMORY, error.message) from error

"""Memory that a device can reach: pools of pages, and pages of the process itself.

A pool is one sparse file in memory. The model has all of it mapped, a process maps the parts that
it was given; both see the same bytes, as CPU and GPU do.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple, Protocol

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.window import MemoryWindow
from gpu.sim.kernel import CallerMemory, SysError, data_pieces, punch_hole
from gpu.sim.mapping import Mapper, map_pieces

PAGE = hostmem.page_size


class Extent(NamedTuple):
    """A piece of a pool, in bytes."""

    offset: int
    size: int


class Region(Protocol):
    """Bytes that translations lead to. Offsets are in bytes."""

    name: str
    local: bool  # the device's own memory, not the machine's

    def load(self, offset: int, size: int) -> bytes:
        """Reads bytes."""
        ...

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes."""
        ...


class Pool:
    """A file in memory that hands out whole pages; they are zero when handed out.

    Args:
        name: shown in records.
        size: in bytes; only pages that are touched cost memory.
        local: whether it is a device's own memory.
        behind_hdp: whether the CPU has a view of its own, which `flush` brings to the device. So
            writes over the PCI window stay unseen until the flush, as the host data path may do.
    """

    def __init__(self, name: str, size: int, local: bool = False, behind_hdp: bool = False):
        self.name = name
        self.local = local
        self.size = size
        self.free_bytes = size
        self._holes = [Extent(0, size)]
        self._fd, self._device = _mapped_file(name, size)
        self._cpu_fd = self._fd
        self._cpu: MemoryWindow | None = None
        self._cpu_mapped: set[tuple[Extent, ...]] = set()
        if behind_hdp:
            self._cpu_fd, self._cpu = _mapped_file(name, size)

    def allocate(self, size: int) -> tuple[Extent, ...]:
        """Whole pages, in as many pieces as it takes. Raises SysError(ENOMEM)."""
        wanted = align_up(size, PAGE)
        if wanted > self.free_bytes:
            raise SysError(errno.ENOMEM, f"{size:#x} bytes of {self.free_bytes:#x} in {self.name}")
        self.free_bytes -= wanted
        whole = next((i for i, hole in enumerate(self._holes) if hole.size >= wanted), None)
        if whole is not None:
            return (self._take(whole, wanted),)
        taken = []
        while wanted:
            taken.append(self._take(0, min(wanted, self._holes[0].size)))
            wanted -= taken[-1].size
        return tuple(taken)

    def release(self, extents: tuple[Extent, ...]) -> None:
        """Takes pages back and forgets what they held."""
        self.forget(extents)
        self._cpu_mapped.discard(extents)
        for extent in extents:
            self.free_bytes += extent.size
            self._put_back(extent)

    def contents(self, extents: tuple[Extent, ...]) -> Iterator[tuple[int, bytes]]:
        """What pieces hold that were ever written: places in all of them together, and bytes."""
        at = 0
        for extent in extents:
            for offset, size in data_pieces(self._fd, *extent):
                yield at + offset - extent.offset, self.load(offset, size)
            at += extent.size

    def forget(self, extents: tuple[Extent, ...]) -> None:
        """Loses what pages hold."""
        for extent in extents:
            for fd in {self._fd, self._cpu_fd}:
                for piece in list(data_pieces(fd, *extent)):
                    punch_hole(fd, *piece)

    def map_for_cpu(
        self,
        extents: tuple[Extent, ...],
        size: int,
        prot: int,
        flags: int,
        address: int,
        mapper: Mapper = map_pieces,
    ) -> int:
        """Maps pieces one after another into a process, by default this; returns the address."""
        if self._cpu:
            self._cpu_mapped.add(extents)
        return mapper(self._cpu_fd, extents, size, prot, flags, address)

    def map_part(
        self, offset: int, size: int, prot: int, flags: int, address: int, mapper: Mapper
    ) -> int:
        """Maps a part into a process, whoever has allocated it; returns the address."""
        return self.map_for_cpu((Extent(offset, size),), size, prot, flags, address, mapper)

    def flush(self) -> None:
        """Brings what the CPU wrote to the device; nothing to do without a view of its own."""
        if self._cpu:
            for extent in chain.from_iterable(self._cpu_mapped):
                for offset, size in data_pieces(self._cpu_fd, *extent):
                    part = self._cpu.memory[offset : offset + size]
                    self._device.memory[offset : offset + size] = part

    def host_address(self, offset: int) -> int:
        """Where the device's bytes lie in the model's own memory, all one behind the other."""
        return self._device.address + offset

    def load(self, offset: int, size: int) -> bytes:
        """Reads bytes as the device does."""
        return self._device.memory[offset : offset + size].tobytes()

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes as the device does; the CPU sees them."""
        self._device.memory[offset : offset + len(data)] = data
        if self._cpu:
            self._cpu.memory[offset : offset + len(data)] = data

    def read_word(self, offset: int, width: int) -> int:
        """One aligned word, in a single access."""
        return self._device.read(offset, width)

    def write_word(self, offset: int, width: int, value: int) -> None:
        """Writes one aligned word, in a single access."""
        self._device.write(offset, width, value)
        if self._cpu:
            self._cpu.write(offset, width, value)

    def close(self) -> None:
        """Gives all of it back; nothing may use it afterwards."""
        hostmem.unmap(self._device.address, self.size)
        os.close(self._fd)
        if self._cpu:
            hostmem.unmap(self._cpu.address, self.size)
            os.close(self._cpu_fd)

    def _take(self, index: int, size: int) -> Extent:
        hole = self._holes.pop(index)
        if hole.size > size:
            self._holes.insert(index, Extent(hole.offset + size, hole.size - size))
        return Extent(hole.offset, size)

    def _put_back(self, extent: Extent) -> None:
        at = bisect_left(self._holes, extent)
        offset, end = extent.offset, extent.offset + extent.size
        if at < len(self._holes) and self._holes[at].offset == end:
            end += self._holes.pop(at).size
        if at and sum(self._holes[at - 1]) == offset:
            offset = self._holes.pop(at - 1).offset
        insort(self._holes, Extent(offset, end - offset))


class UserPages:
    """The process's own memory as a device sees it; offsets are its addresses."""

    name = "user memory"
    local = False

    def __init__(self, user: CallerMemory):
        self._user = user

    def load(self, offset: int, size: int) -> bytes:
        """Reads bytes. Raises SysError(EFAULT) for what is not mapped any more."""
        return self._user.read(offset, size)

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes. Raises SysError(EFAULT)."""
        self._user.write(offset, data)


def _mapped_file(name: str, size: int) -> tuple[int, MemoryWindow]:
    fd = hostmem.memfd(f"sim-{name}", size)
    flags = hostmem.MAP_SHARED | hostmem.MAP_NORESERVE
    address = hostmem.map_file(fd, 0, size, hostmem.PROT_READ | hostmem.PROT_WRITE, flags)
    return fd, MemoryWindow(address, size)

"""How a function that VFIO has finds memory: the two interfaces to the IOMMU that Linux has.

`Type1` is the older one, of containers and groups, `Iommufd` the newer one. Both pin the pages that
are mapped and translate addresses of the bus that are chosen here, from the ranges that the kernel
says can be. Sources: include/uapi/linux/vfio.h and iommufd.h, drivers/vfio/vfio_iommu_type1.c and
drivers/iommu/iommufd of Linux 6.12.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from gpu.autogen import iommufd, vfio
from gpu.core import hostmem
from gpu.core.bits import align_down, align_up, round_up_power_of_two
from gpu.core.errors import OutOfMemory, TransportError, Unsupported
from gpu.core.pci import BusAddr
from gpu.core.ref import Ref
from gpu.core.tlsf import Tlsf
from gpu.transport.os import Os

_END: Final = 1 << 44
"""Bus addresses are below: AMD's page tables hold no higher ones before gfx12."""
_LARGE_PAGE: Final = 2 << 20
_CAP_IOVA_RANGES, _CAP_DMA_AVAIL = 1, 3  # VFIO_IOMMU_TYPE1_INFO_CAP_*
_INFO_PGSIZES, _INFO_CAPS = 1, 2  # VFIO_IOMMU_INFO_*
_INFO_SIZE: Final = 4096
_DEV_IOMMU: Final = "/dev/iommu"


class Iommu(Protocol):
    """Gives a function memory of this process, until `close`."""

    def map(self, address: int, size: int) -> BusAddr:
        """Whole pages, one behind the other on the bus. Raises OutOfMemory, TransportError."""
        ...

    def unmap(self, bus: BusAddr, size: int) -> None:
        """Takes back what `map` gave."""
        ...

    def close(self) -> None:
        """Ends all of it."""
        ...


class BusAddresses:
    """Which addresses of the bus are in use, of ranges that may be used (first and last byte)."""

    def __init__(self, ranges: Sequence[tuple[int, int]], granule: int):
        """Raises Unsupported where no address below 2^44 may be used."""
        self.granule = granule
        self._parts = [
            Tlsf(start, end - start, granule)
            for first, last in ranges
            for start in [align_up(max(first, granule), granule)]  # 0 stays free: it means none
            for end in [align_down(min(last + 1, _END), granule)]
            if end > start
        ]
        if not self._parts:
            told = ", ".join(f"{first:#x} to {last:#x}" for first, last in ranges) or "none"
            raise Unsupported(f"the IOMMU has no bus addresses below {_END:#x}; it has {told}")

    def take(self, size: int) -> BusAddr:
        """Room for some bytes, so aligned that large pages fit. Raises OutOfMemory."""
        align = max(self.granule, min(round_up_power_of_two(size), _LARGE_PAGE))
        for part in self._parts:
            try:
                return BusAddr(part.alloc(size, align))
            except OutOfMemory:
                continue
        raise OutOfMemory(f"{size:#x} bytes of bus addresses: no range of the IOMMU has room")

    def give(self, bus: BusAddr) -> None:
        """Takes back what `take` gave."""
        for part in self._parts:
            if part.base <= bus < part.base + part.size:
                part.free(bus)


class Type1:
    """A container of VFIO's with groups in it."""

    def __init__(self, system: Os, container: int):
        """`container` has its IOMMU set. Raises Unsupported, TransportError."""
        self._os = system
        self._container = container
        info = bytearray(_INFO_SIZE)
        head = vfio.vfio_iommu_type1_info.from_buffer(info)
        head.argsz = _INFO_SIZE
        system.ioctl(container, vfio.VFIO_IOMMU_GET_INFO, info)
        sizes = head.iova_pgsizes if head.flags & _INFO_PGSIZES else hostmem.page_size
        ranges, self._entries = [(0, _END - 1)], None
        for kind, at in info_capabilities(info, head.cap_offset if head.flags & _INFO_CAPS else 0):
            if kind == _CAP_IOVA_RANGES:
                ranges = list(_pairs(info, at))
            elif kind == _CAP_DMA_AVAIL:
                self._entries = int.from_bytes(info[at + 8 : at + 12], "little")
        granule = max(sizes & -sizes, hostmem.page_size)
        self._addresses = BusAddresses(ranges, granule)

    def map(self, address: int, size: int) -> BusAddr:
        """See `Iommu.map`."""
        bus = self._addresses.take(size)
        flags = vfio.VFIO_DMA_MAP_FLAG_READ | vfio.VFIO_DMA_MAP_FLAG_WRITE
        length = ctypes.sizeof(vfio.vfio_iommu_type1_dma_map)
        argument = vfio.vfio_iommu_type1_dma_map(length, flags, address, bus, size)
        try:
            self._os.ioctl(self._container, vfio.VFIO_IOMMU_MAP_DMA, argument)
        except TransportError as error:
            self._addresses.give(bus)
            raise _explained(error, size, self._entries) from error
        return bus

    def unmap(self, bus: BusAddr, size: int) -> None:
        """See `Iommu.unmap`."""
        length = ctypes.sizeof(vfio.vfio_iommu_type1_dma_unmap)
        argument = vfio.vfio_iommu_type1_dma_unmap(length, 0, bus, size)
        self._os.ioctl(self._container, vfio.VFIO_IOMMU_UNMAP_DMA, argument)
        self._addresses.give(bus)

    def close(self) -> None:
        """Closes the container."""
        self._os.close(self._container)


class Iommufd:
    """An address space of iommufd's, to which one device is attached."""

    def __init__(self, system: Os, device: int):
        """Binds an open device of VFIO's and attaches it. Raises TransportError, AccessDenied."""
        self._os = system
        self._fd = system.open(_DEV_IOMMU, 2)
        try:
            bind = vfio.vfio_device_bind_iommufd(
                ctypes.sizeof(vfio.vfio_device_bind_iommufd), 0, self._fd
            )
            system.ioctl(device, vfio.VFIO_DEVICE_BIND_IOMMUFD, bind)
            alloc = iommufd.iommu_ioas_alloc(ctypes.sizeof(iommufd.iommu_ioas_alloc))
            system.ioctl(self._fd, iommufd.IOMMU_IOAS_ALLOC, alloc)
            self._ioas = alloc.out_ioas_id
            attach = vfio.vfio_device_attach_iommufd_pt(
                ctypes.sizeof(vfio.vfio_device_attach_iommufd_pt), 0, self._ioas
            )
            system.ioctl(device, vfio.VFIO_DEVICE_ATTACH_IOMMUFD_PT, attach)
            ranges, alignment = self._ranges()
            self._addresses = BusAddresses(ranges, max(alignment, hostmem.page_size))
        except BaseException:
            system.close(self._fd)
            raise

    def map(self, address: int, size: int) -> BusAddr:
        """See `Iommu.map`."""
        bus = self._addresses.take(size)
        flags = (
            iommufd.IOMMU_IOAS_MAP_FIXED_IOVA
            | iommufd.IOMMU_IOAS_MAP_READABLE
            | iommufd.IOMMU_IOAS_MAP_WRITEABLE
        )
        length = ctypes.sizeof(iommufd.iommu_ioas_map)
        argument = iommufd.iommu_ioas_map(length, flags, self._ioas, 0, address, size, bus)
        try:
            self._os.ioctl(self._fd, iommufd.IOMMU_IOAS_MAP, argument)
        except TransportError as error:
            self._addresses.give(bus)
            raise _explained(error, size, None) from error
        return bus

    def unmap(self, bus: BusAddr, size: int) -> None:
        """See `Iommu.unmap`."""
        length = ctypes.sizeof(iommufd.iommu_ioas_unmap)
        argument = iommufd.iommu_ioas_unmap(length, self._ioas, bus, size)
        self._os.ioctl(self._fd, iommufd.IOMMU_IOAS_UNMAP, argument)
        self._addresses.give(bus)

    def close(self) -> None:
        """Closes the address space; the device is closed by whoever opened it."""
        self._os.close(self._fd)

    def _ranges(self) -> tuple[list[tuple[int, int]], int]:
        """What may be used, and the smallest page."""
        argument = iommufd.iommu_ioas_iova_ranges(
            ctypes.sizeof(iommufd.iommu_ioas_iova_ranges), self._ioas
        )
        while True:
            count = argument.num_iovas
            room = (iommufd.iommu_iova_range * max(count, 1))()
            argument.allowed_iovas = ctypes.addressof(room) if count else 0
            size = ctypes.sizeof(iommufd.iommu_iova_range)
            pointer = Ref(16, count_offset=8, item_size=size)  # allowed_iovas, num_iovas
            try:
                self._os.ioctl(self._fd, iommufd.IOMMU_IOAS_IOVA_RANGES, argument, [pointer])
            except TransportError as error:
                # What could be used may have shrunk or grown since it was counted.
                if error.errno != errno.EMSGSIZE or argument.num_iovas <= count:
                    raise
                continue
            found = room[: argument.num_iovas]
            return [(each.start, each.last) for each in found], argument.out_iova_alignment


def _explained(error: TransportError, size: int, entries: int | None) -> Exception:
    """What a mapping that failed lacked, where the errno tells."""
    if error.errno == errno.ENOMEM:
        return OutOfMemory(
            f"{size:#x} bytes for DMA: {error.message}. Pages that a device reaches are locked, and"
            " this user may lock fewer: look with `ulimit -l`, and raise it by a line such as"
            " `@render - memlock unlimited` in /etc/security/limits.d/gpu.conf and a new login"
        )
    if error.errno == errno.ENOSPC:
        limit = "" if entries is None else f"; this container began with {entries} left"
        return OutOfMemory(
            f"{size:#x} bytes for DMA: {error.message}. VFIO allows so many mappings and no more"
            f" (dma_entry_limit of vfio_iommu_type1{limit}): free some, or raise it by `options"
            " vfio_iommu_type1 dma_entry_limit=1048576` in /etc/modprobe.d/vfio.conf"
        )
    return error


def info_capabilities(info: bytearray, at: int) -> Iterator[tuple[int, int]]:
    """Number and place of each capability in a chain (struct vfio_info_cap_header)."""
    seen = set[int]()
    while 0 < at <= len(info) - 8 and at not in seen:
        seen.add(at)
        yield int.from_bytes(info[at : at + 2], "little"), at
        at = int.from_bytes(info[at + 4 : at + 8], "little")


def _pairs(info: bytearray, at: int) -> Iterator[tuple[int, int]]:
    """First and last address of each range (struct vfio_iommu_type1_info_cap_iova_range)."""
    count = int.from_bytes(info[at + 8 : at + 12], "little")
    for start in range(at + 16, min(at + 16 + 16 * count, len(info) - 15), 16):
        first, last = (
            int.from_bytes(info[each : each + 8], "little") for each in (start, start + 8)
        )
        yield first, last

"""mmap of objects and of the memstore (kgsl.c, `kgsl_get_unmapped_area` and `kgsl_mmap`)."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final

from gpu.core import hostmem
from gpu.core.errors import OutOfMemory, TransportError
from gpu.sim.kernel import SysError
from gpu.sim.kgsl.driver.device import Device
from gpu.sim.kgsl.driver.objects import KgslProcess, MemObject
from gpu.sim.kgsl.driver.properties import MEMSTORE_TOKEN
from gpu.sim.mapping import map_pieces
from gpu.sim.physical import Extent
from gpu.sim.process import SimProcess
from gpu.sim.translate import PAGE_SIZE

_ALIGNS: Final = (1 << 21, 1 << 20, 1 << 16)  # what is kept of an alignment (`get_align`)
_FIXED: Final = hostmem.MAP_FIXED | hostmem.MAP_FIXED_NOREPLACE


@dataclass(frozen=True, slots=True)
class MapRequest:
    """A call of mmap, of whole pages.

    Attributes:
        owner: who opened the file that `process` maps.
    """

    device: Device
    owner: KgslProcess
    process: SimProcess
    size: int
    prot: int
    flags: int
    offset: int
    address: int

    @property
    def is_fixed(self) -> bool:
        """Whether only one address will do."""
        return bool(self.flags & _FIXED)

    def carry_out(self) -> int:
        """Maps the object whose id is the page number of the offset; returns the address.

        Raises SysError.
        """
        if self.offset == MEMSTORE_TOKEN:
            return self._map_memstore()
        item = self._find()
        at = self._map_shared(item) if item.uses_cpu_map else self._map(item, self.address)
        if self.process.mapper is map_pieces:  # else another real process maps, and unmaps, unseen
            item.cpu_mappings.append(at)
            self.owner.mapped[at] = item
        return at

    def _map_memstore(self) -> int:
        if self.prot & hostmem.PROT_WRITE:
            raise SysError(errno.EPERM, "the memstore is only read")
        memstore = self.device.memstore
        if self.size != memstore.size:
            raise SysError(errno.EINVAL, "the memstore is mapped whole")
        flags = self.flags & _FIXED | hostmem.MAP_SHARED
        return memstore.map_part(0, self.size, self.prot, flags, self.address, self.process.mapper)

    def _find(self) -> MemObject:
        """`get_mmap_entry`."""
        number = self.offset // PAGE_SIZE
        item = self.owner.find(number) or self.owner.find_address(self.offset)
        if item is None:
            raise SysError(errno.EINVAL, f"offset {self.offset:#x} names no object")
        if item.is_user:
            raise SysError(errno.EBUSY, f"{item} is memory of the process already")
        sizes = {item.footprint} if item.uses_cpu_map else {item.footprint, item.size}
        if self.size not in sizes:
            raise SysError(
                errno.ERANGE, f"{item} has {item.footprint:#x} bytes, not {self.size:#x}"
            )
        return item

    def _map(self, item: MemObject, address: int, flags: int = 0) -> int:
        memory = self.device.pages.memory
        is_behind_cache = any(piece.cached for piece in item.pieces)
        pool = memory.cpu if is_behind_cache else memory.pages
        extents = item.extents
        if self.size > item.size:
            guard = self.device.pages.guard
            extents = (*extents, Extent(guard.offset, guard.size))
        flags |= self.flags & _FIXED | hostmem.MAP_SHARED
        return pool.map_for_cpu(extents, self.size, self.prot, flags, address, self.process.mapper)

    def _map_shared(self, item: MemObject) -> int:
        """Maps where CPU and GPU can have the same address (`get_svm_unmapped_area`)."""
        if item.address:
            raise SysError(errno.EBUSY, f"{item} has an address already, {item.address:#x}")
        align = next((each for each in _ALIGNS if item.alignment >= each), PAGE_SIZE)
        space, svm = self.owner.space, self.device.release.svm
        if self.is_fixed:
            if self.address % align:
                raise SysError(errno.EINVAL, f"{self.address:#x} is no multiple of {align:#x}")
            if not self._can_share(self.address):
                raise SysError(errno.ENOMEM, f"{self.address:#x} cannot be the GPU's, too")
            self._map(item, self.address)
            item.address = self.address
        elif self.address and not self.address % align and self._can_share(self.address):
            item.address = self._try(item, self.address)
        below, step = svm.stop, self.size
        while not item.address:
            at = space.high_hole(svm, below, self.size, align)
            item.address = self._try(item, at)
            below, step = at + self.size - step, 2 * step  # something of the process's is there
        space.map(item)
        return item.address

    def _can_share(self, address: int) -> bool:
        svm = self.device.release.svm
        is_there = svm.start <= address and address + self.size <= svm.stop
        return is_there and self.owner.space.is_free(address, self.size)

    def _try(self, item: MemObject, address: int) -> int:
        """Maps at an address; 0 where something of the process's is there."""
        try:
            self._map(item, address, hostmem.MAP_FIXED_NOREPLACE)
        except OutOfMemory as error:
            raise SysError(errno.ENOMEM, str(error)) from error
        except TransportError as error:
            if error.errno != errno.EEXIST:
                raise
            return 0
        return address

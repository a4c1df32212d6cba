"""What containers of VFIO's and address spaces of iommufd's share: mapped and pinned memory.

drivers/vfio/vfio_iommu_type1.c and drivers/iommu/iommufd of Linux 6.12.
"""

from __future__ import annotations

import errno
from typing import Final

from gpu.sim.kernel import SysError
from gpu.sim.pci.host import HostFunction, HostPciModel
from gpu.sim.physical import UserPages
from gpu.sim.process import SimProcess
from gpu.sim.translate import PAGE_SIZE, AddressSpace, Mapping

# As Intel's and AMD's IOMMUs leave them: below and above the window of interrupts, 48 bits.
RANGES: Final = ((0x0000_0000, 0xFEDF_FFFF), (0xFEF0_0000, (1 << 48) - 1))
_PROBED: Final = 64


class Domain:
    """An address space of functions, until it is closed."""

    def __init__(self, model: HostPciModel):
        self.space = AddressSpace()
        self._model = model
        self._pinned = 0

    @property
    def left(self) -> int:
        """How many mappings may still be made."""
        return self._model.most_mappings - len(self.starts())

    def starts(self) -> dict[int, int]:
        """Where each mapping begins and ends."""
        return {m.start: m.end for m in self.space.all()}

    def attach(self, function: HostFunction) -> None:
        """From now on the function reaches what is mapped here, and nothing else."""
        self._model.isolate(function, self.space)

    def map(self, process: SimProcess, user: int, iova: int, size: int, writable: bool) -> None:
        """Pins and maps. Raises SysError: EINVAL, EEXIST, ENOSPC, ENOMEM, EFAULT."""
        if not size or (size | iova | user) % PAGE_SIZE:
            raise SysError(errno.EINVAL, f"{size:#x} bytes at {user:#x} for {iova:#x}: no pages")
        if not any(first <= iova and iova + size - 1 <= last for first, last in RANGES):
            raise SysError(errno.EINVAL, f"{iova:#x} is in no range of the IOMMU")
        if self.space.overlapping(iova, iova + size):
            raise SysError(errno.EEXIST, f"{iova:#x} is mapped")
        if not self.left:
            raise SysError(errno.ENOSPC, "dma_entry_limit")
        if self._pinned + size > self._model.memlock:
            raise SysError(errno.ENOMEM, "RLIMIT_MEMLOCK")
        for page in range(user, user + size, max(size // _PROBED // PAGE_SIZE, 1) * PAGE_SIZE):
            process.user.read(page, 1)  # EFAULT
        self._pinned += size
        region = UserPages(process.user)
        self.space.map(Mapping(iova, iova + size, region, user, writable))

    def unmap(self, iova: int, size: int) -> int:
        """Takes whole mappings away; how many bytes they had. Raises SysError(EINVAL)."""
        if not size or (size | iova) % PAGE_SIZE:
            raise SysError(errno.EINVAL)
        inside = {a: b for a, b in self.starts().items() if a < iova + size and b > iova}
        if any(start < iova or end > iova + size for start, end in inside.items()):
            raise SysError(errno.EINVAL, "a part of a mapping")
        for start in inside:
            self.space.unmap(start)
        self.space.flush_tlb()
        gone = sum(end - start for start, end in inside.items())
        self._pinned -= gone
        return gone

    def clear(self) -> None:
        """Takes all away."""
        for start in self.starts():
            self.space.unmap(start)
        self.space.flush_tlb()
        self._pinned = 0

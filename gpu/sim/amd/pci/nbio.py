"""The bridge to the bus: registers and memory beyond the BARs, HDP, doorbell ports.

From nbio_v4_3.c, nbif_v6_3_1.c, hdp_v6_0.c and amdgpu_device.c of Linux 6.12.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu.core import hostmem
from gpu.core.window import MemoryWindow
from gpu.sim.amd.pci.registers import Refused
from gpu.sim.amd.pci.silicon import Silicon
from gpu.sim.kernel import SysError
from gpu.sim.mapping import Mapper
from gpu.sim.physical import PAGE, Extent, Pool

HOLE: Final = 0x80000 - 4096
"""The page of BAR 5 without registers, in bytes (nbif_v6_3_1.c MMIO_REG_HOLE_OFFSET)."""
DOORBELL_BYTES: Final = 2 << 20
_VRAM_SPACE: Final = 1 << 31
_UNWRITTEN: Final = 0xB1A5_B1A5
_FLUSH: Final = "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL"
# Both lead to any register by its byte address; Linux takes the second (nbio_v4_3.c).
_INDIRECT: Final = (
    ("BIF_BX0_PCIE_INDEX2", "BIF_BX0_PCIE_DATA2"),
    ("BIF_BX_PF0_RSMU_INDEX", "BIF_BX_PF0_RSMU_DATA"),
)
_REQUEST, _DONE = "BIF_BX_PF0_GPU_HDP_FLUSH_REQ", "BIF_BX_PF0_GPU_HDP_FLUSH_DONE"
_APERTURE: Final = "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN"


def cpu_memory(pool: Pool, size: int) -> MemoryWindow:
    """The first bytes of a pool as the CPU sees them."""
    protection = hostmem.PROT_READ | hostmem.PROT_WRITE
    address = pool.map_for_cpu((Extent(0, size),), size, protection, hostmem.MAP_SHARED, 0)
    return MemoryWindow(address, size)


class Nbio:
    """The bridge.

    Attributes:
        doorbells: the page of BAR 2 that rings queues.
    """

    def __init__(self, chip: Silicon):
        self._chip = chip
        self._hole = Pool("remapped registers", PAGE)
        self.doorbells = Pool("doorbells", DOORBELL_BYTES)
        regs = chip.regs
        for name, address in (("MM_INDEX", 0), ("MM_DATA", 1), ("MM_INDEX_HI", 6)):
            regs.add(name, address, "NBIF")
        self._add_rsmu()
        regs.begin("RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE", chip.vram.size >> 20)
        regs.begin(_FLUSH, HOLE)
        regs.begin("RCC_DEV0_EPF2_STRAP2", 1 << 7)
        regs.hook("RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE", write=self._read_only)
        regs.hook(_FLUSH, write=self._remap)
        regs.hook("MM_DATA", self._read_vram, self._write_vram)
        for index, data in _INDIRECT:
            read, write = partial(self._read_indirect, index), partial(self._write_indirect, index)
            regs.hook(data, read, write)
        regs.hook(_REQUEST, write=self._request)
        regs.hook(_DONE, write=self._read_only)
        entry = "S2A_DOORBELL_ENTRY_{}_CTRL"
        self._entry = entry if entry.format(0) in regs.names() else f"GDC_S2A0_{entry}"
        self._arm()

    def reset(self) -> None:
        """What software put into memory of the bridge is gone."""
        self.doorbells.forget((Extent(0, DOORBELL_BYTES),))
        self._arm()

    def close(self) -> None:
        """Gives memory back."""
        self._hole.close()
        self.doorbells.close()

    def sample(self) -> None:
        """Looks whether the flush was written where it is mapped as memory."""
        if self._hole.read_word(self._flush_at, 4) != _UNWRITTEN:
            self._chip.vram.flush()
            self._arm()

    def writes_hole(self, offset: int) -> bool:
        """Whether a register access is one of the page without registers; a flush if it is that."""
        if not HOLE <= offset < HOLE + PAGE:
            return False
        if offset - HOLE != self._flush_at:
            self._chip.violation(
                f"an access at {offset:#x} of BAR 5, where no register is remapped: HDP's flush is "
                f"at {HOLE + self._flush_at:#x}"
            )
        else:
            self._chip.vram.flush()
        return True

    def map_hole(
        self, offset: int, size: int, prot: int, flags: int, address: int, mapper: Mapper
    ) -> int:
        """The page without registers in a process. Raises SysError for other parts of BAR 5."""
        if (offset, size) != (HOLE, PAGE):
            raise SysError(22, f"BAR 5 at {offset:#x} has registers: only {HOLE:#x} is memory here")
        return self._hole.map_for_cpu((Extent(0, PAGE),), size, prot, flags, address, mapper)

    def why_no_doorbell(self, index: int, port: int, awid: int) -> str:
        """Why a doorbell, in dwords, does not get through a port to its engine; empty if it does.

        Ports 0 and 3 lead to the graphics core (AWID 3 and 6), 2 to the copy engines (0xe).
        """
        regs, name = self._chip.regs, self._entry.format(port)
        if not regs.value(_APERTURE) & 1:
            return f"{_APERTURE} is 0"
        value = regs.value(name)
        if not value & 1:
            return f"{name} is {value:#x}: the port is not enabled"
        if value >> 1 & 0x1F != awid:
            return f"{name} has AWID {value >> 1 & 0x1F:#x}, not {awid:#x}"
        first, size = value >> 7 & 0x3FF, value >> 17 & 0xFF
        if size and not first <= index < first + size:
            return f"{name} covers dwords {first:#x} to {first + size:#x}, not {index:#x}"
        return ""

    @property
    def _flush_at(self) -> int:
        return self._chip.regs.value(_FLUSH) - HOLE

    def _arm(self) -> None:
        self._hole.write_word(self._flush_at, 4, _UNWRITTEN)

    def _remap(self, value: int) -> None:
        if not HOLE <= value < HOLE + PAGE or value % 4:
            raise Refused(f"it points into the page at {HOLE:#x}, where no registers are")
        self._chip.regs.set(_FLUSH, value)
        self._arm()

    def _request(self, value: int) -> None:
        self._chip.vram.flush()
        self._chip.regs.set(_DONE, value)

    def _read_only(self, value: int) -> None:
        raise Refused("it is read-only")

    def _add_rsmu(self) -> None:
        """Those of nbio_4_3_0_offset.h, nbif_6_3_1_offset.h: dwords 0 and 1 of segment 1."""
        regs, base = self._chip.regs, self._chip.board.block("NBIF").bases[1]
        for name, offset in zip(_INDIRECT[1], (0, 1), strict=True):
            if name not in regs.names():
                regs.add(name, base + offset, "NBIF")

    def _indirect(self, index: str) -> int:
        regs = self._chip.regs
        address = regs.value(index)
        if index.endswith("INDEX2"):
            address |= regs.value("BIF_BX0_PCIE_INDEX2_HI") << 32
        own = {regs.address(name) for pair in _INDIRECT for name in pair}
        if address % 4 or address // 4 in own:
            raise Refused(f"{index} is {address:#x}: the byte address of another register")
        return address // 4

    def _read_indirect(self, index: str) -> int:
        return self._chip.regs.read(self._indirect(index))

    def _write_indirect(self, index: str, value: int) -> None:
        self._chip.regs.write(self._indirect(index), value)

    def _vram_address(self) -> int:
        regs = self._chip.regs
        index = regs.value("MM_INDEX")
        if not index & _VRAM_SPACE:
            raise Refused(f"MM_INDEX is {index:#x}: bit 31 makes it an address of video memory")
        address = regs.value("MM_INDEX_HI") << 31 | index & _VRAM_SPACE - 1
        if address % 4 or address >= self._chip.vram.size:
            raise Refused(f"MM_INDEX leads to {address:#x}, beyond video memory or between words")
        return address

    def _read_vram(self) -> int:
        return self._chip.vram.read_word(self._vram_address(), 4)

    def _write_vram(self, value: int) -> None:
        self._chip.vram.write_word(self._vram_address(), 4, value)

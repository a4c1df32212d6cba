"""Video memory as the host sees it, and the registers about it.

WPR2 is the part that only GSP may touch: dev_fb.h of tu102, NV_PFB_PRI_MMU_WPR2_ADDR. That reads
of it bring ones is the model's own (U), and that BAR 1 shows memory by its physical addresses until
a driver gives it page tables, which is not modelled.
"""

from __future__ import annotations

from typing import Final

from gpu.core.window import TrappedWindow
from gpu.sim.kernel import SysError
from gpu.sim.mapping import Mapper
from gpu.sim.nv.pci.silicon import Halt, Silicon
from gpu.sim.physical import Extent

INSTANCE_BYTES: Final = 32 << 20
_WPR2: Final = 0x1FA824
_SIZE: Final = 0x1183A4  # NV_PGC6_AON_SECURE_SCRATCH_GROUP_42: MiB (nouveau, fb/ga102.c)


def address_field(address: int) -> int:
    """As the WPR2 registers have an address: in 4 KiB, from bit 4 on."""
    return address >> 12 << 4


class Memory:
    """Video memory behind BAR 1, and BAR 2 (of instance blocks).

    Attributes:
        frame, instance: windows of the two.
    """

    def __init__(self, chip: Silicon):
        self._chip = chip
        size = min(chip.board.chip.bar1_size, chip.vram.size)
        self._shown = Extent(0, size)
        self.frame = TrappedWindow(chip.board.chip.bar1_size, self._read, self._write)
        self.instance = TrappedWindow(INSTANCE_BYTES, self._read_instance, self._write_instance)
        regs, low, high = chip.regs, "NV_PFB_PRI_MMU_WPR2_ADDR_LO", "NV_PFB_PRI_MMU_WPR2_ADDR_HI"
        regs.add(low, _WPR2, read=lambda: address_field(self._bounds[0]), writable=False)
        regs.add(high, _WPR2 + 4, read=lambda: address_field(self._bounds[1]), writable=False)
        name = "NV_PGC6_AON_SECURE_SCRATCH_GROUP_42"
        regs.add(name, _SIZE, chip.vram.size >> 20, writable=False)
        page = chip.board.flush_page
        for name, address in zip(page.names, page.places, strict=True):
            regs.add(name, address)

    def flush(self) -> None:
        """What an engine does as it is reset: it writes the page that flushes system memory.

        Raises Halt where a driver told of none, or of one that is not the card's
        (kmemsysInitFlushSysmemBuffer).
        """
        page = self._chip.board.flush_page
        low, high = (self._chip.regs.value(name) for name in page.names)
        what = "the page that flushes system memory"
        if not high | low:
            raise Halt(f"nobody told of {what}")
        self._chip.put((high << 32 | low) << page.shift, bytes(4), what)

    def map_frame(
        self, offset: int, size: int, prot: int, flags: int, address: int, mapper: Mapper
    ) -> int:
        """Video memory in a process. Raises SysError beyond its end."""
        if offset + size > self._shown.size:
            raise SysError(22, f"{size:#x} bytes of BAR 1 at {offset:#x} of {self._shown.size:#x}")
        extents = (Extent(offset, size),)
        return self._chip.vram.map_for_cpu(extents, size, prot, flags, address, mapper)

    @property
    def _bounds(self) -> tuple[int, int]:
        """Where WPR2 begins, and where its last 4 KiB do; 0 and 0 while it is down."""
        wpr2 = self._chip.wpr2
        return (wpr2.start, wpr2.stop - 4096) if wpr2 else (0, 0)

    def _read(self, offset: int, width: int) -> int:
        if not self._is_allowed("a read", offset, width):
            return (1 << 8 * width) - 1
        return int.from_bytes(self._chip.vram.load(offset, width), "little")

    def _write(self, offset: int, width: int, value: int) -> None:
        if self._is_allowed("a write", offset, width):
            self._chip.vram.store(offset, value.to_bytes(width, "little"))

    def _is_allowed(self, what: str, offset: int, width: int) -> bool:
        chip = self._chip
        if offset + width > chip.vram.size:
            chip.violation(f"{what} of BAR 1 at {offset:#x}, beyond video memory")
            return False
        if offset in chip.wpr2:
            chip.violation(f"{what} of BAR 1 at {offset:#x}, which WPR2 protects")
            return False
        return True

    def _read_instance(self, offset: int, width: int) -> int:
        self._unbound("a read", offset)
        return (1 << 8 * width) - 1

    def _write_instance(self, offset: int, width: int, value: int) -> None:
        self._unbound("a write", offset)

    def _unbound(self, what: str, offset: int) -> None:
        self._chip.violation(f"{what} of BAR 2 at {offset:#x}, which no page table is bound to")

"""A card of NVIDIA's while it is brought up: its registers, its chip, what was placed for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import DeviceLost, Unsupported
from gpu.core.firmware import load as load_firmware
from gpu.core.regs import RegMap
from gpu.core.wait import Waiter
from gpu.drivers.boot import BootError
from gpu.drivers.card import ALL_ONES, Load, PciCard
from gpu.drivers.nv.pci.chips import Chip
from gpu.drivers.nv.pci.registers import Registers, is_error
from gpu.transport.pci.function import DmaMemory, PciFunction

MMIO_BAR, VRAM_BAR, INSTANCE_BAR = 0, 1, 3
PAGE: Final = 4096
_MOST_TOLD: Final = 16


class NvCard(PciCard):
    """What a boot, and the engines that it starts, know of a card.

    Attributes: those of `PciCard`, and
        registers: by name.
        chip: its row, once PMC_BOOT_42 was read; ``chip_name`` is the chip's own.
        vram_size: bytes of video memory that may be used.
        state: ``cold``, or ``alive`` where somebody's GSP ran.
        lock: is held by who begins something that has a time, once several threads may.
        told: errors that firmware told of and nobody has taken yet, in words, the youngest.
        lost: why firmware is not asked any more; empty while it is.
    """

    chip: Chip
    chip_name: str = ""
    vram_size: int = 0
    state: str = ""
    lost: str = ""

    def __init__(self, function: PciFunction, waiter: Waiter, *, load: Load = load_firmware):
        """``load`` gives what a firmware file holds."""
        super().__init__(function, waiter, MMIO_BAR, load)
        self.registers = Registers(self.mmio)
        self.lock = threading.RLock()
        self.told: deque[str] = deque(maxlen=_MOST_TOLD)

    def register_name(self, offset: int) -> str | None:
        """As `PciCard`."""
        return self.registers.name_of(offset)

    def title_of(self, block: RegMap, name: str) -> str:
        """A register in words, for errors."""
        return self.register_name(block.offset_of(name)) or name

    def wait(
        self,
        block: RegMap,
        name: str,
        accepts: Callable[[int], bool],
        wanted: str,
        most: float = 5.0,
    ) -> int:
        """Re-reads a register until its value is accepted, which is neither all ones nor an error.

        Raises as `PciCard.wait_value`.
        """
        offset = block.offset_of(name)
        return self.wait_value(
            lambda: self.mmio.read(offset, 4),
            lambda value: value != ALL_ONES and not is_error(value) and accepts(value),
            *(self.title_of(block, name), wanted, most),
        )

    def fail(self, block: RegMap, name: str, value: int, wanted: str, more: str = "") -> BootError:
        """The error that a register is not as wanted."""
        return self.fail_at(self.title_of(block, name), value, wanted, more)

    def fail_at(self, title: str, value: int, wanted: str, more: str = "") -> BootError:
        """The same of anything that was looked at."""
        return BootError(self.step, title, value, wanted, more)

    # Memory of the machine

    def place(self, data: bytes, what: str, size: int | None = None) -> int:
        """Puts bytes into memory that the card reaches, in one piece; where it finds them.

        ``size`` is how much it gets, by default whole pages. Raises Unsupported as `bus_pages`.
        """
        memory = self.allocate_dma(align_up(max(size or 0, len(data), 1), PAGE))
        memory.window.store(0, data)
        return self.bus_pages(memory, what)[0]

    def bus_pages(self, memory: DmaMemory, what: str) -> list[int]:
        """Where the card finds each page of some memory.

        Raises Unsupported where that is more than its addresses have bits for.
        """
        pages = [
            int(piece.address) + at for piece in memory.pieces for at in range(0, piece.size, PAGE)
        ]
        limit = 1 << self.chip.address_bits
        if max(pages) + PAGE > limit:
            raise Unsupported(
                f"{self.name}: {what} is at {max(pages):#x} on the bus, and a {self.chip_name}"
                f" reaches {self.chip.address_bits} bits: its IOMMU must give lower addresses"
            )
        return pages

    def check(self) -> None:
        """Raises DeviceLost where the card does not answer."""
        self.function.check()
        if self.mmio.read(0, 4) == ALL_ONES:
            raise DeviceLost(f"{self.name}: its registers read as ones: it is gone, or in reset")

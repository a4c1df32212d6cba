"""What the bridge's 8051 sees: its RAM, windows into SRAM, and registers.

Addresses are of tinygrad/asm2464pd-firmware c5e2090: USBGPU.md, src/include/registers.h. A register
that this model does not have is refused: nothing public says what touching it does.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.usb.config import Refuse
from gpu.sim.usb.link import Link
from gpu.sim.usb.sram import PAGE, Memory, SramEngine
from gpu.sim.usb.tlp import COMPLETION, KIND, TlpEngine

SIZE: Final = 1 << 16
LTSSM, PERST, LINK_UP, LINK_INFO = 0xB450, 0xB480, 0xE765, 0x4092
RAM_BYTES: Final = 0x6000
_UP, _HELD = 2, 1
_PHY: Final = 1  # the bank of the PHY's registers
_PLAIN: Final = (
    *(0xB298, 0xB403, 0xB430, 0xB431, 0xC656, 0xC659, 0xE764),  # what powering on writes
    *range(0xC412, 0xC416),  # those of the transfer engine
    *range(0xC420, 0xC42E),
    *range(0xCE40, 0xCE44),
    *(0xCE6E, 0xCE6F),
)
_BUFFERS: Final = ((0x7000, 0x1000), (0x8000, 0x1000), (0x9E00, 0x200))
_TRAINED: Final = {0xB451: 1, 0xB452: 1, 0xB453: 1, 0xB454: 0x1F, 0xB455: 0x19}
_READ_ONLY: Final = (LTSSM, LINK_UP, *_TRAINED, COMPLETION, COMPLETION + 1, KIND)


class Xdata:
    """The address space, byte by byte.

    Attributes:
        ram: its first bytes.
        plain: registers that hold what was written to them.
    """

    def __init__(self, sram: SramEngine, tlp: TlpEngine, link: Link, refuse: Refuse):
        self._tlp, self._link, self._refuse = tlp, link, refuse
        self.ram = Memory("RAM", RAM_BYTES)
        self.plain = dict.fromkeys(_PLAIN, 0)
        self._spans: list[tuple[int, int, Memory]] = [
            (0, RAM_BYTES, self.ram),
            (0xA000, PAGE, sram.queue),
            (0xB000, 0x200, sram.admin),
            (0xB800, 0x800, sram.completions),
            (0xF000, PAGE, sram.sram),
            *((start, size, Memory(f"buffer {start:#x}", size)) for start, size in _BUFFERS),
        ]

    def read(self, address: int, bank: int = 0) -> int:
        """A byte. Where there is nothing, 0."""
        if bank == _PHY and address == LINK_INFO:
            return 0x23 if self._link.is_up else 0  # Gen 3, 2 lanes
        if bank:
            return self._unknown(address, bank)
        memory, offset = self._find(address)
        if memory:
            return memory.data[offset]
        if self._tlp.holds(address):
            return self._tlp.read(address)
        if address == LTSSM:
            return self._link.state
        if address == LINK_UP:
            return _UP * self._link.is_up
        if address == PERST:
            return _HELD * self._link.is_held
        if address in _TRAINED:
            return _TRAINED[address] if self._link.is_up else 0
        return self.plain[address] if address in self.plain else self._unknown(address, bank)

    def write(self, address: int, value: int, bank: int = 0) -> None:
        """Writes a byte."""
        memory, offset = self._find(address)
        if bank:
            self._unknown(address, bank)
        elif memory:
            memory.store(offset, bytes((value,)))
        elif address in _READ_ONLY:
            self._refuse("xdata-read-only", f"{address:#06x} is written with {value:#x}")
        elif self._tlp.holds(address):
            self._tlp.write(address, value)
        elif address == PERST:
            self._hold(bool(value & _HELD))
        elif address in self.plain:
            self.plain[address] = value
        else:
            self._unknown(address, bank)

    def _hold(self, held: bool) -> None:
        if held:
            self._link.reset(True)
        else:
            self._link.let_go()

    def _find(self, address: int) -> tuple[Memory | None, int]:
        for start, size, memory in self._spans:
            if start <= address < start + size:
                return memory, address - start
        return None, 0

    def _unknown(self, address: int, bank: int) -> int:
        self._refuse("xdata-unknown", f"{address:#06x} of bank {bank}")
        return 0

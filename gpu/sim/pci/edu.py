"""A small made-up device, like QEMU's `edu`: registers, DMA, messages. For tests of what is above.

Registers of BAR 0, in the manner of docs/specs/edu.rst of QEMU 7.2: 0x00 identity, 0x04 what is
written comes back inverted, 0x08 a number whose factorial it becomes, 0x20 status (0x80: a message
when a factorial is done), 0x24 what messages are for, 0x60 and 0x64 raise and acknowledge those;
0x80 source, 0x88 destination, 0x90 count, 0x98 command (1 start, 2 from the device to memory, 4
with a message after). Its own memory is at 0x40000 of DMA addresses and has 4096 bytes.
Accesses below 0x80 have 4 bytes, those from there on 4 or 8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from gpu.core.pci import Bar, PciIds
from gpu.core.window import TrappedWindow
from gpu.sim.pci.function import CardBar, CardBus
from gpu.sim.record import DebugChannel

SIZE: Final = 1 << 20
IDENTITY: Final = 0x010000ED
BUFFER, BUFFER_SIZE = 0x40000, 4096
_FACTORIAL_DONE, _DMA_DONE = 0x001, 0x100
_START, _TO_MEMORY, _TELL = 1, 2, 4


class EduCard:
    """The device. See `gpu.sim.pci.function.Card`; work is done at once."""

    ids = PciIds(0x1234, 0x11E8, 0x1AF4, 0x1100, 0x10, 0x00FF00)
    vectors = 1
    bus: CardBus

    def __init__(self, debug: DebugChannel):
        self._debug = debug
        window = TrappedWindow(SIZE, self._read, self._write)
        self.bars: Mapping[int, CardBar] = {0: CardBar(window, Bar(SIZE, is_64bit=False))}
        self.reset()

    def plug(self, bus: CardBus) -> None:
        """It reaches memory through this."""
        self.bus = bus

    def reset(self) -> None:
        """Forgets all."""
        self.memory = bytearray(BUFFER_SIZE)
        self._inverted = self._factorial = self._status = self._reasons = 0
        self._dma = dict.fromkeys((0x80, 0x88, 0x90, 0x98), 0)

    def _read(self, offset: int, width: int) -> int:
        if not self._is_register(offset, width):
            return (1 << 8 * width) - 1
        if offset in self._dma:
            return self._dma[offset] & (1 << 8 * width) - 1
        known = {0x00: IDENTITY, 0x04: self._inverted, 0x08: self._factorial}
        return known.get(offset, {0x20: self._status, 0x24: self._reasons}.get(offset, 0))

    def _write(self, offset: int, width: int, value: int) -> None:
        if not self._is_register(offset, width):
            return
        if offset == 0x04:
            self._inverted = ~value & 0xFFFFFFFF
        elif offset == 0x08:
            self._factorial = math.factorial(value & 0xFF) & 0xFFFFFFFF
            if self._status & 0x80:
                self._tell(_FACTORIAL_DONE)
        elif offset == 0x20:
            self._status = value & 0x80
        elif offset == 0x60:
            self._tell(value)
        elif offset == 0x64:
            self._reasons &= ~value
        elif offset in self._dma:
            self._dma[offset] = value
            if offset == 0x98 and value & _START:
                self._copy(value)
        else:
            self._debug.violation(f"edu: a write to register {offset:#x}, which cannot be written")

    def _is_register(self, offset: int, width: int) -> bool:
        known = (0x00, 0x04, 0x08, 0x20, 0x24, 0x60, 0x64, *self._dma)
        right = offset in known and (width == 4 or (width == 8 and offset in self._dma))
        if not right:
            self._debug.violation(f"edu: an access of {width} bytes at {offset:#x}")
        return right

    def _copy(self, command: int) -> None:
        source, target, count = (self._dma[at] for at in (0x80, 0x88, 0x90))
        here, there = (source, target) if command & _TO_MEMORY else (target, source)
        if not BUFFER <= here <= here + count <= BUFFER + BUFFER_SIZE:
            self._debug.violation(f"edu: DMA of {count} bytes at {here:#x} of its own memory")
        elif command & _TO_MEMORY:
            self.bus.store(there, self.memory[here - BUFFER :][:count])
        else:
            start = here - BUFFER
            self.memory[start : start + count] = self.bus.load(there, count)
        self._dma[0x98] &= ~_START
        if command & _TELL:
            self._tell(_DMA_DONE)

    def _tell(self, reasons: int) -> None:
        self._reasons |= reasons
        self.bus.interrupt(0)

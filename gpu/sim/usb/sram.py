"""The bridge's own memory, which the card reaches, and the transfers between it and USB.

512 KiB in 32 slots lie at 0x200000 for the card, pages of queues at 0x800000, 0x820000 and 0x822000
(T: pcie/test_sram_verify.py and src/include/registers.h of tinygrad/asm2464pd-firmware c5e2090). A
transfer is armed; one to the host begins when the card writes the completion of an NVMe command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.usb.config import Refuse

SRAM_AT, SRAM_BYTES = 0x200000, 512 << 10
ADMIN_AT, QUEUE_AT, COMPLETION_AT = 0x800000, 0x820000, 0x822000
PAGE: Final = 4096
SECTOR, SLOT = 512, 16 << 10
_SLOTS: Final = SRAM_BYTES // SLOT
_COMPLETED: Final = 12  # the dword of a completion entry with its phase bit


class Memory:
    """Bytes of the bridge. See `gpu.sim.physical.Region`."""

    local = False

    def __init__(self, name: str, size: int):
        self.name = name
        self.data = bytearray(size)

    def load(self, offset: int, size: int) -> bytes:
        """Reads bytes."""
        return bytes(self.data[offset : offset + size])

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes."""
        self.data[offset : offset + len(data)] = data


class CompletionPage(Memory):
    """The page of completion entries: what the card writes there, the transfer engine notices."""

    def __init__(self, completed: Callable[[], None]):
        super().__init__("completion queue", PAGE)
        self._completed = completed

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes; those of the first entry's phase bit end a command."""
        super().store(offset, data)
        if offset < _COMPLETED + 4 and offset + len(data) > _COMPLETED:
            self._completed()


class SramEngine:
    """Moves sectors between USB and SRAM, one armed transfer at a time.

    Attributes:
        sram, queue, admin, completions: its memory.
        is_in: whether it goes to the host.
    """

    def __init__(self, refuse: Refuse):
        self._refuse = refuse
        self.sram = Memory("SRAM", SRAM_BYTES)
        self.queue = Memory("queue page", PAGE)
        self.admin = Memory("admin queues", PAGE)
        self.completions = CompletionPage(self._complete)
        self.cancel()

    def cancel(self) -> None:
        """No transfer is under way."""
        self._next = self._end = 0
        self.is_in = self._is_released = False

    @property
    def is_armed(self) -> bool:
        """Whether a transfer is under way."""
        return self._next < self._end

    @property
    def takes(self) -> int:
        """How many bytes of the host it waits for."""
        return 0 if self.is_in else self._end - self._next

    @property
    def gives(self) -> int:
        """How many bytes it has for the host."""
        return self._end - self._next if self.is_in and self._is_released else 0

    def arm(self, sectors: int, slot: int, slots: int, is_in: bool) -> None:
        """Begins a transfer of sectors from a slot on, within so many slots."""
        what = f"{sectors} sectors in {slots} slots from {slot} on"
        if self.is_armed:
            self._refuse("rearm", f"{what}, while {self._end - self._next} bytes are to be moved")
        if not sectors:
            self._refuse("no-sectors", what)
        if slot + slots > _SLOTS:
            self._refuse("slot-bounds", f"{what} of {_SLOTS}")
        if sectors * SECTOR > slots * SLOT:
            self._refuse("slot-room", what)
        first = min(slot, _SLOTS) * SLOT
        self._next = first
        self._end = min(first + min(sectors * SECTOR, slots * SLOT), SRAM_BYTES)
        self.is_in, self._is_released = is_in, False

    def take(self, data: memoryview) -> None:
        """What the host sent."""
        self.sram.store(self._next, data)
        self._next += len(data)

    def give(self, size: int) -> bytes:
        """What goes to the host."""
        data = self.sram.load(self._next, size)
        self._next += size
        return data

    def _complete(self) -> None:
        if not (self.is_armed and self.is_in):
            self._refuse("trigger-unarmed", "a completion while no transfer to the host is armed")
            return
        if self._is_released:
            self._refuse("trigger-twice", "a second completion of one transfer")
        self._is_released = True

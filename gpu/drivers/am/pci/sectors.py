"""Copies over USB: through memory of the bridge, in two windows of which one is filled or emptied
by the host while the card copies the other.

To the card: one submission has it wait for each part, copy it, and say so. A part lies at the end
of its window, and the window's last word counts parts: USB fills memory in order, so what is before
it has arrived when that word has. Only parts that go there are ever stored to that word.

From the card: it copies a part, and has it moved once the host, which has asked the bridge for it,
writes a byte. When it begins to copy into a window again the host has asked for the part after the
one that was in there, and so has that.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import DeviceError
from gpu.core.interrupts import put_off
from gpu.core.log import get_logger
from gpu.drivers.am.pci.memory import PciMemory
from gpu.hcq.allocator import HCQAllocator
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.channel import Channel
from gpu.hcq.commands import Barrier, Command, Copy, PollMem, Signal
from gpu.hcq.owner import Owner
from gpu.transport.asm24.sram import (
    COMPLETED,
    COMPLETION_AT,
    PAGE_AT,
    SECTOR,
    SLOT,
    SRAM_AT,
    SRAM_SIZE,
    Sram,
)

_WINDOWS: Final = 2
_WINDOW: Final = SRAM_SIZE // _WINDOWS
_PART: Final = _WINDOW - SECTOR  # bytes; the last sector has the word that counts
_WORD: Final = struct.Struct("<I")
_COUNTER: Final = _WINDOW - _WORD.size
_MOST: Final = 48  # parts of one submission, which must fit a quarter of a ring of 16 KiB
_PAGE: Final = 4096
_DONE, _GO = 0x800, 0x804  # bytes: the last part that the card has copied, that it may have moved
_BYTE: Final = 0xFF
_log = get_logger(__name__)
Wait = Callable[[Callable[[], int], int, str], None]


@dataclass(frozen=True, slots=True)
class _Word:
    """What is written when all before it is done, as a signal is."""

    address: int


class SectorAllocator(HCQAllocator):
    """An `HCQAllocator` whose copies from and to the host go through the bridge's memory."""

    def __init__(self, device: Owner, memory: PciMemory, sram: Sram, staging: int, wait: Wait):
        """``memory`` maps what is here; ``wait`` waits for a value that grows, as for a signal."""
        super().__init__(device, staging)
        self._sram = sram
        self._wait = wait
        self._carrying = threading.Lock()
        self._given = self._taken = 0  # parts to the card and from it, ever
        self._done = 0  # parts that the card is known to have copied
        self._window_at = memory.hold_bus(SRAM_AT, SRAM_SIZE, "memory of the bridge").address
        self._page = memory.hold_bus(PAGE_AT, _PAGE, "a page of the bridge").address
        self._ended = memory.hold_bus(COMPLETION_AT, _PAGE, "completions of the bridge").address
        for byte in (_DONE, _GO):
            sram.write_byte(byte, 0)
        for window in range(_WINDOWS):  # what is left of another process counted too
            sram.give(window * _WINDOW + _WINDOW - SLOT, bytes(SLOT))

    def restart(self) -> None:
        """The queues are others now: what was given and not copied counts as copied."""
        self._done = self._given
        self._sram.write_byte(_DONE, self._done & _BYTE)

    def _carry_in(self, channel: Channel, address: int, source: memoryview) -> None:
        """As `HCQAllocator._carry_in`."""
        step = _MOST * _PART
        with self._carrying:
            for start in range(0, source.nbytes, step):
                with put_off():  # the card waits for what follows
                    self._send(channel, address + start, source[start : start + step])

    def _send(self, channel: Channel, address: int, source: memoryview) -> None:
        first, parts = self._given, _parts(source.nbytes)
        commands: list[Command] = [Barrier()]
        for number, (start, size) in enumerate(parts, first + 1):
            window = self._window_of(number)
            begin = window + _WINDOW - _room(size)
            commands += (
                PollMem(window + _COUNTER, number, op=">="),
                Copy(address + start, begin, size),
                Signal(_Word(self._page + _DONE), number),
            )
        stamps = self.stamps(channel, source.nbytes)
        self._device.submit_in_order(channel, stamps.around(*commands))
        self._given += len(parts)
        try:
            for number, (start, size) in enumerate(parts, first + 1):
                self._await_window(number)
                self._fill(number, source[start : start + size])
        except BaseException:
            self._let_go()
            raise

    def _await_window(self, number: int) -> None:
        """Waits until the card has copied the last part that was where this one goes."""
        wanted = number - _WINDOWS
        if wanted > self._done:
            self._wait(self._read_done, wanted, f"part {wanted} of a copy")

    def _read_done(self) -> int:
        """The last part that was copied to the card; a byte of it says which, of the last few."""
        seen = self._sram.read_byte(_DONE)
        self._done += (seen - self._done) & _BYTE
        return self._done

    def _fill(self, number: int, part: memoryview) -> None:
        room = _room(part.nbytes)
        data = bytearray(room)
        data[: part.nbytes] = part
        _WORD.pack_into(data, room - _WORD.size, number)
        self._sram.give(self._place_of(number) + _WINDOW - room, data)

    def _let_go(self) -> None:
        """Parts that do not come any more are not waited for: whatever is there is copied."""
        try:
            for number in range(self._given - _WINDOWS + 1, self._given + 1):
                self._fill(number, memoryview(b""))
        except DeviceError as error:
            _log.warning("%s: a copy was broken off: %s", self._device.name, error.message)

    def _carry_out(self, channel: Channel, src: HCQBuffer) -> bytes:
        """As `HCQAllocator._carry_out`."""
        data, step = bytearray(), _MOST * _PART
        with self._carrying:
            for start in range(0, src.size, step):
                self._device.wait_in_order()  # what hangs is found before the bridge waits for it
                with put_off():
                    size = min(step, src.size - start)
                    data += self._fetch(channel, src.address + start, size)
        return bytes(data)

    def _fetch(self, channel: Channel, address: int, size: int) -> bytes:
        first, parts = self._taken, _parts(size)
        commands: list[Command] = []
        for number, (start, count) in enumerate(parts, first + 1):
            commands += (
                Copy(self._window_of(number), address + start, count),
                PollMem(self._page + _GO, number & _BYTE, _BYTE),
                Signal(_Word(self._ended + COMPLETED), number),
            )
        self._taken += len(parts)
        self._device.submit_in_order(channel, self.stamps(channel, size).around(*commands))
        data = bytearray()
        for number, (_, count) in enumerate(parts, first + 1):
            data += self._sram.take(self._place_of(number), count, (_GO, number & _BYTE))
        return bytes(data)

    def _place_of(self, number: int) -> int:
        """Where in the bridge's memory the window of a part is."""
        return number % _WINDOWS * _WINDOW

    def _window_of(self, number: int) -> int:
        """Where the card has it."""
        return self._window_at + self._place_of(number)


def _parts(size: int) -> Sequence[tuple[int, int]]:
    """Where parts of a copy begin, and their sizes."""
    return [(start, min(_PART, size - start)) for start in range(0, size, _PART)]


def _room(size: int) -> int:
    """Bytes at the end of a window that a part takes with the word that counts, whole slots."""
    return align_up(size + _WORD.size, SLOT)

"""Memory of the bridge that the card reaches: 512 KiB that whole sectors of USB go to and from.

That is how an enclosure moves data of a disk, and as fast: 700 MB/s where requests of a dword do
3.6. Besides there are bytes that both sides read and write, for saying how far they are.

Addresses, sizes and the card's way to have sectors moved: pcie/test_sram_verify.py and
src/include/registers.h of tinygrad's asm2464pd-firmware (T).
"""

from __future__ import annotations

from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import DeviceError, InvalidValue
from gpu.transport.asm24.link import Link

SECTOR, SLOT = 512, 16 << 10
SRAM_AT, SRAM_SIZE = 0x20_0000, 512 << 10
"""Where on the bus the card has it."""
PAGE_AT: Final = 0x82_0000
"""A page of which `Sram.read_byte` and `Sram.write_byte` are."""
COMPLETION_AT: Final = 0x82_2000
"""A page where a dword at `COMPLETED` has the bridge move sectors to the host."""
COMPLETED: Final = 12
_PAGE_SEEN: Final = 0xA000  # by the bridge's processor


class Sram:
    """The host's side of it. Raises what `Bridge` raises; InvalidValue for what no slot begins."""

    def __init__(self, link: Link):
        self._link = link

    def read_byte(self, offset: int) -> int:
        """A byte of the page at `PAGE_AT`."""
        with self._link.lock:
            return self._link.bridge.read(_PAGE_SEEN + offset, 1)[0]

    def write_byte(self, offset: int, value: int) -> None:
        """Writes one."""
        with self._link.lock:
            self._link.bridge.write(_PAGE_SEEN + offset, value)

    def give(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Fills memory from the beginning of a slot on; whole sectors."""
        self._check(offset, len(data))
        with self._link.lock:
            bridge = self._link.bridge
            bridge.begin_sectors(offset // SLOT, len(data) // SECTOR, to_host=False)
            try:
                bridge.give_sectors(data)
            except DeviceError:
                bridge.cancel_sectors()
                raise

    def take(self, offset: int, size: int, go: tuple[int, int]) -> bytes:
        """Memory from the beginning of a slot on.

        The card has it moved once it sees ``go``: a byte's offset and value as of `write_byte`.
        """
        whole = align_up(size, SECTOR)
        self._check(offset, whole)
        with self._link.lock:
            bridge = self._link.bridge
            bridge.begin_sectors(offset // SLOT, whole // SECTOR, to_host=True)
            try:
                self.write_byte(*go)
                return bridge.take_sectors(whole // SECTOR)[:size]
            except DeviceError:
                bridge.cancel_sectors()
                raise

    def _check(self, offset: int, size: int) -> None:
        if offset % SLOT or size % SECTOR or not 0 < size <= SRAM_SIZE - offset:
            raise InvalidValue(
                f"{size:#x} bytes at {offset:#x} of the bridge's memory: whole sectors of {SECTOR}"
                f" bytes from a multiple of {SLOT} on, of {SRAM_SIZE:#x} bytes"
            )

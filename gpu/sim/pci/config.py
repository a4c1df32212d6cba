"""Config space of a function: what software may write, and what comes back.

PCI Local Bus 3.0, 6.1 to 6.2.5 and 6.8: a header of type 0, and the capability MSI.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from gpu.core.pci import Bar, PciIds
from gpu.core.window import TrappedWindow

_SIZE: Final = 4096
_COMMAND: Final = 0x04
_MEMORY, _MASTER = 1 << 1, 1 << 2
_COMMAND_BITS: Final = 0x547  # I/O, memory, master, parity, SERR#, INTx off
_HAS_CAPABILITIES: Final = 1 << 4
_FIRST_BAR: Final = 0x10
_MSI: Final = 0x40
_MSI_ID: Final = 5
_MSI_ENABLE, _MSI_ENABLED_COUNT = 1, 0x70


class ConfigSpace:
    """Bytes, and which bits of them software may change.

    So BARs tell their sizes as they do on hardware: what is written to the bits below is lost.

    Attributes:
        window: what software sees.
    """

    def __init__(self, ids: PciIds, bars: Mapping[int, Bar], vectors: int):
        """`vectors` is how many messages the function can send: a power of two up to 32, or 0."""
        self._data = bytearray(_SIZE)
        self._writable = bytearray(_SIZE)
        struct.pack_into("<HHHH", self._data, 0, ids.vendor, ids.device, 0, _HAS_CAPABILITIES)
        struct.pack_into("<I", self._data, 8, ids.class_code << 8 | ids.revision)
        struct.pack_into("<HH", self._data, 0x2C, ids.subsystem_vendor, ids.subsystem_device)
        struct.pack_into("<H", self._writable, _COMMAND, _COMMAND_BITS)
        for index, bar in bars.items():
            kind = 1 if bar.is_io else 4 * bar.is_64bit | 8 * bar.prefetchable
            form, low_bits = ("<Q", 0xF) if bar.is_64bit else ("<I", 3 if bar.is_io else 0xF)
            mask = -bar.size & ~low_bits & (1 << 8 * struct.calcsize(form)) - 1
            struct.pack_into(form, self._data, _FIRST_BAR + 4 * index, kind)
            struct.pack_into(form, self._writable, _FIRST_BAR + 4 * index, mask)
        if vectors:
            self._data[0x34] = _MSI
            control = 1 << 7 | (vectors.bit_length() - 1) << 1  # 64-bit addresses
            struct.pack_into("<BBH", self._data, _MSI, _MSI_ID, 0, control)
            msi = struct.pack("<HQH", _MSI_ENABLE | _MSI_ENABLED_COUNT, -4 & (1 << 64) - 1, 0xFFFF)
            self._writable[_MSI + 2 : _MSI + 2 + len(msi)] = msi
        self._initial = bytes(self._data)
        self.window = TrappedWindow(_SIZE, self._read, self._write, widest=4)

    @property
    def decodes_memory(self) -> bool:
        """Whether memory BARs answer."""
        return bool(self._read(_COMMAND, 2) & _MEMORY)

    @property
    def is_master(self) -> bool:
        """Whether the function may reach memory."""
        return bool(self._read(_COMMAND, 2) & _MASTER)

    @property
    def messages(self) -> int:
        """How many messages software has enabled."""
        control = self._read(_MSI + 2, 2)
        return 1 << (control >> 4 & 7) if control & _MSI_ENABLE else 0

    def allow(self, memory: bool | None = None, master: bool | None = None) -> None:
        """Changes bits of the command register; None leaves one as it is."""
        command = self._read(_COMMAND, 2)
        for bit, wanted in ((_MEMORY, memory), (_MASTER, master)):
            if wanted is not None:
                command = command | bit if wanted else command & ~bit
        self._write(_COMMAND, 2, command)

    def enable_messages(self, count: int) -> None:
        """Lets the function send so many, a power of two; 0 is none."""
        if not count:
            self._write(_MSI + 2, 2, 0)
            return
        control = (count.bit_length() - 1) << 4 | _MSI_ENABLE
        self._write(_MSI + 2, 2, control)

    def place(self, index: int, bar: Bar, address: int) -> None:
        """Writes a BAR, as firmware does."""
        self._write(_FIRST_BAR + 4 * index, 8 if bar.is_64bit else 4, address)

    def place_of(self, index: int) -> int:
        """Where a BAR is."""
        low = self._read(_FIRST_BAR + 4 * index, 4)
        high = self._read(_FIRST_BAR + 4 * index + 4, 4) if low & 4 else 0
        return high << 32 | low & ~0xF

    def save(self) -> bytes:
        """All of it."""
        return bytes(self._data)

    def reset(self, saved: bytes | None = None) -> None:
        """As after power-on, or as it was saved."""
        self._data[:] = saved or self._initial

    def _read(self, offset: int, width: int) -> int:
        return int.from_bytes(self._data[offset : offset + width], "little")

    def _write(self, offset: int, width: int, value: int) -> None:
        for at, new in zip(
            range(offset, offset + width), value.to_bytes(width, "little"), strict=True
        ):
            mask = self._writable[at]
            self._data[at] = self._data[at] & ~mask | new & mask

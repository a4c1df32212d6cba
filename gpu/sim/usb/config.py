"""Config space behind the bridge: functions with capabilities of PCI Express, and bridges.

PCI Express Base 5.0, 7.5 (headers), 7.5.3 (the capability), 7.8.6 (resizable BARs); PCI-to-PCI
Bridge 1.2, 3.2.5. Where a GPU keeps its capabilities is U; software must walk the list.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gpu.core.pci import Bar, PciIds
from gpu.sim.pci.config import ConfigSpace

Refuse = Callable[[str, str], None]
"""Notes that a rule was broken: its name, and what was done."""

_COMMAND, _HEADER_TYPE, _POINTER, _MSI = 0x04, 0x0E, 0x34, 0x40
_MANY_FUNCTIONS: Final = 0x80
_EXPRESS: Final = 0x64
_EXPRESS_ID: Final = 0x10
_FIRST_EXTENDED, _REBAR = 0x100, 0x200
_VENDOR_SPECIFIC, _REBAR_ID = 0x0B, 0x15
_REBAR_SIZES, _REBAR_CONTROL = _REBAR + 4, _REBAR + 8
_MIB: Final = 1 << 20
_BUSES, _WINDOW, _PREFETCHABLE, _CONTROL = 0x18, 0x20, 0x24, 0x3E
_BUS_RESET: Final = 1 << 6
FIRST_BAR_BYTES: Final = 256 * _MIB
"""What BAR 0 of a GPU decodes after power-on, as cards come up (R)."""


class _Express:
    """What the capability of PCI Express says: the kind of port, speed and width of the link."""

    ENDPOINT, UPSTREAM, DOWNSTREAM = 0, 5, 6

    @staticmethod
    def pack(kind: int, next_pointer: int, speed: int, width: int) -> bytes:
        """The first 0x14 bytes; the link is up (7.5.3.2 to 7.5.3.8)."""
        can = speed | width << 4
        flags = 2 | kind << 4
        return struct.pack(
            "<BBHIHHIHH", _EXPRESS_ID, next_pointer, flags, 0, 0, 0, can, 0, speed | width << 4
        )


class FunctionConfig(ConfigSpace):
    """Config space of a function on a link; BAR 0 can be resized where it has several sizes."""

    def __init__(
        self,
        ids: PciIds,
        bars: Mapping[int, Bar],
        vectors: int,
        refuse: Refuse,
        many: bool = False,
    ):
        """`many` is whether the device has more functions than this."""
        super().__init__(ids, bars, vectors)
        self._bars = bars
        self._refuse = refuse
        self._header_type = _MANY_FUNCTIONS * many
        self._data[_HEADER_TYPE] = self._header_type
        self._data[_POINTER] = _EXPRESS
        after = _MSI if vectors else 0
        express = _Express.pack(_Express.ENDPOINT, after, 4, 2)
        self._data[_EXPRESS : _EXPRESS + len(express)] = express
        self.resizable = 0 in bars and bars[0].size > FIRST_BAR_BYTES
        if self.resizable:
            self._add_rebar(bars[0].size)
        self._initial = bytes(self._data)
        self.reset()

    def size_of(self, index: int) -> int:
        """How much a BAR decodes now, in bytes."""
        if index == 0 and self.resizable:
            return _MIB << (self._data[_REBAR_CONTROL + 1] & 0x3F)
        return self._bars[index].size

    def reset(self, saved: bytes | None = None) -> None:
        """As after power-on, or as it was saved."""
        super().reset(saved)
        if self.resizable:
            self._fit()

    def _add_rebar(self, most: int) -> None:
        """Sizes from the first one to `most`; a capability of the vendor's stands before it."""
        struct.pack_into(
            "<I", self._data, _FIRST_EXTENDED, _VENDOR_SPECIFIC | 1 << 16 | _REBAR << 20
        )
        first, last = ((n // _MIB).bit_length() - 1 for n in (FIRST_BAR_BYTES, most))
        sizes = sum(1 << 4 + n for n in range(first, last + 1))
        control = 1 << 5 | first << 8  # one BAR, which is BAR 0
        struct.pack_into("<III", self._data, _REBAR, _REBAR_ID | 1 << 16, sizes, control)
        self._writable[_REBAR_CONTROL + 1] = 0x3F

    def _fit(self) -> None:
        """The bits of BAR 0 that software can write are those above its size."""
        mask = -self.size_of(0) & (1 << 64) - 1
        struct.pack_into("<Q", self._writable, 0x10, mask)
        (value,) = struct.unpack_from("<Q", self._data, 0x10)
        struct.pack_into("<Q", self._data, 0x10, value & (mask | 0xF))

    def _write(self, offset: int, width: int, value: int) -> None:
        touched = range(offset, offset + width)
        if self.decodes_memory and 0x10 <= offset < 0x28 and not self._same(offset, width, value):
            self._refuse("bar-while-decoding", f"BAR register {offset:#x} is written")
        if not self.resizable or _REBAR_CONTROL + 1 not in touched:
            super()._write(offset, width, value)
            return
        if self.decodes_memory:
            self._refuse("rebar-while-decoding", "BAR 0 is resized")
            return
        wanted = value >> 8 * (_REBAR_CONTROL + 1 - offset) & 0x3F
        (sizes,) = struct.unpack_from("<I", self._data, _REBAR_SIZES)
        if not sizes >> 4 + wanted & 1:
            self._refuse("rebar-size", f"BAR 0 is given size {wanted}, sizes are {sizes >> 4:#x}")
            return
        super()._write(offset, width, value)
        self._fit()

    def _same(self, offset: int, width: int, value: int) -> bool:
        return self._read(offset, width) == value


class Range(NamedTuple):
    """Addresses from the first to the last."""

    first: int
    last: int

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self.first <= address <= self.last


class BridgeConfig(ConfigSpace):
    """Config space of a bridge (a header of type 1): bus numbers and windows.

    Attributes:
        on_reset: told when its secondary bus is put into reset.
    """

    def __init__(self, ids: PciIds, is_upstream: bool):
        super().__init__(ids, {}, 0)
        self.on_reset: Callable[[], None] = lambda: None
        self._data[_HEADER_TYPE] = 1
        self._data[0x2C:0x30] = bytes(4)  # no subsystem ids in this header
        self._data[_POINTER] = _EXPRESS
        kind = _Express.UPSTREAM if is_upstream else _Express.DOWNSTREAM
        express = _Express.pack(kind, 0, 4, 2)
        self._data[_EXPRESS : _EXPRESS + len(express)] = express
        struct.pack_into("<HH", self._data, _PREFETCHABLE, 1, 1)  # 64 bits
        writable = self._writable
        writable[_BUSES : _BUSES + 4] = b"\xff" * 4
        struct.pack_into("<HHHHQ", writable, _WINDOW, *(0xFFF0,) * 4, (1 << 64) - 1)
        struct.pack_into("<H", writable, _CONTROL, 0x43)
        self._initial = bytes(self._data)

    @property
    def secondary(self) -> int:
        """The bus behind it."""
        return self._read(_BUSES + 1, 1)

    @property
    def subordinate(self) -> int:
        """The last bus behind it."""
        return self._read(_BUSES + 2, 1)

    @property
    def windows(self) -> tuple[Range, Range]:
        """What it forwards downstream: memory, and prefetchable memory."""
        base, limit, low, high, upper, upper_limit = struct.unpack_from(
            "<HHHHII", self._data, _WINDOW
        )
        return (
            Range(base >> 4 << 20, (limit >> 4 << 20) + _MIB - 1),
            Range(upper << 32 | low >> 4 << 20, (upper_limit << 32 | high >> 4 << 20) + _MIB - 1),
        )

    @property
    def holds_reset(self) -> bool:
        """Whether what is behind it is held in reset."""
        return bool(self._read(_CONTROL, 2) & _BUS_RESET)

    def forwards(self, address: int) -> bool:
        """Whether it hands an access of memory downstream."""
        return self.decodes_memory and any(address in window for window in self.windows)

    def _write(self, offset: int, width: int, value: int) -> None:
        before = self.holds_reset
        super()._write(offset, width, value)
        if self.holds_reset and not before:
            self.on_reset()

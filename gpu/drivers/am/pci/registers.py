"""Registers of a chip by name: a map for each block, made from its version and its segments.

The kernel's headers give a register's segment and its offset there; the discovery table has where
the segments of each instance begin. Which table belongs to which version is what the kernel's code
for that version includes: a near version may have moved a whole hub, so an unknown one is refused.

Registers beyond BAR 5 are reached through an index and a data register, in the order of
amdgpu_device_indirect_rreg. Which pair that is is tinygrad's (T); Linux takes RSMU_INDEX and
RSMU_DATA here, which lead to the same.

Sources: the includes of gfx_v11_0.c, gfx_v12_0.c, gfxhub_v3_0_3.c, mmhub_v3_0*.c, mmhub_v4_1_0.c,
nbio_v4_3.c, nbif_v6_3_1.c, hdp_v6_0.c, hdp_v7_0.c, ih_v6_0.c, ih_v7_0.c, psp_v13_0.c, psp_v14_0.c
of Linux 6.12.117, and amdgpu_discovery.c for which code serves which versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gpu.core.errors import InvalidIndex, Unsupported
from gpu.core.regs import RegMap, RegTable, TableEntry
from gpu.core.window import TrappedWindow, Window
from gpu.drivers.am.graphics_core import RegisterTable
from gpu.drivers.am.pci.discovery import Discovery, HwId, IpBlock
from gpu.drivers.am.pci.tables import IMPORTS
from gpu.drivers.am.target import Version, dotted

DWORD: Final = 4
_MP: Final[Mapping[Version, str]] = {
    **dict.fromkeys(((13, 0, 0), (13, 0, 7), (13, 0, 10)), "mp_13_0_0"),
    **dict.fromkeys(((14, 0, 2), (14, 0, 3)), "mp_14_0_2"),
}
# Which table serves which versions of a block.
_TABLES: Final[Mapping[HwId, Mapping[Version, str]]] = {
    HwId.GC: {
        (11, 0, 0): "gc_11_0_0",
        (11, 0, 2): "gc_11_0_0",
        (11, 0, 3): "gc_11_0_3",
        (12, 0, 0): "gc_12_0_0",
        (12, 0, 1): "gc_12_0_0",
    },
    HwId.MMHUB: {(3, 0, 0): "mmhub_3_0_0", (3, 0, 2): "mmhub_3_0_2", (4, 1, 0): "mmhub_4_1_0"},
    HwId.NBIF: {(4, 3, 0): "nbio_4_3_0", (4, 3, 1): "nbio_4_3_0", (6, 3, 1): "nbif_6_3_1"},
    HwId.HDP: {(6, 0, 0): "hdp_6_0_0", (7, 0, 0): "hdp_7_0_0"},
    HwId.OSSSYS: {(6, 0, 0): "osssys_6_0_0", (7, 0, 0): "osssys_7_0_0"},
    # gfx_v11_0.c takes one header for all that came with GC 11.
    HwId.SMUIO: {
        **dict.fromkeys(((13, 0, 6), (13, 0, 8), (13, 0, 9)), "smuio_13_0_6"),
        (14, 0, 2): "smuio_14_0_2",
    },
    HwId.MP0: _MP,
    HwId.MP1: _MP,
}
_SPACE: Final = 1 << 32  # bytes that index registers reach
_MP_PREFIXES: Final = {HwId.MP0: ("MP0_", "MPASP_"), HwId.MP1: ("MP1_",)}


class Block(RegMap):
    """The registers of one instance of a block; names are the vendor's.

    ``shift`` is how many dwords behind a named register another one of its kind lies, such as that
    of another VMID or queue. Raises `InvalidIndex` for names that the block does not have.
    """

    ip: IpBlock

    def get(self, name: str, shift: int = 0) -> int:
        """The value of a register: one access."""
        return self.window.read(self.offset_of(name) + DWORD * shift, DWORD)

    def set(self, name: str, value: int, shift: int = 0) -> None:
        """Writes a whole register: one access."""
        self.window.write(self.offset_of(name) + DWORD * shift, DWORD, value)

    def set_pair(self, low: str, high: str, value: int, shift: int = 0) -> None:
        """Writes 64 bits to two registers, the lower half first."""
        self.set(low, value & 0xFFFF_FFFF, shift)
        self.set(high, value >> 32, shift)

    def get_pair(self, low: str, high: str, shift: int = 0) -> int:
        """Two registers as 64 bits: two accesses."""
        return self.get(low, shift) | self.get(high, shift) << 32

    def fields(self, name: str, value: int = 0, /, **fields: int) -> int:
        """A value of a register with some fields changed; nothing is accessed."""
        return self._find(name, None)[0].parse(value).replace(**fields).value

    def update(self, name: str, shift: int = 0, /, **fields: int) -> int:
        """Reads a register, writes it back with some fields changed, and gives what it wrote."""
        value = self.fields(name, self.get(name, shift), **fields)
        self.set(name, value, shift)
        return value

    def field(self, name: str, field: str, value: int) -> int:
        """A field of a value of a register."""
        return self._find(name, None)[0].field(field).extract(value)


class Registers:
    """All blocks of a chip that a driver uses.

    Raises Unsupported for a version of a block that is not in the tables, with its name.
    """

    def __init__(self, window: Window, discovery: Discovery):
        """``window`` is that of BAR 5."""
        self.window = window
        direct = window
        self.nbif = self._block(discovery, HwId.NBIF, direct)  # its index registers are near
        self._index = self.nbif.offset_of("BIF_BX0_PCIE_INDEX2")
        self._data = self.nbif.offset_of("BIF_BX0_PCIE_DATA2")
        far = TrappedWindow(_SPACE, self._read, self._write, DWORD)
        self.nbif.window = far
        self.gc = self._block(discovery, HwId.GC, far)
        self.mmhub = self._block(discovery, HwId.MMHUB, far)
        self.hdp = self._block(discovery, HwId.HDP, far)
        self.osssys = self._block(discovery, HwId.OSSSYS, far)
        self.smuio = self._block(discovery, HwId.SMUIO, far)
        self.mp0 = self._block(discovery, HwId.MP0, far)
        self.mp1 = self._block(discovery, HwId.MP1, far)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All of them."""
        first = (self.gc, self.mmhub, self.nbif, self.hdp, self.osssys)
        return (*first, self.smuio, self.mp0, self.mp1)

    def name_of(self, offset: int) -> str | None:
        """The block and the register at a byte address, None for none that is known."""
        for block in self.blocks:
            name = block.name_of(offset)
            if name is not None:
                return f"{block.ip.name}.{name}"
        return None

    def find(self, name: str) -> tuple[Block, str]:
        """The block of a register, named as ``GC.CP_STAT`` or ``CP_STAT``. Raises InvalidIndex."""
        owner, dot, register = name.upper().rpartition(".")
        for block in self.blocks:
            if register in block.registers and (not dot or block.ip.name == owner):
                return block, register
        raise InvalidIndex(f"no register {name!r} in {', '.join(str(b.ip) for b in self.blocks)}")

    @staticmethod
    def _block(discovery: Discovery, hw_id: HwId, window: Window) -> Block:
        ip = discovery.block(hw_id)
        block = Block(window, RegTable(dict(_entries(ip, hw_id))))
        block.ip = ip
        return block

    def _read(self, offset: int, width: int) -> int:
        if offset < self.window.size:
            return self.window.read(offset, width)
        self._select(offset)
        return self.window.read(self._data, width)

    def _write(self, offset: int, width: int, value: int) -> None:
        if offset < self.window.size:
            self.window.write(offset, width, value)
            return
        self._select(offset)
        self.window.write(self._data, width, value)

    def _select(self, offset: int) -> None:
        self.window.write(self._index, DWORD, offset)
        self.window.read(self._index, DWORD)  # so that it is there before the data is used


def table_of(ip: IpBlock, hw_id: HwId) -> RegisterTable:
    """The kernel's table for a block. Raises Unsupported for a version that has none here."""
    known = _TABLES[hw_id]
    if ip.version not in known:
        versions = ", ".join(map(dotted, sorted(known)))
        raise Unsupported(
            f"{ip}: this version knows {hw_id.name} {versions}; use the card through its kernel"
            " driver (DEV=KFD+AMD)"
        )
    return IMPORTS[known[ip.version]]()


def _entries(ip: IpBlock, hw_id: HwId) -> Iterator[tuple[str, TableEntry]]:
    """Registers of an instance: where they are in bytes, and their fields."""
    prefixes = _MP_PREFIXES.get(hw_id, ("",))
    for name, (segment, offset, fields) in table_of(ip, hw_id).items():
        if not name.startswith(prefixes) or segment >= len(ip.bases):
            continue
        listed = [(field, low, width) for field, (low, width) in fields.items()]
        yield name, (DWORD * (ip.bases[segment] + offset), listed)

"""The table in which a chip says which blocks it has, of which versions, and where.

It lies 64 KiB before the end of video memory. Every length and offset in it is checked before it
is followed, and every checksum that Linux checks: what does not fit is a FormatError that names
the place. Blocks that were cut off when the chip was sold (harvested) are left out.

Sources: discovery.h, amdgpu_discovery.c and soc15_hw_ip.h of Linux 6.12.117.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from gpu.autogen.amd import discovery as layout
from gpu.core.errors import FormatError, Unsupported
from gpu.drivers.am.target import Version, dotted

SIZE: Final = 10 << 10
"""Bytes of all tables together, at most (DISCOVERY_TMR_SIZE)."""
HEADER: Final = ctypes.sizeof(layout.binary_header)
"""Bytes that say how many there are."""
FROM_END: Final = 64 << 10
"""How far before the end of video memory they begin (DISCOVERY_TMR_OFFSET)."""
_TABLES: Final = ("IP_DISCOVERY", "GC", "HARVEST_INFO", "VCN_INFO")  # MALL's sum Linux ignores
_AFTER_SUM: Final = 10  # of the header: what the sum of the whole begins with
_HARVESTED: Final = 32  # entries of the table of what was cut off
_MOST_INSTANCES: Final = 44  # HWIP_MAX_INSTANCE of amdgpu.h
_BASE_MASK: Final = 0x3FFF_FFFF  # of 64-bit base addresses, which count dwords
T = TypeVar("T", bound=ctypes.Structure)


class HwId(enum.IntEnum):
    """Blocks that a driver asks for, by their numbers (soc15_hw_ip.h)."""

    MP1 = 1
    SMUIO = 4
    GC = 11
    VCN = 12
    MMHUB = 34
    OSSSYS = 40
    HDP = 41
    SDMA0 = 42
    SDMA1 = 43
    NBIF = 108
    UMC = 150
    MP0 = 255


@dataclass(frozen=True, slots=True)
class IpBlock:
    """One instance of a block.

    Attributes:
        hw_id: what it is, a number of `HwId` or another one.
        instance: which of its kind.
        version: major, minor, stepping.
        bases: dword addresses of its segments.
        variant: of the hardware, and its sub-revision; 0 in old tables.
    """

    hw_id: int
    instance: int
    version: Version
    bases: tuple[int, ...]
    variant: int = 0
    sub_revision: int = 0

    @property
    def name(self) -> str:
        """As Linux calls it, else its number."""
        known = self.hw_id in HwId._value2member_map_
        return HwId(self.hw_id).name if known else f"block {self.hw_id}"

    def __str__(self) -> str:
        return f"{self.name}[{self.instance}] {dotted(self.version)}"


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the graphics core is.

    Attributes:
        shader_engines: how many.
        arrays: shader arrays of each engine.
        compute_units: of each array, as built: some may be switched off.
        waves: waves of a SIMD, at most.
        scratch_waves: waves of a compute unit that may have scratch memory.
        lds_size: KiB of LDS.
    """

    shader_engines: int
    arrays: int
    compute_units: int
    waves: int
    scratch_waves: int
    lds_size: int


@dataclass(frozen=True, slots=True)
class Discovery:
    """What the tables tell: the blocks that are there, those cut off, the core's shape."""

    blocks: tuple[IpBlock, ...]
    harvested: tuple[IpBlock, ...]
    shape: Shape | None

    def block(self, hw_id: HwId, instance: int = 0) -> IpBlock:
        """One block. Raises Unsupported where the chip has none."""
        for block in self.blocks:
            if (block.hw_id, block.instance) == (hw_id, instance):
                return block
        raise Unsupported(f"this chip's discovery table has no {hw_id.name}[{instance}]")


def binary_size(head: bytes) -> int:
    """Bytes of all tables, as their first `HEADER` bytes say. Raises FormatError."""
    header = _read(head, 0, layout.binary_header, "the binary header")
    if header.binary_signature != layout.BINARY_SIGNATURE:
        raise FormatError(
            f"discovery: signature {header.binary_signature:#x} at 0, wanted"
            f" {layout.BINARY_SIGNATURE:#x}: video memory does not answer, or is not a chip's that"
            " has such a table"
        )
    size = int(header.binary_size)
    if not HEADER <= size <= SIZE:
        raise FormatError(f"discovery: a size of {size} bytes in the header, of {HEADER} to {SIZE}")
    return size


def parse_discovery(data: bytes) -> Discovery:
    """What the bytes 64 KiB before the end of video memory say. Raises FormatError."""
    size = binary_size(data)
    data = _slice(data, 0, size, "the whole")
    header = _read(data, 0, layout.binary_header, "the binary header")
    _check(data, _AFTER_SUM, size - _AFTER_SUM, header.binary_checksum, "the whole")
    tables = dict(zip(_TABLES, header.table_list, strict=False))
    ips = list(_blocks(data, tables["IP_DISCOVERY"]))
    gone = set(_harvested(data, tables["HARVEST_INFO"]))
    _check_plain(data, tables["VCN_INFO"])
    return Discovery(
        tuple(ip for ip in ips if (ip.hw_id, ip.instance) not in gone),
        tuple(ip for ip in ips if (ip.hw_id, ip.instance) in gone),
        _shape(data, tables["GC"]),
    )


def _blocks(data: bytes, info: layout.table_info) -> Iterator[IpBlock]:
    """The table of blocks, which all chips have."""
    header = _read(data, info.offset, layout.ip_discovery_header, "the table of blocks")
    if not info.offset or header.signature != layout.DISCOVERY_TABLE_SIGNATURE:
        raise FormatError(
            f"discovery: signature {header.signature:#x} of the table of blocks at"
            f" {info.offset:#x}, wanted {layout.DISCOVERY_TABLE_SIGNATURE:#x}"
        )
    if header.version not in (1, 2, 3, 4):
        raise FormatError(f"discovery: version {header.version} of the table of blocks, not 1 to 4")
    _check(data, info.offset, header.size, info.checksum, "the table of blocks")
    if header.num_dies > len(header.die_info):
        raise FormatError(f"discovery: {header.num_dies} dies of at most {len(header.die_info)}")
    wide = header.version == 4 and bool(header.base_addr_64_bit)
    for number in range(header.num_dies):
        at = header.die_info[number].die_offset
        die = _read(data, at, layout.die_header, f"die {number}")
        if die.die_id != number:
            raise FormatError(f"discovery: die {number} at {at:#x} says that it is {die.die_id}")
        at += ctypes.sizeof(die)
        for _ in range(die.num_ips):
            block, at = _block(data, at, wide, header.version)
            if block is not None:
                yield block


def _block(data: bytes, at: int, wide: bool, version: int) -> tuple[IpBlock | None, int]:
    """One entry, None for one that Linux passes over, and where the next begins."""
    width = 8 if wide else 4
    head = _slice(data, at, 8, "a block")
    hw_id = int.from_bytes(head[:2], "little")
    instance, count, major, minor, revision, rest = head[2:]
    bases = _slice(data, at + 8, count * width, f"base addresses of block {hw_id}")
    end = at + 8 + count * width
    if instance >= _MOST_INSTANCES:
        return None, end
    if hw_id == HwId.VCN:
        revision &= ~0xC0  # which say what it can do
    addresses = tuple(
        int.from_bytes(bases[i : i + width], "little") & (_BASE_MASK if wide else 0xFFFF_FFFF)
        for i in range(0, len(bases), width)
    )
    variant, sub = (rest >> 4, rest & 15) if version >= 3 else (0, 0)
    return IpBlock(hw_id, instance, (major, minor, revision), addresses, variant, sub), end


def _harvested(data: bytes, info: layout.table_info) -> Iterator[tuple[int, int]]:
    """Kind and instance of each block that was cut off."""
    if not info.offset:
        return
    header = _read(data, info.offset, layout.harvest_info_header, "the harvest table")
    if header.signature != layout.HARVEST_TABLE_SIGNATURE:
        raise FormatError(f"discovery: signature {header.signature:#x} of the harvest table")
    first = info.offset + ctypes.sizeof(header)
    each = ctypes.sizeof(layout.harvest_info)
    _check(data, info.offset, first - info.offset + _HARVESTED * each, info.checksum, "harvest")
    for number in range(_HARVESTED):
        entry = _read(data, first + number * each, layout.harvest_info, "a harvested block")
        if not entry.hw_id:
            return
        yield entry.hw_id, entry.number_instance


def _shape(data: bytes, info: layout.table_info) -> Shape | None:
    """The table of the graphics core; None where there is none."""
    if not info.offset:
        return None
    header = _check_plain(data, info)
    if header.table_id != layout.GC_TABLE_ID:
        raise FormatError(f"discovery: {header.table_id:#x} is no table of the graphics core")
    core: layout.gc_info_v1_0 | layout.gc_info_v2_0
    if header.version_major == 1:
        core = _read(data, info.offset, layout.gc_info_v1_0, "the graphics core")
        units = 2 * (core.gc_num_wgp0_per_sa + core.gc_num_wgp1_per_sa)
        arrays = core.gc_num_sa_per_se
    elif header.version_major == 2:
        core = _read(data, info.offset, layout.gc_info_v2_0, "the graphics core")
        units, arrays = core.gc_num_cu_per_sh, core.gc_num_sh_per_se
    else:
        raise FormatError(f"discovery: version {header.version_major} of the graphics core's table")
    shape = Shape(
        shader_engines=core.gc_num_se,
        arrays=arrays,
        compute_units=units,
        waves=core.gc_max_waves_per_simd,
        scratch_waves=core.gc_max_scratch_slots_per_cu,
        lds_size=core.gc_lds_size,
    )
    if not (0 < shape.shader_engines <= 64 and 0 < arrays <= 64 and 0 < units <= 256):
        raise FormatError(f"discovery: a graphics core of {shape}")
    return shape


def _check_plain(data: bytes, info: layout.table_info) -> layout.gpu_info_header:
    """Checks the sum of a table that has its own size in its header."""
    if not info.offset:
        return layout.gpu_info_header()
    header = _read(data, info.offset, layout.gpu_info_header, "a table")
    _check(data, info.offset, header.size, info.checksum, f"table {header.table_id:#x}")
    return header


def _check(data: bytes, start: int, size: int, wanted: int, what: str) -> None:
    found = sum(_slice(data, start, size, what)) & 0xFFFF
    if found != wanted:
        raise FormatError(
            f"discovery: the bytes of {what} at {start:#x} add up to {found:#06x}, wanted"
            f" {wanted:#06x}: the table is damaged"
        )


def _read(data: bytes, at: int, kind: type[T], what: str) -> T:
    return kind.from_buffer_copy(_slice(data, at, ctypes.sizeof(kind), what))


def _slice(data: bytes, at: int, size: int, what: str) -> bytes:
    if at + size > len(data):
        raise FormatError(
            f"discovery: {what} of {size} bytes at {at:#x} is beyond the end at {len(data):#x}"
        )
    return data[at : at + size]

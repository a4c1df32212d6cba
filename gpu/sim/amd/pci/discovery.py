"""The table in which a chip tells of itself: `discovery.h` and amdgpu_discovery.c of Linux 6.12.

`build` makes the bytes that firmware leaves in video memory, 64 KiB before its end: a header with
offset, size and checksum of each table; the list of IP blocks of each die; what the graphics core
has; which instances do not work. Checksums are sums of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from gpu.sim.amd.pci.boards import Block, Board

OFFSET: Final = 64 << 10  # DISCOVERY_TMR_OFFSET, from the end of memory
SIZE: Final = 10 << 10  # DISCOVERY_TMR_SIZE
_SIGNATURE: Final = 0x28211407
_IP_DISCOVERY, _GC, _HARVEST, _TABLES = 0, 1, 2, 6
_HEADER: Final = struct.Struct("<IHHHH")
_INFO: Final = struct.Struct("<HHHH")
_FIRST: Final = _HEADER.size + _TABLES * _INFO.size
_IP_HEADER: Final = struct.Struct("<4sHHIH")
_DIES: Final = 16
_SUMMED_FROM: Final = 10  # "byte sum of the binary after this field"


def build(board: Board, version: int | None = None) -> bytes:
    """The tables of a card, all of them; `version` of the list of blocks is 3 or 4 (gfx12)."""
    version = (4 if board.is_gfx12 else 3) if version is None else version
    parts = {
        _IP_DISCOVERY: _ip_discovery(board.blocks, version),
        _GC: _gc_info(board),
        _HARVEST: _harvest(board.harvested),
    }
    infos, body = [], bytearray()
    for index in range(_TABLES):
        data = parts.get(index, b"")
        infos.append(_INFO.pack(_FIRST + len(body), checksum(data), len(data), 0) if data else b"")
        body += data
    infos = [info.ljust(_INFO.size, b"\0") for info in infos]
    size = _FIRST + len(body)
    rest = struct.pack("<H", size) + b"".join(infos) + bytes(body)
    return _HEADER.pack(_SIGNATURE, 1, 0, checksum(rest), size)[:_SUMMED_FROM] + rest


def checksum(data: bytes) -> int:
    """The sum of bytes, in 16 bits."""
    return sum(data) & 0xFFFF


def _ip_discovery(blocks: Iterable[Block], version: int) -> bytes:
    """One die; its entries have 32-bit addresses in version 4 too (base_addr_64_bit is 0)."""
    entries = [
        struct.pack("<HBBBBBB", b.hw_id, b.instance, len(b.bases), *b.version, 0)
        + struct.pack(f"<{len(b.bases)}I", *b.bases)
        for b in blocks
    ]
    die = struct.pack("<HH", 0, len(entries)) + b"".join(entries)
    head = _IP_HEADER.size + 4 * _DIES + 2
    dies = struct.pack("<HH", 0, _FIRST + head).ljust(4 * _DIES, b"\0")
    whole = head + len(die)
    return _IP_HEADER.pack(b"IPDS", version, whole, 0, 1) + dies + bytes(2) + die


def _gc_info(board: Board) -> bytes:
    """`gc_info_v1_0`, 19 numbers; sizes of tables that only graphics uses are 7900 XTX's (U)."""
    chip = board.chip
    numbers = (
        *(chip.engines, chip.cus_per_array // 2, 0, 4, 24, 1024, 32, 32, 1792, 1024, 512),
        *(chip.wave_size, chip.waves_per_simd, 32, 64, 1, chip.arrays, 4, 4),
    )
    size = 12 + 4 * len(numbers)
    return struct.pack("<IHHI", 0x4347, 1, 0, size) + struct.pack(f"<{len(numbers)}I", *numbers)


def _harvest(dead: Iterable[tuple[int, int]]) -> bytes:
    """`harvest_table`: a list of 32 instances, ended by an entry of zeros."""
    entries = b"".join(struct.pack("<HBB", hw_id, instance, 0) for hw_id, instance in dead)
    return struct.pack("<II", 0x56524148, 0) + entries.ljust(32 * 4, b"\0")

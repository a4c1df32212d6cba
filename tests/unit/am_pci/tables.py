"""Discovery tables made by hand, from discovery.h: nothing of the driver's is used."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

GC, MMHUB, OSSSYS, HDP, SDMA0, SDMA1, NBIF, MP0, MP1, SMUIO = 11, 34, 40, 41, 42, 43, 108, 255, 1, 4


@dataclass(frozen=True)
class Ip:
    """One block of a table."""

    hw_id: int
    version: tuple[int, int, int]
    bases: tuple[int, ...] = (0x1000,)
    instance: int = 0
    variant: int = 0
    sub: int = 0


def gfx1100() -> list[Ip]:
    """Blocks of the versions that a gfx1100 has; where they are is made up."""
    return [
        Ip(GC, (11, 0, 0), (0x1260, 0xA000)),
        Ip(MMHUB, (3, 0, 0), (0x1A000,)),
        Ip(OSSSYS, (6, 0, 0), (0x10A0,)),
        Ip(HDP, (6, 0, 0), (0xF20,)),
        Ip(SDMA0, (6, 0, 0), (0x1260, 0xA000)),
        Ip(SDMA1, (6, 0, 0), (0x1260, 0xA000)),
        Ip(NBIF, (4, 3, 0), (0x0, 0x14, 0xD20, 0x10400, 0x241B000, 0x4040000)),
        Ip(SMUIO, (13, 0, 6), (0x16800, 0x16A00)),
        Ip(MP0, (13, 0, 0), (0x16000,)),
        Ip(MP1, (13, 0, 0), (0x16000,)),
    ]


def _sum(data: bytes) -> int:
    return sum(data) & 0xFFFF


def make(
    dies: Sequence[Sequence[Ip]],
    *,
    version: int = 3,
    wide: bool = False,
    harvest: Sequence[tuple[int, int]] = (),
    shape: tuple[int, ...] | None = (6, 4, 0, 4, 6, 1024, 32, 32, 1664, 0, 0, 32, 16, 32, 64, 1, 2),
) -> bytes:
    """The bytes of a table, with all sums as they should be; ``shape`` is gc_info_v1_0's."""
    start = 0xC + 6 * 8
    bodies: list[bytes] = []
    at = start + 0x50
    places = []
    for number, ips in enumerate(dies):
        body = struct.pack("<HH", number, len(ips))
        for ip in ips:
            body += struct.pack(
                "<HBBBBBB",
                *(ip.hw_id, ip.instance, len(ip.bases), *ip.version),
                ip.variant << 4 | ip.sub,
            )
            body += b"".join(struct.pack("<Q" if wide else "<I", base) for base in ip.bases)
        places.append((number, at))
        bodies.append(body)
        at += len(body)
    size = at - start
    header = struct.pack("<IHHIH", 0x53445049, version, size, 7, len(dies))
    header += b"".join(struct.pack("<HH", *place) for place in places).ljust(64, b"\0")
    header += struct.pack("<H", int(wide))
    blocks = header.ljust(0x50, b"\0") + b"".join(bodies)
    tables: dict[int, bytes] = {0: blocks}
    if shape is not None:
        gc = struct.pack("<IHHI", 0x4347, 1, 0, 12 + 4 * 19)
        tables[1] = gc + struct.pack("<19I", *shape, *[1] * (19 - len(shape)))
    if harvest:
        entries = b"".join(struct.pack("<HBB", *each, 0) for each in harvest)
        tables[2] = struct.pack("<II", 0x56524148, 0) + entries.ljust(32 * 4, b"\0")
    offset, listed, data = start, [b"\0" * 8] * 6, b""
    for number, table in tables.items():
        listed[number] = struct.pack("<HHHH", offset, _sum(table), len(table), 0)
        data += table
        offset += len(table)
    rest = b"".join(listed) + data
    return whole(rest)


def whole(rest: bytes) -> bytes:
    """The binary header before all that it says the sum of."""
    size = 0xC + len(rest)
    summed = struct.pack("<H", size) + rest
    return struct.pack("<IHHH", 0x28211407, 1, 2, _sum(summed)) + summed

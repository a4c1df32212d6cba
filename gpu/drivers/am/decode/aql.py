"""AQL packets as text."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from gpu.drivers.am.decode.pm4 import decode_pm4
from gpu.drivers.am.encode.aql_packets import (
    LAYOUTS,
    PACKET_SIZE,
    AqlHeader,
    PacketType,
    VendorFormat,
)
from gpu.drivers.am.target import Generation
from gpu.drivers.listing import Line, raw, register_text

_HEADER_SIZE = 2


def decode_aql(data: bytes, generation: Generation) -> list[Line]:
    """A line for each field of each packet of a ring."""
    lines: list[Line] = []
    for offset in range(0, len(data), PACKET_SIZE):
        packet = data[offset : offset + PACKET_SIZE]
        if len(packet) < PACKET_SIZE:
            lines += raw(packet, offset, "no packet: 64 bytes are one")
        else:
            lines += _packet(packet, offset, generation)
    return lines


def _packet(packet: bytes, offset: int, generation: Generation) -> Iterator[Line]:
    header = AqlHeader.parse(int.from_bytes(packet[:_HEADER_SIZE], "little"))
    layout = _layout(header["TYPE"], packet)
    known = layout is not None or header["TYPE"] == PacketType.INVALID
    title = register_text(header).removeprefix("AqlHeader: TYPE ").replace("AqlHeader 0", "")
    if header["TYPE"] == PacketType.VENDOR_SPECIFIC:
        fields = register_text(header).removeprefix("AqlHeader: ").replace("AqlHeader 0", "")
        title = f"VENDOR_SPECIFIC, {fields}".rstrip(", ")
    text = title if known else f"{title}, not known"
    yield Line(offset, _HEADER_SIZE, header.value, text)
    if layout is None:
        yield from raw(packet[_HEADER_SIZE:4], offset + _HEADER_SIZE, "  ?", 2)
        yield from raw(packet[4:], offset + 4, "  ?")
        return
    for name, *_ in layout._fields_[1:]:
        yield from _field(packet, offset, layout, name, generation)


def _layout(kind: int, packet: bytes) -> type[ctypes.Structure] | None:
    """The layout of a packet; None for one that is invalid, or of a kind that is not known."""
    if kind not in list(PacketType) or kind == PacketType.INVALID:
        return None
    vendor = int.from_bytes(packet[_HEADER_SIZE:4], "little")
    if kind == PacketType.VENDOR_SPECIFIC and vendor != VendorFormat.PM4_IB:
        return None
    return LAYOUTS[PacketType(kind)]


def _field(
    packet: bytes,
    offset: int,
    layout: type[ctypes.Structure],
    name: str,
    generation: Generation,
) -> Iterator[Line]:
    place = getattr(layout, name)
    data = packet[place.offset : place.offset + place.size]
    at = offset + place.offset
    if name == "call":
        for line in decode_pm4(data, generation):
            yield Line(at + line.offset, line.size, line.number, f"  {line.text}")
    elif name.startswith("reserved"):
        if any(data):
            yield from raw(data, at, f"  {name}, which should be 0", min(place.size, 8))
    else:
        for line in raw(data, at, "", min(place.size, 8)):
            yield Line(line.offset, line.size, line.number, f"  {name} {line.number:#x}")

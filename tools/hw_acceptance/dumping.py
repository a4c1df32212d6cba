"""What a channel was given, as text: ring entries, pushbuffers, launch descriptors, constants.

Works on memory that a GPU was using, ours or the vendor's, and so on bytes that may be anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from gpu.core.errors import FormatError
from gpu.drivers.nv.encode.pushbuf import ENTRY_SIZE, GpEntry
from gpu.drivers.nv.encode.qmd import DecodedQmd, decode_qmd
from gpu.drivers.nv.fault.pushbuf_text import Line, decode_gp_entries, decode_pushbuffer

_ROW: Final = 32  # bytes of a line of hex
_MAX_PUSH: Final = 4096  # words of a pushbuffer that are shown
_BANK_SHOWN: Final = 1024  # bytes of bank 0
_LAUNCH: Final = "SEND_PCAS_A("
_LAUNCH_SHIFT: Final = 8
_QMD_SIZES: Final = (384, 256)  # version 4 or 5, version 3


class Reader(Protocol):
    """Reads memory by the addresses that a GPU uses."""

    def __call__(self, address: int, size: int, /) -> bytes | None:
        """The bytes; None where the host cannot see all of them."""
        ...


def ring_entries(ring: bytes, put: int, count: int) -> list[tuple[int, int]]:
    """Index and value of up to ``count`` entries before ``put``, the oldest first."""
    total = len(ring) // ENTRY_SIZE
    found = []
    for index in (each % total for each in range(put - min(count, total), put)):
        entry = int.from_bytes(ring[ENTRY_SIZE * index : ENTRY_SIZE * (index + 1)], "little")
        if entry:
            found.append((index, entry))
    return found


def describe_entries(
    read: Reader, entries: Iterable[tuple[int, int]], classes: Mapping[int, int]
) -> Iterator[str]:
    """Lines about ring entries, and all that they lead to.

    ``classes`` are those bound to subchannels before, by subchannel.
    """
    for index, entry in entries:
        (line,) = decode_gp_entries(entry.to_bytes(ENTRY_SIZE, "little"))
        yield f"ring entry {index}: {entry:#018x} {line.text}"
        fields = GpEntry.parse(entry)
        if not fields.LENGTH:
            continue
        words = min(fields.LENGTH, _MAX_PUSH)
        data = read(fields.GET << 2, 4 * words)
        if data is None:
            yield "  the host cannot see this pushbuffer"
            continue
        lines = decode_pushbuffer(data, classes)
        yield from (f"  {each}" for each in lines)
        for address in launched(lines):
            yield from describe_qmd(read, address)


def launched(lines: Iterable[Line]) -> list[int]:
    """The addresses of launch descriptors that a pushbuffer sends."""
    return [line.word << _LAUNCH_SHIFT for line in lines if line.text.strip().startswith(_LAUNCH)]


def describe_qmd(read: Reader, address: int) -> Iterator[str]:
    """Lines about a launch descriptor and its constant banks."""
    yield f"launch descriptor at {address:#x}"
    decoded = find_qmd(read, address)
    if decoded is None:
        data = read(address, _QMD_SIZES[0])
        yield "  the host cannot see it" if data is None else "  of no known version"
        yield from () if data is None else hex_lines(data)
        return
    data = read(address, decoded.layout.size)
    yield from decoded.lines()
    yield from hex_lines(data or b"")
    for bank, (place, size) in banks(decoded).items():
        yield f"  constant bank {bank}: {size} bytes at {place:#x}"
        content = read(place, min(size, _BANK_SHOWN))
        if content is None:
            yield "    the host cannot see it"
        else:
            yield from hex_lines(content)


def find_qmd(read: Reader, address: int) -> DecodedQmd | None:
    """The launch descriptor at an address; None where there is none that can be read."""
    for size in _QMD_SIZES:
        data = read(address, size)
        if data is None:
            continue
        try:
            return decode_qmd(data)
        except FormatError:
            continue
    return None


def banks(decoded: DecodedQmd) -> dict[int, tuple[int, int]]:
    """Address and size of the constant banks that a launch descriptor says are valid."""
    layout, found = decoded.layout, {}

    def number(name: str, bank: int) -> int:
        span = layout.span(name, bank)
        return decoded.fields.get(span.name, 0) << span.shift

    for bank in range(8):
        if number("CONSTANT_BUFFER_VALID", bank):
            low = layout.span("CONSTANT_BUFFER_ADDR_LOWER", bank)
            upper = number("CONSTANT_BUFFER_ADDR_UPPER", bank) << low.width
            place = upper | number("CONSTANT_BUFFER_ADDR_LOWER", bank)
            found[bank] = (place, number("CONSTANT_BUFFER_SIZE", bank))
    return found


def hex_lines(data: bytes) -> Iterator[str]:
    """Lines of hex; of rows of zeros only the first."""
    blank = False
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        if any(row) or not blank:
            words = " ".join(row[i : i + 4][::-1].hex() for i in range(0, len(row), 4))
            yield f"    {at:04x}: {words}"
        blank = not any(row)

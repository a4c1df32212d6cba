"""Bridges and a card on PCI Express, as far as numbering and addressing need, behind made-up USB.

A `Port` or `Card` is config space with what of it can be written; a `Fabric` routes requests by
the bus numbers and windows that were written there, and refuses all else as real ones do.
`OpenFirmware` and `StockFirmware` are `UsbDevice`s in front of one.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Final

from gpu.core.errors import DeviceLost, HwTimeout, TransportError
from gpu.transport.usb import UsbId

SUCCESSFUL, UNSUPPORTED, RETRY, ABORT = 0, 1, 2, 4
MIB: Final = 1 << 20


class Refused(Exception):
    """A completion with another status than success; the first argument is which."""


class Space:
    """Config space: bytes, and which of their bits can be written."""

    def __init__(self, vendor: int, device: int, kind: int, header: int):
        self.data, self.mask = bytearray(4096), bytearray(4096)
        self.writes: list[tuple[int, int, int]] = []
        self.put(0x00, struct.pack("<HH", vendor, device))
        self.put(0x08, struct.pack("<I", kind << 8 | 0x01))
        self.put(0x0E, bytes((header,)))
        self.put(0x04, bytes(2), b"\x07\x00")

    def put(self, at: int, data: bytes, mask: bytes = b"") -> None:
        self.data[at : at + len(data)] = data
        self.mask[at : at + len(data)] = mask or bytes(len(data))

    def word(self, at: int, size: int = 4) -> int:
        return int.from_bytes(self.data[at : at + size], "little")

    def write(self, at: int, value: bytes) -> None:
        self.writes.append((at, len(value), int.from_bytes(value, "little")))
        for i, new in enumerate(value, at):
            self.data[i] = self.data[i] & ~self.mask[i] | new & self.mask[i]

    @property
    def decodes(self) -> bool:
        return bool(self.data[0x04] & 2)


class Port(Space):
    """A bridge: bus numbers, windows of memory, a PCI Express capability with its port type."""

    def __init__(self, port_type: int, behind: list[Space | None], has_64bit: bool = True):
        super().__init__(0x174C, 0x2461, 0x060400, 0x01)
        self.behind = behind
        self.put(0x18, bytes(4), b"\xff\xff\xff\x00")
        self.put(0x20, bytes(4), b"\xf0\xff\xf0\xff")
        kind = bytes((int(has_64bit), 0))
        self.put(0x24, kind * 2, b"\xf0\xff\xf0\xff")
        self.put(0x28, bytes(8), b"\xff" * 8)
        self.put(0x06, b"\x10\x00")
        self.put(0x34, b"\x40")
        self.put(0x40, struct.pack("<BBH", 0x10, 0, port_type << 4))

    def takes_bus(self, bus: int) -> bool:
        return 0 < self.data[0x19] <= bus <= self.data[0x1A]

    def takes(self, address: int) -> bool:
        base, limit = self.word(0x20, 2) << 16, self.word(0x22, 2) << 16 | 0xFFFFF
        if base <= address <= limit:
            return self.decodes
        base = self.word(0x28) << 32 | (self.word(0x24, 2) & 0xFFF0) << 16
        limit = self.word(0x2C) << 32 | (self.word(0x26, 2) & 0xFFF0) << 16 | 0xFFFFF
        return self.decodes and base <= address <= limit


class Card(Space):
    """A function with BARs of memory: (number, size, low bits, sizes it may have in MiB)."""

    def __init__(
        self,
        bars: list[tuple[int, int, int, tuple[int, ...]]],
        ids: tuple[int, int] = (0x1002, 0x744C),
        header: int = 0,
    ):
        super().__init__(*ids, 0x030000, header)
        self.put(0x2C, struct.pack("<HH", 0x1EAE, 0x7901))
        self.sizes = {number: size for number, size, _, _ in bars}
        self.flags = {number: flags for number, _, flags, _ in bars}
        self.memory: dict[int, bytearray] = {number: bytearray(4096) for number in self.sizes}
        self.accesses: list[tuple[str, int, int]] = []
        resizable = [(number, sizes) for number, _, _, sizes in bars if sizes]
        self.put(0x100, struct.pack("<I", 0x200 << 20 | 1 << 16 | 0x0B))
        self.put(0x200, struct.pack("<I", 1 << 16 | (0x15 if resizable else 0x0C)))
        for entry, (number, sizes) in enumerate(resizable):
            able = sum(1 << 4 + size.bit_length() - 1 for size in sizes)
            power = (self.sizes[number] // MIB).bit_length() - 1
            control = power << 8 | len(resizable) << 5 | number
            self.put(0x204 + 8 * entry, struct.pack("<I", able))
            self.put(0x208 + 8 * entry, struct.pack("<I", control), b"\x00\x3f\x00\x00")
        self._count = len(resizable)
        self._mask_bars()

    def _mask_bars(self) -> None:
        for number, size in self.sizes.items():
            wide = 8 if self.flags[number] & 4 else 4
            mask = (-size & (1 << 8 * wide) - 1 & ~0xF).to_bytes(wide, "little")
            start = 0x10 + 4 * number
            old = bytes(a & b for a, b in zip(self.data[start : start + wide], mask, strict=True))
            flags = bytes((self.flags[number],)).ljust(wide, b"\0")
            self.put(start, bytes(a | b for a, b in zip(old, flags, strict=True)), mask)

    def write(self, at: int, value: bytes) -> None:
        super().write(at, value)
        for entry in range(self._count):
            control = self.word(0x208 + 8 * entry)
            size = MIB << (control >> 8 & 0x3F)
            if self.sizes[control & 7] != size:
                assert not self.decodes, "a BAR is resized while it is decoded"
                self.sizes[control & 7] = size
                self._mask_bars()

    def start(self, number: int) -> int:
        wide = 8 if self.flags[number] & 4 else 4
        return self.word(0x10 + 4 * number, wide) & ~0xF

    def find(self, address: int) -> tuple[int, int]:
        for number, size in self.sizes.items():
            start = self.start(number)
            if self.decodes and not self.flags[number] & 1 and start <= address < start + size:
                return number, address - start
        raise Refused(UNSUPPORTED)

    def access(self, write: bool, number: int, offset: int, enables: int, value: int) -> int:
        self.accesses.append(("write" if write else "read", number, offset))
        memory, at = self.memory[number], offset % 4096
        if not write:
            return int.from_bytes(memory[at : at + 4], "little")
        for i in range(4):
            if enables >> i & 1:
                memory[at + i] = value >> 8 * i & 0xFF
        return 0


class Fabric:
    """What is behind a link, of which the first is on bus 0."""

    def __init__(self, root: Space):
        self.root = root
        self.retries = 0  # config requests for a card that it is not ready for

    def _device(self, bus: int, device: int, function: int) -> Space:
        here: list[Space | None] = [self.root]
        parent: Port | None = None
        while (parent is None and bus > 0) or (parent is not None and parent.data[0x19] != bus):
            parent = next((p for p in here if isinstance(p, Port) and p.takes_bus(bus)), None)
            if parent is None:
                raise Refused(UNSUPPORTED)
            here = parent.behind
        index = device * 8 + function if parent is not None else function
        if parent is None and function:
            raise Refused(UNSUPPORTED)
        found = here[index] if index < len(here) else None
        if found is None:
            raise Refused(UNSUPPORTED)
        return found

    def _card(self, address: int) -> tuple[Card, int, int]:
        here: list[Space | None] = [self.root]
        while True:
            for each in here:
                if isinstance(each, Card):
                    try:
                        return each, *each.find(address)
                    except Refused:
                        continue
            port = next((p for p in here if isinstance(p, Port) and p.takes(address)), None)
            if port is None:
                raise Refused(UNSUPPORTED)
            here = port.behind

    def request(self, kind: int, address: int, enables: int, value: int) -> int:
        """One request. Raises Refused."""
        if kind & 0xBE == 0x04:
            return self._config(kind, address, enables, value)
        assert kind in (0x20, 0x60) and not address % 4
        card, number, offset = self._card(address)
        return card.access(kind == 0x60, number, offset, enables, value)

    def _config(self, kind: int, address: int, enables: int, value: int) -> int:
        bus = address >> 24
        assert (kind & 1) == (bus > 0), "type 0 is for the first bus alone"
        space = self._device(bus, address >> 19 & 0x1F, address >> 16 & 7)
        if isinstance(space, Card) and self.retries:
            self.retries -= 1
            raise Refused(RETRY)
        at = address & 0xFFF
        if not kind & 0x40:
            return space.word(at)
        places = [i for i in range(4) if enables >> i & 1]
        assert places == list(range(places[0], places[-1] + 1))
        space.write(at + places[0], bytes(value >> 8 * i & 0xFF for i in places))
        return 0


class Firmware:
    """What both firmwares share: a `UsbDevice` that can be unplugged, and the link's state."""

    speed = 10_000
    up: int

    def __init__(self, fabric: Fabric, at: UsbId):
        self.fabric, self.id = fabric, at
        self.state = 0
        self.claimed = False
        self.transfers: list[str] = []
        self.before: Callable[[int], None] = lambda number: None
        self.closed = False

    def _count(self, what: str) -> None:
        if self.closed:
            raise AssertionError(f"{what} of a closed device")
        self.transfers.append(what)
        self.before(len(self.transfers))

    def _stall(self, what: str) -> TransportError:
        return TransportError(f"{self.id}: {what} stalls", errno.EPIPE)

    def claim(self, interface: int, alternate: int = 0) -> None:
        assert (interface, alternate) == (0, 0)
        self.claimed = True

    def clear_halt(self, endpoint: int) -> None:
        assert endpoint in (0x02, 0x81)
        self._count("clear halt")

    def reset(self) -> None:
        raise AssertionError("nobody resets it")

    def close(self) -> None:
        self.closed = True

    def _complete(self, kind: int, address: int, enables: int, value: int) -> tuple[int, int]:
        """Value and status; what is not answered keeps the last value, as the engine does."""
        try:
            return self.fabric.request(kind, address, enables, value), SUCCESSFUL
        except Refused as refused:
            return 0x5A5A5A5A, refused.args[0]


class OpenFirmware(Firmware):
    """Requests 0xE4, 0xF0 and 0xF3, and both bulk endpoints."""

    up = 0x78

    def __init__(self, fabric: Fabric, at: UsbId = UsbId(0xADD1, 1, "2-1")):  # noqa: B008
        super().__init__(fabric, at)
        self.answer = b""
        self.results: list[int] = []  # of the next requests, instead of 0
        self.stream: tuple[int, int, int] | None = None
        self.stuck = False
        self.has_card = True

    def control_in(
        self, kind: int, request: int, value: int, index: int, size: int, timeout: int = 1000
    ) -> bytes:
        self._count(f"in {request:#x}")
        assert kind == 0xC0
        if request == 0xE4:
            assert size <= (255 if self.speed >= 5_000 else 64)
            return bytes(
                self.state if at == 0xB450 else at & 0xFF for at in range(value, value + size)
            )
        assert (request, value, index, size) == (0xF0, 0, 0, 8)
        return self.answer

    def control_out(
        self,
        kind: int,
        request: int,
        value: int,
        index: int,
        data: bytes = b"",
        timeout: int = 1000,
    ) -> None:
        self._count(f"out {request:#x}")
        assert kind == 0x40
        if request == 0xF3:
            assert timeout >= 2_000
            self.state = self.up if value and self.has_card else 0
            return
        assert request == 0xF0 and len(data) == 12
        if self.stuck:
            raise HwTimeout("request 0xf0", None, "an answer", timeout / 1e3)
        address, word = struct.unpack("<QI", data)
        fmt, enables = value & 0xFF, value >> 8
        if index:
            self.stream = (index, address, word)
            assert (fmt, enables) == ({1: 0x60, 2: 0x20}[index], 0xF) and word <= 16384
            return
        result = self.results.pop(0) if self.results else 0 if self.state == self.up else 0xFF
        got, status = (0, 0) if result else self._complete(fmt, address, enables, word)
        self.answer = struct.pack("<IBBBB", got, status << 5, 0, 1, result)

    def bulk_in(self, endpoint: int, size: int, timeout: int = 1000) -> bytes:
        self._count("bulk in")
        assert endpoint == 0x81 and self.stream is not None and self.stream[0] == 2
        self._check_link()
        _, address, count = self.stream
        assert size == 4 * count
        words = [self._complete(0x20, address + 4 * i, 0xF, 0)[0] for i in range(count)]
        return struct.pack(f"<{count}I", *words)

    def bulk_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, timeout: int = 1000
    ) -> None:
        self._count("bulk out")
        assert endpoint == 0x02 and self.stream is not None and self.stream[0] == 1
        self._check_link()
        _, address, count = self.stream
        assert len(data) == 4 * count
        for i, word in enumerate(struct.unpack(f"<{count}I", data)):
            self._complete(0x60, address + 4 * i, 0xF, word)

    def _check_link(self) -> None:
        if self.state != self.up:
            self.stuck = True
            raise HwTimeout("a bulk transfer", None, "an answer", 30)


class StockFirmware(Firmware):
    """SCSI 0xE4 and 0xE5 over bulk-only transport, and the engine's registers."""

    up = 0x48

    def __init__(self, fabric: Fabric, at: UsbId = UsbId(0x174C, 0x2464, "2-1"), bank: int = 0x50):  # noqa: B008
        super().__init__(fabric, at)
        self.state = self.up
        self.bank = bank
        self.xdata = bytearray(1 << 16)
        self.replies: list[bytes | None] = []
        self.resets = 0

    def control_in(
        self, kind: int, request: int, value: int, index: int, size: int, timeout: int = 1000
    ) -> bytes:
        raise self._stall(f"request {request:#x}")

    def control_out(
        self,
        kind: int,
        request: int,
        value: int,
        index: int,
        data: bytes = b"",
        timeout: int = 1000,
    ) -> None:
        self._count(f"out {request:#x}")
        if (kind, request, value, index) != (0x21, 0xFF, 0, 0):
            raise self._stall(f"request {request:#x}")
        self.resets += 1
        self.replies.clear()

    def bulk_in(self, endpoint: int, size: int, timeout: int = 1000) -> bytes:
        self._count("bulk in")
        assert endpoint == 0x81
        reply = self.replies.pop(0)
        if reply is None:
            raise self._stall("endpoint 0x81")
        return reply

    def bulk_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, timeout: int = 1000
    ) -> None:
        self._count("bulk out")
        assert endpoint == 0x02 and len(data) == 31
        mark, tag, size, flags, unit, length, command = struct.unpack("<4sIIBBB16s", data)
        assert (mark, unit, length) == (b"USBC", 0, 6)
        code, what, bank, address, last = struct.unpack(">BBBHB", command[:6])
        assert (bank, last) == (self.bank, 0)
        status = b"USBS" + struct.pack("<IIB", tag, 0, 0)
        if code == 0xE4 and what == size:
            assert flags == 0x80
            self.xdata[0xB450] = self.state
            self.replies = [bytes(self.xdata[address : address + size]), status]
        elif code == 0xE5 and not size:
            self._write(address, what)
            self.replies = [status]
        else:
            self.replies = [None, status[:-1] + b"\x01"] if size else [status[:-1] + b"\x01"]

    def _write(self, address: int, value: int) -> None:
        xdata = self.xdata
        if address == 0xB296:
            xdata[address] &= ~value & 3
            return
        xdata[address] = value
        if address != 0xB254:
            return
        assert value == 0x0F
        kind, enables = xdata[0xB210], xdata[0xB217]
        low = int.from_bytes(xdata[0xB218:0xB21C], "big")
        place = int.from_bytes(xdata[0xB21C:0xB220], "big") << 32 | low
        word = int.from_bytes(xdata[0xB220:0xB224], "big")
        got, status = self._complete(kind, place, enables, word)
        if not kind & 0x40:
            xdata[0xB220:0xB224] = got.to_bytes(4, "big")
        xdata[0xB22A] = status << 5
        xdata[0xB296] = 0x02


class Bus:
    """The USB of a machine with these."""

    def __init__(self, *devices: Firmware):
        self.devices = devices

    def list_devices(self) -> list[UsbId]:
        return [device.id for device in self.devices]

    def open(self, device: UsbId) -> Firmware:
        for each in self.devices:
            if each.id == device:
                return each
        raise DeviceLost(f"{device} is not there")

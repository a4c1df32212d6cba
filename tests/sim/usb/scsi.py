"""Commands of the stock firmware by bulk-only transport, for tests."""

from __future__ import annotations

import struct

from sim.usb.client import BULK_IN, BULK_OUT, Bridge, TlpError

PREPARE = ((0x54B, b"\x20"), (0x54E, b"\4"), (0x5A8, b"\2"), (0x5F8, b"\4"))
PREPARE += ((0x7EC, b"\1\0\0\0"), (0xC422, b"\2"), (0, b"\x33"))
AGAIN = ((0x171, b"\xff\xff\xff"), (0xCE6E, b"\0\0"))


class Scsi:
    """A bridge with stock firmware."""

    def __init__(self, bridge: Bridge, bank: int = 0x50):
        self.bridge, self.device, self.bank = bridge, bridge.device, bank
        self.tag = 0

    def send(self, block: bytes, length: int, to_host: bool) -> None:
        self.tag += 1
        head = struct.pack("<IIIBBB", 0x43425355, self.tag, length, 0x80 * to_host, 0, len(block))
        self.device.bulk_out(BULK_OUT, head + block.ljust(16, b"\0"))

    def status(self) -> tuple[int, int]:
        """Residue and status."""
        answer = self.device.bulk_in(BULK_IN, 13)
        signature, tag, residue, status = struct.unpack("<IIIB", answer)
        assert (signature, tag) == (0x53425355, self.tag)
        return residue, status

    def command(self, block: bytes, length: int = 0, data: bytes = b"") -> bytes:
        """A command that passes; `length` bytes come, or `data` goes."""
        self.send(block, length or len(data), bool(length))
        if data:
            self.device.bulk_out(BULK_OUT, data)
        answer = self.device.bulk_in(BULK_IN, length) if length else b""
        assert self.status() == (length - len(answer), 0)
        return answer

    def read(self, address: int, size: int = 1) -> bytes:
        block = struct.pack(">BBBHB", 0xE4, size, self.bank, address, 0)
        return self.command(block, size)

    def write(self, address: int, data: bytes) -> None:
        for at, value in enumerate(data, address):
            self.command(struct.pack(">BBBHB", 0xE5, value, self.bank, at, 0))

    def ask(self, form: int, address: int, value: int | None = None) -> int:
        """A request to the card, of a dword. Raises TlpError."""
        if value is not None:
            self.write(0xB220, value.to_bytes(4, "big"))
        self.write(0xB217, b"\x0f")
        self.write(0xB218, (address & 0xFFFFFFFF).to_bytes(4, "big"))
        self.write(0xB210, bytes((form,)))
        for at, byte in ((0xB254, b"\x0f"), (0xB296, b"\4")):
            self.write(at, byte)
        status = self.read(0xB296)[0]
        completed = self.read(0xB22A, 2)[0] >> 5
        if status != 2 or completed:
            raise TlpError(completed, status)
        return int.from_bytes(self.read(0xB220, 4), "big")

    def write_sram(self, data: bytes) -> None:
        block = struct.pack(">BBQIBB", 0x8A, 0, 0, len(data) // 512, 0, 0)
        self.command(block, data=data)

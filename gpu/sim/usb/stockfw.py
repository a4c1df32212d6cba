"""The stock firmware, as far as it is no drive: SCSI commands of the vendor by bulk-only transport.

USB Mass Storage Bulk-Only Transport 1.0 for the transport. The commands 0xE4 and 0xE5 are R
(cyrozap's usb-to-pcie-re); what makes WRITE(16) land in SRAM is T (tinygrad's usb.py).
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from gpu.sim.usb.chip import BridgeChip
from gpu.sim.usb.descriptors import Descriptors
from gpu.sim.usb.firmware import (
    BULK_IN,
    GET_DESCRIPTOR,
    SET_CONFIGURATION,
    SET_INTERFACE,
    STANDARD_IN,
    STANDARD_OUT,
    Setup,
    Stall,
    give_packets,
)
from gpu.sim.usb.sram import SECTOR

VENDOR: Final = 0x174C
UP_STATE: Final = 0x48
COMMAND_SIGNATURE, STATUS_SIGNATURE = 0x43425355, 0x53425355
COMMAND_NS: Final = 100_000
"""A command (U; USBGPU.md of the firmware's repository has 20 to 100 us for 0xE5)."""
WRITE_RATE: Final = 100_000_000
"""Bytes a second of WRITE(16) (R: the same file)."""
TEST_READY, SENSE, INQUIRY, WRITE_16, READ_XDATA, WRITE_XDATA = 0x00, 0x03, 0x12, 0x8A, 0xE4, 0xE5
_FLASH: Final = (0xE0, 0xE1, 0xE2, 0xE3, 0xE6, 0xE8)
_CLASS_IN, _CLASS_OUT, _MAX_LUN, _RESET = 0xA1, 0x21, 0xFE, 0xFF
_COMMAND: Final = struct.Struct("<IIIBBB16s")
_PASSED, _FAILED, _PHASE = 0, 1, 2
_NO_SENSE, _NO_MEDIUM, _UNKNOWN = (0, 0), (2, 0x3A), (5, 0x20)
_MOST_SECTORS: Final = 128
_LARGE: Final = 16 << 10
_PREPARED: Final = {0x000: 0x33, 0x54B: 0x20, 0x54E: 4, 0x5A8: 2, 0x5F8: 4, 0x7EC: 1}
_ALWAYS_ONES: Final = (0x171, 0x172, 0x173)
_DONE, _PLACES, _SECTOR_SIZE = (0xCE6E, 0xCE6F), tuple(range(0xCE40, 0xCE44)), 0xC422
_VERSION: Final = bytes.fromhex("231204850000")


class StockFirmware:
    """The firmware. See `gpu.sim.usb.firmware.Firmware`."""

    def __init__(self, chip: BridgeChip, identity: tuple[int, int], write16_lands: bool):
        self.chip = chip
        self.vendor, self.product = identity
        self._bank = 0x50 if self.product >> 4 == 0x246 else 0
        self._lands = write16_lands
        alternates = [(0x81, 0x02), (0x81, 0x02, 0x83, 0x04)]
        self._descriptors = Descriptors(
            *(identity, ("ASMT", "ASM246X", "000000000000"), (8, 6, 0x50)),
            *(alternates, chip.speed.bulk),
        )
        chip.xdata.ram.store(0x7F0, _VERSION)
        for address in _ALWAYS_ONES:
            chip.xdata.ram.store(address, b"\xff")
        self._is_broken = False
        self._sense = _NO_SENSE
        self._status: bytes | None = None
        self._start()

    def control_in(self, setup: Setup) -> bytes | None:
        """Descriptors, and how many units there are. Raises Stall."""
        if (setup.kind, setup.request) == (STANDARD_IN, GET_DESCRIPTOR):
            found = self._descriptors.get(setup.value >> 8, setup.value & 0xFF)
            if found is not None:
                return found[: setup.size]
        if (setup.kind, setup.request) == (_CLASS_IN, _MAX_LUN):
            return b"\0"[: setup.size]
        raise Stall

    def control_out(self, setup: Setup, data: bytes) -> bool:
        """The reset of the transport, and of configurations. Raises Stall."""
        key = setup.kind, setup.request
        if key == (_CLASS_OUT, _RESET) or key in (
            (STANDARD_OUT, SET_CONFIGURATION),
            (1, SET_INTERFACE),
        ):
            if key[1] == SET_INTERFACE and setup.value:
                self.chip.violation("uas", "the alternate setting of UAS, which is not modelled")
            self._is_broken = False
            self._start()
            return True
        raise Stall

    def give(self, size: int) -> bytes | None:
        """Data of a command, then its status. Raises Stall, Overflow."""
        if self._is_broken:
            raise Stall
        if self._data:
            data = give_packets(self._data, size, self.chip.speed.bulk)
            del self._data[: len(data)]
            self._missing -= len(data)
            if not self._data and self._missing and len(data) % self.chip.speed.bulk == 0:
                self._stalls_in = True
            return data
        if self._stalls_in:
            self._stalls_in = False
            raise Stall
        if self._status is None:
            return None
        status = give_packets(self._status, size, self.chip.speed.bulk)
        self._status = None
        return status

    def take(self, data: memoryview) -> int | None:
        """A command, or its data. Raises Stall."""
        if self._is_broken:
            raise Stall
        if self._wanted:
            count = min(len(data), self._wanted - len(self._received))
            if len(data) > count:
                self.chip.violation("bot-data", f"{len(data)} bytes where {count} are wanted")
            self.chip.spend(count, WRITE_RATE)
            self._received += data[:count]
            if len(self._received) == self._wanted:
                self._write_sectors()
            return len(data)
        if self._data or self._status is not None or self._stalls_in:
            self._break("bot-phase", "a command before the status of the last one was read")
        self._command(data)
        return len(data)

    def clear(self, endpoint: int) -> None:
        """The halt of an endpoint; after a bad command it stays until the transport is reset."""
        if endpoint == BULK_IN:
            self._data.clear()

    def _start(self) -> None:
        """Waits for a command."""
        self._data, self._received = bytearray(), bytearray()
        self._wanted = self._missing = self._tag = 0
        self._status = None
        self._stalls_in = False

    def _break(self, rule: str, what: str) -> NoReturn:
        self.chip.violation(rule, what)
        self._is_broken = True
        raise Stall

    def _command(self, packet: memoryview) -> None:
        """One command block wrapper (5.1, 6.2 of the transport)."""
        if len(packet) != _COMMAND.size:
            self._break("cbw", f"a command of {len(packet)} bytes: {_COMMAND.size} are wanted")
        signature, self._tag, length, flags, unit, size, block = _COMMAND.unpack(packet)
        if signature != COMMAND_SIGNATURE or flags & 0x7F or unit or not 1 <= size <= 16:
            self._break("cbw", f"signature {signature:#x}, flags {flags:#x}, unit {unit}, {size}")
        self.chip.machine.clock.advance(COMMAND_NS)
        self.chip.work()
        self._missing = length
        code, answer = block[0], b""
        if code == READ_XDATA:
            answer = self._read(block, size)
        elif code == WRITE_XDATA:
            self._write(block, size)
        elif code == INQUIRY:
            answer = (bytes((0, 0x80, 6, 2, 31, 0, 0, 0)) + b"ASMT    ASM246X         0   ")[:36]
            answer = answer[: int.from_bytes(block[3:5], "big")]
        elif code == SENSE:
            key, more = self._sense
            answer = bytes((0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, more, *bytes(5)))[: block[4]]
            self._sense = _NO_SENSE
        elif code == WRITE_16:
            self._begin_write(block, length)
            return
        elif code != TEST_READY:
            self._fail_command(code)
            return
        self._answer(answer, length, bool(flags & 0x80))

    def _answer(self, answer: bytes, length: int, is_in: bool) -> None:
        if len(answer) > length or (answer and not is_in) or (length and not is_in):
            self.chip.violation("bot-length", f"{length} bytes are wanted of {len(answer)}")
            self._finish(_PHASE, length)
            return
        self._data += answer
        self._stalls_in = bool(length) and not answer
        self._finish(_PASSED, length - len(answer))

    def _fail_command(self, code: int) -> None:
        if code in _FLASH:
            self.chip.violation("flash-command", f"{code:#x}: nothing of flash is modelled")
        self._sense = _UNKNOWN
        self._stalls_in = bool(self._missing)
        self._finish(_FAILED, self._missing)

    def _finish(self, status: int, residue: int) -> None:
        self._status = struct.pack("<IIIB", STATUS_SIGNATURE, self._tag, residue, status)

    def _place(self, block: bytes, size: int) -> int:
        if block[2] >> 1 << 1 != self._bank or size != 6:
            what = f"{bytes(block[:size]).hex(' ')}: 6 bytes, byte 2 is {self._bank:#x}"
            self.chip.violation("xdata-command", what)
        return int.from_bytes(block[3:5], "big")

    def _read(self, block: bytes, size: int) -> bytes:
        at, count = self._place(block, size), block[1]
        if not count or at + count > 1 << 16:
            self.chip.violation("xdata-size", f"{count} bytes from {at:#06x} on")
        return bytes(self.chip.xdata.read(at + number & 0xFFFF) for number in range(count))

    def _write(self, block: bytes, size: int) -> None:
        self.chip.xdata.write(self._place(block, size), block[1])

    def _begin_write(self, block: bytes, length: int) -> None:
        lba, sectors = int.from_bytes(block[2:10], "big"), int.from_bytes(block[10:14], "big")
        if lba or not 0 < sectors <= _MOST_SECTORS or length != sectors * SECTOR:
            self.chip.violation("write16-place", f"{sectors} sectors at {lba}, {length} bytes")
            self._fail_command(block[0])
        else:
            self._wanted = length

    def _write_sectors(self) -> None:
        """What came lands at the start of SRAM; then it has to be told that this was seen."""
        chip, data = self.chip, bytes(self._received)
        self._wanted, ready = 0, self._is_ready(len(data))
        self._received.clear()
        if not ready:
            chip.violation("write16-unprepared", f"WRITE(16) of {len(data)} bytes")
            self._sense = _NO_MEDIUM
            self._finish(_FAILED, 0)
            return
        if self._lands:
            chip.sram.sram.store(0, data)
        for address in _ALWAYS_ONES:
            chip.xdata.ram.store(address, b"\0")
        done = _DONE + (_PLACES if len(data) > _LARGE else ())
        chip.xdata.plain.update(dict.fromkeys(done, 1))
        self._finish(_PASSED, 0)

    def _is_ready(self, size: int) -> bool:
        ram, plain = self.chip.xdata.ram.data, self.chip.xdata.plain
        return (
            all(ram[address] == value for address, value in _PREPARED.items())
            and all(ram[address] == 0xFF for address in _ALWAYS_ONES)
            and plain[_SECTOR_SIZE] == 2
            and not any(plain[address] for address in (*_DONE, *_PLACES))
        )

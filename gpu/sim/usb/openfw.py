"""The open firmware: requests of vendors on endpoint 0, streams and sectors on two bulk endpoints.

handmade/src/main.c of tinygrad/asm2464pd-firmware c5e2090 (K for this firmware: its source), and
what that leaves to the chip from its tests, pcie/test_sram_verify.py and
handmade/test_pcie_badstate.py (R).
"""

from __future__ import annotations

import struct
from typing import Final

from gpu.sim.usb.chip import SRAM_RATE, TLP_READ_RATE, TLP_WRITE_RATE, BridgeChip
from gpu.sim.usb.descriptors import Descriptors
from gpu.sim.usb.firmware import (
    BULK_IN,
    BULK_OUT,
    GET_DESCRIPTOR,
    SET_CONFIGURATION,
    SET_INTERFACE,
    STANDARD_IN,
    STANDARD_OUT,
    VENDOR_IN,
    VENDOR_OUT,
    Setup,
    give_packets,
)
from gpu.sim.usb.tlp import COMPLETE, ERROR, GO, KICK, STATUS

READ, WRITE, TLP, SRAM, POWER = 0xE4, 0xE5, 0xF0, 0xF2, 0xF3
SINGLE, STREAM_WRITE, STREAM_READ = 0, 1, 2
UP_STATE: Final = 0x78
_INTERFACE_OUT: Final = 0x01
_READ_SUPER, _READ_HIGH = 512, 64
_HEADER: Final = 12
_MEMORY_WRITES, _MEMORY_READS = (0x40, 0x60), (0x00, 0x20)
_WRITES: Final = 0x40
_TO_HOST: Final = 0x8000
_OK, _FAILED, _NOTHING = 0, 1, 0xFF
_POLL_NS: Final = 500_000_000  # 500,000 turns of a loop of the 8051 (U)
_SAMPLE_NS, _SAMPLES, _STABLE = 100_000_000, 20, 3
_PIECE: Final = 64 << 10


class OpenFirmware:
    """The firmware. See `gpu.sim.usb.firmware.Firmware`."""

    def __init__(self, chip: BridgeChip, identity: tuple[int, int]):
        self.chip = chip
        self.vendor, self.product = identity
        alternates = [(0x81, 0x02)] if chip.speed.bulk == 1024 else []
        self._descriptors = Descriptors(
            *(identity, ("tiny", "custom v0.1", "ffffffff"), (0xFF, 0xFF, 0xFF)),
            [*alternates, (0x81, 0x02, 0x83, 0x04)],
            chip.speed.bulk,
        )
        self._mode = SINGLE
        self._dwords = 0  # of a stream that are still to come
        self._takes_stream = False
        self._fifo = bytearray()

    def control_in(self, setup: Setup) -> bytes | None:
        """0xE4 reads XDATA, 0xF0 brings a completion, and descriptors. Others have no answer."""
        if (setup.kind, setup.request) == (VENDOR_IN, READ):
            return self._read(setup)
        if (setup.kind, setup.request) == (VENDOR_IN, TLP):
            return self._completion()[: setup.size]
        if (setup.kind, setup.request) == (STANDARD_IN, GET_DESCRIPTOR):
            found = self._descriptors.get(setup.value >> 8, setup.value & 0xFF)
            return None if found is None else found[: setup.size]
        self.chip.violation("unknown-request", f"{setup}")
        return None

    def control_out(self, setup: Setup, data: bytes) -> bool:
        """0xE5, 0xF0, 0xF2, 0xF3. Unknown ones without data are acknowledged."""
        key = setup.kind, setup.request
        if key == (VENDOR_OUT, WRITE):
            self._write(setup)
        elif key == (VENDOR_OUT, TLP):
            self._request(setup, data)
        elif key == (VENDOR_OUT, SRAM):
            self._arm(setup)
        elif key == (VENDOR_OUT, POWER):
            self._power(setup.value)
        elif key in ((STANDARD_OUT, SET_CONFIGURATION), (_INTERFACE_OUT, SET_INTERFACE)):
            self.clear(BULK_IN)
            self.clear(BULK_OUT)
        else:
            self.chip.violation("unknown-request", f"{setup}")
            return not setup.size
        if setup.size and key != (VENDOR_OUT, TLP):
            self.chip.violation("request-data", f"{setup}")
        return not self.chip.is_wedged

    def give(self, size: int) -> bytes | None:
        """What a stream has read, or sectors of SRAM."""
        chip = self.chip
        if self._fifo:
            data = give_packets(self._fifo, size, chip.speed.bulk)
            del self._fifo[: len(data)]
            if not self._fifo and self._dwords and self._mode == STREAM_READ:
                self._fill()
            return data
        waiting = chip.sram.gives
        if not waiting:
            return None
        data = chip.sram.give(len(give_packets(bytes(waiting), size, chip.speed.bulk)))
        chip.spend(len(data), SRAM_RATE)
        return data

    def take(self, data: memoryview) -> int | None:
        """A packet of a stream, or some sectors for SRAM."""
        chip = self.chip
        if self._takes_stream:
            return self._take_packet(data[: chip.speed.bulk])
        waiting = chip.sram.takes
        if not waiting:
            return None
        packets = chip.machine.rng.randint(1, _PIECE // chip.speed.bulk)
        count = min(len(data), waiting, chip.speed.bulk * packets)
        if count == waiting < len(data):
            chip.violation("sram-too-long", f"{len(data)} bytes where {waiting} are waited for")
        elif count == len(data) < waiting and count % chip.speed.bulk:
            chip.violation("sram-short", f"{count} bytes where {waiting} are waited for")
        chip.spend(count, SRAM_RATE)
        chip.sram.take(data[:count])
        chip.work()
        return count

    def clear(self, endpoint: int) -> None:
        """CLEAR_FEATURE(ENDPOINT_HALT): what is under way at the endpoint ends, and all streams."""
        sram = self.chip.sram
        if endpoint == BULK_IN:
            self._fifo.clear()
        elif endpoint == BULK_OUT:
            self._takes_stream = False
        if sram.is_armed and sram.is_in == (endpoint == BULK_IN):
            sram.cancel()  # U: the firmware clears the endpoint alone
        self._dwords = 0

    def _read(self, setup: Setup) -> bytes:
        """XDATA byte by byte; the card may write in between."""
        chip = self.chip
        most = _READ_SUPER if chip.speed.control == _READ_SUPER else _READ_HIGH
        size = min(setup.size, most)
        if setup.value + size > 1 << 16:
            chip.violation("xdata-wrap", f"{size} bytes from {setup.value:#06x} on")
        torn, result = chip.machine.rng.randrange(size) if size else 0, bytearray()
        for number in range(size):
            if number == torn:
                chip.work()
            result.append(chip.xdata.read(setup.value + number & 0xFFFF, setup.index >> 8))
        return bytes(result)

    def _write(self, setup: Setup) -> None:
        self.chip.xdata.write(setup.value, setup.index & 0xFF, setup.index >> 8)

    def _completion(self) -> bytes:
        chip, tlp = self.chip, self.chip.tlp
        if not tlp.expects:
            chip.violation("completion-of-nothing", "nothing was asked for that has a completion")
        if tlp.status & ERROR:
            tlp.write(STATUS, ERROR)
            return bytes((*bytes(7), _FAILED))
        if tlp.status & COMPLETE:
            return tlp.data.to_bytes(4, "little") + tlp.completion + bytes((_OK,))
        chip.busy_until_ns = chip.machine.clock.now_ns + _POLL_NS
        return bytes((*bytes(7), _NOTHING))

    def _request(self, setup: Setup, data: bytes) -> None:
        chip, tlp, mode = self.chip, self.chip.tlp, setup.index & 3
        if len(data) != _HEADER or setup.index > STREAM_READ:
            chip.violation("tlp-request", f"{setup} with {len(data)} bytes")
            return
        low, high, value = struct.unpack("<III", data)
        form, enables = setup.value & 0xFF, setup.value >> 8
        self._dwords = 0
        tlp.prepare(form, enables, high << 32 | low)
        if mode == SINGLE:
            if form & _WRITES:
                tlp.data = value
            for at, written in ((STATUS, ERROR), (STATUS, COMPLETE), (STATUS, KICK), (GO, 0x0F)):
                tlp.write(at, written)
        elif self._can_stream(mode, form, enables, tlp.address) and value:
            self._mode, self._dwords = mode, value
            if mode == STREAM_WRITE:
                self._takes_stream = True
            else:
                self._fill()

    def _can_stream(self, mode: int, form: int, enables: int, address: int) -> bool:
        chip, what = self.chip, f"stream {form:#x} of {address:#x}, bytes {enables:#x}"
        if self._fifo and mode == STREAM_READ:
            chip.violation("stream-not-taken", f"{what}: {len(self._fifo)} bytes of the last wait")
        if chip.sram.is_armed:
            chip.violation("stream-during-sram", what)
        if form not in (_MEMORY_WRITES if mode == STREAM_WRITE else _MEMORY_READS):
            chip.violation("stream-type", what)
        elif enables != 0xF or address % 4:
            chip.violation("stream-dwords", what)
        else:
            return True
        return False

    def _fill(self) -> None:
        """Reads the next packet, before the host asks for it."""
        chip = self.chip
        count = min(self._dwords, chip.speed.bulk // 4)
        chip.spend(4 * count, TLP_READ_RATE)
        chip.work()
        data = chip.tlp.read_stream(count)
        if data is None:
            chip.is_wedged = True
            return
        self._fifo += data
        self._dwords -= count

    def _take_packet(self, packet: memoryview) -> int:
        chip, dwords = self.chip, len(packet) // 4
        what = f"{len(packet)} bytes"
        self._takes_stream = False
        if self._mode != STREAM_WRITE or not self._dwords:
            chip.violation("stream-abandoned", f"{what} for a stream that was given up")
        elif dwords > self._dwords:
            chip.violation("stream-too-long", f"{what} where {4 * self._dwords} are left")
        else:
            if len(packet) % 4:
                chip.violation("stream-part", what)
            chip.spend(4 * dwords, TLP_WRITE_RATE)
            chip.tlp.write_stream(packet[: 4 * dwords])
            chip.work()
            self._dwords -= dwords
            self._takes_stream = self._dwords > 0
        return len(packet)

    def _arm(self, setup: Setup) -> None:
        chip = self.chip
        if self._fifo or self._takes_stream:
            chip.violation("sram-during-stream", f"{setup}")
        is_in = bool(setup.value & _TO_HOST)
        slot, slots = setup.index & 0xFF, setup.index >> 8 or 1
        chip.sram.arm(setup.value & ~_TO_HOST, slot, slots, is_in)

    def _power(self, value: int) -> None:
        """On, it samples the link until that is stable three times, at most 20 times."""
        chip = self.chip
        if value > 1:
            chip.violation("power-value", f"{value:#x}")
        chip.tlp.drain()
        chip.link.power(bool(value & 1))
        if not value & 1:
            return
        now, stable = chip.machine.clock.now_ns, 0
        for _ in range(_SAMPLES):
            stable = stable + 1 if chip.link.state_at(now) == UP_STATE else 0
            now += _SAMPLE_NS
            if stable == _STABLE:
                break
        chip.busy_until_ns = now

"""A bridge with the open firmware: requests of its own, and bulk transfers for what is long.

| request | wValue | wIndex | data |
|---|---|---|---|
| 0xE4 in: memory | address | 0 | bytes |
| 0xE5 out: a byte of memory | address | value | |
| 0xF0 out: PCI Express | kind, byte enables << 8 | 0 one, 1 writes, 2 reads | address, dword |
| 0xF0 in: what came of one | 0 | 0 | dword, status << 5, 2 bytes, 0 or 1 failed or 0xFF late |
| 0xF2 out: sectors of its memory | sectors, to the host 0x8000 | slot, slots << 8 | |
| 0xF3 out: power of the card | 0, 1 | 0 | |

Sectors go by the bulk endpoints afterwards; to the host as soon as the card ends an NVMe command.
"""

from __future__ import annotations

import struct
from typing import Final

from gpu.core.errors import DeviceLost, HwTimeout, TransportError
from gpu.transport.asm24.bridge import Completion
from gpu.transport.asm24.sram import SECTOR, SLOT
from gpu.transport.asm24.tlp import Kind, Request
from gpu.transport.usb import UsbDevice

IN, OUT = 0xC0, 0x40  # vendor requests of the device
BULK_OUT, BULK_IN = 0x02, 0x81
_READ, _WRITE, _TLP, _SECTORS, _POWER = 0xE4, 0xE5, 0xF0, 0xF2, 0xF3
_TO_HOST: Final = 0x8000
_ONE, _STREAM_OUT, _STREAM_IN = range(3)
_ALL_BYTES: Final = 0xF
_TLP_MS: Final = 5_000  # the firmware looks 500,000 times for a completion
_POWER_MS: Final = 10_000
_STREAM_MS: Final = 30_000
_SECTORS_MS: Final = 5_000
_MOST_READ, _MOST_READ_USB2 = 255, 64
_SUPER_SPEED: Final = 5_000
_ARGUMENTS: Final = struct.Struct("<QI")
_ANSWER: Final = struct.Struct("<IB2xB")
_FAILED, _LATE = 1, 0xFF


class OpenBridge:
    """See `gpu.transport.asm24.bridge.Bridge`."""

    link_up = 0x78
    has_power = has_streams = True

    def __init__(self, device: UsbDevice):
        """Takes the interface; what another process left in the endpoints is forgotten."""
        self.device = device
        self._most = _MOST_READ if device.speed >= _SUPER_SPEED else _MOST_READ_USB2
        device.claim(0)
        device.clear_halt(BULK_OUT)
        device.clear_halt(BULK_IN)

    def read(self, address: int, size: int) -> bytes:
        """As much at once as one packet has. Raises TransportError for a short answer."""
        data = b""
        while len(data) < size:
            at, count = address + len(data), min(size - len(data), self._most)
            part = self.device.control_in(IN, _READ, at, 0, count)
            self._check_size(f"memory at {at:#x}", part, count)
            data += part
        return data

    def set_power(self, on: bool) -> None:
        """The firmware answers when the link is up, or after 2 s."""
        self.device.control_out(OUT, _POWER, int(on), 0, timeout=_POWER_MS)

    def request(self, request: Request) -> Completion:
        """One transfer, and a second one for what is answered."""
        self._begin(request.kind, request.enables, _ONE, request.address, request.value)
        if request.kind.is_posted:
            return Completion()
        answer = self.device.control_in(IN, _TLP, 0, 0, _ANSWER.size, _TLP_MS)
        self._check_size("a completion", answer, _ANSWER.size)
        value, status, result = _ANSWER.unpack(answer)
        if result not in (0, _FAILED, _LATE):
            raise TransportError(f"{self.device.id}: a completion's result is {result:#x}")
        return Completion(value, status >> 5, result == _FAILED, result == _LATE)

    def stream_out(self, address: int, data: bytes) -> None:
        """Two transfers. Raises DeviceLost where the bridge is stuck."""
        self._begin(Kind.MEMORY_WRITE, _ALL_BYTES, _STREAM_OUT, address, len(data) // 4)
        try:
            self.device.bulk_out(BULK_OUT, data, _STREAM_MS)
        except HwTimeout as error:
            raise self._stuck(error) from error

    def stream_in(self, address: int, size: int) -> bytes:
        """Two transfers. Raises DeviceLost where the bridge is stuck."""
        try:
            # It reads the first packet before it answers: a link that died shows here.
            self._begin(Kind.MEMORY_READ, _ALL_BYTES, _STREAM_IN, address, size // 4)
            data = self.device.bulk_in(BULK_IN, size, _STREAM_MS)
        except HwTimeout as error:
            raise self._stuck(error) from error
        self._check_size(f"memory of the bus at {address:#x}", data, size)
        return data

    def write(self, address: int, value: int) -> None:
        """See `Bridge.write`."""
        self.device.control_out(OUT, _WRITE, address, value)

    def begin_sectors(self, slot: int, count: int, to_host: bool) -> None:
        """See `Bridge.begin_sectors`."""
        slots = -(-count * SECTOR // SLOT)
        self.device.control_out(OUT, _SECTORS, count | _TO_HOST * to_host, slot | slots << 8)

    def give_sectors(self, data: bytes | bytearray | memoryview) -> None:
        """See `Bridge.give_sectors`."""
        self.device.bulk_out(BULK_OUT, data, _SECTORS_MS)

    def take_sectors(self, count: int) -> bytes:
        """See `Bridge.take_sectors`."""
        data = self.device.bulk_in(BULK_IN, count * SECTOR, _SECTORS_MS)
        self._check_size("sectors", data, count * SECTOR)
        return data

    def cancel_sectors(self) -> None:
        """See `Bridge.cancel_sectors`."""
        self.device.clear_halt(BULK_OUT)
        self.device.clear_halt(BULK_IN)

    def close(self) -> None:
        """Gives the device back."""
        self.device.close()

    def _begin(self, kind: Kind, enables: int, mode: int, address: int, value: int) -> None:
        data = _ARGUMENTS.pack(address, value)
        self.device.control_out(OUT, _TLP, kind | enables << 8, mode, data, _TLP_MS)

    def _check_size(self, what: str, data: bytes, wanted: int) -> None:
        if len(data) != wanted:
            raise TransportError(
                f"{self.device.id}: {what} came with {len(data)} bytes, wanted {wanted}"
            )

    def _stuck(self, error: HwTimeout) -> DeviceLost:
        return DeviceLost(
            f"{error.message}: the bridge waits for a card that does not answer, and does nothing"
            " else from now on: take its power away, and plug it in anew"
        )

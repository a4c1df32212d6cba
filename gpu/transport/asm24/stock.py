"""A bridge with its maker's firmware: two SCSI commands read and write its processor's memory.

Requests on PCI Express are made by hand in the registers of the engine that is there: slow, some 20
commands each. They are as tinygrad used them before it had firmware of its own (T); where bytes are
that select memory on the older ASM236x is from cyrozap's usb-to-pcie-re (R).
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from gpu.core.errors import Unsupported
from gpu.transport.asm24.bridge import Completion
from gpu.transport.asm24.scsi import BulkOnly
from gpu.transport.asm24.tlp import Request
from gpu.transport.usb import UsbDevice

READ, WRITE = 0xE4, 0xE5
KIND, ENABLES, ADDRESS, ADDRESS_HIGH, DATA = 0xB210, 0xB217, 0xB218, 0xB21C, 0xB220
COMPLETION, TRIGGER, STATE = 0xB22A, 0xB254, 0xB296
FAILED, DONE, START, EXECUTE = 0x01, 0x02, 0x04, 0x0F
_COMMAND: Final = struct.Struct(">BBBHB")
_MOST: Final = 255
_LOOKS: Final = 1_000  # for a completion, of a few transfers each
_BANKS: Final = {0x2360: 0x00, 0x2460: 0x50}


class StockBridge:
    """See `gpu.transport.asm24.bridge.Bridge`."""

    link_up = 0x48
    has_power = has_streams = False

    def __init__(self, device: UsbDevice):
        """Takes the disk that it pretends to be from its driver."""
        self.device = device
        self._bank = _BANKS[device.id.product & 0xFFF0]
        self._scsi = BulkOnly(device)
        self._known: dict[int, int] = {}  # bytes of the engine, by address

    def read(self, address: int, size: int) -> bytes:
        """A command for each 255 bytes."""
        data = b""
        while len(data) < size:
            at, count = address + len(data), min(size - len(data), _MOST)
            data += self._scsi.run(_COMMAND.pack(READ, count, self._bank, at, 0), count)
        return data

    def write(self, address: int, value: int) -> None:
        """A command."""
        self._scsi.run(_COMMAND.pack(WRITE, value, self._bank, address, 0))

    def _set(self, address: int, data: bytes) -> None:
        """Bytes of the engine that stay what they are: those that change are written."""
        for at, value in enumerate(data, address):
            if self._known.get(at) != value:
                self._known.pop(at, None)  # unknown, should this fail on its way
                self.write(at, value)
                self._known[at] = value

    def set_power(self, on: bool) -> None:
        """Raises Unsupported: this firmware does so by itself."""
        raise Unsupported(
            f"{self.device.id}: the maker's firmware powers the card by itself; plug it in anew"
        )

    def request(self, request: Request) -> Completion:
        """Some 20 commands; fewer where the last request was like it."""
        if request.kind.has_data:
            self._set(DATA, request.value.to_bytes(4, "big"))
        else:
            for at in range(DATA, DATA + 4):  # what is read comes where data of writes lies
                self._known.pop(at, None)
        self._set(ADDRESS, (request.address & 0xFFFF_FFFF).to_bytes(4, "big"))
        self._set(ADDRESS_HIGH, (request.address >> 32).to_bytes(4, "big"))
        self._set(ENABLES, bytes((request.enables,)))
        self._set(KIND, bytes((request.kind,)))
        self.write(TRIGGER, EXECUTE)
        self.write(STATE, START)
        if request.kind.is_posted:
            return Completion()
        for _ in range(_LOOKS):
            (state,) = self.read(STATE, 1)
            if state & FAILED:
                self.write(STATE, FAILED)
                return Completion(failed=True)
            if state & DONE:
                return self._completion(request)
        return Completion(timed_out=True)

    def _completion(self, request: Request) -> Completion:
        status = self.read(COMPLETION, 1)[0] >> 5
        if request.kind.has_data:
            return Completion(0, status)
        return Completion(int.from_bytes(self.read(DATA, 4), "big"), status)

    def stream_out(self, address: int, data: bytes) -> None:
        """Raises Unsupported."""
        raise Unsupported(f"{self.device.id}: the maker's firmware has no streams")

    def stream_in(self, address: int, size: int) -> bytes:
        """Raises Unsupported."""
        raise Unsupported(f"{self.device.id}: the maker's firmware has no streams")

    def begin_sectors(self, slot: int, count: int, to_host: bool) -> None:
        """Raises Unsupported."""
        self._refuse_sectors()

    def give_sectors(self, data: bytes | bytearray | memoryview) -> None:
        """Raises Unsupported."""
        self._refuse_sectors()

    def take_sectors(self, count: int) -> bytes:
        """Raises Unsupported."""
        self._refuse_sectors()

    def cancel_sectors(self) -> None:
        """Nothing is begun, ever."""

    def _refuse_sectors(self) -> NoReturn:
        raise Unsupported(f"{self.device.id}: the maker's firmware moves sectors of its disk alone")

    def close(self) -> None:
        """Gives the device back to its driver."""
        self.device.close()

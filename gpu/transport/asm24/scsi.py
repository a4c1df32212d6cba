"""SCSI commands over USB, one at a time: a command block, its data, a status.

USB Mass Storage Class, Bulk-Only Transport 1.0: wrappers 5.1 and 5.2, recovery 5.3.4 and 6.7.
"""

from __future__ import annotations

import errno
import struct
from typing import Final

from gpu.core.errors import TransportError
from gpu.transport.usb import UsbDevice

BULK_OUT, BULK_IN = 0x02, 0x81
RESET: Final = (0x21, 0xFF)  # bmRequestType, bRequest of a Bulk-Only Mass Storage Reset
COMMAND: Final = struct.Struct("<4sIIBBB16s")
STATUS: Final = struct.Struct("<4sIIB")
COMMAND_MARK, STATUS_MARK = b"USBC", b"USBS"
_IN: Final = 0x80
_PASSED: Final = 0
_TIMEOUT_MS: Final = 5_000


class BulkOnly:
    """The commands of one device, whose interface 0 is claimed from now on."""

    def __init__(self, device: UsbDevice):
        """Takes the interface from its driver; what that left unfinished is forgotten."""
        self._device = device
        self._tag = 0
        device.claim(0)
        self.recover()

    def recover(self) -> None:
        """Begins anew after a command that was broken off."""
        self._device.control_out(*RESET, 0, 0)
        self._device.clear_halt(BULK_IN)
        self._device.clear_halt(BULK_OUT)

    def run(self, command: bytes, size: int = 0) -> bytes:
        """A command of at most 16 bytes that brings ``size`` bytes. Raises TransportError."""
        self._tag = self._tag + 1 & 0xFFFF_FFFF
        flags = _IN if size else 0
        block = COMMAND.pack(COMMAND_MARK, self._tag, size, flags, 0, len(command), command)
        self._device.bulk_out(BULK_OUT, block, _TIMEOUT_MS)
        data = self._receive(size) if size else b""
        mark, tag, left, status = STATUS.unpack(self._receive(STATUS.size).ljust(STATUS.size))
        if (mark, tag) != (STATUS_MARK, self._tag):
            self.recover()
            raise TransportError(f"{self._title(command)}: an answer to something else came")
        if status != _PASSED or left or len(data) != size:
            raise TransportError(
                f"{self._title(command)}: status {status}, {len(data)} of {size} bytes", errno.EIO
            )
        return data

    def _receive(self, size: int) -> bytes:
        """Data or a status; where the endpoint is halted instead there is no data."""
        try:
            return self._device.bulk_in(BULK_IN, size, _TIMEOUT_MS)
        except TransportError as error:
            if error.errno != errno.EPIPE:
                raise
            self._device.clear_halt(BULK_IN)
            return b""

    def _title(self, command: bytes) -> str:
        return f"{self._device.id}, SCSI command {command.hex(' ')}"

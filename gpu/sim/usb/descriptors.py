"""Descriptors of the bridge under both firmwares (USB 2.0, 9.6; USB 3.2, 9.6).

Of the open firmware: handmade/src/usb.h of tinygrad/asm2464pd-firmware c5e2090. Of stock ones the
identity (R: cyrozap's usb-to-pcie-re); class and endpoints are those of Mass Storage by BOT.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

_DEVICE, _CONFIGURATION, _STRING, _BOS = 1, 2, 3, 15
_BULK: Final = 2
_BURST: Final = 15


class Descriptors:
    """The descriptors of one device.

    Args:
        identity: vendor and product.
        strings: manufacturer, product, serial number.
        class_code: of the interface: class, sub-class, protocol.
        alternates: the endpoints of each alternate setting.
        packet: bytes of a bulk packet.
    """

    def __init__(
        self,
        identity: tuple[int, int],
        strings: Sequence[str],
        class_code: tuple[int, int, int],
        alternates: Sequence[Sequence[int]],
        packet: int,
    ):
        self._identity, self._strings = identity, strings
        self._class_code, self._alternates = class_code, alternates
        self._packet = packet
        self._is_super = packet == 1024

    def get(self, kind: int, index: int) -> bytes | None:
        """A descriptor; None where there is none."""
        if kind == _DEVICE:
            version, first = (0x0320, 9) if self._is_super else (0x0200, 64)
            head = struct.pack("<BBHBBBBHHH", 18, 1, version, 0, 0, 0, first, *self._identity, 1)
            return head + bytes((1, 2, 3, 1))
        if kind == _CONFIGURATION:
            return self._configuration()
        if kind == _BOS:
            return bytes.fromhex("050f160002 07100202000000 0a1003000e0003000000")
        if kind == _STRING and index <= len(self._strings):
            text = self._strings[index - 1].encode("utf-16-le") if index else bytes((9, 4))
            return bytes((2 + len(text), _STRING)) + text
        return None

    def _configuration(self) -> bytes:
        body = b""
        for number, endpoints in enumerate(self._alternates):
            body += bytes((9, 4, 0, number, len(endpoints), *self._class_code, 0))
            for endpoint in endpoints:
                body += struct.pack("<BBBBHB", 7, 5, endpoint, _BULK, self._packet, 0)
                if self._is_super:
                    body += bytes((6, 0x30, _BURST, 0, 0, 0))
        return struct.pack("<BBHBBBBB", 9, 2, 9 + len(body), 1, 1, 0, 0xC0, 0) + body

"""What PCI calls its things: addresses of functions, identities, BARs, addresses on the bus."""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

from gpu.core.errors import InvalidValue

BusAddr = NewType("BusAddr", int)
"""Where a device finds memory of the machine: translated where there is an IOMMU."""


class PciAddress(NamedTuple):
    """Where a function is: ``0000:03:00.0`` as Linux writes it."""

    domain: int
    bus: int
    device: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PciAddress:
        """The address of a text such as ``0000:03:00.0`` or ``03:00.0``. Raises InvalidValue."""
        parts = re.fullmatch(
            r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", text.strip().lower()
        )
        if parts is None:
            raise InvalidValue(f"PCI address {text!r}: one such as 0000:03:00.0 is wanted")
        return cls(*(int(part or "0", 16) for part in parts.groups()))

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"


class PciIds(NamedTuple):
    """What a function is; `class_code` has 24 bits: base class, sub-class, interface."""

    vendor: int
    device: int
    subsystem_vendor: int
    subsystem_device: int
    revision: int
    class_code: int


class Bar(NamedTuple):
    """A range that a function decodes, by the number of its first base address register.

    Attributes:
        size: in bytes.
        is_io: of ports, not of memory.
        is_64bit: takes two registers.
        prefetchable: reading has no side effects.
    """

    size: int
    is_io: bool = False
    is_64bit: bool = True
    prefetchable: bool = False


class DmaPiece(NamedTuple):
    """Some bytes that lie one behind the other on the bus."""

    address: BusAddr
    size: int

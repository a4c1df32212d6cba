"""Requests on PCI Express, one dword each, and what a function answers.

PCI Express Base 4.0: kinds 2.2.1 (table 2-3), completion statuses 2.2.9. Memory is asked for with
the forms for 64-bit addresses below 4 GiB too, as all known drivers of the bridge do.
"""

from __future__ import annotations

import enum
import errno
from typing import NamedTuple

from gpu.core.errors import TransportError
from gpu.core.pci import PciAddress

DWORD = 4


class Kind(enum.IntEnum):
    """Format and type of a request."""

    MEMORY_READ = 0x20
    MEMORY_WRITE = 0x60
    CONFIG_READ_0 = 0x04  # of what is on the bridge's own bus
    CONFIG_READ_1 = 0x05
    CONFIG_WRITE_0 = 0x44
    CONFIG_WRITE_1 = 0x45

    @property
    def has_data(self) -> bool:
        """Whether it is a write."""
        return bool(self & 0x40)

    @property
    def is_posted(self) -> bool:
        """Whether nobody answers."""
        return self is Kind.MEMORY_WRITE


class Status(enum.IntEnum):
    """How a function completes a request; other numbers are reserved."""

    SUCCESSFUL = 0
    UNSUPPORTED_REQUEST = 1
    RETRY = 2
    ABORT = 4


_WORDS = {
    Status.UNSUPPORTED_REQUEST: "Unsupported Request: no function takes this address",
    Status.RETRY: "Configuration Request Retry: the function is still starting",
    Status.ABORT: "Completer Abort: the function refuses it",
}


class Request(NamedTuple):
    """One request.

    Attributes:
        kind: what is done.
        address: of a dword, in memory or as `config_address` gives it.
        enables: the bytes of the dword that count, a bit each.
        value: all of the dword, of writes.
    """

    kind: Kind
    address: int
    enables: int = 0xF
    value: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} at {self.address:#x} (bytes {self.enables:#x})"


class RequestFailed(TransportError):
    """A request that the bridge could not make, or that nobody answered."""

    def __init__(self, request: Request, why: str):
        super().__init__(f"PCI Express, {request}: {why}", errno.EIO)
        self.request = request


class CompletionError(RequestFailed):
    """A request that was answered with another status than success.

    ``status`` is a `Status`, or a reserved number.
    """

    def __init__(self, request: Request, status: int):
        known = status in Status.__members__.values()
        super().__init__(request, _WORDS[Status(status)] if known else f"reserved status {status}")
        self.status = Status(status) if known else status


def config_address(function: PciAddress, offset: int) -> int:
    """What a request for config space has in place of an address."""
    _, bus, device, number = function
    return bus << 24 | device << 19 | number << 16 | offset


def config_kind(function: PciAddress, write: bool) -> Kind:
    """Which request reaches a function's config space."""
    if function.bus:
        return Kind.CONFIG_WRITE_1 if write else Kind.CONFIG_READ_1
    return Kind.CONFIG_WRITE_0 if write else Kind.CONFIG_READ_0

"""What a firmware does for the host: answers control requests, moves bytes of bulk endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpu.sim.usb.chip import BridgeChip

BULK_IN, BULK_OUT = 0x81, 0x02
GET_DESCRIPTOR, SET_CONFIGURATION, SET_INTERFACE = 6, 9, 11
STANDARD_IN, STANDARD_OUT = 0x80, 0x00
VENDOR_IN, VENDOR_OUT = 0xC0, 0x40


@dataclass(frozen=True, slots=True)
class Setup:
    """A control request (USB 2.0, 9.3); `size` is wLength."""

    kind: int
    request: int
    value: int
    index: int
    size: int


class Stall(Exception):
    """The device stalls a request, or an endpoint."""


class Overflow(Exception):
    """A packet is longer than what the host still wants."""


class Firmware(Protocol):
    """A firmware. What it raises `Stall` for, the host is told as such."""

    chip: BridgeChip
    vendor: int
    product: int

    def control_in(self, setup: Setup) -> bytes | None:
        """The answer, at most `setup.size` bytes; None where it sends none, ever."""
        ...

    def control_out(self, setup: Setup, data: bytes) -> bool:
        """Does a request; False where it does not say so, ever."""
        ...

    def give(self, size: int) -> bytes | None:
        """Whole packets for the host, at most `size` bytes; None where it has nothing now.

        A last packet may be short. Raises Overflow where the next one is longer than `size`.
        """
        ...

    def take(self, data: memoryview) -> int | None:
        """How many bytes it took of what the host sends; None where it takes nothing now."""
        ...

    def clear(self, endpoint: int) -> None:
        """The halt of an endpoint ends, and what is under way there."""
        ...


def give_packets(pending: bytes | bytearray, size: int, packet: int) -> bytes:
    """What a host that wants `size` bytes gets of pending ones. Raises Overflow."""
    if size >= len(pending):
        return bytes(pending)
    if size < packet:
        raise Overflow
    return bytes(pending[: size - size % packet])

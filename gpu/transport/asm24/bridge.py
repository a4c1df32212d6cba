"""The bridge itself, as its firmware lets a host use it.

Sources, read and not copied: tinygrad's asm2464pd-firmware (handmade/src/main.c, pcie_pio.h,
src/include/registers.h) and runtime/support/usb.py (T: works on hardware).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gpu.transport.asm24.tlp import Request
from gpu.transport.usb import UsbDevice


class Completion(NamedTuple):
    """What came of a request.

    Attributes:
        value: the dword that was read.
        status: of the completion, a `gpu.transport.asm24.tlp.Status` or a reserved number.
        failed: the bridge could not make the request.
        timed_out: no completion came.
    """

    value: int = 0
    status: int = 0
    failed: bool = False
    timed_out: bool = False


class Bridge(Protocol):
    """One bridge that this process has. Sizes and offsets are in bytes.

    Raises what `gpu.transport.usb.UsbDevice` raises.
    """

    link_up: int
    """What the state of the link (`LINK_STATE`) reads as when it is up (L0)."""
    has_power: bool
    """Whether `set_power` is there; else the bridge gives the card power by itself."""
    has_streams: bool
    """Whether `stream_out`, `stream_in` and `sectors` are there; else all are requests."""

    @property
    def device(self) -> UsbDevice:
        """What it is on USB."""
        ...

    def read(self, address: int, size: int) -> bytes:
        """Reads memory and registers of the bridge's processor (XDATA)."""
        ...

    def set_power(self, on: bool) -> None:
        """Power and reset of the card, also of one that has it: it forgets all. Takes up to 2 s."""
        ...

    def request(self, request: Request) -> Completion:
        """Makes one request; of one that is posted nothing is known."""
        ...

    def stream_out(self, address: int, data: bytes) -> None:
        """Writes whole dwords to memory of the bus. Whether anybody took them is not told."""
        ...

    def stream_in(self, address: int, size: int) -> bytes:
        """Reads whole dwords; where nobody answers old words come, or the bridge is stuck."""
        ...

    def write(self, address: int, value: int) -> None:
        """Writes a byte of what `read` reads."""
        ...

    def begin_sectors(self, slot: int, count: int, to_host: bool) -> None:
        """Sectors of its memory from a slot on are to be moved: `give_sectors` moves them, or the
        card has them moved, and `take_sectors` brings them."""
        ...

    def give_sectors(self, data: bytes | bytearray | memoryview) -> None:
        """All that was begun."""
        ...

    def take_sectors(self, count: int) -> bytes:
        """All that was begun; raises HwTimeout where the card did not have it moved."""
        ...

    def cancel_sectors(self) -> None:
        """What was begun is not moved."""
        ...

    def close(self) -> None:
        """Gives it back; again does nothing."""
        ...

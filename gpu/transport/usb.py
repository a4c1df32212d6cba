"""USB devices as drivers see them: control requests and bulk transfers.

The order of use: `UsbBus.list_devices`, `UsbBus.open`, `UsbDevice.claim`, transfers, `close`.

Errors: `AccessDenied` with what would let this user; `TransportError` with EPIPE where the device
stalls a request or an endpoint (`clear_halt` frees an endpoint), EBUSY where a kernel driver or
another process has the interface, EOVERFLOW where it sends more than was asked for; `HwTimeout`;
`DeviceLost` when it is unplugged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpu.core.errors import Unsupported
from gpu.core.usb import UsbId

__all__ = ["NoUsb", "UsbBus", "UsbDevice", "UsbId"]


class UsbDevice(Protocol):
    """One open device. Sizes are in bytes, timeouts in milliseconds."""

    @property
    def id(self) -> UsbId:
        """Which one it is."""
        ...

    @property
    def speed(self) -> int:
        """What the link does, in Mbit/s: 480, 5000, 10000, ...; packets of bulk depend on it."""
        ...

    def claim(self, interface: int, alternate: int = 0) -> None:
        """Takes an interface; a kernel driver that has it is detached, and attached by `close`."""
        ...

    def control_in(
        self, kind: int, request: int, value: int, index: int, size: int, timeout: int = 1000
    ) -> bytes:
        """A control request that reads; `kind` is bmRequestType. May bring less than `size`."""
        ...

    def control_out(
        self,
        kind: int,
        request: int,
        value: int,
        index: int,
        data: bytes = b"",
        timeout: int = 1000,
    ) -> None:
        """A control request that writes all of `data`, at most 65535 bytes."""
        ...

    def bulk_in(self, endpoint: int, size: int, timeout: int = 1000) -> bytes:
        """Reads from an endpoint (0x81, ...) until `size` bytes or a short packet have come."""
        ...

    def bulk_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, timeout: int = 1000
    ) -> None:
        """Writes all of `data` to an endpoint (0x02, ...)."""
        ...

    def clear_halt(self, endpoint: int) -> None:
        """Ends the stall of an endpoint."""
        ...

    def reset(self) -> None:
        """Resets the port; interfaces must be claimed again."""
        ...

    def close(self) -> None:
        """Gives it back; again does nothing."""
        ...


class UsbBus(Protocol):
    """The USB devices of one machine."""

    def list_devices(self) -> Sequence[UsbId]:
        """All that are plugged in; nothing is opened."""
        ...

    def open(self, device: UsbId) -> UsbDevice:
        """Opens one."""
        ...


class NoUsb:
    """A machine of which no USB devices are used."""

    def list_devices(self) -> Sequence[UsbId]:
        """None."""
        return ()

    def open(self, device: UsbId) -> UsbDevice:
        """Raises Unsupported."""
        raise Unsupported(f"USB device {device}: no USB devices are used on this machine")

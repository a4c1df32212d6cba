"""The host's side of a bridge: an open USB device, its transfers, timeouts and what goes wrong.

As libusb and Linux's usbfs have it (errno of drivers/usb/core/devio.c). See
`gpu.transport.usb.UsbDevice` and `gpu.transport.usb.UsbBus`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from gpu.core.errors import DeviceLost, HwTimeout, TransportError
from gpu.core.usb import UsbId
from gpu.sim.usb.bridge import Bridge
from gpu.sim.usb.chip import CONTROL_NS
from gpu.sim.usb.firmware import (
    BULK_IN,
    BULK_OUT,
    SET_INTERFACE,
    Firmware,
    Overflow,
    Setup,
    Stall,
)

_MS: Final = 1_000_000
_IN, _TO_INTERFACE = 0x80, 0x01
_MOST_CONTROL: Final = 65535
_ALTERNATES: Final = 2
Result = TypeVar("Result")


class SimUsbDevice:
    """An open bridge."""

    def __init__(self, bridge: Bridge):
        self._bridge = bridge
        self._session = bridge.session
        self._is_open = True
        self._claimed = False

    @property
    def id(self) -> UsbId:
        """Which one it is."""
        return self._bridge.id

    @property
    def speed(self) -> int:
        """What the link does, in Mbit/s."""
        return self._bridge.speed

    def claim(self, interface: int, alternate: int = 0) -> None:
        """Takes interface 0. A driver of the kernel that has it is detached until `close`."""
        bridge = self._bridge
        with self._alive():
            highest = _ALTERNATES if bridge.firmware.chip.speed.bulk == 1024 else 1
            if interface or not 0 <= alternate < highest:
                what = f"interface {interface}, alternate {alternate} of {self.id}: there is none"
                raise TransportError(what, errno.ENOENT)
            if bridge.holder not in (None, self):
                raise TransportError(f"{self.id} is in use by another", errno.EBUSY)
            bridge.detach(self)
            self._claimed = True
            if alternate != bridge.alternate:
                bridge.alternate = alternate
                bridge.firmware.control_out(Setup(1, SET_INTERFACE, alternate, 0, 0), b"")

    def control_in(
        self, kind: int, request: int, value: int, index: int, size: int, timeout: int = 1000
    ) -> bytes:
        """A control request that reads."""
        setup = self._setup(kind, request, value, index, size)
        return self._control(setup, lambda fw: fw.control_in(setup), bool(kind & _IN), timeout)

    def control_out(
        self,
        kind: int,
        request: int,
        value: int,
        index: int,
        data: bytes = b"",
        timeout: int = 1000,
    ) -> None:
        """A control request that writes all of `data`."""
        setup = self._setup(kind, request, value, index, len(data))

        def send(firmware: Firmware) -> bytes | None:
            return b"" if firmware.control_out(setup, data) else None

        self._control(setup, send, not kind & _IN, timeout)

    def bulk_in(self, endpoint: int, size: int, timeout: int = 1000) -> bytes:
        """Reads until `size` bytes or a short packet have come."""
        with self._transfer(endpoint, BULK_IN, timeout) as deadline:
            bridge, result, packet = self._bridge, bytearray(), self._packet
            while len(result) < size:
                give = partial(bridge.firmware.give, size - len(result))
                part = self._wait(give, deadline, timeout, endpoint)
                bridge.transfers.bytes_in += len(part)
                if bridge.is_now(bridge.troubles.short):
                    return bytes(result + part[: len(part) // 2])
                result += part
                if not part or len(part) % packet:
                    break
            return bytes(result)

    def bulk_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, timeout: int = 1000
    ) -> None:
        """Writes all of `data`."""
        with self._transfer(endpoint, BULK_OUT, timeout) as deadline:
            bridge, left = self._bridge, memoryview(data).cast("B")
            while True:
                take = partial(bridge.firmware.take, left)
                count = self._wait(take, deadline, timeout, endpoint)
                bridge.transfers.bytes_out += count
                left = left[count:]
                if not left:
                    return

    def clear_halt(self, endpoint: int) -> None:
        """Ends the stall of an endpoint, and what is under way there."""
        self._need_endpoint(endpoint, (endpoint & _IN and BULK_IN) or BULK_OUT)

        def clear(firmware: Firmware) -> bytes:
            self._bridge.halted.discard(endpoint)
            firmware.clear(endpoint)
            return b""

        self._control(Setup(2, 1, 0, endpoint, 0), clear, True, 1000)

    def reset(self) -> None:
        """Resets the port. What is behind the bridge does not notice it."""
        with self._alive():
            self._bridge.reset()
            self._claimed = False

    def close(self) -> None:
        """Gives it back; a driver of the kernel has it again."""
        if self._is_open:
            self._is_open = False
            self._bridge.release(self)

    @property
    def _packet(self) -> int:
        return self._bridge.firmware.chip.speed.bulk

    def _setup(self, kind: int, request: int, value: int, index: int, size: int) -> Setup:
        if not (0 <= value <= 0xFFFF and 0 <= index <= 0xFFFF and 0 <= size <= _MOST_CONTROL):
            what = f"control request {request:#x} of {value:#x}, {index:#x}, {size} bytes"
            raise TransportError(f"{what}: each has 16 bits", errno.EINVAL)
        return Setup(kind, request, value, index, size)

    def _control(
        self,
        setup: Setup,
        ask: Callable[[Firmware], bytes | None],
        is_right: bool,
        timeout: int,
    ) -> bytes:
        bridge = self._bridge
        with self._alive():
            if not is_right:
                raise TransportError(f"{setup}: bit 7 of the kind is its direction", errno.EINVAL)
            if setup.kind & 0x1F == _TO_INTERFACE and not self._claimed:
                raise TransportError(f"{setup}: the interface was not claimed", errno.ENOENT)
            bridge.transfers.control += 1
            bridge.begin()
            deadline = bridge.clock.now_ns + timeout * _MS
            bridge.clock.advance(CONTROL_NS)
            what = f"control request {setup.request:#x} to {self.id}"
            self._until_free(deadline, timeout, what)
            if bridge.is_now(bridge.troubles.stall):
                raise TransportError(f"{what} is stalled", errno.EPIPE)
            try:
                answer = ask(bridge.firmware)
            except Stall as error:
                raise TransportError(f"{what} is stalled", errno.EPIPE) from error
            self._until_free(deadline, timeout, what)
            if answer is None:
                raise self._late(deadline, timeout, what)
            return answer[: len(answer) // 2] if bridge.is_now(bridge.troubles.short) else answer

    @contextmanager
    def _transfer(self, endpoint: int, wanted: int, timeout: int) -> Iterator[int]:
        """Around a bulk transfer: everything that ends it before its first packet."""
        self._need_endpoint(endpoint, wanted)
        bridge = self._bridge
        with self._alive():
            if not self._claimed:
                raise TransportError(f"{self.id}: interface 0 was not claimed", errno.ENOENT)
            bridge.transfers.bulk += 1
            bridge.begin()
            if bridge.is_now(bridge.troubles.stall):
                bridge.halted.add(endpoint)
            if endpoint in bridge.halted:
                raise TransportError(f"endpoint {endpoint:#x} is stalled", errno.EPIPE)
            try:
                yield bridge.clock.now_ns + timeout * _MS
            except Stall as error:
                bridge.halted.add(endpoint)
                raise TransportError(f"endpoint {endpoint:#x} is stalled", errno.EPIPE) from error
            except Overflow as error:
                raise TransportError(
                    f"endpoint {endpoint:#x}: the device sends more than was asked for",
                    errno.EOVERFLOW,
                ) from error

    def _wait(
        self, move: Callable[[], Result | None], deadline: int, timeout: int, endpoint: int
    ) -> Result:
        """What moves next; the card may have to do something for it."""
        bridge, moved = self._bridge, None
        what = f"endpoint {endpoint:#x} of {self.id}"

        def is_over() -> bool:
            nonlocal moved
            moved = None if bridge.firmware.chip.is_wedged else move()
            return moved is not None

        bridge.machine.wait(is_over, max(deadline - bridge.clock.now_ns, 0))
        if moved is None or bridge.clock.now_ns > deadline:
            raise self._late(deadline, timeout, what)
        return moved

    def _until_free(self, deadline: int, timeout: int, what: str) -> None:
        """The firmware does what it was told before; all wait for it."""
        chip, clock = self._bridge.firmware.chip, self._bridge.clock
        if chip.is_wedged or chip.busy_until_ns > deadline:
            raise self._late(deadline, timeout, what)
        clock.advance(max(chip.busy_until_ns - clock.now_ns, 0))

    def _late(self, deadline: int, timeout: int, what: str) -> HwTimeout:
        clock = self._bridge.clock
        clock.advance(max(deadline - clock.now_ns, 0))
        return HwTimeout(what, None, "an answer", timeout / 1000)

    def _need_endpoint(self, endpoint: int, wanted: int) -> None:
        if endpoint != wanted:
            raise TransportError(f"{self.id} has no endpoint {endpoint:#x} there", errno.ENOENT)

    @contextmanager
    def _alive(self) -> Iterator[None]:
        machine = self._bridge.machine
        with machine.lock, machine.undisturbed:
            if not self._is_open:
                raise TransportError(f"{self.id} was closed", errno.EBADF)
            if self._session != self._bridge.session or not self._bridge.is_plugged:
                raise DeviceLost(f"{self.id} was unplugged: plug it in and open it anew")
            yield


class SimUsbBus:
    """The bridges of a machine. See `gpu.transport.usb.UsbBus`."""

    def __init__(self, bridges: Sequence[Bridge]):
        self._bridges = bridges

    def list_devices(self) -> Sequence[UsbId]:
        """Those that are plugged in."""
        return [bridge.id for bridge in self._bridges if bridge.is_plugged]

    def open(self, device: UsbId) -> SimUsbDevice:
        """Opens one. Raises DeviceLost for one that is not there."""
        for bridge in self._bridges:
            if bridge.is_plugged and bridge.id == device:
                return SimUsbDevice(bridge)
        raise DeviceLost(f"there is no USB device {device}")

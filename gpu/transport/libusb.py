"""USB devices of this machine, by libusb through pyusb. See `gpu.transport.usb`.

Numbers of errors are those that pyusb gives libusb's (usb/backend/libusb1.py, _libusb_errno), of
speeds libusb's (libusb.h, enum libusb_speed).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpu.core.errors import (
    AccessDenied,
    DeviceError,
    DeviceLost,
    HwTimeout,
    TransportError,
    Unsupported,
)
from gpu.core.log import get_logger
from gpu.transport.disks import disks_in_use
from gpu.transport.files import Files
from gpu.transport.usb import UsbId

_SPEEDS: Final = {1: 1, 2: 12, 3: 480, 4: 5_000, 5: 10_000, 6: 20_000}  # to Mbit/s
_GONE: Final = (errno.ENODEV, errno.ESHUTDOWN)
_SYSFS: Final = "/sys/bus/usb/devices"
_NO_PYUSB: Final = (
    "USB devices are reached by libusb through pyusb, which is not installed: `pip install pyusb`"
)
_NO_LIBUSB: Final = (
    "pyusb finds no libusb: install it (Debian: `apt install libusb-1.0-0`, macOS: `brew install"
    " libusb`); in a container USB has to be passed on as well (`--device=/dev/bus/usb`)"
)
_log = get_logger(__name__)


class HostUsb:
    """The USB devices that libusb lists. See `gpu.transport.usb.UsbBus`."""

    def __init__(self, system: Files, backend: Any = None):
        """``system`` tells of disks; ``backend`` is pyusb's, by default that of libusb 1.0."""
        self._files = system
        self._backend = backend

    def list_devices(self) -> Sequence[UsbId]:
        """All that are plugged in, in order of their ports. Raises Unsupported without libusb."""
        return sorted(map(_id, self._find()), key=lambda device: device.port)

    def open(self, device: UsbId) -> LibusbDevice:
        """Opens one. Raises Unsupported without libusb, DeviceLost where it is not there."""
        for found in self._find():
            if _id(found) == device:
                return LibusbDevice(found, self._files)
        raise DeviceLost(f"USB device {device} is not there any more")

    def _find(self) -> Iterator[Any]:
        try:  # imported on use: few have a bridge, and pyusb is not needed without one
            import usb.core
        except ImportError as error:
            raise Unsupported(_NO_PYUSB) from error
        try:
            yield from usb.core.find(find_all=True, backend=self._backend)
        except usb.core.NoBackendError as error:
            raise Unsupported(_NO_LIBUSB) from error


class LibusbDevice:
    """One of them, open. See `gpu.transport.usb.UsbDevice`."""

    def __init__(self, device: Any, system: Files):
        """``device`` is a `usb.core.Device`."""
        self._device = device
        self._files = system
        self._id = _id(device)
        self._claimed: list[int] = []
        self._detached: list[int] = []
        self._is_open = True

    @property
    def id(self) -> UsbId:
        """Which one it is."""
        return self._id

    @property
    def speed(self) -> int:
        """Mbit/s; 480 where libusb does not tell, of which all packets are accepted."""
        return _SPEEDS.get(self._device.speed or 0, 480)

    def claim(self, interface: int, alternate: int = 0) -> None:
        """Takes an interface.

        Raises TransportError(EBUSY) where another program has it, or a disk of it is in use.
        """
        import usb.util

        with self._typed(f"interface {interface}"):
            self._configure()
            if self._has_driver(interface):
                self._check_unused(interface)
                self._device.detach_kernel_driver(interface)
                self._detached.append(interface)
            usb.util.claim_interface(self._device, interface)
            self._claimed.append(interface)
            self._device.set_interface_altsetting(interface, alternate)

    def _configure(self) -> None:
        """The first configuration is chosen, unless the system has done so."""
        import usb.core

        try:
            self._device.get_active_configuration()
        except usb.core.USBError as error:
            if error.errno is not None:  # pyusb's own, of a device without one, has none
                raise
            self._device.set_configuration()

    def _has_driver(self, interface: int) -> bool:
        try:
            return bool(self._device.is_kernel_driver_active(interface))
        except NotImplementedError:  # systems that know no such thing
            return False

    def _check_unused(self, interface: int) -> None:
        folder = f"{_SYSFS}/{self._id.port}:1.{interface}"
        if used := disks_in_use(self._files, folder):
            raise TransportError(
                f"USB device {self._id} is a disk in use ({', '.join(used)}), which is not taken:"
                " unmount it first (`lsblk` shows where it is)",
                errno.EBUSY,
            )

    def control_in(
        self, kind: int, request: int, value: int, index: int, size: int, timeout: int = 1000
    ) -> bytes:
        """See `gpu.transport.usb.UsbDevice`."""
        with self._typed(f"request {request:#x}", timeout):
            answer = self._device.ctrl_transfer(kind, request, value, index, size, timeout)
            return bytes(answer.tobytes())

    def control_out(
        self,
        kind: int,
        request: int,
        value: int,
        index: int,
        data: bytes = b"",
        timeout: int = 1000,
    ) -> None:
        """See `gpu.transport.usb.UsbDevice`."""
        with self._typed(f"request {request:#x}", timeout):
            sent = self._device.ctrl_transfer(kind, request, value, index, data, timeout)
        self._check_whole(f"request {request:#x}", sent, len(data))

    def bulk_in(self, endpoint: int, size: int, timeout: int = 1000) -> bytes:
        """See `gpu.transport.usb.UsbDevice`."""
        with self._typed(f"endpoint {endpoint:#04x}", timeout):
            return bytes(self._device.read(endpoint, size, timeout).tobytes())

    def bulk_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, timeout: int = 1000
    ) -> None:
        """See `gpu.transport.usb.UsbDevice`."""
        with self._typed(f"endpoint {endpoint:#04x}", timeout):
            sent = self._device.write(endpoint, bytes(data), timeout)
        self._check_whole(f"endpoint {endpoint:#04x}", sent, len(bytes(data)))

    def _check_whole(self, what: str, sent: int, size: int) -> None:
        if sent != size:
            raise TransportError(
                f"USB device {self._id}, {what}: {sent} of {size} bytes were taken", errno.EIO
            )

    def clear_halt(self, endpoint: int) -> None:
        """Ends the stall of an endpoint."""
        with self._typed(f"endpoint {endpoint:#04x}"):
            self._device.clear_halt(endpoint)

    def reset(self) -> None:
        """Resets the port; interfaces must be claimed again."""
        with self._typed("reset"):
            self._claimed.clear()
            self._device.reset()

    def close(self) -> None:
        """Gives interfaces back, to kernel drivers where they were theirs; again does nothing."""
        import usb.util

        if not self._is_open:
            return
        self._is_open = False
        for interface in self._claimed:
            with self._forgiven(), self._typed("release"):
                usb.util.release_interface(self._device, interface)
        for interface in self._detached:
            with self._forgiven(), self._typed("attaching its driver"):
                self._device.attach_kernel_driver(interface)
        usb.util.dispose_resources(self._device)

    @contextlib.contextmanager
    def _forgiven(self) -> Iterator[None]:
        """What is gone cannot be given back."""
        try:
            yield
        except DeviceError as error:
            _log.info("giving back USB device %s: %s", self._id, error.message)

    @contextlib.contextmanager
    def _typed(self, what: str, timeout: int = 1000) -> Iterator[None]:
        """Errors of pyusb as those of `gpu.transport.usb`."""
        import usb.core

        title = f"USB device {self._id}, {what}"
        try:
            yield
        except usb.core.USBTimeoutError as error:
            raise HwTimeout(title, None, "an answer", timeout / 1e3) from error
        except usb.core.USBError as error:
            number = error.errno
            if number in _GONE:
                raise DeviceLost(f"{title}: it was unplugged") from error
            if number in (errno.EACCES, errno.EPERM):
                raise AccessDenied(f"USB device {self._id}", self._hint()) from error
            if number == errno.EBUSY:
                raise TransportError(
                    f"{title} is in use: another program has it; `sudo fuser -v {self._node()}`"
                    " names it",
                    errno.EBUSY,
                ) from error
            raise TransportError(f"{title}: {error.strerror}", number) from error

    def _node(self) -> str:
        return f"/dev/bus/usb/{self._device.bus or 0:03d}/{self._device.address or 0:03d}"

    def _hint(self) -> str:
        vendor, product, _ = self._id
        return (
            f"{self._node()} may be opened by its owner alone; a udev rule gives it to who sits at"
            f' the machine: `echo \'SUBSYSTEM=="usb", ATTR{{idVendor}}=="{vendor:04x}",'
            f' ATTR{{idProduct}}=="{product:04x}", MODE="0660", GROUP="render", TAG+="uaccess"\''
            " | sudo tee /etc/udev/rules.d/70-gpu-usb.rules`, then `sudo udevadm control --reload`,"
            " and plug it in anew"
        )


def _id(device: Any) -> UsbId:
    """Which one a `usb.core.Device` is; ports as Linux writes them."""
    ports = ".".join(map(str, device.port_numbers or ()))
    return UsbId(device.idVendor, device.idProduct, f"{device.bus or 0}-{ports or device.address}")

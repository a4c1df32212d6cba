"""USB devices through pyusb, with a backend of pyusb's in place of libusb."""

from __future__ import annotations

import array
import errno
import sys
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from gpu.core.errors import AccessDenied, DeviceLost, HwTimeout, TransportError, Unsupported
from gpu.transport.libusb import HostUsb, LibusbDevice
from gpu.transport.usb import UsbId

usb = pytest.importorskip("usb")
core = pytest.importorskip("usb.core")
backend = pytest.importorskip("usb.backend")

BRIDGE = UsbId(0xADD1, 1, "2-1.4")
DISK = "/sys/bus/usb/devices/2-1.4:1.0/host6/target6:0:0/6:0:0:0/block/sdc"


class Machine:
    """Files of a machine with a disk on USB, of which the second partition may be in use."""

    def __init__(self, files: dict[str, str]):
        self.files = files

    def read_file(self, path: str) -> bytes:
        if path not in self.files:
            raise TransportError(f"reading {path}", errno.ENOENT)
        return self.files[path].encode()

    def list_dir(self, path: str) -> list[str]:
        inside = [each[len(path) + 1 :] for each in self.files if each.startswith(path + "/")]
        return sorted({each.split("/")[0] for each in inside if each})

    def exists(self, path: str) -> bool:
        return any(each == path or each.startswith(path + "/") for each in self.files)


class Backend(backend.IBackend):  # type: ignore[misc, name-defined]
    """One device with an interface of two endpoints, and perhaps a kernel driver."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, tuple[int | None, str]] = {}
        self.driver = False
        self.configuration = 1
        self.short = 0
        self.speed: int | None = 4

    def _do(self, name: str, *arguments: Any) -> None:
        if name in self.failing:
            number, text = self.failing[name]
            kind = core.USBTimeoutError if number == errno.ETIMEDOUT else core.USBError
            raise kind(text, -1, number)
        self.calls.append((name, *arguments))

    def enumerate_devices(self) -> Iterable[int]:
        return [7, 8]

    def get_device_descriptor(self, dev: int) -> SimpleNamespace:
        bridge = dev == 7
        return SimpleNamespace(
            bLength=18,
            bDescriptorType=1,
            bcdUSB=0x320,
            bDeviceClass=0,
            bDeviceSubClass=0,
            bDeviceProtocol=0,
            bMaxPacketSize0=9,
            bcdDevice=1,
            iManufacturer=0,
            iProduct=0,
            iSerialNumber=0,
            bNumConfigurations=1,
            address=3,
            bus=2,
            port_number=4,
            idVendor=0xADD1 if bridge else 0x1D6B,
            idProduct=1 if bridge else 3,
            port_numbers=(1, 4) if bridge else None,
            speed=self.speed,
        )

    def get_configuration_descriptor(self, dev: int, config: int) -> SimpleNamespace:
        if config:
            raise IndexError
        return SimpleNamespace(
            bLength=9,
            bDescriptorType=2,
            wTotalLength=32,
            bNumInterfaces=1,
            bConfigurationValue=1,
            iConfiguration=0,
            bmAttributes=0x80,
            bMaxPower=0,
            extra_descriptors=[],
        )

    def get_interface_descriptor(
        self, dev: int, intf: int, alt: int, config: int
    ) -> SimpleNamespace:
        if intf or alt:
            raise IndexError
        return SimpleNamespace(
            bLength=9,
            bDescriptorType=4,
            bInterfaceNumber=0,
            bAlternateSetting=0,
            bNumEndpoints=2,
            bInterfaceClass=255,
            bInterfaceSubClass=0,
            bInterfaceProtocol=0,
            iInterface=0,
            extra_descriptors=[],
        )

    def get_endpoint_descriptor(
        self, dev: int, ep: int, intf: int, alt: int, config: int
    ) -> SimpleNamespace:
        return SimpleNamespace(
            bLength=7,
            bDescriptorType=5,
            bEndpointAddress=(0x02, 0x81)[ep],
            bmAttributes=2,
            wMaxPacketSize=1024,
            bInterval=0,
            bRefresh=0,
            bSynchAddress=0,
            extra_descriptors=[],
        )

    def open_device(self, dev: int) -> str:
        self._do("open")
        return "handle"

    def close_device(self, handle: str) -> None:
        self._do("close")

    def get_configuration(self, handle: str) -> int:
        return self.configuration

    def set_configuration(self, handle: str, value: int) -> None:
        self._do("configure", value)
        self.configuration = value

    def set_interface_altsetting(self, handle: str, intf: int, alternate: int) -> None:
        self._do("alternate", intf, alternate)

    def claim_interface(self, handle: str, intf: int) -> None:
        self._do("claim", intf)

    def release_interface(self, handle: str, intf: int) -> None:
        self._do("release", intf)

    def bulk_write(self, handle: str, ep: int, intf: int, data: Any, timeout: int) -> int:
        self._do("write", ep, bytes(data), timeout)
        return len(data) - self.short

    def bulk_read(self, handle: str, ep: int, intf: int, buff: Any, timeout: int) -> int:
        self._do("read", ep, len(buff), timeout)
        got = array.array("B", bytes(range(len(buff) - self.short)))
        buff[: len(got)] = got
        return len(got)

    def ctrl_transfer(
        self, handle: str, kind: int, request: int, value: int, index: int, data: Any, timeout: int
    ) -> int:
        incoming = bool(kind & 0x80)
        what = len(data) if incoming else bytes(data)
        self._do("control", kind, request, value, index, what, timeout)
        if incoming:
            data[:] = array.array("B", bytes(len(data)))
        return len(data) - self.short

    def clear_halt(self, handle: str, ep: int) -> None:
        self._do("clear", ep)

    def reset_device(self, handle: str) -> None:
        self._do("reset")

    def is_kernel_driver_active(self, handle: str, intf: int) -> bool:
        return self.driver

    def detach_kernel_driver(self, handle: str, intf: int) -> None:
        self._do("detach", intf)
        self.driver = False

    def attach_kernel_driver(self, handle: str, intf: int) -> None:
        self._do("attach", intf)


@pytest.fixture
def made_up() -> Backend:
    return Backend()


@pytest.fixture
def device(made_up: Backend) -> LibusbDevice:
    return HostUsb(Machine({}), made_up).open(BRIDGE)


def test_devices_are_listed_and_not_opened(made_up: Backend) -> None:
    bus = HostUsb(Machine({}), made_up)
    assert bus.list_devices() == [BRIDGE, UsbId(0x1D6B, 3, "2-3")]
    assert not made_up.calls
    with pytest.raises(DeviceLost, match="not there any more"):
        bus.open(UsbId(0xADD1, 1, "2-2"))


@pytest.mark.parametrize(("told", "speed"), [(3, 480), (4, 5000), (5, 10000), (None, 480)])
def test_speeds(made_up: Backend, told: int | None, speed: int) -> None:
    made_up.speed = told
    assert HostUsb(Machine({}), made_up).open(BRIDGE).speed == speed


def test_transfers(device: LibusbDevice, made_up: Backend) -> None:
    device.claim(0)
    made_up.calls.clear()
    assert device.control_in(0xC0, 0xE4, 0xB450, 0, 3, 500) == bytes(3)
    device.control_out(0x40, 0xF0, 0x20, 1, b"twelve bytes", 70)
    device.bulk_out(0x02, memoryview(b"abcd"), 80)
    assert device.bulk_in(0x81, 5, 90) == bytes(range(5))
    device.clear_halt(0x81)
    assert made_up.calls == [
        ("control", 0xC0, 0xE4, 0xB450, 0, 3, 500),
        ("control", 0x40, 0xF0, 0x20, 1, b"twelve bytes", 70),
        ("write", 0x02, b"abcd", 80),
        ("read", 0x81, 5, 90),
        ("clear", 0x81),
    ]
    made_up.short = 2
    assert device.bulk_in(0x81, 5) == bytes(range(3))
    assert device.control_in(0xC0, 0xE4, 0, 0, 3) == bytes(1)
    for send in (
        lambda: device.bulk_out(0x02, b"abcd"),
        lambda: device.control_out(0x40, 0xF0, 0, 0, b"abcd"),
    ):
        with pytest.raises(TransportError, match="2 of 4 bytes"):
            send()


def test_a_kernel_driver_gets_its_interface_back(device: LibusbDevice, made_up: Backend) -> None:
    made_up.driver = True
    device.claim(0)
    device.close()
    device.close()
    names = [call[0] for call in made_up.calls]
    assert names == ["open", "detach", "claim", "alternate", "release", "attach", "close"]


def test_a_free_interface_is_left_free(device: LibusbDevice, made_up: Backend) -> None:
    device.claim(0)
    device.close()
    assert [call[0] for call in made_up.calls] == ["open", "claim", "alternate", "release", "close"]


def test_a_device_that_nobody_configured(device: LibusbDevice, made_up: Backend) -> None:
    made_up.configuration = 0
    device.claim(0)
    assert ("configure", 1) in made_up.calls


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"/proc/self/mountinfo": "36 35 8:34 / /mnt rw - ext4 /dev/sdc2 rw"}, "sdc2"),
        ({"/proc/swaps": "Filename Type\n/dev/sdc2 partition 1 0 -2"}, "sdc2"),
        ({f"{DISK}/sdc2/holders/dm-0": ""}, "sdc2"),
        ({"/proc/self/mountinfo": "36 35 8:32 / /mnt rw - ext4 /dev/sdc rw"}, "sdc"),
    ],
)
def test_a_disk_in_use_is_not_taken(made_up: Backend, files: dict[str, str], name: str) -> None:
    disk = {f"{DISK}/dev": "8:32\n", f"{DISK}/sdc2/dev": "8:34\n", f"{DISK}/queue/dev": "8:99"}
    unused = {"/proc/self/mountinfo": "36 35 8:99 / / rw - ext4 /dev/sda rw"}
    made_up.driver = True
    with pytest.raises(TransportError, match=rf"disk in use \({name}\)") as caught:
        HostUsb(Machine({**disk, **files}), made_up).open(BRIDGE).claim(0)
    assert caught.value.errno == errno.EBUSY and "detach" not in str(made_up.calls)
    HostUsb(Machine({**disk, **unused}), made_up).open(BRIDGE).claim(0)
    assert ("detach", 0) in made_up.calls


def test_who_may_not_is_told_the_rule(device: LibusbDevice, made_up: Backend) -> None:
    made_up.failing["open"] = errno.EACCES, "Access denied (insufficient permissions)"
    with pytest.raises(AccessDenied) as caught:
        device.claim(0)
    for part in ('ATTR{idVendor}=="add1"', 'ATTR{idProduct}=="0001"', "/dev/bus/usb/002/003"):
        assert part in caught.value.message


def test_somebody_else_has_it(device: LibusbDevice, made_up: Backend) -> None:
    made_up.failing["claim"] = errno.EBUSY, "Resource busy"
    with pytest.raises(TransportError, match="fuser -v /dev/bus/usb/002/003") as caught:
        device.claim(0)
    assert caught.value.errno == errno.EBUSY


@pytest.mark.parametrize(
    ("number", "kind", "told"),
    [
        (errno.EPIPE, TransportError, "Pipe"),
        (errno.EOVERFLOW, TransportError, "Pipe"),
        (errno.EIO, TransportError, "Pipe"),
        (None, TransportError, "Pipe"),
        (errno.ENODEV, DeviceLost, "unplugged"),
        (errno.ETIMEDOUT, HwTimeout, "an answer, after 0.25 s"),
    ],
)
def test_errors_are_typed(
    device: LibusbDevice, made_up: Backend, number: int | None, kind: type, told: str
) -> None:
    device.claim(0)
    acts: dict[str, Callable[[], object]] = {
        "control": lambda: device.control_in(0xC0, 0xE4, 0, 0, 1, 250),
        "read": lambda: device.bulk_in(0x81, 1, 250),
        "write": lambda: device.bulk_out(0x02, b"a", 250),
    }
    for name, act in acts.items():
        made_up.failing = {name: (number, "Pipe")}
        with pytest.raises(kind, match=told) as caught:
            act()
        if kind is TransportError:
            assert isinstance(caught.value, TransportError) and caught.value.errno == number


def test_what_was_unplugged_is_closed_quietly(device: LibusbDevice, made_up: Backend) -> None:
    made_up.driver = True
    device.claim(0)
    made_up.failing = dict.fromkeys(("release", "attach"), (errno.ENODEV, "No such device"))
    device.close()
    assert made_up.calls[-1] == ("close",)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    libusb1 = pytest.importorskip("usb.backend.libusb1")
    others = [pytest.importorskip(f"usb.backend.{name}") for name in ("libusb0", "openusb")]
    for module in (libusb1, *others):
        monkeypatch.setattr(module, "get_backend", lambda find_library=None: None)
    with pytest.raises(Unsupported, match="apt install libusb"):
        HostUsb(Machine({})).list_devices()
    monkeypatch.setitem(sys.modules, "usb.core", None)
    with pytest.raises(Unsupported, match="pip install pyusb"):
        HostUsb(Machine({})).list_devices()

"""The host's side: claims, stalls, short answers, unplugging at any request, resets."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from gpu.core.errors import ConfigError, DeviceError, DeviceLost, HwTimeout, TransportError
from gpu.core.usb import UsbId
from gpu.sim.usb.world import UsbWorld
from sim.usb.client import (
    BULK_IN,
    BULK_OUT,
    IN,
    MEMORY_READ,
    MEMORY_WRITE,
    OUT,
    STREAM_READ,
    STREAM_WRITE,
    VRAM_BAR,
    Bridge,
    TlpError,
)
from sim.usb.conftest import Make


def number_of(error: pytest.ExceptionInfo[TransportError]) -> int | None:
    return error.value.errno


def test_identities(make: Make) -> None:
    assert make().device.id == UsbId(0xADD1, 1, "2-1")
    assert make(vendor=0x3801).device.id == UsbId(0x3801, 1, "2-1")
    assert make(firmware="stock").device.id == UsbId(0x174C, 0x2464, "2-1")
    assert make(firmware="stock", product=0x2362).device.id == UsbId(0x174C, 0x2362, "2-1")
    for knobs in ({"vendor": 1}, {"firmware": "stock", "product": 1}, {"speed": 12}):
        with pytest.raises(ConfigError):
            UsbWorld(**knobs)  # type: ignore[arg-type]


def test_each_card_has_a_bridge() -> None:
    world = UsbWorld(chip=("gfx1100", "gfx1201"), speed=480)
    found = world.usb.list_devices()
    assert [device.port for device in found] == ["2-1", "2-2"]
    assert [world.usb.open(device).speed for device in found] == [480, 480]
    with pytest.raises(DeviceLost):
        world.usb.open(UsbId(0xADD1, 1, "2-3"))
    world.unplug()
    assert not world.usb.list_devices()
    world.close()


def test_one_has_the_interface(off: Bridge) -> None:
    second = off.world.usb.open(off.device.id)
    with pytest.raises(TransportError) as error:
        second.claim(0)
    assert number_of(error) == errno.EBUSY
    assert second.control_in(IN, 0xE4, 0, 0, 1) == b"\0"  # requests of the device need no claim
    with pytest.raises(TransportError) as error:
        second.bulk_in(BULK_IN, 4)
    assert number_of(error) == errno.ENOENT
    off.device.close()
    off.device.close()
    second.claim(0)
    with pytest.raises(TransportError) as error:
        off.read(0)
    assert number_of(error) == errno.EBADF


def test_a_driver_of_the_kernel_comes_back(make: Make) -> None:
    bridge = make(firmware="stock", kernel_driver="usb-storage")
    assert bridge.model.kernel_driver == ""
    bridge.device.close()
    assert bridge.model.kernel_driver == "usb-storage"
    bridge.open()
    bridge.device.reset()
    assert bridge.model.holder is None


@pytest.mark.parametrize(("interface", "alternate"), [(1, 0), (0, 2), (0, -1)])
def test_interfaces_that_there_are_not(make: Make, interface: int, alternate: int) -> None:
    off = make()
    with pytest.raises(TransportError) as error:
        off.device.claim(interface, alternate)
    assert number_of(error) == errno.ENOENT


def test_usb_2_has_one_setting(make: Make) -> None:
    with pytest.raises(TransportError):
        make(speed=480).device.claim(0, 1)
    make(speed=5000).device.claim(0, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda device: device.bulk_in(0x83, 4),
        lambda device: device.bulk_in(BULK_OUT, 4),
        lambda device: device.bulk_out(BULK_IN, b""),
        lambda device: device.clear_halt(0x84),
    ],
)
def test_endpoints_that_there_are_not(off: Bridge, call: Callable[[object], None]) -> None:
    with pytest.raises(TransportError) as error:
        call(off.device)
    assert number_of(error) == errno.ENOENT


@pytest.mark.parametrize(
    "call",
    [
        lambda device: device.control_in(OUT, 0xE4, 0, 0, 4),
        lambda device: device.control_out(IN, 0xE5, 0, 0),
        lambda device: device.control_in(IN, 0xE4, 1 << 16, 0, 4),
        lambda device: device.control_out(OUT, 0xE5, 0, 1 << 16),
        lambda device: device.control_in(IN, 0xE4, 0, 0, 1 << 16),
    ],
)
def test_requests_that_cannot_be(off: Bridge, call: Callable[[object], None]) -> None:
    with pytest.raises(TransportError) as error:
        call(off.device)
    assert number_of(error) == errno.EINVAL


def test_requests_of_the_interface_need_it(make: Make) -> None:
    bridge = make(firmware="stock")
    bridge.device.close()
    device = bridge.world.usb.open(bridge.world.usb.list_devices()[0])
    with pytest.raises(TransportError) as error:
        device.control_in(0xA1, 0xFE, 0, 0, 1)
    assert number_of(error) == errno.ENOENT


def test_a_stalled_request(make: Make) -> None:
    off = make(stall=2)
    off.read(0)
    with pytest.raises(TransportError) as error:
        off.read(0)
    assert number_of(error) == errno.EPIPE
    assert off.read(0) == b"\0"  # a request stalls by itself


def test_a_stalled_endpoint(make: Make) -> None:
    off = make(stall=2)
    off.arm(512)
    for _ in range(2):
        with pytest.raises(TransportError) as error:
            off.device.bulk_out(BULK_OUT, bytes(512))
        assert number_of(error) == errno.EPIPE
    off.device.clear_halt(BULK_OUT)
    off.arm(512)
    off.device.bulk_out(BULK_OUT, bytes(512))
    assert not off.violations


def test_short_answers(make: Make) -> None:
    off = make(short=1)
    assert len(off.read(0, 64)) == 32
    assert len(off.read(0, 64)) == 64
    bridge = make()
    bridge.start()
    start = bridge.model.transfers.control
    bridge = make(short=start + 2)
    bridge.start()
    bridge.send(MEMORY_READ, bridge.bars[VRAM_BAR][0], 64, mode=STREAM_READ)
    assert len(bridge.device.bulk_in(BULK_IN, 256)) == 128


def whole(bridge: Bridge) -> None:
    """One of each kind of transfer, as often as a bridge lets it."""
    bridge.power()
    bridge.config(0, 4, 7, 1)
    bridge.write(0x100, 1)
    bridge.arm(1024)
    bridge.device.bulk_out(BULK_OUT, bytes(1024))
    bridge.send(MEMORY_READ, 0x1000_0000, 2, mode=STREAM_READ)
    bridge.device.bulk_in(BULK_IN, 8)
    bridge.send(MEMORY_WRITE, 0x1000_0000, 2, mode=STREAM_WRITE)
    bridge.device.bulk_out(BULK_OUT, bytes(8))
    bridge.device.clear_halt(BULK_IN)


REQUESTS = 11


def test_requests_of_the_whole(off: Bridge) -> None:
    whole(off)
    assert off.model.transfers.control + off.model.transfers.bulk == REQUESTS


@pytest.mark.parametrize("at", range(1, REQUESTS + 1))
def test_unplugging_at_any_request(make: Make, at: int) -> None:
    bridge = make(unplug=at)
    with pytest.raises(DeviceLost):
        whole(bridge)
    assert not bridge.world.usb.list_devices()
    for call in (lambda: bridge.read(0), bridge.device.reset, lambda: bridge.device.claim(0)):
        with pytest.raises(DeviceLost):
            call()
    bridge.device.close()
    bridge.model.power_cycle()
    stale = bridge.device
    bridge.open()
    assert bridge.read(0xB450) == b"\0"
    with pytest.raises(DeviceError):
        stale.control_in(IN, 0xE4, 0, 0, 1)


def test_faults_of_machines_count_requests(make: Make) -> None:
    bridge = make(faults=["remove@4"])
    with pytest.raises(DeviceLost):
        whole(bridge)
    assert bridge.model.transfers.control == 4
    assert not bridge.world.usb.list_devices() and not bridge.card.plugged
    bridge.model.power_cycle()
    bridge.open()
    bridge.start()
    assert bridge.card.plugged


@pytest.mark.parametrize("at", range(1, REQUESTS + 1))
def test_a_link_that_dies_at_any_request(make: Make, at: int) -> None:
    bridge = make(link_dies=at, dead_link="wedge")
    with suppress(HwTimeout, TlpError):
        whole(bridge)
    if bridge.model.chip.is_wedged:
        with pytest.raises(DeviceLost):
            bridge.device.reset()
        bridge.model.power_cycle()
    else:
        bridge.device.close()
    bridge.open()
    bridge.start()


def test_a_reset_of_the_port_keeps_the_card(bridge: Bridge) -> None:
    at = bridge.bars[VRAM_BAR][0]
    bridge.send(MEMORY_WRITE, at, 2, mode=STREAM_WRITE)
    bridge.device.reset()
    with pytest.raises(TransportError):
        bridge.device.bulk_out(BULK_OUT, b"data")
    bridge.device.claim(0)
    bridge.write_memory(at, b"here")
    assert bridge.read_memory(at, 4) == b"here"
    assert not bridge.violations


def test_the_next_user_finds_what_the_last_one_left(bridge: Bridge) -> None:
    at = bridge.bars[VRAM_BAR][0]
    bridge.write_memory(at, b"left" + b"next")
    bridge.send(MEMORY_READ, at, 1, mode=STREAM_READ)
    bridge.device.close()
    bridge.open()
    assert bridge.device.bulk_in(BULK_IN, 4) == b"left"
    bridge.send(MEMORY_READ, at, 1, mode=STREAM_READ)
    bridge.device.close()
    bridge.open()
    for endpoint in (BULK_IN, BULK_OUT):
        bridge.device.clear_halt(endpoint)
    assert bridge.read_memory(at + 4, 4) == b"next"
    assert not bridge.violations


def test_transfers_are_counted(bridge: Bridge) -> None:
    before = bridge.model.transfers.control
    bridge.write_memory(bridge.bars[VRAM_BAR][0], bytes(100))
    bridge.read_memory(bridge.bars[VRAM_BAR][0], 60)
    counted = bridge.model.transfers
    assert (counted.control - before, counted.bulk) == (2, 2)
    assert (counted.bytes_out, counted.bytes_in) == (100, 60)

"""A card behind a made-up bridge of USB, driven by a world's USB alone.

The bridge has the requests of the ASM2464PD's open firmware as far as they are used here: 0xE4 and
0xE5 read and write its own memory, 0xF0 makes one access of the card, of which another 0xF0 brings
the value and the status, and 0xF2 fills its buffer from the bulk endpoint or sends it.
"""

from __future__ import annotations

import errno
import inspect
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from gpu.core.errors import DeviceLost, TransportError
from gpu.core.window import TrappedWindow
from gpu.transport.usb import UsbBus, UsbDevice, UsbId
from gpu.transport.world import World
from sim.pci.card import AT, DESCRIPTOR, IDENTITY, WHO, CardMachine, MadeUpCard

BRIDGE = UsbId(0xADD1, 0x0001, "2-1")
IN, OUT = 0xC0, 0x40  # vendor requests of the device
BULK_OUT, BULK_IN = 0x02, 0x81
MEMORY_READ, MEMORY_WRITE = 0x20, 0x60
COMPLETION_OK = 0


class Bridge:
    """A `UsbDevice`, and the bus that it is on."""

    id, speed = BRIDGE, 10_000

    def __init__(self, machine: CardMachine):
        self.card = machine.pci.open(AT).window(0)
        self.xdata, self.buffer = bytearray(1 << 16), bytearray(1 << 14)
        self.answer = b""
        self.claimed: set[int] = set()
        self.halted: set[int] = set()
        self.armed = 0
        self.plugged = True

    def list_devices(self) -> Sequence[UsbId]:
        return [self.id] if self.plugged else []

    def open(self, device: UsbId) -> Bridge:
        self._look()
        return self

    def claim(self, interface: int, alternate: int = 0) -> None:
        if interface in self.claimed:
            raise TransportError(f"interface {interface} of {self.id} is in use", errno.EBUSY)
        self.claimed.add(interface)

    def control_in(
        self, kind: int, request: int, value: int, index: int, size: int, timeout: int = 1000
    ) -> bytes:
        self._look()
        if (kind, request) == (IN, 0xE4) and size <= 255:
            return bytes(self.xdata[value : value + size])
        if (kind, request) == (IN, 0xF0):
            return self.answer[:size]
        raise self._stall(f"request {request:#x}")

    def control_out(
        self,
        kind: int,
        request: int,
        value: int,
        index: int,
        data: bytes = b"",
        timeout: int = 1000,
    ) -> None:
        self._look()
        if (kind, request) == (OUT, 0xE5):
            self.xdata[value] = index & 0xFF
        elif (kind, request) == (OUT, 0xF2):
            self.armed = value & 0x7FFF
        elif (kind, request) == (OUT, 0xF0) and len(data) == 12:
            low, _, word = memoryview(data).cast("I")
            if value & 0xFF == MEMORY_READ:
                self.answer = self.card.read(low, 4).to_bytes(4, "little") + bytes(4)
            else:
                self.card.write(low, 4, word)
        else:
            raise self._stall(f"request {request:#x}")

    def bulk_in(self, endpoint: int, size: int, timeout: int = 1000) -> bytes:
        return bytes(self.buffer[: self._armed(endpoint, size)])

    def bulk_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, timeout: int = 1000
    ) -> None:
        self.buffer[: self._armed(endpoint, len(data))] = data

    def clear_halt(self, endpoint: int) -> None:
        self.halted.discard(endpoint)

    def reset(self) -> None:
        self.claimed.clear()
        self.halted.clear()

    def close(self) -> None:
        self.claimed.clear()

    def _armed(self, endpoint: int, size: int) -> int:
        """A transfer of what was announced, in sectors; another one halts the endpoint."""
        self._look()
        announced, self.armed = self.armed * 512, 0
        if endpoint in self.halted or size != announced:
            self.halted.add(endpoint)
            raise self._stall(f"endpoint {endpoint:#x}")
        return size

    def _look(self) -> None:
        if not self.plugged:
            raise DeviceLost(f"{self.id} was unplugged")

    def _stall(self, what: str) -> TransportError:
        return TransportError(f"{self.id} stalls {what}", errno.EPIPE)


class Link:
    """What a driver makes of a bridge: registers of the card, each access a request."""

    def __init__(self, world: World):
        (found,) = world.usb.list_devices()
        self.device = world.usb.open(found)
        self.device.claim(0)
        self.registers = TrappedWindow(0x1000, self.read, self.write, widest=4)

    def read(self, offset: int, width: int) -> int:
        words = np.array([offset, 0, 0], np.uint32).tobytes()
        self.device.control_out(OUT, 0xF0, MEMORY_READ | 0xF00, 0, words)
        answer = self.device.control_in(IN, 0xF0, 0, 0, 8)
        assert answer[4] >> 5 == COMPLETION_OK
        return int.from_bytes(answer[:4], "little")

    def write(self, offset: int, width: int, value: int) -> None:
        words = np.array([offset, 0, value], np.uint32).tobytes()
        self.device.control_out(OUT, 0xF0, MEMORY_WRITE | 0xF00, 0, words)

    def send(self, data: bytes) -> None:
        self.device.control_out(OUT, 0xF2, len(data) // 512, 0)
        self.device.bulk_out(BULK_OUT, data)

    def receive(self, size: int) -> bytes:
        self.device.control_out(OUT, 0xF2, size // 512 | 0x8000, 0)
        return self.device.bulk_in(BULK_IN, size)


@pytest.fixture
def machine() -> Iterator[CardMachine]:
    machine = CardMachine(MadeUpCard)
    yield machine
    machine.close()


@pytest.fixture
def bridge(machine: CardMachine) -> Bridge:
    return Bridge(machine)


@pytest.fixture
def link(machine: CardMachine, bridge: Bridge) -> Link:
    return Link(World(machine.os, machine.waiter, usb=bridge))


def test_registers_of_the_card(link: Link, machine: CardMachine) -> None:
    assert link.registers.read(IDENTITY, 4) == WHO
    link.registers.write(DESCRIPTOR, 4, 0x12345678)
    assert link.registers.load(DESCRIPTOR, 4) == (0x12345678).to_bytes(4, "little")
    assert isinstance(machine.card, MadeUpCard) and machine.card.accesses == [
        *(("read", IDENTITY, 4), ("write", DESCRIPTOR, 4), ("read", DESCRIPTOR, 4)),
    ]


def test_the_bridges_own_memory_and_bulk(link: Link) -> None:
    for i, byte in enumerate(b"sram"):
        link.device.control_out(OUT, 0xE5, 0xF000 + i, byte)
    assert link.device.control_in(IN, 0xE4, 0xF000, 0, 4) == b"sram"
    data = np.random.default_rng(4).bytes(4096)
    link.send(data)
    assert link.receive(1024) == data[:1024]


def test_stalls_and_unplugging_are_typed(link: Link, bridge: Bridge) -> None:
    with pytest.raises(TransportError, match="stalls request 0x99") as caught:
        link.device.control_in(IN, 0x99, 0, 0, 1)
    assert caught.value.errno == errno.EPIPE
    for _ in range(2):  # it was not announced; then the endpoint is halted
        with pytest.raises(TransportError, match="stalls endpoint 0x2"):
            link.device.bulk_out(BULK_OUT, bytes(512))
    link.device.clear_halt(BULK_OUT)
    link.send(bytes(512))
    with pytest.raises(TransportError) as caught:
        link.device.claim(0)
    assert caught.value.errno == errno.EBUSY
    bridge.plugged = False
    with pytest.raises(DeviceLost, match=r"add1:0001 at 2-1 was unplugged"):
        link.registers.read(IDENTITY, 4)


@pytest.mark.parametrize("protocol", [UsbDevice, UsbBus])
def test_the_bridge_takes_what_the_protocols_say(protocol: type) -> None:
    for name, wanted in vars(protocol).items():
        if not name.startswith("_") and inspect.isfunction(wanted):
            given = inspect.signature(getattr(Bridge, name))
            assert given.parameters == inspect.signature(wanted).parameters, name

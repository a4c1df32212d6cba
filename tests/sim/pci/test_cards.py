"""A driver of a made-up card, written against the protocols of a world's PCI alone."""

from __future__ import annotations

import errno
import inspect
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from gpu.core import hostmem
from gpu.core.errors import HwTimeout, InvalidIndex, InvalidValue, TransportError, Unsupported
from gpu.core.window import RecordingWindow, WindowAccess
from gpu.sim.pci.function import SimDma, SimFunction, SimInterrupt, SimPci
from gpu.transport.pci.bus import HostPci
from gpu.transport.pci.function import DmaMemory, Interrupt, NoPci, PciBus, PciFunction
from gpu.transport.pci.sysfs import SysfsDma, SysfsFunction
from gpu.transport.pci.vfio import VfioDma, VfioFunction, VfioInterrupt
from gpu.transport.world import World
from sim.pci.card import AT, DESCRIPTOR, DONE, FENCE, IDENTITY, MEMORY, WHO, CardMachine, MadeUpCard

SECOND = 1_000_000_000


@pytest.fixture
def machine() -> Iterator[CardMachine]:
    machine = CardMachine(MadeUpCard)
    yield machine
    machine.close()


@pytest.fixture
def card(machine: CardMachine) -> MadeUpCard:
    assert isinstance(machine.card, MadeUpCard)
    return machine.card


@pytest.fixture
def world(machine: CardMachine) -> World:
    return World(machine.os, machine.waiter, machine.pci)


class Driver:
    """Copies between the machine's memory and the card's."""

    def __init__(self, world: World, master: bool = True):
        (address,) = world.pci.list_functions()
        self.card = world.pci.open(address)
        self.registers = self.card.window(0)
        self.doorbell = self.card.map(2, 0, 0x1000)
        self.control = self.card.allocate(0x1000)
        if master:
            self.card.set_bus_master(True)
        (self.copied,) = self.card.interrupts(1)
        at = int(self.control.pieces[0].address)
        for register, value in ((DESCRIPTOR, at), (FENCE, at + 64)):
            self.registers.write(register, 4, value & 0xFFFFFFFF)
            self.registers.write(register + 4, 4, value >> 32)
        self.rings = 0

    def copy(self, bus: int, offset: int, size: int, outwards: bool) -> int:
        """Rings, and waits; returns what the fence holds."""
        self.control.window.store(0, struct.pack("<QIII", bus, offset, size, outwards))
        self.rings += 1
        self.doorbell.write(0, 4, self.rings)
        self.copied.wait(SECOND)
        return self.control.window.read(64, 4)


def test_a_driver_copies_there_and_back(world: World, machine: CardMachine) -> None:
    rng = np.random.default_rng(1)
    driver = Driver(world)
    assert driver.registers.read(IDENTITY, 4) == WHO
    memory = driver.card.allocate(3 * hostmem.page_size)
    bus = int(memory.pieces[0].address)
    for _ in range(20):
        size = int(rng.integers(1, 9000))
        data, at = rng.bytes(size), int(rng.integers(0, MEMORY - size))
        there = int(rng.integers(0, memory.window.size - size))
        memory.window.store(there, data)
        assert driver.copy(bus + there, at, size, False) == driver.rings
        assert driver.card.map(4, 0, MEMORY).load(at, size) == data
        memory.window.store(there, bytes(size))
        assert driver.copy(bus + there, at, size, True) == driver.rings
        assert memory.window.load(there, size) == data
    assert driver.registers.read(DONE, 4) == 40
    driver.registers.write(DONE, 4, 40)
    assert driver.registers.read(DONE, 4) == 0
    driver.card.close()
    assert not machine.debug.violations and not machine.debug.faults


def test_memory_of_the_process_is_shared_page_by_page(world: World, machine: CardMachine) -> None:
    driver = Driver(world)
    page = hostmem.page_size
    address = hostmem.map_anonymous(2 * page)
    shared = driver.card.share(address, page)
    shared.window.store(0, b"hello")
    bus = int(shared.pieces[0].address)
    assert driver.copy(bus, 0, 5, False) == 1
    assert driver.card.map(4, 0, MEMORY).load(0, 5) == b"hello"
    driver.copy(bus + page - 2, 0, 4, True)  # into the next page, which was not shared
    assert "not mapped" in machine.debug.faults[-1]
    assert shared.window.load(page - 2, 2) == bytes(2)
    shared.close()
    shared.close()
    driver.copy(bus, 0, 4, True)
    assert len(machine.debug.faults) == 2
    with pytest.raises(InvalidValue, match="whole pages"):
        driver.card.share(address, page - 1)
    gone = driver.card.share(address, page)
    hostmem.unmap(address, 2 * page)
    assert machine.card.bus.load(int(gone.pieces[0].address), 4) == b"\xff" * 4
    machine.card.bus.store(int(gone.pieces[0].address), b"lost")
    assert "cannot be written" in machine.debug.faults[-1] and len(machine.debug.faults) == 4
    driver.card.close()


def test_every_register_access_is_seen(world: World, card: MadeUpCard) -> None:
    seen: list[WindowAccess] = []
    function = world.pci.open(AT)
    registers = RecordingWindow(function.window(0), seen.append)
    for width in (1, 2, 4, 8):
        registers.write(0x20, width, 1)
        registers.read(0x20, width)
    registers.load(0x101, 8)
    registers.sub(0x40, 8).write(4, 4, 7)
    wanted = [(kind, 0x20, width) for width in (1, 2, 4, 8) for kind in ("write", "read")]
    wanted += [("read", 0x101, 1), ("read", 0x102, 2), ("read", 0x104, 4), ("read", 0x108, 1)]
    assert card.accesses == [*wanted, ("write", 0x44, 4)]
    assert len(seen) == 10
    with pytest.raises(InvalidValue, match="misaligned"):
        function.window(0).read(2, 4)
    with pytest.raises(InvalidIndex):
        function.window(0).read(0x1000, 4)
    with pytest.raises(Unsupported, match="use its window"):
        function.map(0, 0, 0x1000)


def test_without_bus_mastering_nothing_moves(world: World, machine: CardMachine) -> None:
    driver = Driver(world, master=False)
    memory = driver.card.allocate(0x1000)
    with pytest.raises(HwTimeout, match="done 1 copies"):
        driver.copy(int(memory.pieces[0].address), 0, 16, True)
    assert driver.control.window.read(64, 4) == 0
    told = machine.debug.violations
    assert all("no bus master" in each for each in told) and len(told) == 3
    driver.card.close()


def test_a_message_that_is_not_enabled_is_lost(world: World, machine: CardMachine) -> None:
    driver = Driver(world)
    machine.card.bus.interrupt(1)
    assert machine.debug.violations == ["card 0000:03:00.0: message 1 is not enabled"]
    first, second = driver.card.interrupts(2)
    machine.card.bus.interrupt(1)
    machine.card.bus.interrupt(1)
    assert (first.wait(0), second.wait(0), second.wait(0)) == (0, 2, 0)
    with pytest.raises(InvalidValue, match="1 to 2 can be"):
        driver.card.interrupts(3)


def test_config_space_tells_sizes_as_hardware_does(world: World, card: MadeUpCard) -> None:
    config = world.pci.open(AT).config
    assert (config.read(0, 2), config.read(2, 2)) == (0x1234, 0x5678)
    assert config.read(8, 4) == 0x0B4000A1 and config.read(0x2C, 4) == 0x00011234
    for register, size, kind in ((0x10, 0x1000, 0), (0x18, 0x1000, 4), (0x20, MEMORY, 0xC)):
        before = config.read(register, 4)
        place = before & -16 | (config.read(register + 4, 4) << 32 if kind & 4 else 0)
        assert place and place % size == 0
        config.write(register, 4, 0xFFFFFFFF)
        assert config.read(register, 4) == (-size & 0xFFFFFFF0) | kind
        config.write(register, 4, before)
        assert config.read(register, 4) == before
    config.write(0, 4, 0)
    assert config.read(0, 4) == 0x56781234
    at = config.read(0x34, 1)
    assert config.read(at, 1) == 5 and config.read(at + 2, 2) >> 1 & 7 == 1


def test_what_does_not_decode_answers_with_ones(world: World, machine: CardMachine) -> None:
    function = world.pci.open(AT)
    registers = function.window(0)
    function.config.write(4, 2, 0)
    assert registers.read(IDENTITY, 4) == 0xFFFFFFFF and registers.read(IDENTITY, 2) == 0xFFFF
    registers.write(DESCRIPTOR, 4, 5)
    assert not machine.card.accesses and len(machine.debug.violations) == 3
    function.config.write(4, 2, 2)
    assert registers.read(IDENTITY, 4) == WHO


def test_a_card_is_of_one_owner_and_leaves_nothing(world: World, machine: CardMachine) -> None:
    free = machine._host.free_bytes
    driver = Driver(world)
    with pytest.raises(TransportError, match="in use") as caught:
        world.pci.open(AT)
    assert caught.value.errno == errno.EBUSY
    at = int(driver.control.pieces[0].address)
    driver.card.close()
    driver.card.close()
    assert machine._host.free_bytes == free
    assert machine.card.bus.load(at, 4) == b"\xff" * 4
    assert "no bus master" in machine.debug.violations[-1]
    for use in (lambda: driver.registers.read(0, 4), lambda: driver.card.allocate(1)):
        with pytest.raises(TransportError, match="closed"):
            use()
    again = world.pci.open(AT)
    again.set_bus_master(True)
    assert machine.card.bus.load(at, 4) == b"\xff" * 4
    assert "not mapped" in machine.debug.faults[-1]
    with pytest.raises(TransportError) as caught:
        world.pci.open(AT._replace(bus=9))
    assert caught.value.errno == errno.ENODEV


def test_a_reset_forgets_the_card_and_keeps_config_space(world: World) -> None:
    driver = Driver(world)
    before = driver.card.config.load(0, 256)
    driver.card.reset()
    assert driver.registers.read(DESCRIPTOR, 4) == 0
    assert driver.card.config.load(0, 256) == before
    with pytest.raises(Unsupported, match="one size"):
        driver.card.resize(0, 1 << 20)


IMPLEMENTATIONS = [
    *[(PciBus, kind) for kind in (SimPci, HostPci, NoPci)],
    *[(PciFunction, kind) for kind in (SimFunction, SysfsFunction, VfioFunction)],
    *[(DmaMemory, kind) for kind in (SimDma, SysfsDma, VfioDma)],
    *[(Interrupt, kind) for kind in (SimInterrupt, VfioInterrupt)],
]


@pytest.mark.parametrize(("protocol", "kind"), IMPLEMENTATIONS)
def test_implementations_take_what_the_protocol_says(protocol: type, kind: type) -> None:
    names = [name for name in vars(protocol) if not name.startswith("_")]
    assert names
    for name in names:
        wanted = vars(protocol)[name]
        if isinstance(wanted, property):
            inside = inspect.getsource(kind)
            assert hasattr(kind, name) or f"self.{name}" in inside or f"{name}:" in inside, name
        else:
            given = inspect.signature(getattr(kind, name)).parameters
            assert list(given) == list(inspect.signature(wanted).parameters), name

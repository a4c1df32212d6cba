"""PCI functions of a machine as its kernel shows them: sysfs, drivers, and the files of functions.

What Linux 6.12 does in drivers/pci/{pci-sysfs,pci-driver}.c, with its errno. Files of VFIO are in
`gpu.sim.pci.vfio` and `gpu.sim.pci.iommufd`; `HostPciModel` puts them beside.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.pci import PciAddress
from gpu.core.window import TrappedWindow, Window
from gpu.sim.clock import VirtualClock
from gpu.sim.kernel import SysError
from gpu.sim.machine import Machine
from gpu.sim.pci.config import ConfigSpace
from gpu.sim.pci.function import Card, CardBus
from gpu.sim.physical import UserPages
from gpu.sim.process import SimFile, SimProcess
from gpu.sim.translate import AddressSpace, Mapping

DEVICES: Final = "/sys/bus/pci/devices"
DRIVERS: Final = "/sys/bus/pci/drivers"
_GROUPS: Final = "/sys/kernel/iommu_groups"
_USER_END: Final = 1 << 47
_FRAME_BITS: Final = 55
_NO_OVERRIDE: Final = "(null)\n"
_AFTER_RESET_NS: Final = 100_000_000  # pcie_flr of drivers/pci/pci.c


@dataclass(eq=False)
class HostFunction:
    """A card in a slot, as the kernel knows it.

    Attributes:
        address, card, config, bus: the card and its sides towards the machine.
        group: its IOMMU group; None without an IOMMU.
        driver: who has it; empty where nobody does.
        own_driver: who takes it when the kernel may choose.
        override: what alone may take it.
        asks_back: called when its driver is to let go.
        leaving: its driver lets go as soon as nobody has it open.
        asleep: in D3, where nothing answers.
        resets_alone: whether it has a reset of its own; else its bus is reset, with all on it.
        clock: of the machine.
    """

    address: PciAddress
    card: Card
    config: ConfigSpace
    bus: CardBus
    group: int | None
    driver: str = ""
    own_driver: str = ""
    override: str = ""
    asleep: bool = False
    asks_back: Callable[[], None] | None = None
    leaving: bool = False
    places: dict[int, int] = field(default_factory=dict)
    resets_alone: bool = True
    clock: VirtualClock = field(default_factory=VirtualClock)

    def reset(self) -> None:
        """It forgets all; then config space is as it was, after the time that it is given."""
        saved = self.config.save()
        self.card.reset()
        if self.resets_alone:
            self.clock.advance(_AFTER_RESET_NS)
        self.config.reset(saved)

    def window(self, machine: Machine, bar: int) -> TrappedWindow:
        """A BAR; while it does not decode memory, or sleeps, all reads bring ones."""
        inner = self.card.bars[bar].window

        def answers(what: str) -> bool:
            awake = self.config.decodes_memory and not self.asleep
            if not awake:
                why = "sleeps (D3)" if self.asleep else "decodes no memory"
                machine.debug.violation(f"card {self.address}: {what} while it {why}")
            return awake

        def read(offset: int, width: int) -> int:
            with machine.lock, machine.undisturbed:
                if answers(f"a read of BAR {bar} at {offset:#x}"):
                    return inner.read(offset, width)
                return (1 << 8 * width) - 1

        def write(offset: int, width: int, value: int) -> None:
            with machine.lock, machine.undisturbed:
                if answers(f"a write to BAR {bar} at {offset:#x}"):
                    inner.write(offset, width, value)

        return TrappedWindow(inner.size, read, write)


class ConfigFile(SimFile):
    """`config` of a function, opened by root."""

    def __init__(self, function: HostFunction):
        self._function = function

    def pread(self, process: SimProcess, size: int, offset: int) -> bytes:
        """Bytes of config space."""
        return self._function.config.save()[offset : offset + size]

    def pwrite(self, process: SimProcess, data: bytes, offset: int) -> int:
        """Writes config space, whatever that does."""
        self._function.config.window.store(offset, data)
        return len(data)


class BarFile(SimFile):
    """`resourceN` of a function."""

    def __init__(self, machine: Machine, function: HostFunction, bar: int):
        self._machine, self._function, self._bar = machine, function, bar

    def window(self, process: SimProcess, size: int, offset: int) -> Window:
        """A mapping. Raises SysError(EINVAL) beyond its end."""
        whole = self._function.window(self._machine, self._bar)
        if offset + size > align_up(whole.size, hostmem.page_size):
            raise SysError(errno.EINVAL)
        return whole.sub(offset, size)


class PageMap(SimFile):
    """`/proc/self/pagemap` of a model: physical memory is the process's, page by page."""

    def pread(self, process: SimProcess, size: int, offset: int) -> bytes:
        """Entries of pages that are there."""
        pages = range(offset // 8, (offset + size) // 8)
        return b"".join((1 << 63 | page).to_bytes(8, "little") for page in pages)


class HostPciModel:
    """The functions of a machine, their drivers and their files.

    Attributes:
        functions: what is on the bus.
        memlock: bytes that a user may lock for DMA.
        most_mappings: of one container (dma_entry_limit).
    """

    def __init__(self, machine: Machine, drivers: Sequence[str] = ("vfio-pci",)):
        self.machine = machine
        self.functions: dict[PciAddress, HostFunction] = {}
        self.memlock = 8 << 20
        self.most_mappings = 0xFFFF
        self._next = {False: 1 << 31, True: 1 << 40}  # where BARs go, by whether they have 64 bits
        self.nodes: list[Callable[[HostFunction, bool], None]] = []  # told of vfio-pci's functions
        machine.devices["/proc/self/pagemap"] = lambda process: PageMap()
        machine.written["/sys/bus/pci/drivers_probe"] = self._probe
        machine.tree.add("/proc/sys/vm/compact_unevictable_allowed", "1\n")
        for driver in drivers:
            self._add_driver(driver)

    def add(
        self,
        address: PciAddress,
        card: Card,
        group: int | None = None,
        driver: str = "",
        resets_alone: bool = True,
    ) -> HostFunction:
        """Plugs a card in; `driver` has it now, and again when the kernel may choose."""
        bars = {index: bar for index, (_, bar, _) in card.bars.items()}
        config = ConfigSpace(card.ids, bars, card.vectors)
        bus = CardBus(self.machine, config, f"card {address}")
        function = HostFunction(address, card, config, bus, group, own_driver=driver)
        function.resets_alone, function.clock = resets_alone, self.machine.clock
        for index, bar in bars.items():
            place = align_up(self._next[bar.is_64bit], bar.size)
            config.place(index, bar, place)
            function.places[index], self._next[bar.is_64bit] = place, place + bar.size
        card.plug(bus)
        self.functions[address] = function
        if group is None:  # all of memory, by physical addresses
            bus.space.map(Mapping(0, _USER_END, UserPages(self.machine.process.user), 0))
        if driver:
            self._add_driver(driver)
            self._bind(function, driver)
        self._add_files(function)
        return function

    def isolate(self, function: HostFunction, space: AddressSpace | None) -> None:
        """What a function reaches from now on; None is nothing."""
        function.bus.space = space if space is not None else AddressSpace()

    def on_bus(self, function: HostFunction) -> list[HostFunction]:
        """The functions that a reset of its bus concerns."""
        place = function.address[:2]
        return [each for each in self.functions.values() if each.address[:2] == place]

    def members(self, group: int) -> list[HostFunction]:
        """The functions of an IOMMU group."""
        return [each for each in self.functions.values() if each.group == group]

    def _add_driver(self, driver: str) -> None:
        written = self.machine.written
        self.machine.tree.add(f"{DRIVERS}/{driver}/uevent", "")
        written[f"{DRIVERS}/{driver}/bind"] = lambda data: self._bind(self._named(data), driver)
        written[f"{DRIVERS}/{driver}/unbind"] = lambda data: self._unbind(self._named(data), driver)

    def _add_files(self, function: HostFunction) -> None:
        folder, ids = f"{DEVICES}/{function.address}", function.card.ids
        tree, written = self.machine.tree, self.machine.written
        names = ("vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class")
        for name, number, digits in zip(names, ids, (4, 4, 4, 4, 2, 6), strict=True):
            tree.add(f"{folder}/{name}", f"0x{number:0{digits}x}\n")
        tree.add(f"{folder}/resource", lambda: self._resources(function))
        tree.add(f"{folder}/config", function.config.save)
        tree.add(f"{folder}/enable", lambda: b"%d\n" % function.config.decodes_memory)
        tree.add(f"{folder}/driver_override", lambda: self._override(function))
        self.machine.devices[f"{folder}/config"] = lambda process: ConfigFile(function)
        for bar in function.card.bars:
            self.machine.devices[f"{folder}/resource{bar}"] = partial(self._bar_file, function, bar)
        written[f"{folder}/driver_override"] = lambda data: setattr(
            function, "override", data.decode().strip()
        )
        written[f"{folder}/enable"] = lambda data: self._enable(function, data)
        written[f"{folder}/reset"] = lambda data: function.reset()
        if function.group is not None:
            tree.add(f"{_GROUPS}/{function.group}/devices/{function.address}", "")
            tree.add(f"{_GROUPS}/{function.group}/type", "DMA-FQ\n")

    def _bar_file(self, function: HostFunction, bar: int, process: SimProcess) -> BarFile:
        return BarFile(self.machine, function, bar)

    def _resources(self, function: HostFunction) -> bytes:
        lines = []
        for index in range(6):
            start = function.places.get(index, 0)
            if index not in function.card.bars:
                lines.append(f"{0:#018x} {0:#018x} {0:#018x}")
                continue
            bar = function.card.bars[index].bar
            flags = 0x40200 | 0x100000 * bar.is_64bit | 0x2000 * bar.prefetchable
            lines.append(f"{start:#018x} {start + bar.size - 1:#018x} {flags:#018x}")
        return ("\n".join(lines) + "\n").encode()

    def _override(self, function: HostFunction) -> bytes:
        return f"{function.override}\n".encode() if function.override else _NO_OVERRIDE.encode()

    def _enable(self, function: HostFunction, data: bytes) -> None:
        if function.driver:
            raise SysError(errno.EBUSY)
        function.asleep = False
        function.config.allow(memory=data.strip() == b"1")

    def _named(self, data: bytes) -> HostFunction:
        found = {str(address): each for address, each in self.functions.items()}
        name = data.decode().strip()
        if name not in found:
            raise SysError(errno.ENODEV)
        return found[name]

    def _probe(self, data: bytes) -> None:
        function = self._named(data)
        driver = function.override or function.own_driver
        if not function.driver and self.machine.tree.has(f"{DRIVERS}/{driver}/uevent") and driver:
            self._bind(function, driver)

    def _bind(self, function: HostFunction, driver: str) -> None:
        if function.driver or driver not in (function.override, function.own_driver):
            raise SysError(errno.ENODEV)
        function.driver = driver
        self.machine.tree.add(f"{DRIVERS}/{driver}/{function.address}", "")
        function.asleep = driver == "vfio-pci"
        for told in self.nodes:
            told(function, driver == "vfio-pci")

    def _unbind(self, function: HostFunction, driver: str) -> None:
        if function.driver != driver:
            raise SysError(errno.ENODEV)
        if function.asks_back is not None:
            # The kernel's writer sleeps until it is closed; one thread of a model cannot.
            function.leaving = True
            function.asks_back()
            raise SysError(errno.EINTR, "the function is open; it was asked back")
        self.let_go(function)

    def let_go(self, function: HostFunction) -> None:
        """A function is nobody's from now on."""
        self.machine.tree.remove(f"{DRIVERS}/{function.driver}/{function.address}")
        function.driver, function.asleep, function.leaving = "", False, False
        for told in self.nodes:
            told(function, False)

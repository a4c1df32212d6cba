"""What is tried inside the guest, on QEMU's device `edu`: each line printed is a check passed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

from gpu.core.config import Context
from gpu.core.errors import DeviceLost, InvalidValue, TransportError, Unsupported
from gpu.core.hostmem import page_size
from gpu.core.pci import PciAddress
from gpu.core.window import Window
from gpu.transport.os import RealOs
from gpu.transport.pci import claim, tree
from gpu.transport.pci.bus import HostPci
from gpu.transport.pci.function import PciFunction

NOTES = Path("/tmp/notes")
BUFFER = 0x40000
SECOND = 1_000_000_000
system = RealOs()
bus = HostPci(system)


def find() -> PciAddress:
    """Where edu is."""
    (found,) = (a for a in bus.list_functions() if bus.ids(a)[:2] == (0x1234, 0x11E8))
    return found


def dma(registers: Window, source: int, target: int, count: int, command: int) -> None:
    """Has edu copy. It has no reset, and may still be at what a killed process began."""
    wait_idle(registers)
    for offset, value in ((0x80, source), (0x88, target), (0x90, count)):
        registers.write(offset, 8, value)
    registers.write(0x98, 8, command | 1)
    wait_idle(registers)


def wait_idle(registers: Window) -> None:
    """Until edu copies nothing."""
    deadline = time.monotonic() + 5
    while registers.read(0x98, 8) & 1:
        assert time.monotonic() < deadline, "edu does not end its DMA"


def copies(function: PciFunction, registers: Window) -> None:
    """There and back through edu's own memory, to each page of some."""
    function.set_bus_master(True)
    memory = function.allocate(3 * page_size)
    data = os.urandom(64)
    at = 0
    for piece in memory.pieces:
        for start in range(0, min(piece.size, 3 * page_size), page_size):
            memory.window.store(at + start, data + bytes(64))
            dma(registers, piece.address + start, BUFFER, 64, 0)
            dma(registers, BUFFER, piece.address + start + 64, 64, 2)
            assert memory.window.load(at + start + 64, 64) == data
        at += piece.size
    memory.close()


def registers_work(function: PciFunction) -> Window:
    """Config space and BAR 0."""
    assert function.ids[:2] == (0x1234, 0x11E8)
    assert (function.config.read(0, 2), function.config.read(2, 2)) == (0x1234, 0x11E8)
    assert function.bars[0].size == 1 << 20
    registers = function.window(0)
    assert registers.read(0, 4) == 0x010000ED
    registers.write(4, 4, 0x12345678)
    assert registers.read(4, 4) == 0xEDCBA987
    mapped = function.map(0, 0, page_size)
    assert mapped.read(4, 4) == 0xEDCBA987
    return registers


def by_vfio(edu: PciAddress) -> None:
    """All of it behind the IOMMU."""
    with_error(errno.ENODEV, "gpu pci take", lambda: bus.open(edu))
    print("taken", claim.take(system, NOTES, edu))
    assert tree.driver(system, edu) == "vfio-pci"
    function = bus.open(edu)
    registers = registers_work(function)
    print("vfio: config space, BARs")
    copies(function, registers)
    print("vfio: DMA")
    first = function.allocate(page_size)
    gone = first.pieces[0].address
    first.close()
    second = function.allocate(page_size)
    second.window.store(0, b"untouched")
    dma(registers, BUFFER, gone + 16 * page_size, 64, 2)
    function.check()
    print("vfio: an address that is not mapped")
    (message,) = function.interrupts(1)
    assert message.wait(0) == 0
    registers.write(0x60, 4, 5)
    assert message.wait(5 * SECOND) == 1 and registers.read(0x24, 4) == 5
    registers.write(0x64, 4, 5)
    (message,) = function.interrupts(1)
    registers.write(0x60, 4, 1)
    assert message.wait(5 * SECOND) == 1
    registers.write(0x64, 4, 1)
    try:
        function.interrupts(2)
    except InvalidValue:
        print("vfio: messages")
    with_error(errno.EBUSY, "in use", lambda: bus.open(edu))
    print("vfio: a second open is refused")
    try:
        function.reset()
        print("vfio: reset")
    except Unsupported as error:
        print("vfio: no reset:", error.message)
    unbinding = threading.Thread(target=claim.give_back, args=(system, NOTES, edu))
    unbinding.start()
    try:
        while True:
            message.wait(SECOND)
    except DeviceLost as error:
        assert "wants it back" in error.message
    assert unbinding.is_alive()
    function.close()
    function.close()
    unbinding.join(20)
    assert not unbinding.is_alive() and tree.driver(system, edu) == ""
    print("vfio: asked back")
    assert claim.noted(NOTES, edu) is None
    claim.take(system, NOTES, edu)
    child = subprocess.Popen([sys.executable, __file__, "hold"], stdout=subprocess.PIPE)
    assert child.stdout and child.stdout.readline()
    with_error(errno.EBUSY, "in use", lambda: bus.open(edu))
    child.send_signal(signal.SIGKILL)
    child.wait()
    function = bus.open(edu)
    assert not function.config.read(4, 2) & 4
    copies(function, registers_work(function))
    function.close()
    claim.give_back(system, NOTES, edu)
    print("vfio: a killed process leaves it usable")


def by_sysfs(edu: PciAddress) -> None:
    """Refused behind an IOMMU that translates, else all but messages."""
    with Context(PCI_ACCESS="SYSFS"):
        group = tree.group_of(system, edu)
        if group is not None and tree.translates(system, group):
            try:
                bus.open(edu)
            except Unsupported as error:
                print("sysfs: refused:", error.message)
            return
        claim.take(system, NOTES, edu, driver="")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            function = bus.open(edu)
        assert "all memory" in str(told[0].message)
        copies(function, registers_work(function))
        print("sysfs: config space, BARs, DMA")
        with_error(errno.EBUSY, "in use", lambda: bus.open(edu))
        function.close()
        child = subprocess.Popen([sys.executable, __file__, "hold-sysfs"], stdout=subprocess.PIPE)
        assert child.stdout and child.stdout.readline()
        with_error(errno.EBUSY, "in use", lambda: bus.open(edu))
        child.send_signal(signal.SIGKILL)
        child.wait()
        deadline = time.monotonic() + 10
        while True:
            try:
                function = bus.open(edu)
                break
            except TransportError as error:
                assert error.errno == errno.EBUSY and time.monotonic() < deadline
        config = system.read_file(f"{tree.folder_of(edu)}/config")
        assert not int.from_bytes(config[4:6], "little") & 4
        function.close()
        claim.give_back(system, NOTES, edu)
        print("sysfs: a killed process leaves no bus master, and the lock with it")


def with_error(number: int, text: str, call: object) -> None:
    """A call fails so."""
    try:
        call()  # type: ignore[operator]
    except TransportError as error:
        assert error.errno == number and text in error.message, error
    else:
        raise AssertionError(f"{text} was wanted")


def hold(edu: PciAddress) -> None:
    """Keeps edu at work until this process is killed."""
    function = bus.open(edu)
    registers = function.window(0)
    function.set_bus_master(True)
    memory = function.allocate(page_size)
    print("held", flush=True)
    while True:
        dma(registers, BUFFER, memory.pieces[0].address, 4000, 2)


def main() -> None:
    """What the command line names."""
    edu = find()
    if sys.argv[1:] == ["hold"]:
        hold(edu)
    elif sys.argv[1:] == ["hold-sysfs"]:
        with Context(PCI_ACCESS="SYSFS"):
            hold(edu)
    elif tree.group_of(system, edu) is not None:
        by_vfio(edu)
        by_sysfs(edu)
    else:
        by_sysfs(edu)
    print("all done")


if __name__ == "__main__":
    main()

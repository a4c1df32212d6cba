"""Our ways to PCI functions on a model of VFIO, iommufd and sysfs, and what that refuses."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gpu.autogen import iommufd, vfio
from gpu.cli import doctor, pci
from gpu.cli.main import main
from gpu.core import hostmem
from gpu.core.config import Context
from gpu.core.errors import (
    AccessDenied,
    DeviceLost,
    DeviceWarning,
    FormatError,
    InvalidIndex,
    InvalidValue,
    OutOfMemory,
    TransportError,
    Unsupported,
)
from gpu.core.pci import PciAddress
from gpu.core.trace import Recorder, read_trace
from gpu.core.window import Window
from gpu.sim.machine import Machine
from gpu.sim.pci.edu import BUFFER, IDENTITY, EduCard
from gpu.sim.pci.host import HostFunction, HostPciModel
from gpu.sim.pci.iommufd import add_iommufd
from gpu.sim.pci.vfio import add_vfio
from gpu.sim.remote import RemoteWorld
from gpu.sim.server import serve
from gpu.transport.os import Os
from gpu.transport.pci import claim, tree
from gpu.transport.pci.bus import HostPci
from gpu.transport.pci.function import PciFunction
from gpu.transport.pci.survey import survey
from gpu.transport.pci.sysfs import SysfsFunction
from gpu.transport.pci.vfio import open_vfio
from gpu.transport.replay import ReplayOs
from gpu.transport.traced import TracedOs

PAGE = hostmem.page_size
AT = PciAddress(0, 3, 0, 0)
SECOND = 1_000_000_000


class PciMachine(Machine):
    """A machine with a kernel's view of its functions, and nothing that works by itself."""

    def __init__(self) -> None:
        super().__init__(0, (), 1 << 20)
        self.gpus = ()

    def _engines(self) -> Sequence[object]:  # type: ignore[override]
        return ()

    def _run_one(self) -> bool:
        return False


class Rig:
    """A machine with edu in it, bound to vfio-pci unless something else is said."""

    def __init__(self, way: str = "group", driver: str = "vfio-pci", group: int | None = 7):
        self.machine = PciMachine()
        self.model = HostPciModel(self.machine)
        if way == "cdev":
            add_iommufd(self.model)
        else:
            add_vfio(self.model)
        self.edu = EduCard(self.machine.debug)
        self.function: HostFunction = self.model.add(AT, self.edu, group, driver)
        self.os: Os = self.machine.os

    def open(self) -> PciFunction:
        return open_vfio(self.os, AT)


@pytest.fixture(params=["group", "cdev"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(request.param)
    yield rig
    rig.machine.close()


@pytest.fixture
def group() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.machine.close()


def dma(registers: Window, source: int, target: int, count: int, command: int) -> None:
    for offset, value in ((0x80, source), (0x88, target), (0x90, count), (0x98, command | 1)):
        registers.write(offset, 8, value)
    assert not registers.read(0x98, 4) & 1


def test_registers_and_config_space(rig: Rig) -> None:
    function = rig.open()
    assert function.ids[:2] == (0x1234, 0x11E8) and list(function.bars) == [0]
    assert (function.config.read(0, 4), function.config.size) == (0x11E81234, 4096)
    registers = function.window(0)
    assert registers.read(0, 4) == IDENTITY
    registers.write(4, 4, 0x12345678)
    assert registers.read(4, 4) == 0xEDCBA987
    registers.write(8, 4, 10)
    assert registers.read(8, 4) == 3628800
    function.reset()
    assert registers.read(4, 4) == 0 and function.config.read(4, 2) & 2
    with pytest.raises(InvalidIndex, match="no BAR 1, but 0"):
        function.window(1)
    function.close()
    function.close()
    with pytest.raises(TransportError, match="closed"):
        function.config.read(0, 4)
    assert not rig.machine.debug.violations and rig.machine.process.open_files == 0


def test_memory_goes_there_and_back(rig: Rig) -> None:
    rng = np.random.default_rng(4)
    function = rig.open()
    registers = function.window(0)
    function.set_bus_master(True)
    for _ in range(20):
        memory = function.allocate(int(rng.integers(1, 8 * PAGE)))
        assert memory.window.size % PAGE == 0 and not memory.pieces[0].address % PAGE
        (piece,) = memory.pieces
        size = int(rng.integers(1, 2048))
        there, back = (int(rng.integers(0, memory.window.size - size)) for _ in range(2))
        data = rng.bytes(size)
        memory.window.store(there, data)
        dma(registers, piece.address + there, BUFFER + 8, size, 0)
        memory.window.store(there, bytes(size))
        dma(registers, BUFFER + 8, piece.address + back, size, 2)
        assert memory.window.load(back, size) == data
        memory.close()
        memory.close()
    assert not rig.machine.debug.faults
    function.close()


def test_what_is_not_mapped_is_not_reached(rig: Rig) -> None:
    function = rig.open()
    registers = function.window(0)
    memory = function.allocate(PAGE)
    at = memory.pieces[0].address
    dma(registers, at, BUFFER, 8, 0)
    assert "no bus master" in rig.machine.debug.violations[-1]
    function.set_bus_master(True)
    dma(registers, BUFFER, at + PAGE, 8, 2)
    assert f"write at {at + PAGE:#x}, which is not mapped" in rig.machine.debug.faults[-1]
    memory.close()
    dma(registers, at, BUFFER, 8, 0)
    assert f"read at {at:#x}, which is not mapped" in rig.machine.debug.faults[-1]
    function.close()
    assert not rig.function.config.is_master and rig.function.asleep


def test_pages_of_the_process_are_shared(rig: Rig) -> None:
    function = rig.open()
    function.set_bus_master(True)
    address = hostmem.map_anonymous(2 * PAGE)
    shared = function.share(address + PAGE, PAGE)
    shared.window.store(0, b"hello")
    dma(function.window(0), shared.pieces[0].address, BUFFER, 5, 0)
    assert rig.edu.memory[:5] == b"hello"
    for start, size in ((address + 1, PAGE), (address, PAGE - 1), (address, 0)):
        with pytest.raises(InvalidValue, match="whole pages"):
            function.share(start, size)
    hostmem.unmap(address, PAGE)
    with pytest.raises(TransportError) as caught:
        function.share(address, PAGE)
    assert caught.value.errno == errno.EFAULT
    function.close()
    hostmem.unmap(address + PAGE, PAGE)


def test_messages_come(rig: Rig) -> None:
    function = rig.open()
    registers = function.window(0)
    function.set_bus_master(True)
    (message,) = function.interrupts(1)
    assert message.wait(0) == 0 and message.wait(SECOND) == 0
    registers.write(0x60, 4, 5)
    registers.write(0x60, 4, 8)
    assert message.wait(SECOND) == 2 and registers.read(0x24, 4) == 13
    (message,) = function.interrupts(1)
    registers.write(0x60, 4, 1)
    assert message.wait(0) == 1
    for count in (0, 2):
        with pytest.raises(InvalidValue, match="1 to 1 can be"):
            function.interrupts(count)
    function.close()
    assert not rig.function.config.messages and rig.machine.process.open_files == 0


def test_it_has_one_owner(rig: Rig) -> None:
    first = rig.open()
    with pytest.raises(TransportError, match="in use") as caught:
        rig.open()
    assert caught.value.errno == errno.EBUSY
    first.close()
    second = rig.open()
    second.close()
    assert rig.machine.process.open_files == 0


def test_asking_it_back_is_told(rig: Rig) -> None:
    function = rig.open()
    (message,) = function.interrupts(1)
    function.allocate(PAGE)
    function.check()
    with pytest.raises(TransportError):
        rig.os.write_file("/sys/bus/pci/drivers/vfio-pci/unbind", b"0000:03:00.0")
    for use in (function.check, lambda: message.wait(SECOND), function.check):
        with pytest.raises(DeviceLost, match="wants it back"):
            use()
    function.close()
    assert tree.driver(rig.os, AT) == "" and rig.machine.process.open_files == 0
    with pytest.raises(TransportError, match=r"not handed over.*gpu pci take"):
        rig.open()


def test_asking_it_back_ends_a_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    function = rig.open()
    (message,) = function.interrupts(1)
    wait = rig.os.wait

    def asked_meanwhile(fds: Sequence[int], timeout_ns: int) -> list[int]:
        assert rig.function.asks_back is not None
        rig.function.asks_back()
        return wait(fds, timeout_ns)

    monkeypatch.setattr(rig.os, "wait", asked_meanwhile)
    with pytest.raises(DeviceLost, match="wants it back"):
        message.wait(SECOND)
    function.close()


def test_bus_addresses_that_are_no_memory_are_left_out(rig: Rig) -> None:
    size, flags = 1 << 30, hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS | hostmem.MAP_NORESERVE
    address = hostmem.map_file(-1, 0, size, hostmem.PROT_READ | hostmem.PROT_WRITE, flags)
    rig.model.memlock = 1 << 40
    function = rig.open()
    found = [function.share(address, size).pieces[0].address for _ in range(8)]
    assert max(found) > 0xFEE00000  # past the window of interrupts, which none overlaps
    function.close()
    hostmem.unmap(address, size)


def test_limits_are_named(group: Rig) -> None:
    function = group.open()
    group.model.memlock = 4 * PAGE
    held = function.allocate(3 * PAGE)
    with pytest.raises(OutOfMemory, match=r"ulimit -l.*memlock unlimited"):
        function.allocate(2 * PAGE)
    held.close()
    function.allocate(4 * PAGE).close()
    group.model.most_mappings = 1
    held = function.allocate(PAGE)
    with pytest.raises(OutOfMemory, match="dma_entry_limit of vfio_iommu_type1"):
        function.allocate(PAGE)
    function.close()


def test_bus_addresses_are_of_the_ranges_and_come_back(rig: Rig) -> None:
    function = rig.open()
    seen = set()
    for _ in range(200):
        memory = function.allocate(PAGE)
        seen.add(memory.pieces[0].address)
        memory.close()
    assert len(seen) == 1
    large = [function.allocate(3 << 20) for _ in range(2)]
    assert all(0 < m.pieces[0].address < 1 << 44 for m in large)
    assert all(not m.pieces[0].address % (2 << 20) for m in large)
    function.close()


def test_strangers_in_a_group_are_named() -> None:
    rig = Rig()
    other = AT._replace(device=5)
    rig.model.add(other, EduCard(rig.machine.debug), 7, driver="e1000e")
    with pytest.raises(TransportError, match=r"0000:03:05\.0 \(e1000e\)") as caught:
        rig.open()
    assert caught.value.errno == errno.EPERM
    assert rig.machine.process.open_files == 0
    rig.machine.close()


def test_without_an_iommu_vfio_says_so() -> None:
    rig = Rig(group=None)
    with pytest.raises(Unsupported, match=r"intel_iommu=on.*PCI_ACCESS=sysfs"):
        rig.open()
    with pytest.raises(TransportError, match="gpu pci list") as caught:
        open_vfio(rig.os, AT._replace(bus=9))
    assert caught.value.errno == errno.ENODEV
    rig.machine.close()


def test_a_session_is_recorded_and_replayed(rig: Rig, tmp_path: Path) -> None:
    def session(system: Os) -> list[int]:
        function = open_vfio(system, AT)
        registers = function.window(0)
        function.set_bus_master(True)
        (message,) = function.interrupts(1)
        registers.write(0x60, 4, 3)
        seen = [registers.read(0, 4), message.wait(SECOND), registers.read(0x24, 4)]
        function.close()
        return seen

    with Recorder(tmp_path / "trace") as recorder:
        wanted = session(TracedOs(rig.os, recorder))
    replay = ReplayOs(read_trace(tmp_path / "trace"))
    assert session(replay) == wanted == [IDENTITY, 1, 3]
    replay.finish()


# What the model refuses, as Linux does.


def _raw(rig: Rig) -> tuple[int, int, int]:
    """Container, group and device, opened by hand."""
    system = rig.os
    container, fd = (system.open(f"/dev/vfio/{name}", os.O_RDWR) for name in ("vfio", 7))
    system.ioctl(fd, vfio.VFIO_GROUP_SET_CONTAINER, bytearray(struct.pack("<i", container)))
    system.ioctl_value(container, vfio.VFIO_SET_IOMMU, vfio.VFIO_TYPE1v2_IOMMU)
    device = system.ioctl(fd, vfio.VFIO_GROUP_GET_DEVICE_FD, bytearray(b"0000:03:00.0\0"))
    return container, fd, device


def _fails(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(TransportError) as caught:
        call()
    assert caught.value.errno == number, caught.value


def test_wrong_calls_of_containers_and_groups(group: Rig) -> None:
    system = group.os
    container = system.open("/dev/vfio/vfio", os.O_RDWR)
    fd = system.open("/dev/vfio/7", os.O_RDWR)
    _fails(errno.EBUSY, lambda: system.open("/dev/vfio/7", os.O_RDWR))
    assert system.ioctl_value(container, vfio.VFIO_CHECK_EXTENSION, 77) == 0
    _fails(errno.EINVAL, lambda: system.ioctl_value(container, vfio.VFIO_SET_IOMMU, 3))
    _fails(errno.EINVAL, lambda: system.ioctl(container, vfio.VFIO_IOMMU_GET_INFO, bytearray(64)))
    _fails(errno.EINVAL, lambda: system.ioctl(fd, vfio.VFIO_GROUP_GET_STATUS, bytearray(8)))
    name = bytearray(b"0000:03:00.0\0")
    _fails(errno.EINVAL, lambda: system.ioctl(fd, vfio.VFIO_GROUP_GET_DEVICE_FD, name))
    argument = bytearray(struct.pack("<i", container))
    system.ioctl(fd, vfio.VFIO_GROUP_SET_CONTAINER, argument)
    _fails(errno.EINVAL, lambda: system.ioctl(fd, vfio.VFIO_GROUP_SET_CONTAINER, argument))
    _fails(errno.ENODEV, lambda: system.ioctl_value(container, vfio.VFIO_SET_IOMMU, 8))
    system.ioctl_value(container, vfio.VFIO_SET_IOMMU, 3)
    _fails(errno.EINVAL, lambda: system.ioctl_value(container, vfio.VFIO_SET_IOMMU, 3))
    wrong = bytearray(b"0000:04:00.0\0")
    _fails(errno.ENODEV, lambda: system.ioctl(fd, vfio.VFIO_GROUP_GET_DEVICE_FD, wrong))


def test_wrong_mappings(group: Rig) -> None:
    container, _, _ = _raw(group)
    address = hostmem.map_anonymous(4 * PAGE)

    def map_it(
        argsz: int = 32, flags: int = 3, vaddr: int = 0, iova: int = 0x100000, size: int = PAGE
    ):
        argument = vfio.vfio_iommu_type1_dma_map(argsz, flags, vaddr or address, iova, size)
        group.os.ioctl(container, vfio.VFIO_IOMMU_MAP_DMA, argument)

    def unmap_it(argsz: int = 24, flags: int = 0, iova: int = 0x100000, size: int = PAGE) -> int:
        argument = vfio.vfio_iommu_type1_dma_unmap(argsz, flags, iova, size)
        group.os.ioctl(container, vfio.VFIO_IOMMU_UNMAP_DMA, argument)
        return int(argument.size)

    for wrong in (
        {"argsz": 31},
        {"flags": 0},
        {"flags": 0x13},
        {"vaddr": address + 8},
        {"iova": 0x100800},
        {"size": PAGE - 1},
        {"size": 0},
        {"iova": 0xFEE00000},
        {"iova": 1 << 48},
        {"iova": 0xFEDFF000, "size": 2 * PAGE},
    ):
        _fails(errno.EINVAL, lambda wrong=wrong: map_it(**wrong))
    map_it(size=2 * PAGE)
    _fails(errno.EEXIST, map_it)
    _fails(errno.EEXIST, lambda: map_it(iova=0x101000, vaddr=address + 2 * PAGE))
    for cut in ({"argsz": 23}, {"flags": 8}, {"size": 0}, {"size": PAGE}, {"iova": 0x101000}):
        _fails(errno.EINVAL, lambda cut=cut: unmap_it(**cut))
    assert unmap_it(iova=0x200000) == 0
    assert unmap_it(iova=0x80000, size=1 << 20) == 2 * PAGE
    hostmem.unmap(address, 4 * PAGE)
    _fails(errno.EFAULT, map_it)


def test_wrong_calls_of_devices(group: Rig) -> None:
    _, _, device = _raw(group)
    system = group.os
    info = vfio.vfio_device_info(15)
    _fails(errno.EINVAL, lambda: system.ioctl(device, vfio.VFIO_DEVICE_GET_INFO, info))
    region = vfio.vfio_region_info(32, 0, 9)
    _fails(errno.EINVAL, lambda: system.ioctl(device, vfio.VFIO_DEVICE_GET_REGION_INFO, region))
    _fails(errno.EINVAL, lambda: system.pread(device, 4, 3 << 40))
    _fails(errno.EINVAL, lambda: system.window(device, 0x200000, 0))
    event = system.eventfd()

    def irqs(argsz: int, flags: int, index: int, start: int, count: int, *fds: int) -> None:
        data = struct.pack(f"<5I{len(fds)}i", argsz, flags, index, start, count, *fds)
        system.ioctl(device, vfio.VFIO_DEVICE_SET_IRQS, bytearray(data))

    for wrong in (
        (19, 0x24, 1, 0, 1, event),
        (24, 0x24, 9, 0, 1, event),
        (24, 0x24, 1, 1, 1, event),
        (28, 0x24, 1, 0, 2, event, event),
        (20, 0x24, 1, 0, 1, event),
        (24, 0x2C, 1, 0, 1, event),
        (24, 0x24, 1, 0, 1, device),
        (24, 0x64, 1, 0, 1, event),
    ):
        _fails(errno.EINVAL, lambda wrong=wrong: irqs(*wrong))
    _fails(errno.EBADF, lambda: irqs(24, 0x24, 1, 0, 1, 999))
    irqs(24, 0x24, 1, 0, 1, event)
    irqs(20, 0x21, 1, 0, 0)
    config = 7 << 40
    system.pwrite(device, b"\xff\xff\xff\xff", config + 0x10)
    assert system.pread(device, 4, config + 0x10) != b"\xff\xff\xff\xff"
    system.pwrite(device, b"\0\0", config + 4)
    window = system.window(device, 0x1000, 0)
    assert window.read(0, 4) == 0xFFFFFFFF
    assert "decodes no memory" in group.machine.debug.violations[-1]


def test_wrong_calls_of_iommufd() -> None:
    rig = Rig("cdev")
    system = rig.os
    device = system.open("/dev/vfio/devices/vfio0", os.O_RDWR)
    _fails(errno.EBUSY, lambda: system.open("/dev/vfio/devices/vfio0", os.O_RDWR))
    iommu = system.open("/dev/iommu", os.O_RDWR)
    info = vfio.vfio_device_info(24)
    _fails(errno.EINVAL, lambda: system.ioctl(device, vfio.VFIO_DEVICE_GET_INFO, info))
    _fails(errno.EINVAL, lambda: system.pread(device, 4, 7 << 40))
    attach = vfio.vfio_device_attach_iommufd_pt(12, 0, 1)
    request = vfio.VFIO_DEVICE_ATTACH_IOMMUFD_PT
    _fails(errno.EINVAL, lambda: system.ioctl(device, request, attach))
    bind = vfio.vfio_device_bind_iommufd(16, 0, iommu)
    system.ioctl(device, vfio.VFIO_DEVICE_BIND_IOMMUFD, bind)
    _fails(errno.EINVAL, lambda: system.ioctl(device, vfio.VFIO_DEVICE_BIND_IOMMUFD, bind))
    _fails(errno.ENOENT, lambda: system.ioctl(device, request, attach))
    alloc = iommufd.iommu_ioas_alloc(12)
    system.ioctl(iommu, iommufd.IOMMU_IOAS_ALLOC, alloc)
    system.ioctl(device, request, attach)
    address = hostmem.map_anonymous(PAGE)

    def map_it(flags: int = 7, ioas: int = 1, size: int = 40, length: int = PAGE) -> None:
        argument = iommufd.iommu_ioas_map(size, flags, ioas, 0, address, length, 0x100000)
        system.ioctl(iommu, iommufd.IOMMU_IOAS_MAP, argument)

    for number, wrong in (
        (errno.EOPNOTSUPP, {"flags": 15}),
        (errno.EINVAL, {"flags": 1}),
        (errno.EINVAL, {"flags": 6}),
        (errno.ENOENT, {"ioas": 2}),
        (errno.EINVAL, {"size": 39}),
        (errno.EINVAL, {"length": 1}),
    ):
        _fails(number, lambda wrong=wrong: map_it(**wrong))
    map_it()
    _fails(errno.EEXIST, map_it)
    gone = iommufd.iommu_ioas_unmap(24, 1, 0x200000, PAGE)
    _fails(errno.ENOENT, lambda: system.ioctl(iommu, iommufd.IOMMU_IOAS_UNMAP, gone))
    hostmem.unmap(address, PAGE)
    rig.machine.close()


# Taking and giving back.


def test_a_card_is_taken_with_its_companion_and_given_back(tmp_path: Path) -> None:
    rig = Rig(driver="amdgpu")
    audio = AT._replace(function=1)
    rig.model.add(audio, EduCard(rig.machine.debug), 7, driver="snd_hda_intel")
    notes = tmp_path / "pci"
    assert claim.take(rig.os, notes, AT) == [AT, audio]
    assert {tree.driver(rig.os, each) for each in (AT, audio)} == {"vfio-pci"}
    assert notes.stat().st_mode & 0o777 == 0o700
    assert claim.take(rig.os, notes, AT) == [AT, audio]  # again: the note stays the first one
    rig.open().close()
    claim.give_back(rig.os, notes, AT)
    assert tree.driver(rig.os, AT) == "amdgpu" and tree.driver(rig.os, audio) == "snd_hda_intel"
    assert rig.os.read_file(f"{tree.folder_of(AT)}/driver_override") == b"(null)\n"
    assert claim.noted(notes, AT) is None
    rig.machine.close()


def test_without_a_note_the_kernel_chooses(tmp_path: Path) -> None:
    rig = Rig(driver="amdgpu")
    claim.take(rig.os, tmp_path, AT, driver="")
    assert tree.driver(rig.os, AT) == ""
    (tmp_path / f"{AT}.json").unlink()
    claim.give_back(rig.os, tmp_path, AT)
    assert tree.driver(rig.os, AT) == "amdgpu"
    for text in ("", "[]", '{"schema": 2}', '{"schema":1,"functions":[{"address":"x"}]}'):
        (tmp_path / f"{AT}.json").write_text(text)
        with pytest.raises(FormatError, match="remove it"):
            claim.give_back(rig.os, tmp_path, AT)
    rig.machine.close()


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("boot_vga", "1\n", "starts with"),
        ("drm/card0/card0-DP-1/enabled", "enabled\n", "a screen is on card0-DP-1"),
        ("graphics/fb0/name", "amdgpudrmfb\n", "console is on it"),
    ],
)
def test_a_display_in_use_is_refused(tmp_path: Path, path: str, text: str, reason: str) -> None:
    rig = Rig(driver="amdgpu")
    consoles = "/sys/class/vtconsole/vtcon1"
    rig.machine.tree.add(f"{consoles}/name", "(M) frame buffer device\n")
    rig.machine.tree.add(f"{consoles}/bind", "1\n")
    claim.companions(rig.os, AT)
    assert claim.why_in_use(rig.os, AT) == []
    rig.machine.tree.add(f"{tree.folder_of(AT)}/{path}", text)
    with pytest.raises(TransportError, match=reason) as caught:
        claim.take(rig.os, tmp_path, AT)
    assert caught.value.errno == errno.EBUSY
    assert tree.driver(rig.os, AT) == "amdgpu" and not list(tmp_path.iterdir())
    rig.machine.close()


def test_who_has_it_open_is_named(tmp_path: Path) -> None:
    rig = Rig(driver="amdgpu")
    rig.machine.tree.add("/proc/4711/comm", "blender\n")
    rig.machine.tree.add("/proc/4711/fdinfo/5", f"drm-pdev:\t{AT}\ndrm-client-id:\t9\n")
    with pytest.raises(TransportError, match=r"process 4711 \(blender\) has it open"):
        claim.take(rig.os, tmp_path, AT)
    rig.machine.close()


def test_a_strangers_device_in_the_group_is_not_taken(tmp_path: Path) -> None:
    rig = Rig(driver="amdgpu")
    rig.model.add(AT._replace(device=4), EduCard(rig.machine.debug), 7, driver="nvme")
    with pytest.raises(TransportError, match=r"0000:03:04\.0 \(nvme\)") as caught:
        claim.take(rig.os, tmp_path, AT)
    assert caught.value.errno == errno.EPERM and tree.driver(rig.os, AT) == "amdgpu"
    rig.machine.close()


def test_a_failed_taking_leads_back(tmp_path: Path) -> None:
    rig = Rig(driver="amdgpu")
    rig.machine.tree.add(f"{tree.folder_of(AT)}/resource0_resize", "0000000000000100\n")
    with pytest.raises(InvalidValue, match="in mask 0x100"):
        claim.take(rig.os, tmp_path, AT, sizes=[(0, 1 << 20)])
    assert tree.driver(rig.os, AT) == "amdgpu" and claim.noted(tmp_path, AT) is None
    del rig.machine.written["/sys/bus/pci/drivers/amdgpu/unbind"]
    rig.machine.tree.add("/sys/bus/pci/drivers/amdgpu/unbind", "")
    with pytest.raises(AccessDenied, match=r"only root.*sudo gpu pci take 0000:03:00\.0"):
        claim.take(rig.os, tmp_path, AT)
    rig.machine.close()


# Without an IOMMU.


class Guard:
    """Stands for the guard process: what it was told, in order."""

    def __init__(self, config: int, lock: int):
        self.told: list[str] = []
        Guard.last = self

    last: Guard

    def hold(self, fd: int) -> None:
        self.told.append(f"hold {os.fstat(fd).st_size:#x}")

    def close(self) -> None:
        self.told.append("close")


def test_sysfs_without_an_iommu() -> None:
    rig = Rig(driver="", group=None)
    rig.machine.tree.add("/proc/sys/vm/compact_unevictable_allowed", "0\n")
    function = SysfsFunction(rig.os, AT, Guard).take()
    with pytest.raises(TransportError, match="in use") as caught:
        SysfsFunction(rig.os, AT, Guard).take()
    assert caught.value.errno == errno.EBUSY
    registers = function.window(0)
    assert registers.read(0, 4) == IDENTITY and function.config.read(0, 2) == 0x1234
    function.set_bus_master(True)
    memory = function.allocate(3 * PAGE)
    assert Guard.last.told == [f"hold {3 * PAGE:#x}"]
    assert sum(piece.size for piece in memory.pieces) == 3 * PAGE
    memory.window.store(0, b"hello")
    dma(registers, memory.pieces[0].address, BUFFER, 5, 0)
    assert rig.edu.memory[:5] == b"hello"
    for use in (
        lambda: function.interrupts(1),
        lambda: function.share(memory.window.address, PAGE),
    ):
        with pytest.raises(Unsupported, match="VFIO"):
            use()
    function.close()
    assert Guard.last.told[-1] == "close" and not rig.function.config.is_master
    assert rig.machine.process.open_files == 0
    SysfsFunction(rig.os, AT, Guard).take().close()
    rig.machine.close()


def test_locked_pages_are_used_only_where_they_stay() -> None:
    rig = Rig(driver="", group=None)
    function = SysfsFunction(rig.os, AT, Guard).take()
    if "HugePages_Free:        0" in Path("/proc/meminfo").read_text():
        with pytest.raises(OutOfMemory, match=r"nr_hugepages.*compact_unevictable_allowed"):
            function.allocate(PAGE)
    function.close()
    rig.machine.close()


def test_sysfs_must_be_said_and_is_refused_where_an_iommu_translates() -> None:
    rig = Rig(driver="", group=None)
    with pytest.raises(Unsupported, match="behind no IOMMU"):
        HostPci(rig.os).open(AT)
    with Context(PCI_ACCESS="SYSFS"):
        with pytest.warns(DeviceWarning, match="all memory of this machine"):
            HostPci(rig.os).open(AT).close()
        lockdown = "/sys/kernel/security/lockdown"
        rig.machine.tree.add(lockdown, "none [integrity] confidentiality\n")
        with pytest.raises(Unsupported, match="locked down"):
            HostPci(rig.os).open(AT)
        behind = Rig(driver="")
        with pytest.raises(Unsupported, match="translates"):
            HostPci(behind.os).open(AT)
        behind.machine.close()
    rig.machine.close()


def test_bars_of_what_a_driver_has_are_not_mapped() -> None:
    rig = Rig(driver="amdgpu", group=None)
    function = SysfsFunction(rig.os, AT, Guard)
    for use in (function.take, lambda: function.window(0), function.reset):
        with pytest.raises(TransportError, match="kernel's driver amdgpu") as caught:
            use()
        assert caught.value.errno == errno.EBUSY
    with pytest.raises(TransportError, match="only looked at"):
        function.set_bus_master(True)
    rig.machine.close()


def test_a_function_that_sleeps_answers_with_ones() -> None:
    rig = Rig()
    registers = rig.function.window(rig.machine, 0)
    assert registers.read(0, 4) == 0xFFFFFFFF and "sleeps (D3)" in rig.machine.debug.violations[-1]
    function = rig.open()
    assert function.window(0).read(0, 4) == IDENTITY
    function.close()
    assert registers.read(0, 4) == 0xFFFFFFFF
    rig.machine.close()


def test_a_structure_is_of_the_size_that_the_headers_say() -> None:
    assert ctypes.sizeof(vfio.vfio_iommu_type1_dma_map) == 32
    assert ctypes.sizeof(iommufd.iommu_ioas_iova_ranges) == 32


# What is told without touching anything.


class Looker:
    """The files of a model, as who looks sees them."""

    def __init__(self, rig: Rig, denied: str = ""):
        self._os, self._denied = rig.os, denied
        self.read_file, self.list_dir, self.exists = (
            *(rig.os.read_file, rig.os.list_dir, rig.os.exists),
        )

    def why_denied(self, path: str) -> str:
        return self._denied if self._os.exists(path) else "no such node"


def _state(rig: Rig, denied: str = "") -> tuple[bool, str, str]:
    (seen,) = survey(Looker(rig, denied), everything=True)
    assert str(seen).startswith(f"{AT} 1234:11e8, {seen.driver or 'no driver'}, ")
    return seen.is_ready, seen.told, seen.fix


def test_what_a_survey_tells(tmp_path: Path) -> None:
    rig = Rig(driver="amdgpu")
    assert not list(survey(Looker(rig)))  # edu is no display
    is_ready, told, fix = _state(rig)
    assert not is_ready and told == "it was not handed over"
    assert fix == f"`sudo modprobe vfio-pci` and `sudo gpu pci take {AT}`"
    rig.machine.tree.add("/sys/module/vfio_pci/uevent", "")
    assert _state(rig)[2] == f"`sudo gpu pci take {AT}`"
    claim.take(rig.os, tmp_path, AT)
    assert _state(rig) == (True, "taken", f"`sudo gpu pci give-back {AT}` leads back")
    assert _state(rig, "join the group") == (
        False,
        "taken, but not for this user",
        "join the group",
    )
    with Context(PCI_ACCESS="SYSFS"):
        assert _state(rig)[0]
    claim.give_back(rig.os, tmp_path, AT)
    with Context(PCI_ACCESS="SYSFS"):
        assert "behind an IOMMU" in _state(rig)[1]
    rig.machine.tree.add(f"{tree.folder_of(AT)}/boot_vga", "1\n")
    assert _state(rig)[:2] == (
        *(False, "in use: it is the display that the machine starts with (boot_vga)"),
    )
    rig.machine.close()


def test_what_a_survey_tells_without_an_iommu(tmp_path: Path) -> None:
    rig = Rig(driver="amdgpu", group=None)
    assert _state(rig)[:2] == (False, "it is behind no IOMMU, which VFIO needs")
    with Context(PCI_ACCESS="SYSFS"):
        assert _state(rig)[2] == f"`sudo PCI_ACCESS=sysfs gpu pci take {AT}`"
        claim.take(rig.os, tmp_path, AT, driver="")
        assert _state(rig)[:2] == (True, "free, and without protection (PCI_ACCESS=sysfs)")
    claim.give_back(rig.os, tmp_path, AT)
    rig.machine.close()


def test_doctor_and_the_command_say_the_same() -> None:
    rig = Rig(driver="amdgpu")
    rig.edu.ids = rig.edu.ids._replace(class_code=0x030000)  # type: ignore[misc]
    rig.machine.tree.add(f"{tree.folder_of(AT)}/class", "0x030000\n")
    looker = Looker(rig)
    told = pci.as_text(looker, everything=False)
    rows = [
        finding for finding in doctor.examine(looker, _not_opened).machine if "PCI" in finding.told
    ]
    assert [row.told for row in rows] == [f"PCI {told.splitlines()[0]}"] and rows[0].fix in told
    rig.machine.close()


def _not_opened(name: str) -> doctor.Finding:
    return doctor.Finding("missing", name)


@pytest.mark.parametrize("text", ["0", "6:1G", "0:1T", "0:-1", "x:1"])
def test_sizes_on_the_command_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pci", "take", str(AT), "--resize", text]) == 1
    assert "as in 0:16G" in capsys.readouterr().err


def test_a_process_of_a_served_machine_has_the_function(rig: Rig, tmp_path: Path) -> None:
    with serve(rig.machine, str(tmp_path / "machine")):
        world = RemoteWorld(str(tmp_path / "machine"))
        function = open_vfio(world.os, AT)
        registers = function.window(0)
        registers.write(4, 4, 1)
        assert registers.read(4, 4) == 0xFFFFFFFE and function.config.read(0, 2) == 0x1234
        function.set_bus_master(True)
        memory = function.allocate(PAGE)
        memory.window.store(0, b"hello")
        dma(registers, memory.pieces[0].address, BUFFER, 5, 0)
        assert rig.edu.memory[:5] == b"hello"
        (message,) = function.interrupts(1)
        registers.write(0x60, 4, 1)
        assert message.wait(SECOND) == 1
        with pytest.raises(TransportError) as caught:
            open_vfio(rig.os, AT)
        assert caught.value.errno == errno.EBUSY
        world.os.lock(world.os.open(f"{tree.folder_of(AT)}/resource0", os.O_RDWR))
        world.close()
    assert not rig.function.config.is_master  # the process went without closing anything
    open_vfio(rig.os, AT).close()

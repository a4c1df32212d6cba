"""PCI functions through VFIO: the kernel hands one to a process, and the IOMMU keeps it there.

`open_vfio` takes a function by its character device and iommufd where the kernel has these, else by
its group and a container. From then on nobody else can (EBUSY), and when the last descriptor is
closed, by a crash too, the kernel ends bus mastering and resets the function.

The kernel asks for a function back (event REQ) when its driver is to be unbound, and then waits for
as long as this takes: `VfioFunction.check` and every wait for an interrupt raise DeviceLost, and
whoever has it closes it. Sources: include/uapi/linux/vfio.h, drivers/vfio/pci/vfio_pci_core.c,
drivers/vfio/group.c and device_cdev.c of Linux 6.12.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from gpu.autogen import vfio
from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import (
    DeviceError,
    DeviceLost,
    InvalidIndex,
    InvalidValue,
    TransportError,
    Unsupported,
)
from gpu.core.pci import Bar, DmaPiece, PciAddress, PciIds
from gpu.core.window import MemoryWindow, TrappedWindow, Window, check_range
from gpu.transport.machine import names_in
from gpu.transport.os import Os
from gpu.transport.pci import tree
from gpu.transport.pci.claim import NO_IOMMU, lack_for_vfio
from gpu.transport.pci.config import COMMAND, MASTER, MEMORY, change, set_master
from gpu.transport.pci.iommu import Iommu, Iommufd, Type1, info_capabilities

logger = logging.getLogger(__name__)
T = TypeVar("T")

_CONTAINER: Final = "/dev/vfio/vfio"
_CONFIG: Final = vfio.VFIO_PCI_CONFIG_REGION_INDEX
_ERR, _REQ = vfio.VFIO_PCI_ERR_IRQ_INDEX, vfio.VFIO_PCI_REQ_IRQ_INDEX
_CAP_SPARSE: Final = 1  # VFIO_REGION_INFO_CAP_SPARSE_MMAP
_INFO_SIZE: Final = 4096
_GONE: Final = {
    _ERR: "it reported an error of its link that it cannot go on after (AER)",
    _REQ: "the system wants it back: its kernel driver is being unbound, or it is being removed",
}


class _Region(NamedTuple):
    flags: int
    size: int
    offset: int
    is_sparse: bool


class VfioDma:
    """Memory that a function may reach. See `gpu.transport.pci.function.DmaMemory`."""

    def __init__(self, window: MemoryWindow, iommu: Iommu, give_back: Callable[[], None]):
        self.window = window
        bus = iommu.map(window.address, window.size)
        self.pieces: Sequence[DmaPiece] = (DmaPiece(bus, window.size),)
        self._iommu = iommu
        self._give_back = give_back
        self.is_open = True

    def close(self) -> None:
        """Takes it away from the function, then gives it back; again does nothing."""
        if self.is_open:
            self.is_open = False
            for piece in self.pieces:
                self._iommu.unmap(piece.address, piece.size)
            self._give_back()


class VfioInterrupt:
    """One message. See `gpu.transport.pci.function.Interrupt`."""

    def __init__(self, function: VfioFunction, fd: int):
        self._function = function
        self.fd = fd

    def wait(self, timeout_ns: int) -> int:
        """How often it came since the last call. Raises DeviceLost as `VfioFunction.check`."""
        return self._function.wait(self.fd, timeout_ns)


class VfioFunction:
    """A function that VFIO has given us. See `gpu.transport.pci.function.PciFunction`."""

    def __init__(
        self,
        system: Os,
        address: PciAddress,
        device: int,
        iommu: Iommu,
        group: int | None,
    ):
        """Owns the descriptors and `iommu` from now on. Raises TransportError."""
        self._os = system
        self._address = address
        self._device = device
        self._iommu = iommu
        self._group = group
        self._windows: list[Window] = []
        self._mapped: list[tuple[int, int]] = []
        self._memory: list[VfioDma] = []
        self._vectors: list[int] = []
        self._vector_kind = 0
        self._gone = ""
        self._is_open = True
        info = vfio.vfio_device_info(ctypes.sizeof(vfio.vfio_device_info))
        system.ioctl(device, vfio.VFIO_DEVICE_GET_INFO, info)
        self._can_reset = bool(info.flags & vfio.VFIO_DEVICE_FLAGS_RESET)
        self._regions = {index: self._region(index) for index in range(_CONFIG + 1)}
        ranges = tree.ranges_of(system, address)
        self._bars = {n: r.bar for n, r in ranges.items() if self._regions[n].size}
        size = self._regions[_CONFIG].size
        self._config = TrappedWindow(size, *self._accesses(_CONFIG), widest=4)
        self._alarms = {
            kind: self._arm(kind, 1)[0] for kind in (_ERR, _REQ) if self._messages(kind)
        }
        change(self._config, COMMAND, add=MEMORY, remove=MASTER)

    @property
    def address(self) -> PciAddress:
        """Where it is."""
        return self._address

    @property
    def ids(self) -> PciIds:
        """What it is."""
        return tree.ids_of(self._os, self._address)

    @property
    def config(self) -> Window:
        """Config space as VFIO shows it: some of what is written is not passed on."""
        return self._config

    @property
    def bars(self) -> Mapping[int, Bar]:
        """Its ranges."""
        return self._bars

    def window(self, bar: int) -> Window:
        """All of a BAR; where VFIO does not let it be mapped whole, by a call for each access."""
        region = self._bar(bar)
        if region.flags & vfio.VFIO_REGION_INFO_FLAG_MMAP and not region.is_sparse:
            window = self._os.window(self._device, region.size, region.offset)
            self._windows.append(window)
            return window
        return TrappedWindow(region.size, *self._accesses(bar), widest=4)

    def map(self, bar: int, offset: int, size: int) -> MemoryWindow:
        """A part of a BAR that begins at a page. Raises Unsupported where VFIO lets none be mapped.

        InvalidIndex, InvalidValue; TransportError where VFIO keeps just that part to itself.
        """
        region = self._bar(bar)
        check_range(region.size, offset, size)
        if not size or offset % hostmem.page_size:
            raise InvalidValue(
                f"{size:#x} bytes at {offset:#x} of BAR {bar}: a mapping begins at a page of"
                f" {hostmem.page_size:#x}"
            )
        if not region.flags & vfio.VFIO_REGION_INFO_FLAG_MMAP:
            raise Unsupported(f"BAR {bar} of {self._address} is not mapped by VFIO: use its window")
        whole = align_up(size, hostmem.page_size)
        protection = hostmem.PROT_READ | hostmem.PROT_WRITE
        place = region.offset + offset
        address = self._os.mmap(self._device, whole, protection, hostmem.MAP_SHARED, place)
        self._mapped.append((address, whole))
        return MemoryWindow(address, size)

    def set_bus_master(self, allowed: bool) -> None:
        """Changes the command register; memory in it makes VFIO restore forgotten BARs."""
        self._need_open()
        set_master(self._config, allowed)

    def allocate(self, size: int) -> VfioDma:
        """Pages of this process that stay out of forked children. Raises OutOfMemory."""
        self._need_open()
        if size < 1:
            raise InvalidValue(f"{size} bytes of memory for {self._address}: at least 1 is needed")
        size = align_up(size, hostmem.page_size)
        flags = hostmem.MAP_SHARED | hostmem.MAP_ANONYMOUS
        protection = hostmem.PROT_READ | hostmem.PROT_WRITE
        address = self._os.mmap(-1, size, protection, flags)
        try:
            hostmem.dontfork(address, size)
            return self._give(address, size, lambda: self._os.munmap(address, size))
        except BaseException:
            self._os.munmap(address, size)
            raise

    def share(self, address: int, size: int) -> VfioDma:
        """Pages of this process. Raises InvalidValue for parts of pages, OutOfMemory."""
        self._need_open()
        if address % hostmem.page_size or size % hostmem.page_size or size < 1:
            raise InvalidValue(f"{size:#x} bytes at {address:#x}: whole pages are shared")
        return self._give(address, size, lambda: None)

    def interrupts(self, count: int) -> Sequence[VfioInterrupt]:
        """MSI, or MSI-X where MSI has not so many. Raises InvalidValue for more than there are."""
        self._need_open()
        kinds = (vfio.VFIO_PCI_MSI_IRQ_INDEX, vfio.VFIO_PCI_MSIX_IRQ_INDEX)
        known = {kind: self._messages(kind) for kind in kinds}
        kind = next((kind for kind in kinds if 0 < count <= known[kind]), None)
        if kind is None:
            most = max(known.values())
            raise InvalidValue(f"{count} messages of {self._address}: 1 to {most} can be")
        self._disarm()
        self._vectors, self._vector_kind = self._arm(kind, count), kind
        return [VfioInterrupt(self, fd) for fd in self._vectors]

    def wait(self, fd: int, timeout_ns: int) -> int:
        """How often an eventfd was signalled; what `VfioInterrupt` does. Raises DeviceLost."""
        self.check()
        self._os.wait([fd, *self._alarms.values()], timeout_ns)
        self.check()
        return self._os.take_events(fd)

    def check(self) -> None:
        """Raises DeviceLost once the system wants the function back, or its link has failed."""
        self._need_open()
        for kind, fd in self._alarms.items():
            if not self._gone and self._os.take_events(fd):
                self._gone = _GONE[kind]
        if self._gone:
            raise DeviceLost(f"{self._address}: {self._gone}; close it, so that this can go on")

    def resize(self, bar: int, size: int) -> None:
        """Raises Unsupported: the kernel resizes for who may write sysfs, before VFIO has it."""
        self._bar(bar)
        raise Unsupported(
            f"BAR {bar} of {self._address} is resized before VFIO has it: give it back, then"
            f" `sudo gpu pci take {self._address} --resize {bar}:{size}`"
        )

    def reset(self) -> None:
        """The function's own reset, else that of its bus where all on it are of our group.

        Raises Unsupported where there is neither, TransportError.
        """
        self._need_open()
        if self._can_reset:
            self._os.ioctl_value(self._device, vfio.VFIO_DEVICE_RESET)
            return
        data = b"" if self._group is None else struct.pack("<i", self._group)
        head = struct.pack("<III", 12 + len(data), 0, len(data) // 4)
        try:
            self._os.ioctl(self._device, vfio.VFIO_DEVICE_PCI_HOT_RESET, bytearray(head + data))
        except TransportError as error:
            raise Unsupported(
                f"{self._address} has no reset of its own, and that of its bus failed: "
                f"{error.message}. All functions that it reaches must be VFIO's and in our hands;"
                " otherwise only taking the machine's power away resets it"
            ) from error

    def close(self) -> None:
        """Ends bus mastering, takes memory away, gives it back; again does nothing."""
        if not self._is_open:
            return
        try:
            self.set_bus_master(False)
        except DeviceError as error:  # closing ends it too; what is gone does not answer
            logger.debug("%s: bus mastering could not be ended: %s", self._address, error)
        self._is_open = False
        for window in self._windows:
            self._os.close_window(window)
        for mapping in self._mapped:
            self._os.munmap(*mapping)
        # While the device is open its address space is there: whoever waits for the function
        # takes the group away from it as soon as it is closed.
        for memory in self._memory:
            memory.close()
        self._os.close(self._device)
        for fd in (*self._vectors, *self._alarms.values()):
            self._os.close(fd)
        if self._group is not None:
            self._os.close(self._group)
        self._iommu.close()

    def _give(self, address: int, size: int, give_back: Callable[[], None]) -> VfioDma:
        self._memory = [memory for memory in self._memory if memory.is_open]
        memory = VfioDma(MemoryWindow(address, size), self._iommu, give_back)
        self._memory.append(memory)
        return memory

    def _need_open(self) -> None:
        if not self._is_open:
            raise TransportError(f"{self._address} was closed", errno.EBADF)

    def _bar(self, bar: int) -> _Region:
        self._need_open()
        if bar not in self._bars:
            known = ", ".join(map(str, self._bars)) or "none"
            raise InvalidIndex(f"{self._address} has no BAR {bar}, but {known}")
        return self._regions[bar]

    def _region(self, index: int) -> _Region:
        info = bytearray(_INFO_SIZE)
        head = vfio.vfio_region_info.from_buffer(info)
        head.argsz, head.index = _INFO_SIZE, index
        self._os.ioctl(self._device, vfio.VFIO_DEVICE_GET_REGION_INFO, info)
        at = head.cap_offset if head.flags & vfio.VFIO_REGION_INFO_FLAG_CAPS else 0
        kinds = [kind for kind, _ in info_capabilities(info, at)]
        return _Region(head.flags, head.size, head.offset, _CAP_SPARSE in kinds)

    def _accesses(
        self, index: int
    ) -> tuple[Callable[[int, int], int], Callable[[int, int, int], None]]:
        start = self._regions[index].offset

        def read(offset: int, width: int) -> int:
            self._need_open()
            data = self._os.pread(self._device, width, start + offset)
            if len(data) != width:
                raise DeviceLost(f"{self._address}: {len(data)} of {width} bytes at {offset:#x}")
            return int.from_bytes(data, "little")

        def write(offset: int, width: int, value: int) -> None:
            self._need_open()
            self._os.pwrite(self._device, value.to_bytes(width, "little"), start + offset)

        return read, write

    def _messages(self, kind: int) -> int:
        """How many messages of a kind there are."""
        info = vfio.vfio_irq_info(ctypes.sizeof(vfio.vfio_irq_info), 0, kind)
        try:
            self._os.ioctl(self._device, vfio.VFIO_DEVICE_GET_IRQ_INFO, info)
        except TransportError as error:
            if error.errno != errno.EINVAL:  # a function that cannot have that kind at all
                raise
            return 0
        return info.count

    def _arm(self, kind: int, count: int) -> list[int]:
        """So many eventfds, which messages of a kind signal from now on."""
        fds = [self._os.eventfd() for _ in range(count)]
        flags = vfio.VFIO_IRQ_SET_DATA_EVENTFD | vfio.VFIO_IRQ_SET_ACTION_TRIGGER
        self._set_irqs(kind, flags, count, struct.pack(f"<{count}i", *fds))
        return fds

    def _disarm(self) -> None:
        if self._vectors:
            flags = vfio.VFIO_IRQ_SET_DATA_NONE | vfio.VFIO_IRQ_SET_ACTION_TRIGGER
            self._set_irqs(self._vector_kind, flags, 0, b"")
        while self._vectors:
            self._os.close(self._vectors.pop())

    def _set_irqs(self, kind: int, flags: int, count: int, data: bytes) -> None:
        size = ctypes.sizeof(vfio.vfio_irq_set) + len(data)
        head = struct.pack("<5I", size, flags, kind, 0, count)
        self._os.ioctl(self._device, vfio.VFIO_DEVICE_SET_IRQS, bytearray(head + data))


def open_vfio(system: Os, address: PciAddress) -> VfioFunction:
    """Takes a function that is bound to vfio-pci, with an IOMMU before it.

    Raises Unsupported where there is no IOMMU, and TransportError: ENODEV where it was not handed
    over, EBUSY where another process or a display has it, EPERM where strangers are in its group,
    each with what to do; AccessDenied.
    """
    tree.check_there(system, address)
    if (lacking := lack_for_vfio(system, address)) is not None:
        lack, number = lacking
        if lack is NO_IOMMU:
            raise Unsupported(f"{address}: {lack}")
        raise TransportError(f"{address}: {lack}", number)
    group = tree.group_of(system, address)
    assert group is not None, "what VFIO has is in one"
    nodes = names_in(system, f"{tree.folder_of(address)}/vfio-dev")
    if nodes and system.exists("/dev/iommu"):
        return _open_cdev(system, address, nodes[0])
    return _open_group(system, address, group)


def _open_cdev(system: Os, address: PciAddress, node: str) -> VfioFunction:
    device = _open_node(system, address, f"/dev/vfio/devices/{node}")
    try:
        iommu = _attached(lambda: Iommufd(system, device), address)
    except BaseException:
        system.close(device)
        raise
    return _function(system, address, device, iommu, None)


def _open_group(system: Os, address: PciAddress, group: str) -> VfioFunction:
    opened: list[int] = []
    kind = vfio.VFIO_TYPE1v2_IOMMU
    try:
        opened.append(_open_node(system, address, f"/dev/vfio/{group}"))
        opened.append(_container(system, kind))
        fd, container = opened
        _check_viable(system, fd, group)
        system.ioctl(fd, vfio.VFIO_GROUP_SET_CONTAINER, bytearray(struct.pack("<i", container)))
        _attached(lambda: system.ioctl_value(container, vfio.VFIO_SET_IOMMU, kind), address)
        iommu = Type1(system, container)
        device = _device_of(system, fd, address)
    except BaseException:
        for each in opened:
            system.close(each)
        raise
    return _function(system, address, device, iommu, fd)


def _device_of(system: Os, group: int, address: PciAddress) -> int:
    """The descriptor of a function in an open group. Raises TransportError."""
    name = bytearray(str(address).encode() + b"\0")
    return system.ioctl(group, vfio.VFIO_GROUP_GET_DEVICE_FD, name)


def _container(system: Os, kind: int) -> int:
    """A new container, which can have such an IOMMU. Raises TransportError, Unsupported."""
    container = system.open(_CONTAINER, os.O_RDWR)
    try:
        version = system.ioctl_value(container, vfio.VFIO_TYPE << 8 | vfio.VFIO_BASE)
        if version != vfio.VFIO_API_VERSION:
            raise Unsupported(f"{_CONTAINER} is of version {version}, not 0: another kernel's")
        if not system.ioctl_value(container, vfio.VFIO_CHECK_EXTENSION, kind):
            raise Unsupported(f"VFIO has no IOMMU of type {kind}: `sudo modprobe vfio_iommu_type1`")
    except BaseException:
        system.close(container)
        raise
    return container


def _open_node(system: Os, address: PciAddress, path: str) -> int:
    try:
        return system.open(path, os.O_RDWR)
    except TransportError as error:
        if error.errno == errno.EBUSY:
            raise TransportError(
                f"{address} is in use: another process has {path}; `sudo fuser -v {path}` names it",
                errno.EBUSY,
            ) from error
        raise


def _check_viable(system: Os, fd: int, group: str) -> None:
    """Raises TransportError(EPERM) where others have functions of the group, naming them."""
    status = vfio.vfio_group_status(ctypes.sizeof(vfio.vfio_group_status))
    system.ioctl(fd, vfio.VFIO_GROUP_GET_STATUS, status)
    if status.flags & vfio.VFIO_GROUP_FLAGS_VIABLE:
        return
    strangers = [
        f"{each} ({driver})"
        for each in tree.members_of(system, group)
        if not tree.is_bridge(system, each)
        and (driver := tree.driver(system, each)) not in ("", "vfio-pci")
    ]
    raise TransportError(
        f"IOMMU group {group} is shared with kernel drivers, whose memory its functions could"
        f" reach: {', '.join(strangers) or 'see sysfs'}. `sudo gpu pci take` takes functions of"
        " one card together; other devices need another slot",
        errno.EPERM,
    )


def _attached(attach: Callable[[], T], address: PciAddress) -> T:
    """What `attach` gives, with words where the IOMMU refuses."""
    try:
        return attach()
    except TransportError as error:
        if error.errno == errno.EPERM:
            error.add(
                "an IOMMU without interrupt remapping is refused, as a card could then send any"
                " interrupt: switch it on in the firmware's setup; `dmesg | grep -i remap` tells"
            )
        elif error.errno == errno.EBUSY:
            error.add(f"another process has {address}, or a function of its group")
        raise


def _function(
    system: Os, address: PciAddress, device: int, iommu: Iommu, group: int | None
) -> VfioFunction:
    try:
        return VfioFunction(system, address, device, iommu, group)
    except BaseException:
        system.close(device)
        if group is not None:
            system.close(group)
        iommu.close()
        raise

"""VFIO of a model: containers, groups and devices, with Linux 6.12's checks in its order.

drivers/vfio/{container,group,vfio_main}.c, vfio_iommu_type1.c and pci/vfio_pci_core.c. Messages
signal eventfds of the process; what a function writes goes through a `Domain`.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from gpu.autogen import vfio
from gpu.core.bits import align_up
from gpu.core.window import Window
from gpu.sim.kernel import SysError
from gpu.sim.pci.domain import RANGES, Domain
from gpu.sim.pci.host import HostFunction, HostPciModel
from gpu.sim.process import ArgumentBytes, EventCounter, SimFile, SimProcess

_CONFIG: Final = vfio.VFIO_PCI_CONFIG_REGION_INDEX
_SHIFT: Final = 40  # of a region's index within offsets, VFIO_PCI_OFFSET_SHIFT
_PAGE_SIZES: Final = 0x40201000  # 4 KiB, 2 MiB, 1 GiB
_API_VERSION: Final = vfio.VFIO_TYPE << 8 | vfio.VFIO_BASE
_COMMAND, _MEMORY, _MASTER = 4, 2, 4
_BARS: Final = range(0x10, 0x28)
_KINDS: Final = {
    vfio.VFIO_PCI_MSI_IRQ_INDEX: vfio.VFIO_IRQ_INFO_EVENTFD | vfio.VFIO_IRQ_INFO_NORESIZE,
    vfio.VFIO_PCI_REQ_IRQ_INDEX: vfio.VFIO_IRQ_INFO_EVENTFD,
}
StructT = TypeVar("StructT", bound=ctypes.Structure)


def read_argument(
    argument: ArgumentBytes, kind: type[StructT], least: int | None = None
) -> StructT:
    """A structure whose `argsz` must cover what this kernel reads of it (`least`)."""
    size = ctypes.sizeof(kind)
    given = bytes(argument)
    found = kind.from_buffer_copy(given[:size].ljust(size, b"\0"))
    if int.from_bytes(given[:4], "little") < (least or size) or len(given) < (least or size):
        raise SysError(errno.EINVAL, f"argsz of {kind.__name__}")
    return found


def answer(argument: ArgumentBytes, data: bytes) -> int:
    """Writes an answer, as much of it as the caller has room for."""
    count = min(len(argument), len(data))
    ctypes.memmove(argument, data, count)
    return 0


class ContainerFile(SimFile):
    """/dev/vfio/vfio, opened: an address space once it has groups and an IOMMU."""

    def __init__(self, model: HostPciModel):
        self._model = model
        self.groups: set[GroupFile] = set()
        self.domain: Domain | None = None

    def ioctl_value(self, process: SimProcess, request: int, value: int) -> int:
        """Version, extensions, and choosing the IOMMU."""
        types = (vfio.VFIO_TYPE1_IOMMU, vfio.VFIO_TYPE1v2_IOMMU)
        match request:
            case _ if request == _API_VERSION:
                return vfio.VFIO_API_VERSION
            case vfio.VFIO_CHECK_EXTENSION:
                return int(value in types)
            case vfio.VFIO_SET_IOMMU:
                if not self.groups or self.domain is not None:
                    raise SysError(errno.EINVAL, "no group, or an IOMMU already")
                if value not in types:
                    raise SysError(errno.ENODEV)
                self.domain = Domain(self._model)
                for group in self.groups:
                    group.attach(self.domain)
                return 0
        raise SysError(errno.ENOTTY)

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """What the IOMMU can, mapping and unmapping."""
        if self.domain is None:
            raise SysError(errno.EINVAL, "the container has no IOMMU")
        match request:
            case vfio.VFIO_IOMMU_GET_INFO:
                return answer(argument, self._info(argument, self.domain))
            case vfio.VFIO_IOMMU_MAP_DMA:
                given = read_argument(argument, vfio.vfio_iommu_type1_dma_map)
                access = vfio.VFIO_DMA_MAP_FLAG_READ | vfio.VFIO_DMA_MAP_FLAG_WRITE
                if given.flags & ~access or not given.flags & access:
                    raise SysError(errno.EINVAL, f"flags {given.flags:#x}")
                writable = bool(given.flags & vfio.VFIO_DMA_MAP_FLAG_WRITE)
                self.domain.map(process, given.vaddr, given.iova, given.size, writable)
                return 0
            case vfio.VFIO_IOMMU_UNMAP_DMA:
                take = read_argument(argument, vfio.vfio_iommu_type1_dma_unmap)
                if take.flags:
                    raise SysError(errno.EINVAL, f"flags {take.flags:#x}")
                take.size = self.domain.unmap(take.iova, take.size)
                return answer(argument, bytes(take))
        raise SysError(errno.ENOTTY)

    def _info(self, argument: ArgumentBytes, domain: Domain) -> bytes:
        given = read_argument(argument, vfio.vfio_iommu_type1_info, 16)
        ranges = b"".join(struct.pack("<QQ", *each) for each in RANGES)
        size = ctypes.sizeof(given)
        first = struct.pack("<HHIII", 1, 1, size + 16 + len(ranges), len(RANGES), 0) + ranges
        caps = first + struct.pack("<HHII", 3, 1, 0, domain.left)
        given.flags, given.iova_pgsizes = 3, _PAGE_SIZES
        fits = given.argsz >= size + len(caps)
        given.cap_offset = size if fits else 0
        given.argsz = max(given.argsz, size + len(caps)) if not fits else given.argsz
        return bytes(given) + (caps if fits else b"")


class GroupFile(SimFile):
    """/dev/vfio/N, opened: by one process at a time."""

    def __init__(self, model: HostPciModel, group: int, opened: set[int]):
        """`opened` are the groups that somebody has. Raises SysError(EBUSY)."""
        if group in opened:
            raise SysError(errno.EBUSY)
        opened.add(group)
        self._model, self.group, self._opened = model, group, opened
        self.container: ContainerFile | None = None

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Status, joining a container, and opening a function."""
        match request:
            case vfio.VFIO_GROUP_GET_STATUS:
                status = read_argument(argument, vfio.vfio_group_status)
                status.flags = vfio.VFIO_GROUP_FLAGS_VIABLE * self._is_viable()
                if self.container is not None:
                    status.flags |= vfio.VFIO_GROUP_FLAGS_CONTAINER_SET
                return answer(argument, bytes(status))
            case vfio.VFIO_GROUP_SET_CONTAINER:
                fd = int.from_bytes(bytes(argument)[:4], "little", signed=True)
                container = process.file(fd).file
                if self.container is not None or not isinstance(container, ContainerFile):
                    raise SysError(errno.EINVAL)
                if not self._is_viable():
                    raise SysError(errno.EPERM, "the group is not viable")
                self.container = container
                container.groups.add(self)
                if container.domain is not None:
                    self.attach(container.domain)
                return 0
            case vfio.VFIO_GROUP_GET_DEVICE_FD:
                return self._open_device(process, bytes(argument))
        raise SysError(errno.ENOTTY)

    def attach(self, domain: Domain) -> None:
        """All functions of the group reach what the domain has."""
        for function in self._model.members(self.group):
            domain.attach(function)

    def released(self) -> None:
        """The group is free for others."""
        self.leave()
        self._opened.discard(self.group)

    def leave(self) -> None:
        """Leaves the container, whose memory the functions reach no more; the last takes it away.

        So does the kernel when the last function of a group goes (vfio_device_remove_group).
        """
        for function in self._model.members(self.group):
            self._model.isolate(function, None)
        container, self.container = self.container, None
        if container is not None:
            container.groups.discard(self)
            if not container.groups and container.domain is not None:
                container.domain.clear()
                container.domain = None

    def _is_viable(self) -> bool:
        return all(each.driver in ("", "vfio-pci") for each in self._model.members(self.group))

    def _open_device(self, process: SimProcess, name: bytes) -> int:
        if self.container is None or self.container.domain is None:
            raise SysError(errno.EINVAL, "the group has no IOMMU yet")
        wanted, end, _ = name.partition(b"\0")
        for function in self._model.members(self.group):
            if str(function.address).encode() == wanted and end and function.driver == "vfio-pci":
                device = DeviceFile(self._model, function, self.leave)
                return process.add_file(device, "a VFIO device")
        raise SysError(errno.ENODEV)


class DeviceFile(SimFile):
    """A function in the hands of a process."""

    def __init__(
        self,
        model: HostPciModel,
        function: HostFunction,
        leave: Callable[[], None],
        usable: bool = True,
    ):
        """`leave` is called when the function goes with its driver."""
        if function.asks_back is not None:
            raise SysError(errno.EBUSY, f"{function.address} is open")
        self._model, self.function, self._usable = model, function, usable
        self._leave = leave
        self._signals: dict[int, list[EventCounter | None]] = {}
        function.asleep = False
        function.asks_back = self._ask_back
        function.bus.deliver = self._deliver  # type: ignore[method-assign]

    def ioctl_value(self, process: SimProcess, request: int, value: int) -> int:
        """Function level reset, where the function has it."""
        self._need_usable()
        if request != vfio.VFIO_DEVICE_RESET:
            raise SysError(errno.ENOTTY)
        if not self.function.resets_alone:
            raise SysError(errno.EINVAL, "it has no reset of its own")
        self.function.reset()
        return 0

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """What the function has, and where its messages go."""
        self._need_usable()
        match request:
            case vfio.VFIO_DEVICE_GET_INFO:
                info = read_argument(argument, vfio.vfio_device_info, 16)
                info.flags = vfio.VFIO_DEVICE_FLAGS_PCI
                info.flags |= vfio.VFIO_DEVICE_FLAGS_RESET * self.function.resets_alone
                info.num_regions = vfio.VFIO_PCI_NUM_REGIONS
                info.num_irqs = vfio.VFIO_PCI_NUM_IRQS
                return answer(argument, bytes(info)[: info.argsz])
            case vfio.VFIO_DEVICE_GET_REGION_INFO:
                region = read_argument(argument, vfio.vfio_region_info)
                if region.index >= vfio.VFIO_PCI_NUM_REGIONS:
                    raise SysError(errno.EINVAL)
                region.offset = region.index << _SHIFT
                region.size, region.flags = self._region(region.index)
                return answer(argument, bytes(region))
            case vfio.VFIO_DEVICE_GET_IRQ_INFO:
                irq = read_argument(argument, vfio.vfio_irq_info)
                known = (*_KINDS, vfio.VFIO_PCI_INTX_IRQ_INDEX, vfio.VFIO_PCI_MSIX_IRQ_INDEX)
                if irq.index not in known:  # ERR is of PCI Express alone
                    raise SysError(errno.EINVAL)
                irq.flags, irq.count = _KINDS.get(irq.index, 1), self._count(irq.index)
                return answer(argument, bytes(irq))
            case vfio.VFIO_DEVICE_SET_IRQS:
                return self._set_irqs(process, bytes(argument))
            case vfio.VFIO_DEVICE_PCI_HOT_RESET:
                return self._hot_reset(process, bytes(argument))
        raise SysError(errno.ENOTTY)

    def pread(self, process: SimProcess, size: int, offset: int) -> bytes:
        """An access of a region; of config space any bytes."""
        self._need_usable()
        index, at = offset >> _SHIFT, offset & (1 << _SHIFT) - 1
        if index == _CONFIG:
            return self.function.config.save()[at : at + size]
        return self._bar(index).read(at, size).to_bytes(size, "little")

    def pwrite(self, process: SimProcess, data: bytes, offset: int) -> int:
        """The same, writing; BARs and the messages of config space are VFIO's own."""
        self._need_usable()
        index, at = offset >> _SHIFT, offset & (1 << _SHIFT) - 1
        if index != _CONFIG:
            self._bar(index).write(at, len(data), int.from_bytes(data, "little"))
        elif at in _BARS or at >= 0x40:
            self._model.machine.debug.note(f"config space {at:#x} was written, and stays as it is")
        else:
            self.function.config.window.store(at, data)
        return len(data)

    def window(self, process: SimProcess, size: int, offset: int) -> Window:
        """A BAR, mapped. Raises SysError(EINVAL)."""
        self._need_usable()
        whole, at = self._bar(offset >> _SHIFT), offset & (1 << _SHIFT) - 1
        if at + size > align_up(self._region(offset >> _SHIFT)[0], 4096):
            raise SysError(errno.EINVAL)
        return whole.sub(at, min(size, whole.size - at))

    def mmap(
        self, process: SimProcess, size: int, prot: int, flags: int, offset: int, address: int
    ) -> int:
        """Memory of a BAR. Raises SysError(EINVAL), also for a BAR that has none."""
        self._need_usable()
        self._bar(offset >> _SHIFT)
        bar, at = self.function.card.bars[offset >> _SHIFT], offset & (1 << _SHIFT) - 1
        if bar.map is None or at + size > bar.window.size:
            raise SysError(errno.EINVAL, f"{size:#x} bytes at {at:#x} of a BAR are no memory")
        return bar.map(at, size, prot, flags, address, process.mapper)

    def released(self) -> None:
        """Bus mastering ends, the function sleeps, and is reset as far as VFIO can do that.

        Without a reset of its own that is one of its bus, if VFIO has all on it and none is open
        (vfio_pci_dev_set_try_reset).
        """
        function = self.function
        function.config.allow(master=False)
        others = [each for each in self._model.on_bus(function) if each is not function]
        if function.resets_alone:
            function.reset()
        elif all(each.driver == "vfio-pci" and each.asks_back is None for each in others):
            for each in (function, *others):
                each.reset()
        function.config.enable_messages(0)
        function.asks_back, function.asleep = None, True
        self._signals.clear()
        if function.leaving:
            self._leave()
            self._model.let_go(function)

    def _need_usable(self) -> None:
        if not self._usable:
            raise SysError(errno.EINVAL, "the device is not bound to an iommufd")

    def _bar(self, index: int) -> Window:
        if index not in self.function.card.bars:
            raise SysError(errno.EINVAL)
        return self.function.window(self._model.machine, index)

    def _region(self, index: int) -> tuple[int, int]:
        access = vfio.VFIO_REGION_INFO_FLAG_READ | vfio.VFIO_REGION_INFO_FLAG_WRITE
        if index == _CONFIG:
            return len(self.function.config.save()), access
        if index not in self.function.card.bars:
            return 0, 0
        size = self.function.card.bars[index].bar.size
        return size, access | vfio.VFIO_REGION_INFO_FLAG_MMAP

    def _count(self, kind: int) -> int:
        counts = {
            vfio.VFIO_PCI_MSI_IRQ_INDEX: self.function.card.vectors,
            vfio.VFIO_PCI_REQ_IRQ_INDEX: 1,
        }
        return counts.get(kind, 0)

    def _hot_reset(self, process: SimProcess, given: bytes) -> int:
        """A reset of the bus, whose functions must all be of the groups that are shown."""
        size, flags, count = struct.unpack_from("<III", given)
        if flags or not count or size < 12 + 4 * count:
            raise SysError(errno.EINVAL)
        files = [process.file(fd).file for fd in struct.unpack_from(f"<{count}i", given, 12)]
        groups = {file.group for file in files if isinstance(file, GroupFile)}
        affected = self._model.on_bus(self.function)
        if any(each.group not in groups or each.driver != "vfio-pci" for each in affected):
            raise SysError(errno.EINVAL, "functions of others are on the bus")
        for each in affected:
            each.reset()
        return 0

    def _set_irqs(self, process: SimProcess, given: bytes) -> int:
        """vfio_set_irqs_validate_and_prepare, then vfio_pci_set_irqs_ioctl."""
        head = read_argument(ctypes.create_string_buffer(given, len(given)), vfio.vfio_irq_set)
        most = self._count(head.index) if head.index in _KINDS else 0
        action, data = head.flags & 0x38, head.flags & 7
        if head.index >= vfio.VFIO_PCI_NUM_IRQS or head.flags & ~0x3F or head.start >= (most or 1):
            raise SysError(errno.EINVAL, "index, flags or start")
        if head.start + head.count > most or action != vfio.VFIO_IRQ_SET_ACTION_TRIGGER:
            raise SysError(errno.EINVAL, "count or action")
        messages = head.index == vfio.VFIO_PCI_MSI_IRQ_INDEX
        if data == vfio.VFIO_IRQ_SET_DATA_NONE and not head.count:
            self._signals.pop(head.index, None)
            if messages:
                self.function.config.enable_messages(0)
            return 0
        if data != vfio.VFIO_IRQ_SET_DATA_EVENTFD or head.argsz < 20 + 4 * head.count:
            raise SysError(errno.EINVAL, "data")
        if len(given) < 20 + 4 * head.count:
            raise SysError(errno.EFAULT)
        if messages and len(self._signals.get(head.index, ())) not in (0, head.count):
            raise SysError(errno.EINVAL, "messages are enabled in another number")
        fds = struct.unpack_from(f"<{head.count}i", given, 20)
        self._signals[head.index] = [self._counter(process, fd) for fd in fds]
        if messages:
            self.function.config.enable_messages(1 << (head.count - 1).bit_length())
        return 0

    def _counter(self, process: SimProcess, fd: int) -> EventCounter | None:
        if fd < 0:
            return None
        file = process.file(fd).file
        if not isinstance(file, EventCounter):
            raise SysError(errno.EINVAL, f"fd {fd} is no eventfd")
        return file

    def _deliver(self, number: int) -> None:
        self._signal(vfio.VFIO_PCI_MSI_IRQ_INDEX, number)

    def _ask_back(self) -> None:
        self._signal(vfio.VFIO_PCI_REQ_IRQ_INDEX, 0)

    def _signal(self, kind: int, number: int) -> None:
        signals = self._signals.get(kind, [])
        if number < len(signals) and (counter := signals[number]) is not None:
            counter.signal()


def add_vfio(model: HostPciModel) -> None:
    """Gives a machine VFIO by groups: /dev/vfio/vfio, and /dev/vfio/N for what vfio-pci has."""
    machine = model.machine
    machine.devices["/dev/vfio/vfio"] = lambda process: ContainerFile(model)
    opened: set[int] = set()

    def tell(function: HostFunction, has: bool) -> None:
        path = f"/dev/vfio/{function.group}"
        if has and function.group is not None:
            group = function.group
            machine.devices[path] = lambda process: GroupFile(model, group, opened)
        elif not any(f.driver == "vfio-pci" for f in model.members(function.group or -1)):
            machine.devices.pop(path, None)

    model.nodes.append(tell)
    for function in model.functions.values():
        tell(function, function.driver == "vfio-pci")

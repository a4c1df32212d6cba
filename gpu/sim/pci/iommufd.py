"""iommufd of a model, and VFIO's character devices, which attach to it.

drivers/iommu/iommufd/{main,ioas}.c and drivers/vfio/{device_cdev,iommufd}.c of Linux 6.12. Debian's
kernels have neither: no other witness than these sources has seen this.
"""

from __future__ import annotations

import errno
import struct

from gpu.autogen import iommufd, vfio
from gpu.sim.kernel import SysError
from gpu.sim.pci.domain import RANGES, Domain
from gpu.sim.pci.host import DEVICES, HostFunction, HostPciModel
from gpu.sim.pci.vfio import DeviceFile, answer, read_argument
from gpu.sim.process import ArgumentBytes, SimFile, SimProcess
from gpu.sim.translate import PAGE_SIZE


class IommufdFile(SimFile):
    """/dev/iommu, opened: address spaces by number."""

    def __init__(self, model: HostPciModel):
        self._model = model
        self.spaces: dict[int, Domain] = {}

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Making address spaces, what they may hold, mapping and unmapping."""
        match request:
            case iommufd.IOMMU_IOAS_ALLOC:
                alloc = read_argument(argument, iommufd.iommu_ioas_alloc)
                if alloc.flags:
                    raise SysError(errno.EOPNOTSUPP)
                alloc.out_ioas_id = len(self.spaces) + 1
                self.spaces[alloc.out_ioas_id] = Domain(self._model)
                return answer(argument, bytes(alloc))
            case iommufd.IOMMU_IOAS_IOVA_RANGES:
                return self._ranges(process, argument)
            case iommufd.IOMMU_IOAS_MAP:
                given = read_argument(argument, iommufd.iommu_ioas_map)
                access = iommufd.IOMMU_IOAS_MAP_READABLE | iommufd.IOMMU_IOAS_MAP_WRITEABLE
                known = access | iommufd.IOMMU_IOAS_MAP_FIXED_IOVA
                if given.flags & ~known:
                    raise SysError(errno.EOPNOTSUPP)
                if not given.flags & access or not given.flags & iommufd.IOMMU_IOAS_MAP_FIXED_IOVA:
                    raise SysError(errno.EINVAL)
                writable = bool(given.flags & iommufd.IOMMU_IOAS_MAP_WRITEABLE)
                space = self.space(given.ioas_id)
                space.map(process, given.user_va, given.iova, given.length, writable)
                return 0
            case iommufd.IOMMU_IOAS_UNMAP:
                take = read_argument(argument, iommufd.iommu_ioas_unmap)
                take.length = self.space(take.ioas_id).unmap(take.iova, take.length)
                if not take.length:
                    raise SysError(errno.ENOENT)
                return answer(argument, bytes(take))
        raise SysError(errno.ENOTTY)

    def space(self, number: int) -> Domain:
        """An address space. Raises SysError(ENOENT)."""
        if number not in self.spaces:
            raise SysError(errno.ENOENT)
        return self.spaces[number]

    def released(self) -> None:
        """All that was mapped is gone."""
        for space in self.spaces.values():
            space.clear()

    def _ranges(self, process: SimProcess, argument: ArgumentBytes) -> int:
        given = read_argument(argument, iommufd.iommu_ioas_iova_ranges)
        self.space(given.ioas_id)
        room, given.num_iovas = given.num_iovas, len(RANGES)
        given.out_iova_alignment = PAGE_SIZE
        for number, each in enumerate(RANGES[:room]):
            process.user.write(given.allowed_iovas + 16 * number, struct.pack("<QQ", *each))
        answer(argument, bytes(given))
        if room < len(RANGES):
            raise SysError(errno.EMSGSIZE)
        return 0


class CdevFile(DeviceFile):
    """/dev/vfio/devices/vfioN, opened: of use once it is bound to an iommufd."""

    def __init__(self, model: HostPciModel, function: HostFunction):
        super().__init__(model, function, lambda: None, usable=False)
        self._iommu: IommufdFile | None = None

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Binding and attaching, then what all devices of VFIO's do."""
        match request:
            case vfio.VFIO_DEVICE_BIND_IOMMUFD:
                bind = read_argument(argument, vfio.vfio_device_bind_iommufd)
                file = process.file(bind.iommufd).file
                if bind.flags or self._iommu is not None or not isinstance(file, IommufdFile):
                    raise SysError(errno.EINVAL)
                self._iommu, self._usable, bind.out_devid = file, True, 1
                return answer(argument, bytes(bind))
            case vfio.VFIO_DEVICE_ATTACH_IOMMUFD_PT:
                attach = read_argument(argument, vfio.vfio_device_attach_iommufd_pt)
                if attach.flags or self._iommu is None:
                    raise SysError(errno.EINVAL)
                self._iommu.space(attach.pt_id).attach(self.function)
                return 0
        return super().ioctl(process, request, argument)

    def released(self) -> None:
        """It is detached too."""
        super().released()
        self._model.isolate(self.function, None)


def add_iommufd(model: HostPciModel) -> None:
    """Gives a machine /dev/iommu, and a character device for each function that vfio-pci has."""
    machine = model.machine
    machine.devices["/dev/iommu"] = lambda process: IommufdFile(model)

    def tell(function: HostFunction, has: bool) -> None:
        name = f"vfio{sorted(model.functions).index(function.address)}"
        folder = f"{DEVICES}/{function.address}/vfio-dev/{name}/dev"
        path = f"/dev/vfio/devices/{name}"
        if has:
            machine.tree.add(folder, "511:0\n")
            machine.devices[path] = lambda process: CdevFile(model, function)
        elif path in machine.devices:
            machine.tree.remove(folder)
            del machine.devices[path]

    model.nodes.append(tell)
    for function in model.functions.values():
        if function.driver == "vfio-pci":
            tell(function, True)

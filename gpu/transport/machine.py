"""What a machine tells of itself apart from any driver: its bus, its modules, whose root it shows.

Everything is read through `Files`, so that it is the same for this machine and a made-up one.
Paths: Documentation/ABI/testing/sysfs-bus-pci and sysfs-kernel-iommu_groups of Linux; marks of
containers are those that Docker, Podman and systemd leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.errors import DeviceError
from gpu.transport.files import Files

AMD, NVIDIA = 0x1002, 0x10DE
"""PCI vendors."""

_PCI: Final = "/sys/bus/pci/devices"
_DRIVERS: Final = "/sys/bus/pci/drivers"
_MODULES: Final = "/sys/module"
_GROUPS: Final = "/sys/kernel/iommu_groups"
CONTAINERS: Final = {
    "/.dockerenv": "Docker",
    "/run/.containerenv": "Podman",
    "/run/systemd/container": "systemd",
}
"""What marks a container, and whose it then is."""
_DISPLAY, _ACCELERATOR = 0x03, 0x12  # base classes of the PCI Code and ID specification


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU on the bus, and the driver that has it, empty where none has."""

    address: str
    vendor: int
    device: int
    driver: str

    def __str__(self) -> str:
        return f"{self.vendor:04x}:{self.device:04x}"


def pci_gpus(system: Files, vendor: int) -> list[PciGpu] | None:
    """A vendor's GPUs on the bus; None where the machine does not tell."""
    names = names_in(system, _PCI)
    if names is None:
        return None
    found = []
    for address in names:
        folder = f"{_PCI}/{address}"
        if number_in(system, f"{folder}/vendor") != vendor:
            continue
        kind = number_in(system, f"{folder}/class")
        device = number_in(system, f"{folder}/device")
        if device is not None and kind is not None and kind >> 16 in (_DISPLAY, _ACCELERATOR):
            found.append(PciGpu(address, vendor, device, driver_of(system, address)))
    return found


def container(system: Files) -> str:
    """What kind of container this is; empty where nothing says that it is one."""
    return next((kind for path, kind in CONTAINERS.items() if system.exists(path)), "")


def is_loaded(system: Files, module: str) -> bool | None:
    """Whether the kernel has a module, built in or loaded; None where it does not tell."""
    if not system.exists(_MODULES):
        return None
    return system.exists(f"{_MODULES}/{module.replace('-', '_')}")


def iommu_groups(system: Files) -> int | None:
    """How many groups of devices the IOMMU keeps apart, 0 where it is off; None where unknown."""
    names = names_in(system, _GROUPS)
    return None if names is None else len(names)


def names_in(system: Files, folder: str) -> list[str] | None:
    """The names in a folder; None where it is not there or not for us to see."""
    if not system.exists(folder):
        return None
    try:
        return system.list_dir(folder)
    except DeviceError:  # it went away, or is hidden
        return None


def text_in(system: Files, path: str) -> str | None:
    """What a small file holds, stripped; None where it cannot be read."""
    try:
        return system.read_file(path).decode(errors="replace").strip()
    except DeviceError:
        return None


def number_in(system: Files, path: str) -> int | None:
    """The number that a file holds; None where there is none."""
    text = text_in(system, path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def driver_of(system: Files, address: str) -> str:
    """The kernel driver that has a PCI function; empty where none has."""
    drivers = names_in(system, _DRIVERS) or []
    return next((d for d in drivers if system.exists(f"{_DRIVERS}/{d}/{address}")), "")

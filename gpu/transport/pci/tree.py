"""What sysfs tells of a PCI function, without touching the function itself.

Formats: Linux 6.12 drivers/pci/pci-sysfs.c, drivers/iommu/iommu.c, drivers/vfio/device_cdev.c and
include/linux/ioport.h.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.core.errors import FormatError, TransportError
from gpu.core.pci import Bar, PciAddress, PciIds
from gpu.transport.files import Files
from gpu.transport.machine import driver_of, names_in, text_in

DEVICES: Final = "/sys/bus/pci/devices"
GROUPS: Final = "/sys/kernel/iommu_groups"
_BARS: Final = range(6)
_IO: Final = 0x100
_PREFETCH: Final = 0x2000
_MEM_64: Final = 0x100000
_BRIDGE: Final = 0x06  # base class
TRANSLATING: Final = ("DMA", "DMA-FQ", "blocked")
"""Kinds of IOMMU groups in which an address of the bus is not one of memory."""


class Range(NamedTuple):
    """A BAR, and where it begins on the bus."""

    bar: Bar
    start: int


def list_functions(system: Files) -> Sequence[PciAddress]:
    """All functions of a machine, in order; none where it has no PCI."""
    return sorted(PciAddress.parse(name) for name in names_in(system, DEVICES) or [])


def folder_of(address: PciAddress) -> str:
    """Where sysfs tells of a function."""
    return f"{DEVICES}/{address}"


def ids_of(system: Files, address: PciAddress) -> PciIds:
    """What a function is. Raises FormatError, TransportError."""
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class")
    return PciIds(*(_number(system, f"{folder_of(address)}/{name}") for name in names))


def is_bridge(system: Files, address: PciAddress) -> bool:
    """Whether a function leads to others, and so stays with its driver."""
    return _number(system, f"{folder_of(address)}/class") >> 16 == _BRIDGE


def ranges_of(system: Files, address: PciAddress) -> dict[int, Range]:
    """What a function decodes, by the number of the first register. Raises FormatError."""
    found = {}
    path = f"{folder_of(address)}/resource"
    lines = system.read_file(path).decode().splitlines()
    for index, line in zip(_BARS, lines, strict=False):
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError as error:
            raise FormatError(f"{path}, line {index}: {line!r}") from error
        if end > start:
            wide, ahead = bool(flags & _MEM_64), bool(flags & _PREFETCH)
            found[index] = Range(Bar(end - start + 1, bool(flags & _IO), wide, ahead), start)
    return found


def driver(system: Files, address: PciAddress) -> str:
    """The kernel driver that has a function; empty where none has."""
    return driver_of(system, str(address))


def group_of(system: Files, address: PciAddress) -> str | None:
    """The name of a function's IOMMU group; None where it is in none."""
    groups = names_in(system, GROUPS) or []
    name = str(address)
    return next((g for g in groups if name in (names_in(system, _members(g)) or [])), None)


def members_of(system: Files, group: str) -> Sequence[PciAddress]:
    """The functions of an IOMMU group, which reach each other's memory, in order."""
    return sorted(PciAddress.parse(name) for name in names_in(system, _members(group)) or [])


def translates(system: Files, group: str) -> bool:
    """Whether the IOMMU translates what a group's functions ask of memory."""
    return text_in(system, f"{GROUPS}/{group}/type") in TRANSLATING


def check_there(system: Files, address: PciAddress) -> None:
    """Raises TransportError(ENODEV) where there is no such function."""
    if not system.exists(folder_of(address)):
        raise TransportError(
            f"there is no PCI function {address}: see `gpu pci list`", errno.ENODEV
        )


def _members(group: str) -> str:
    return f"{GROUPS}/{group}/devices"


def _number(system: Files, path: str) -> int:
    text = system.read_file(path).decode().strip()
    try:
        return int(text, 16)
    except ValueError as error:
        raise FormatError(f"{path}: {text!r} is no number") from error

"""What can be said of a machine's PCI functions without touching one: for `gpu pci` and doctor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu.core.config import config
from gpu.core.errors import DeviceError
from gpu.core.pci import PciAddress, PciIds
from gpu.transport.files import Looking
from gpu.transport.machine import names_in
from gpu.transport.pci import tree
from gpu.transport.pci.claim import NOT_TAKEN, VFIO, companions, lack_for_vfio, why_in_use

_DISPLAY, _ACCELERATOR = 0x03, 0x12  # base classes


@dataclass(frozen=True, slots=True)
class Seen:
    """A function, who has it, and what to do to use it over PCI.

    Attributes:
        address, ids: which it is.
        driver: who has it; empty for nobody.
        group: its IOMMU group; None where there is none.
        is_ready: whether a driver of ours can open it now.
        told: in what state it is, a clause.
        fix: what makes it ready, or leads back; empty where nothing can be done.
    """

    address: PciAddress
    ids: PciIds
    driver: str
    group: str | None
    is_ready: bool
    told: str
    fix: str

    def __str__(self) -> str:
        ids = f"{self.ids.vendor:04x}:{self.ids.device:04x}"
        group = f"IOMMU group {self.group}" if self.group is not None else "no IOMMU"
        return f"{self.address} {ids}, {self.driver or 'no driver'}, {group}: {self.told}"


def survey(system: Looking, everything: bool = False) -> Iterator[Seen]:
    """Displays and accelerators, or all functions but bridges."""
    for address in tree.list_functions(system):
        try:
            ids = tree.ids_of(system, address)
        except DeviceError:  # gone since it was listed
            continue
        is_gpu = ids.class_code >> 16 in (_DISPLAY, _ACCELERATOR)
        if is_gpu or (everything and not tree.is_bridge(system, address)):
            driver, group = tree.driver(system, address), tree.group_of(system, address)
            state = _state(system, address, driver, group)
            yield Seen(address, ids, driver, group, *state)


def _state(
    system: Looking, address: PciAddress, driver: str, group: str | None
) -> tuple[bool, str, str]:
    back = f"`sudo gpu pci give-back {address}` leads back"
    if driver == VFIO and group is not None:
        denied = system.why_denied(_node(system, address, group))
        return (False, "taken, but not for this user", denied) if denied else (True, "taken", back)
    unprotected = config.PCI_ACCESS == "SYSFS"
    if unprotected and group is not None and tree.translates(system, group):
        return False, "PCI_ACCESS=sysfs is not for what is behind an IOMMU", "unset PCI_ACCESS"
    if unprotected and not driver:
        return True, "free, and without protection (PCI_ACCESS=sysfs)", back
    if not unprotected:
        lacking = lack_for_vfio(system, address)
        assert lacking is not None, "what VFIO has was looked at before"
        return False, *lacking[0]
    if reasons := why_in_use(system, address):
        return False, f"in use: {'; '.join(reasons)}", ""
    try:
        companions(system, address)
    except DeviceError as error:
        return False, error.message, ""
    return False, NOT_TAKEN, f"`sudo PCI_ACCESS=sysfs gpu pci take {address}`"


def _node(system: Looking, address: PciAddress, group: str) -> str:
    devices = names_in(system, f"{tree.folder_of(address)}/vfio-dev")
    if devices and system.exists("/dev/iommu"):
        return f"/dev/vfio/devices/{devices[0]}"
    return f"/dev/vfio/{group}"

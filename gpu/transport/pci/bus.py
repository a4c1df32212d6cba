"""The PCI functions of this machine, opened the way that PCI_ACCESS says."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

from gpu.core.config import config
from gpu.core.errors import DeviceWarning, Unsupported
from gpu.core.pci import PciAddress, PciIds
from gpu.transport.files import Files
from gpu.transport.machine import text_in
from gpu.transport.os import Os
from gpu.transport.pci import tree
from gpu.transport.pci.function import PciFunction

_LOCKDOWN: Final = "/sys/kernel/security/lockdown"


class HostPci:
    """The functions that a system lists. See `gpu.transport.pci.function.PciBus`."""

    def __init__(self, system: Os):
        self._os = system

    def list_functions(self) -> Sequence[PciAddress]:
        """All of them, in order; none where the system has no PCI."""
        return tree.list_functions(self._os)

    def ids(self, address: PciAddress) -> PciIds:
        """What a function is; nothing is opened. Raises TransportError(ENODEV)."""
        tree.check_there(self._os, address)
        return tree.ids_of(self._os, address)

    def open(self, address: PciAddress) -> PciFunction:
        """Takes a function for this process: through VFIO, or as PCI_ACCESS says.

        Raises what `gpu.transport.pci.vfio.open_vfio` and `SysfsFunction.take` raise, Unsupported
        where PCI_ACCESS asks for a way that this machine forbids.
        """
        tree.check_there(self._os, address)
        # Imported on use: most who have a world open no function of its.
        if config.PCI_ACCESS == "VFIO":
            from gpu.transport.pci.vfio import open_vfio

            return open_vfio(self._os, address)
        from gpu.transport.pci.sysfs import SysfsFunction

        check_unprotected(self._os, address)
        warnings.warn(
            f"PCI_ACCESS=sysfs: {address} can write to all memory of this machine, the"
            " kernel's too; a wrong address in a driver may end it or damage files. VFIO with an"
            " IOMMU keeps a card to its own memory",
            DeviceWarning,
            stacklevel=2,
        )
        return SysfsFunction(self._os, address).take()


def check_unprotected(system: Files, address: PciAddress) -> None:
    """Raises Unsupported where a function is not to be used without protection.

    Behind an IOMMU that translates, physical addresses lead elsewhere; under lockdown the kernel
    keeps everybody, root too, from writing where it does not look.
    """
    group = tree.group_of(system, address)
    if group is not None and tree.translates(system, group):
        raise Unsupported(
            f"PCI_ACCESS=sysfs: {address} is in IOMMU group {group}, which translates"
            " addresses, so that physical ones lead elsewhere: unset PCI_ACCESS, as VFIO works here"
        )
    lockdown = text_in(system, _LOCKDOWN)
    if lockdown is not None and "[none]" not in lockdown:
        raise Unsupported(
            f"PCI_ACCESS=sysfs: the kernel is locked down ({lockdown}), and lets nobody"
            " reach devices without an IOMMU: use VFIO, or switch Secure Boot off"
        )

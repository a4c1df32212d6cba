"""Everything that a driver may touch, as one object that it is given.

A driver opens no file and reads no clock by itself: it asks its `World`. So the same driver runs on
hardware, on a model of it, under a recorder and on a recording.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from gpu.core.config import config
from gpu.core.errors import TransportError
from gpu.core.wait import HostWaiter, Waiter
from gpu.transport.libusb import HostUsb
from gpu.transport.os import Os, RealOs
from gpu.transport.pci.bus import HostPci
from gpu.transport.pci.function import NoPci, PciBus
from gpu.transport.usb import NoUsb, UsbBus

if TYPE_CHECKING:
    from gpu.core.trace import Recorder

_NO_PCI: Final = NoPci()
_NO_USB: Final = NoUsb()


class World(NamedTuple):
    """The operating system, the clock with the means to wait on it, and what is on the buses."""

    os: Os
    waiter: Waiter
    pci: PciBus = _NO_PCI
    usb: UsbBus = _NO_USB


def real_world() -> World:
    """This machine; recorded where the setting TRACE names a file."""
    system = RealOs()
    return recorded(World(system, HostWaiter(), HostPci(system), HostUsb(system)))


def recorded(world: World) -> World:
    """The same world, with a recorder around its system where the setting TRACE names a file.

    All worlds of a process share its file. Where that exists already, another process's perhaps,
    the number of this one is put behind the name. Raises TransportError where it cannot be made.
    """
    if not config.TRACE:
        return world
    from gpu.transport.traced import TracedOs

    system = TracedOs(world.os, _recorder(config.TRACE, os.getpid()))
    pci = HostPci(system) if isinstance(world.pci, HostPci) else world.pci
    return world._replace(os=system, pci=pci)


@cache
def _recorder(path: str, process: int) -> Recorder:
    if os.path.exists(path):
        path = f"{path}.{process}"
    from gpu.core.trace import Recorder

    try:
        return Recorder(path)
    except OSError as error:
        raise TransportError(f"TRACE={path}: {error.strerror}", error.errno) from error

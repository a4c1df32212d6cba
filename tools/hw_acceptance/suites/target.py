"""The GPU as a target of the suite of devices with command queues, with the folder's kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpu.core.errors import OutOfMemory
from gpu.drivers.nv.code.cubin import Cubin
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.port import MAX_RING, QueueOptions
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.device import HCQDevice
from gpu.hcq.ports import MemoryKind
from gpu.hcq.program import HCQProgram
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.folder import read_kernel
from tools.hw_acceptance.suites.opens import untraced_world

TIMEOUT: Final = 5.0
"""Seconds without progress of what takes milliseconds."""
LAYOUTS: Final[Mapping[str, ArgumentLayout]] = {
    "nothing": ArgumentLayout(0, []),
    "add": ArgumentLayout(3, ["I"]),
    "fill": ArgumentLayout(1, ["i", "I"]),
    "spin": ArgumentLayout(2, ["Q", "Q"]),
    "trap": ArgumentLayout(0, []),
    "copy": ArgumentLayout(2, ["Q"]),
}
"""Parameters of the kernels that are loaded as programs."""
_WRITTEN: Final[Mapping[str, tuple[int, ...]]] = {
    "add": (0,),
    "fill": (0,),
    "spin": (1,),
    "copy": (1,),
}
_NEAR_WRAP: Final = (1 << 32) - 10
_SMALL_RING: Final = 1 << 10
_SMALL_VRAM: Final = 4 << 20


class FolderTarget:
    """Opens the first GPU, again and again: clients of one GPU do not share its faults.

    While a device is open the next one is another GPU, where the machine has several: only those
    can be peers.
    """

    def __init__(self, context: Context, *, traced: bool = True):
        """`traced`: whether calls are recorded, which costs time."""
        self._context = context
        self._world = context.world if traced else untraced_world(context)
        self._opened: list[RmDevice] = []

    def open(self, *, near_wrap: bool = False, small: bool = False) -> RmDevice:
        """See `gpu.hcq.conformance.Target`."""
        self._opened = [each for each in self._opened if not each.is_closed]
        cards = len(self._opened[0].port.gpu.session.cards) if self._opened else 1
        device = RmDevice.open(
            self._world,
            len(self._opened) % cards,
            options=QueueOptions(ring=_SMALL_RING if small else MAX_RING),
            force=self._context.force,
            timeline_start=_NEAR_WRAP if near_wrap else 0,
            timeout=TIMEOUT,
            command_memory=1 << (15 if small else 17),
            staging=1 << (13 if small else 18),
        )
        self._opened.append(device)
        if small:
            leave(device, _SMALL_VRAM)
        return device

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        """See `gpu.hcq.conformance.Target`. Raises FormatError for a kernel the folder lacks."""
        assert isinstance(device, RmDevice), "this target opens no other devices"
        cubin = Cubin(read_kernel(self._context.folder, device.target.sm, name))
        return device.load(cubin, name, LAYOUTS[name], written=_WRITTEN.get(name))

    def units(self, device: HCQDevice) -> int:
        """See `opens.Opens`."""
        assert isinstance(device, RmDevice), "this target opens no other devices"
        return device.port.gpu.units.sms

    def in_use(self, device: HCQDevice) -> int:
        """See `opens.Opens`."""
        assert isinstance(device, RmDevice), "this target opens no other devices"
        return device.port.gpu.session.addresses.in_use

    def resources(self) -> tuple[int, ...]:
        """Open files and mappings of this process."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").count("\n")
        return len(os.listdir("/proc/self/fd")), maps


def leave(device: RmDevice, room: int) -> None:
    """Takes all device memory but some bytes, so that it runs out soon."""
    left = device.exclusively(device.allocate, room, MemoryKind.VRAM)
    size = 1 << 40
    while size >= room:
        try:
            device.exclusively(device.allocate, size, MemoryKind.VRAM)
        except OutOfMemory:
            size //= 2
    device.exclusively(device.release, left)

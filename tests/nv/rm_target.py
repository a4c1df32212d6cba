"""A simulated machine with two NVIDIA GPUs as a target of the conformance suite."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from gpu.core.errors import OutOfMemory
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.nvk.gpu import open_gpu
from gpu.drivers.nv.pci.gpu import open_card
from gpu.drivers.nv.port import QueueOptions, port_of
from gpu.drivers.nv.rm.gpu import NvDevice
from gpu.hcq.device import HCQDevice
from gpu.hcq.ports import MemoryKind
from gpu.hcq.program import HCQProgram
from gpu.sim.nv.pci.world import NvPciWorld
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.pci.bus import HostPci
from gpu.transport.world import World
from nv.kernels import LAYOUTS, WRITTEN, PythonKernels, cubin

NEAR_WRAP = (1 << 32) - 10
SMALL_VRAM = 4 << 20
COPYING = {"copies on compute queues": "taken"}


Coherence = Literal["check", "oldest", "none"]


class RmTarget:
    """Devices of one world; each `open` takes the next of its GPUs.

    So that a fault of one leaves the other be.
    """

    room = SMALL_VRAM

    def __init__(
        self,
        seed: int = 0,
        chip: str = "gh100",
        coherence: Coherence = "check",
    ):
        self.kernels = PythonKernels()
        self._next = 0
        self._make(seed, (chip, chip), coherence)

    def _make(self, seed: int, chips: tuple[str, ...], coherence: Coherence) -> None:
        self.sim: NvSimWorld | NvPciWorld = NvSimWorld(
            seed=seed, chip=chips, coherence=coherence, executor=self.kernels
        )
        self.world = World(self.sim.os, self.sim.waiter)

    def _open_gpu(self, index: int) -> NvDevice:
        return open_gpu(self.world, index)

    def open(self, *, near_wrap: bool = False, small: bool = False) -> HCQDevice:
        index, self._next = self._next, 1 - self._next
        port = port_of(self._open_gpu(index), QueueOptions(ring=1 << (10 if small else 14)))
        device = RmDevice(
            port,
            timeline_start=NEAR_WRAP if near_wrap else 0,
            command_memory=1 << (15 if small else 17),
            staging=1 << (13 if small else 18),
        )
        if small:  # so that memory runs out soon
            _leave(device, self.room)
        return device

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        assert isinstance(device, RmDevice)
        return device.load(cubin(device.target.sm, name), name, LAYOUTS[name], written=WRITTEN)

    def resources(self) -> tuple[int, ...]:
        maps = Path("/proc/self/maps").read_text().count("\n")
        return len(os.listdir("/proc/self/fd")), maps

    def complaints(self) -> list[str]:
        """What the model found wrong, and what is left of what was opened."""
        assert isinstance(self.sim, NvSimWorld)
        left = [f"{name}: {count}" for name, count in asdict(self.sim.usage()).items() if count]
        return [*map(str, self.sim.debug.violations), *left]

    def close(self) -> None:
        """End the world."""
        self.sim.close()


class CardTarget(RmTarget):
    """The same of cards that no kernel driver has: contexts of queues take of their memory."""

    room = 4 * SMALL_VRAM

    def _make(self, seed: int, chips: tuple[str, ...], coherence: Coherence) -> None:
        self.sim = made = NvPciWorld(
            seed=seed, chip=chips, coherence=coherence, executor=self.kernels
        )
        self._firmware = made.firmware
        self.world = World(made.os, made.waiter, HostPci(made.os))

    def _open_gpu(self, index: int) -> NvDevice:
        return open_card(self.world, index, load=lambda wanted: self._firmware[wanted.name])

    def complaints(self) -> list[str]:
        """What the model found wrong, and what is left of what was opened."""
        assert isinstance(self.sim, NvPciWorld)
        left = [f"{card.gpu} has channels" for card in self.sim.gpus if card.gpu.channels]
        left += [f"{card.gpu} has protected memory" for card in self.sim.gpus if card.chip.wpr2]
        held = self.sim.process.open_files
        return [*map(str, self.sim.debug.violations), *left, *([f"{held} files"] if held else [])]


def _leave(device: RmDevice, room: int) -> None:
    """Takes all device memory but some."""
    left = device.exclusively(device.allocate, room, MemoryKind.VRAM)
    size = 1 << 40
    while size >= room:
        try:
            device.exclusively(device.allocate, size, MemoryKind.VRAM)
        except OutOfMemory:
            size //= 2
    device.exclusively(device.release, left)

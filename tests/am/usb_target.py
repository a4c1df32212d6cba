"""A simulated card behind a bridge on USB as a target of the conformance suite."""

from __future__ import annotations

from typing import Literal

from am.kernels import PythonKernels
from am.pci_target import NEAR_WRAP, SMALL_VRAM, PciTarget
from gpu.core.firmware import Wanted
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.pci.port import PciPort, QueueOptions
from gpu.drivers.am.pci.usb import open_usb
from gpu.sim.usb.world import UsbWorld
from gpu.transport.world import World


class UsbTarget(PciTarget):
    """Devices of one world with two cards, each behind a bridge; each `open` takes the next."""

    def __init__(
        self, seed: int = 0, chip: str = "gfx1100", coherence: Literal["check", "oldest"] = "check"
    ):
        self.kernels = PythonKernels()
        self.repeats = 80
        self.machine = UsbWorld(
            seed=seed, chip=(chip, chip), executor=self.kernels, coherence=coherence
        )
        self.kernels.pause = lambda: self.machine.clock.advance(100_000)
        self.world = World(self.machine.os, self.machine.waiter, usb=self.machine.usb)
        self._next = 0

    def load(self, wanted: Wanted) -> bytes:
        return self.machine.firmware[wanted.name]

    def open_gpu(
        self, index: int | None, *, near_wrap: bool = False, small: bool = False
    ) -> AmDevice:
        if index is None:
            index, self._next = self._next, 1 - self._next
        options = QueueOptions(
            compute_ring=1 << (14 if small else 16), copy_ring=1 << (12 if small else 16)
        )
        device = open_usb(
            *(self.world, index),
            options=options,
            load=self.load,
            timeline_start=NEAR_WRAP if near_wrap else 0,
            command_memory=1 << (13 if small else 16),
            staging=1 << (13 if small else 18),
        )
        if small:  # so that memory runs out soon, but not for queues
            device.channel("compute", 1)
            port = device.port
            assert isinstance(port, PciPort)
            pool = port.chip.vram.pool
            pool.alloc(pool.largest_hole - SMALL_VRAM)
        return device

    def complaints(self) -> list[str]:
        return [str(each) for each in self.machine.debug.violations]

    def close(self) -> None:
        self.machine.close()

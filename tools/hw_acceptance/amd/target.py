"""The GPU as a target of the suite of devices with command queues, with the ladder's kernels."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Final

from gpu.backends.amd.chips import chip_name
from gpu.compiler.toolchain.llvm_disassembler import disassemble_amdgcn
from gpu.core.crashfiles import CrashFolder
from gpu.core.errors import OutOfMemory
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.kfd.memory import KfdMemory, Use
from gpu.drivers.am.kfd.port import ComputeKind, KfdPort, QueueOptions, open_kfd
from gpu.hcq.device import HCQDevice
from gpu.hcq.program import HCQProgram
from tools.hw_acceptance.amd.kernels import LAYOUTS, WRITTEN, compiled
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.suites.opens import untraced_world

TIMEOUT: Final = 5.0
"""Seconds without progress of what takes milliseconds."""
COMPUTE: Final = "compute"
"""The option that says what compute queues read: pm4 or aql."""
_KINDS: Final[dict[str, ComputeKind]] = {"pm4": "pm4", "aql": "aql"}
_NEAR_WRAP: Final = (1 << 32) - 10
_SMALL_VRAM: Final = 4 << 20
_REPORTS: Final = 8


class AmTarget:
    """Opens the first GPU; while a device is open the next one is another GPU, where there is one.

    A failure leaves its report in the folder of the step.
    """

    def __init__(self, context: Context, *, traced: bool = True):
        """`traced`: whether calls are recorded, which costs time."""
        self._context = context
        self._world = context.world if traced else untraced_world(context)
        self._opened: list[AmDevice] = []

    def open(self, *, near_wrap: bool = False, small: bool = False) -> AmDevice:
        """See `gpu.hcq.conformance.Target`."""
        self._opened = [each for each in self._opened if not each.is_closed]
        gpus = len(port_of(self._opened[0]).link.session.gpus) if self._opened else 1
        options = QueueOptions(
            compute=_KINDS.get(self._context.options.get(COMPUTE, "")),
            compute_ring=1 << (14 if small else 20),
            copy_ring=1 << (12 if small else 18),
        )
        device = open_kfd(
            self._world,
            len(self._opened) % gpus,
            options=options,
            force=self._context.force,
            timeline_start=_NEAR_WRAP if near_wrap else 0,
            timeout=TIMEOUT,
            command_memory=1 << (13 if small else 17),
            staging=1 << (13 if small else 18),
        )
        chip = chip_name(device.target.version)
        crashes = CrashFolder(self._context.log.folder / "crashes", _REPORTS)
        device.report_to(crashes, partial(_disassemble, chip))
        self._opened.append(device)
        if small:  # so that memory runs out soon, but not for queues
            device.channel("compute", 1)
            device.exclusively(_leave, port_of(device).memory, _SMALL_VRAM)
        return device

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        """See `gpu.hcq.conformance.Target`. Raises Unavailable where nothing compiles it."""
        assert isinstance(device, AmDevice), "this target opens no other devices"
        code = compiled(name, chip_name(device.target.version))
        return device.load(code, name, LAYOUTS[name], written=WRITTEN.get(name))

    def units(self, device: HCQDevice) -> int:
        """See `suites.opens.Opens`."""
        assert isinstance(device, AmDevice), "this target opens no other devices"
        return device.target.compute_units

    def in_use(self, device: HCQDevice) -> int:
        """See `suites.opens.Opens`."""
        return port_of(device).memory.in_use

    def resources(self) -> tuple[int, ...]:
        """Open files and mappings of this process."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").count("\n")
        return len(os.listdir("/proc/self/fd")), maps


def port_of(device: HCQDevice) -> KfdPort:
    """What a device of this ladder stands on."""
    assert isinstance(device.port, KfdPort), "the ladder opens devices through KFD"
    return device.port


def _disassemble(chip: str, code: bytes, start: int) -> list[str]:
    return disassemble_amdgcn(code, chip, start)


def _leave(memory: KfdMemory, room: int) -> None:
    """Takes all device memory but some bytes, also where others take some meanwhile."""
    left = memory.hold(room, Use.DATA)
    size = memory.kfd.available_memory(memory.gpu.gpu_id)
    while size >= room:
        try:
            memory.hold(size, Use.DATA)
        except OutOfMemory:
            size //= 2
    memory.drop(left)

"""A model of a GPU under the steps: what a run will do on hardware, rehearsed without any.

The model runs kernels from the PTX that their machine code was made from, so that the folder's
kernels are told to it first. Nothing that it passes says anything about a GPU.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu.drivers.nv.code.cubin import Cubin
from gpu.transport.world import World
from tools.hw_acceptance import folder as prepared

if TYPE_CHECKING:
    from gpu.sim.nv.chip.lanes import PtxExecutor


@dataclass(frozen=True)
class Simulation:
    """A machine with simulated GPUs.

    Attributes:
        chip: their names with commas, as ``SIM`` takes them.
        world: what a driver opens it through.
    """

    chip: str
    world: World


@dataclass(frozen=True)
class PtxSimulation(Simulation):
    """One whose kernels have to be taught; ``executor`` is what runs them."""

    executor: PtxExecutor

    def teach(self, cubin: Cubin, ptx: str, name: str, image: int) -> None:
        """Tells the model what the code of a kernel stands for that was loaded at an address."""
        _teach(self.executor, cubin, ptx, [name], image)


def simulate(chip: str, folder: Path) -> PtxSimulation:
    """A machine that knows all kernels of a prepared folder.

    Raises ConfigError for an unknown chip, FormatError for a folder without kernels.
    """
    from gpu.sim.nv.chip.lanes import PtxExecutor
    from gpu.sim.nv.world import NvSimWorld

    executor = PtxExecutor()
    machine = NvSimWorld(chip=chip.split(","), executor=executor)
    with zipfile.ZipFile(folder / prepared.KERNELS) as archive:
        for member in archive.namelist():
            if member.endswith(".cubin"):
                cubin = Cubin(archive.read(member))
                ptx = archive.read(member.removesuffix("cubin") + "ptx").rstrip(b"\0").decode()
                _teach(executor, cubin, ptx, cubin.kernels, image=0)
    return PtxSimulation(chip, World(machine.os, machine.waiter), executor)


def _teach(executor: PtxExecutor, cubin: Cubin, ptx: str, names: Iterable[str], image: int) -> None:
    linked = cubin.link(image)
    for name in names:
        kernel = cubin.kernel(name)
        code = linked[kernel.offset : kernel.offset + kernel.size]
        banks = {b.number: linked[b.offset : b.offset + b.size] for b in kernel.banks}
        executor.learn(code, name, ptx, kernel.parameter_base, banks)

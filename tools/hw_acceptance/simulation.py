"""A model of a GPU under the steps: what a run will do on hardware, rehearsed without any.

The model runs kernels from the PTX that their machine code was made from, so that the folder's
kernels are told to it first. Nothing that it passes says anything about a GPU.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu.drivers.nv.cubin import Cubin
from gpu.transport.world import World
from tools.hw_acceptance import folder as prepared

if TYPE_CHECKING:
    from gpu.sim.nv.lanes import PtxExecutor


@dataclass(frozen=True)
class Simulation:
    """A machine with simulated GPUs.

    Attributes:
        chip: their names with commas, as ``SIM`` takes them.
        world: what a driver opens it through.
    """

    chip: str
    world: World


def simulate(chip: str, folder: Path) -> Simulation:
    """A machine that knows all kernels of a prepared folder.

    Raises ConfigError for an unknown chip, FormatError for a folder without kernels.
    """
    from gpu.sim.nv.lanes import PtxExecutor
    from gpu.sim.nv.world import NvSimWorld

    executor = PtxExecutor()
    machine = NvSimWorld(chip=chip.split(","), executor=executor)
    _teach(executor, folder)
    return Simulation(chip, World(machine.os, machine.waiter))


def _teach(executor: PtxExecutor, folder: Path) -> None:
    """Tells the executor what the code of each kernel stands for.

    Code with relocations would be other code once it is loaded; these kernels have none.
    """
    with zipfile.ZipFile(folder / prepared.KERNELS) as archive:
        for member in archive.namelist():
            if member.endswith(".cubin"):
                cubin = Cubin(archive.read(member))
                ptx = archive.read(member.removesuffix("cubin") + "ptx").rstrip(b"\0").decode()
                for name, kernel in cubin.kernels.items():
                    image = cubin.link(0)
                    code = image[kernel.offset : kernel.offset + kernel.size]
                    banks = {b.number: image[b.offset : b.offset + b.size] for b in kernel.banks}
                    executor.learn(code, name, ptx, kernel.parameter_base, banks)

"""The machine that `SIM` names instead of this one."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from gpu.backends.hcq.chips import simulated_chips
from gpu.backends.nv.program import Learn
from gpu.sim.nv.chip.chips import CHIPS
from gpu.sim.nv.chip.lanes import PtxExecutor
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.world import World, recorded


class Simulated(NamedTuple):
    """A machine with simulated GPUs: what drivers are given, and how kernels are learned."""

    world: World
    machine: NvSimWorld
    learn: Learn


@cache
def simulated(chips: str) -> Simulated:
    """The machine with these GPUs, their names separated by commas.

    All devices of a process share it. Raises ConfigError for a chip that is not NVIDIA's.
    """
    executor = PtxExecutor()
    machine = NvSimWorld(chip=simulated_chips(chips, "NV", CHIPS), executor=executor)
    return Simulated(recorded(World(machine.os, machine.waiter)), machine, executor.learn)

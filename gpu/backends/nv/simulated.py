"""The machine that `SIM` names instead of this one."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from gpu.backends.nv.program import Learn
from gpu.sim.machine import Machine
from gpu.sim.worlds import simulate
from gpu.transport.world import World, recorded


class Simulated(NamedTuple):
    """A machine with simulated GPUs: what drivers are given, and how kernels are learned."""

    world: World
    machine: Machine
    learn: Learn | None


@cache
def simulated(chips: str) -> Simulated:
    """The machine with these GPUs, their names separated by commas.

    All devices of a process share it. Raises ConfigError for a chip that is not NVIDIA's.
    """
    machine, learn = simulate(chips, "NV")
    return Simulated(recorded(World(machine.os, machine.waiter)), machine, learn)

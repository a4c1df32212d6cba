"""A model of AMD's GPUs under the steps. It runs the machine code that a card would run."""

from __future__ import annotations

from pathlib import Path

from gpu.sim.worlds import simulate as make
from gpu.transport.world import World
from tools.hw_acceptance.simulation import Simulation


def simulate(chip: str, _: Path) -> Simulation:
    """A machine with chips, as `SIM` takes them. Raises ConfigError for an unknown one."""
    machine = make(chip, "AMD").machine
    return Simulation(chip, World(machine.os, machine.waiter))

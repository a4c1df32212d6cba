"""The machine that `SIM` names instead of this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple, Protocol, runtime_checkable

from gpu.backends.nv.program import Learn
from gpu.core.firmware import Wanted
from gpu.core.firmware import load as load_firmware
from gpu.sim.machine import Machine
from gpu.sim.worlds import simulate
from gpu.transport.pci.bus import HostPci
from gpu.transport.world import World, real_world, recorded


class Simulated(NamedTuple):
    """A machine with simulated GPUs: what drivers are given, and how kernels are learned."""

    world: World
    machine: Machine
    learn: Learn | None


@runtime_checkable
class _WithFirmware(Protocol):
    """A machine with made-up images for its cards, by the names of files."""

    firmware: Mapping[str, bytes]


class Cards(NamedTuple):
    """A machine whose cards no kernel driver has.

    Attributes:
        world: what drivers are given.
        load: gives the cards' firmware.
        learn: how kernels are learned; None for this machine.
    """

    world: World
    load: Callable[[Wanted], bytes]
    learn: Learn | None


@cache
def card_world(chips: str) -> Cards:
    """The machine with these cards; this one where none is named.

    Raises ConfigError for a chip without a model.
    """
    if not chips:
        return Cards(real_world(), load_firmware, None)
    machine, learn = simulate(chips, "NV", "PCI")
    assert isinstance(machine, _WithFirmware), "the model that is named so"
    firmware = machine.firmware
    world = World(machine.os, machine.waiter, HostPci(machine.os))
    return Cards(recorded(world), lambda wanted: firmware[wanted.name], learn)


@cache
def simulated(chips: str) -> Simulated:
    """The machine with these GPUs, their names separated by commas.

    All devices of a process share it. Raises ConfigError for a chip that is not NVIDIA's.
    """
    machine, learn = simulate(chips, "NV")
    return Simulated(recorded(World(machine.os, machine.waiter)), machine, learn)

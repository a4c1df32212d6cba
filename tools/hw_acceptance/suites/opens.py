"""What suites, faults and benchmarks open devices by, whoever made the card."""

from __future__ import annotations

from typing import Protocol

from gpu.hcq.conformance import Target
from gpu.hcq.device import HCQDevice
from gpu.transport.world import World, real_world
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladders import LADDERS, named


class Opens(Target, Protocol):
    """A target of the suite of devices with command queues that tells some more."""

    def __init__(self, context: Context, *, traced: bool = True):
        """`traced`: whether calls are recorded, which costs time."""

    def units(self, device: HCQDevice) -> int:
        """Compute units of a device."""
        ...

    def in_use(self, device: HCQDevice) -> int:
        """Bytes, of memory or addresses, that a device holds."""
        ...


def target_for(context: Context, *, traced: bool = True) -> Opens:
    """The target of the context's ladder."""
    found: Opens = named(LADDERS[context.ladder].target)(context, traced=traced)
    return found


def untraced_world(context: Context) -> World:
    """The world below the one that records."""
    return context.simulation.world if context.simulation is not None else real_world()

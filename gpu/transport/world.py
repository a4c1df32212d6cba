"""Everything that a driver may touch, as one object that it is given.

A driver opens no file and reads no clock by itself: it asks its `World`. So the same driver runs on
hardware, on a model of it, under a recorder and on a recording.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.core.wait import HostWaiter, Waiter
from gpu.transport.os import Os, RealOs


@dataclass(frozen=True, slots=True)
class World:
    """The operating system, and the clock with the means to wait on it."""

    os: Os
    waiter: Waiter


def real_world() -> World:
    """This machine."""
    return World(RealOs(), HostWaiter())

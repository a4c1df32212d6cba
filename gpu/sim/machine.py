"""What a process of a model needs of the machine that it runs on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gpu.sim.clock import VirtualClock
from gpu.sim.kernel import UserMemory
from gpu.sim.record import DebugChannel
from gpu.sim.tree import FileTree

if TYPE_CHECKING:
    from gpu.sim.process import SimFile, SimProcess


class Machine(Protocol):
    """A world of one vendor's GPUs; see `gpu.sim.world` and `gpu.sim.nv.world`."""

    lock: threading.RLock
    clock: VirtualClock
    debug: DebugChannel
    user: UserMemory
    tree: FileTree
    devices: dict[str, Callable[[SimProcess], SimFile]]

    def new_process(self) -> SimProcess:
        """Another process on this machine."""
        ...

    def work_a_little(self) -> None:
        """What goes on while a process makes a call."""
        ...

    def end_process(self, process: SimProcess) -> list[str]:
        """Frees all that a process has; returns what it should have freed itself."""
        ...

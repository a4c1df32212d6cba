"""What goes on behind the command processor: grids, and the events that follow them.

Grids run beside packets and beside each other. An event that tells of an end, such as
CACHE_FLUSH_TS, happens when all grids before it have ended; it is written back then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from gpu.sim.executor import RunningKernel
from gpu.sim.simulation import Simulation

_SLICE: Final = 8192  # branches of a grid before something else may go on


class Grid:
    """A grid under way."""

    def __init__(self, kernel: RunningKernel):
        self.kernel = kernel


class Event:
    """Something that happens when all before it is over."""

    def __init__(self, act: Callable[[], None]):
        self.act = act


class Pipe:
    """Grids and events of one ring, in the order of their packets."""

    def __init__(self, sim: Simulation):
        self._sim = sim
        self._items: deque[Grid | Event] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._items

    @property
    def has_grids(self) -> bool:
        """Whether kernels run, or wait to."""
        return any(isinstance(item, Grid) for item in self._items)

    def add(self, item: Grid | Event) -> None:
        """Something begins, behind all else."""
        self._items.append(item)

    def clear(self) -> None:
        """Forgets all, as a reset does."""
        self._items.clear()

    def runnable(self) -> bool:
        """Whether something could get on. Raises what its grids do."""
        if not self._items:
            return False
        if isinstance(self._items[0], Event):
            return True
        return any(not grid.kernel.why_stuck() for grid in self._running())

    def why_stuck(self) -> str:
        """Why none of its grids gets on; empty where one does, or none is there."""
        reasons = [grid.kernel.why_stuck() for grid in self._running()]
        return "; ".join(reasons) if all(reasons) else ""

    def step(self) -> None:
        """Lets a grid or an event get on. Raises what a grid does."""
        first = self._items[0]
        if isinstance(first, Event):
            self._items.popleft()
            first.act()
            return
        grid = self._sim.rng.choice([g for g in self._running() if not g.kernel.why_stuck()])
        if grid.kernel.step(_SLICE):
            self._sim.counts.instructions += grid.kernel.instructions
            self._items.remove(grid)

    def _running(self) -> list[Grid]:
        """Grids that no event stands before."""
        found: list[Grid] = []
        for item in self._items:
            if isinstance(item, Event):
                break
            found.append(item)
        return found

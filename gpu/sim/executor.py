"""The seam between packets and whoever runs kernels, and grids on the lane engine behind it.

A model knows queues, packets and memory; what a kernel's code does is the business of a
`KernelExecutor`, which a machine is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from gpu.core.errors import GpuFault
from gpu.sim.chunks import ChunkedMemory
from gpu.sim.isa.grid import LaneGrid

LaunchT_contra = TypeVar("LaunchT_contra", contravariant=True)
MemoryT_contra = TypeVar("MemoryT_contra", contravariant=True)
_MOST_KEPT: Final = 64


class Size3(NamedTuple):
    """A size in three dimensions."""

    x: int
    y: int
    z: int

    @property
    def volume(self) -> int:
        """How many there are."""
        return self.x * self.y * self.z


class RunningKernel(Protocol):
    """A grid under way.

    Its methods raise PageFault for a memory violation, and the chip's own error (AMD's PacketError,
    NVIDIA's KernelFault) for what hardware would hang on or stop at.
    """

    @property
    def instructions(self) -> int:
        """How many its waves have executed, for `gpu.sim.counts`; 0 where it has none."""
        ...

    def step(self, budget: int) -> bool:
        """Does about so many branches of it; True when the whole grid is done."""
        ...

    def why_stuck(self) -> str:
        """Why it does not get on unless others write memory; empty where it may.

        Runs a little of it to find out.
        """
        ...


class KernelExecutor(Protocol[LaunchT_contra, MemoryT_contra]):
    """Runs kernels: what a chip's front end hands over, on memory as the chip's caches show it."""

    def launch(self, what: LaunchT_contra, memory: MemoryT_contra, /) -> RunningKernel:
        """Begins a grid. Raises the chip's own error for one that cannot be."""
        ...


class Endless:
    """A grid that never gets on, because it was told not to."""

    instructions: int = 0

    def step(self, budget: int) -> bool:
        """Does nothing."""
        return False

    def why_stuck(self) -> str:
        """Why it never ends."""
        return "it hangs, as a fault that was injected"


GridT = TypeVar("GridT", bound=LaneGrid)
Kept = dict[Hashable, tuple[GridT, ChunkedMemory]]
"""Grids of one address space that have ended and their memory, for the next ones like them."""


class RunningLanes(ABC, Generic[GridT]):
    """A grid on the lane engine: a `RunningKernel` whose writes others see when its turn ends."""

    def __init__(
        self, grid: GridT, memory: ChunkedMemory, kept: tuple[Kept[GridT], Hashable] | None
    ):
        """`kept` is where both are put, with a key, when the grid has ended; None for nowhere."""
        self._grid = grid
        self._memory = memory
        self._kept = kept
        self.instructions = 0

    def step(self, budget: int) -> bool:
        """Does `budget` branches of it; True when the whole grid is done."""
        grid = self._grid
        self._memory.begin_turn()
        over = True
        try:
            over = grid.step(budget)
        except GpuFault as fault:
            raise self._told(fault) from fault
        finally:
            self._memory.end_turn(over)
            self.instructions = grid.instructions
        if over:
            grid.release()
            if self._kept:
                kept, key = self._kept
                kept[key] = grid, self._memory
                if len(kept) > _MOST_KEPT:
                    del kept[next(iter(kept))]
        return over

    def why_stuck(self) -> str:
        """Why it does not get on unless others write memory."""
        if not self._grid.stands:
            return ""
        self._memory.begin_turn()
        try:
            return self._grid.why_stuck()
        except GpuFault as fault:
            raise self._told(fault) from fault
        finally:
            self._memory.end_turn(last=False)

    @abstractmethod
    def _told(self, fault: GpuFault) -> Exception:
        """A fault of the engine's, as the chip tells of it."""

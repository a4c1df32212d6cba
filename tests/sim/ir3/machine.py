"""A machine that is nothing but the engine for ir3, on memory that a `MemoryMap` describes."""

from __future__ import annotations

import random

from gpu.sim.isa.grid import OnMiss
from gpu.sim.isa.ir3.dispatch import Dispatch
from gpu.sim.isa.ir3.run import Execution, InstructionCache
from gpu.sim.isa.memorymap import MemoryMap


class Machine:
    """Executes machine code of a chip."""

    def __init__(
        self,
        memory: MemoryMap,
        seed: int = 0,
        on_miss: OnMiss | None = None,
        chip: str = "a630",
    ):
        """`seed` decides how waves interleave; `on_miss` as of `LaneGrid`."""
        self.memory = memory
        self.on_miss = on_miss
        self.caches = InstructionCache(chip)
        self.random = random.Random(seed)

    def run(self, dispatch: Dispatch) -> None:
        """Runs all workgroups to their end. Raises what `Execution.finish` does."""
        self.start(dispatch).finish(f"the dispatch of {dispatch.code:#x}")

    def start(self, dispatch: Dispatch) -> Execution:
        """A dispatch that is executed step by step."""
        program = self.caches.program(dispatch, self.memory.read)
        return Execution(program, dispatch, self.memory, self.on_miss, self.random.getrandbits(64))

"""Runs grids: schedules warps and blocks, keeps barriers, tells of faults."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.errors import DeviceHang
from gpu.sim.isa import layout
from gpu.sim.isa.circles import Circles, reached, tell
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.ptx import wave
from gpu.sim.isa.ptx.barriers import arrive, release_ended
from gpu.sim.isa.ptx.engine import PtxEngine
from gpu.sim.isa.ptx.faults import Reason, WarpFault
from gpu.sim.isa.ptx.program import Program
from gpu.sim.isa.ptx.resolve import GENERIC, GLOBAL
from gpu.sim.isa.ptx.warps import GridShape, Warp, WarpMaker
from gpu.sim.isa.waves import POISON, aligned_bytes

_RUN: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_RESIDENT: Final = 64  # warps at a time: blocks may wait for other blocks
_SLICE: Final = 1000  # taken branches after which another warp gets its turn
OnMiss = Callable[[int, int, int], None]


@dataclass(slots=True, eq=False)
class Block:
    """A resident block.

    Attributes:
        number: in the grid, x first.
        arrived: barrier -> threads that have come, without those of warps that wait there.
        slot: which shared memory it has.
    """

    number: int
    slot: int
    warps: list[Warp]
    arrived: dict[int, int] = field(default_factory=dict)


class Grid:
    """A grid under way.

    Attributes:
        instructions: of PTX, executed by the warps that have ended, each once for all lanes that
            take it together.
    """

    def __init__(
        self,
        engine: PtxEngine,
        program: Program,
        shape: GridShape,
        memory: MemoryMap,
        on_miss: OnMiss | None = None,
        seed: int = 0,
    ):
        """Begins a grid.

        Args:
            engine: the native functions.
            program: the kernel, made by the same engine.
            shape: how many threads there are, and what they are given.
            memory: what addresses mean.
            on_miss: is asked when lanes access what `memory` does not allow, with the address, the
                size and the access (bits of `layout`); the access is tried again.
            seed: decides how warps interleave.
        """
        self._program = program
        self._shape = shape
        self._memory = memory
        self._on_miss = on_miss
        self._random = random.Random(seed)
        self._run = _RUN(engine.address("run"))
        self._maker = WarpMaker(engine, program, shape, memory)
        self._circles = Circles(program)
        self._stands = False
        self.instructions = 0
        self._next = 0
        self._running: list[Block] = []
        self._free = list(range(max(1, _RESIDENT // shape.warps)))
        self._shared: dict[int, npt.NDArray[np.uint8]] = {}

    def step(self, turns: int) -> bool:
        """Gives warps so many turns; True when the whole grid has ended.

        Changes of the memory map between two steps are seen. Raises WarpFault; what was written
        before stays.
        """
        self._take_ranges()
        for _ in range(turns):
            self._admit()
            if not self._running:
                return True
            blocks = self._running
            if self._circles.found:
                blocks = [each for each in blocks if not self._is_closed(each)]
                self._stands = not blocks
                if self._stands:
                    return False
            block = blocks[int(self._random.random() * len(blocks))]
            self._advance(block)
            if all(warp.done for warp in block.warps):
                self._running.remove(block)
                self._free.append(block.slot)
                for warp in block.warps:
                    self._maker.recycle(warp)
        return self.ended

    @property
    def ended(self) -> bool:
        """Whether all blocks have."""
        return not self._running and self._next >= self._shape.blocks

    def run(self) -> None:
        """Runs the grid to its end. Raises WarpFault, DeviceHang where no warp gets on."""
        while not self.step(1 << 20):
            if why := self.why_stuck():
                raise DeviceHang(f"kernel {self._program.name} ({why})", None, "its end", 0.0)

    def why_stuck(self) -> str:
        """Why no warp gets on unless others write memory; empty where some may.

        Runs warps for a while to find out. Raises WarpFault.
        """
        if not self._stands:
            return ""
        self._stands = False
        self._circles.changed()
        warps = [(block, warp) for block in self._running for warp in block.warps if not warp.done]
        self.step(sum(2 + 2 * warp.circle.length for _, warp in warps))
        if not self._stands:
            return ""
        return tell((self._where(b, w), w.circle, w.barrier is not None) for b, w in warps)

    def _is_closed(self, block: Block) -> bool:
        """Whether all warps of a block that do not wait only go round in circles."""
        ready = [warp for warp in block.warps if not warp.done and warp.barrier is None]
        return bool(ready) and all(self._circles.is_closed(warp.circle) for warp in ready)

    def _take_ranges(self) -> None:
        if self._memory.table() is not self._maker.table:
            self._maker.take_ranges()

    def _admit(self) -> None:
        """Starts blocks while there is room."""
        while self._free and self._next < self._shape.blocks:
            slot = self._free.pop()
            shared = self._shared_memory(slot)
            number = self._next
            self._next += 1
            warps = [self._maker.make(number, i, shared) for i in range(self._shape.warps)]
            self._running.append(Block(number, slot, warps))

    def _shared_memory(self, slot: int) -> int:
        size = self._shape.shared_bytes
        known = self._shared.get(slot)
        if known is None:
            known = self._shared[slot] = aligned_bytes(max(16, size))
        elif size:
            known[:] = POISON
        return known.ctypes.data

    def _advance(self, block: Block) -> None:
        """Runs a warp of a block for a while."""
        ready = [warp for warp in block.warps if not warp.done and warp.barrier is None]
        if not ready:
            raise self._fault(block, block.warps[0], "stuck", "warps stand at different barriers")
        if self._circles.found:
            ready = [warp for warp in ready if not self._circles.is_closed(warp.circle)]
        warp = ready[int(self._random.random() * len(ready))]
        warp.set(layout.BUDGET, _SLICE)
        status = self._run(warp.address, warp.record)
        warp.record = warp.word(layout.RESUME, "<Q")
        if status in (layout.SLICE, layout.BARRIER):
            self._look(warp)
        else:
            self._circles.changed()
        if status == layout.END:
            warp.done = True
            place = self._program.before(warp.record)
            self.instructions += warp.word(layout.COUNT, "<q") + place + 1
            release_ended(block.warps)
        elif status == layout.SLICE:
            self._rotate(warp)
        elif status == layout.BARRIER:
            count = self._shape.barriers
            if not arrive(block.warps, block.arrived, warp, count):
                why = f"there is no barrier {warp.word(layout.BARRIER_ID)} of {self._shape.threads}"
                why = f"{why} threads: the block has {count}, each for whole warps"
                raise self._fault(block, warp, "stuck", why)
        elif status == layout.FAULT:
            self._fill_or_raise(block, warp)
        elif status == layout.TRAP:
            raise self._fault(block, warp, "trap", "a trap")
        else:
            raise self._fault(block, warp, "stuck", "lanes wait for lanes that never come")

    def _look(self, warp: Warp) -> None:
        """Whether a warp that stopped goes round in a circle."""
        program = self._program

        def places() -> list[int]:
            return warp.places(program)

        def is_endless() -> bool:
            return reached(places(), program.following) is not None

        self._circles.stopped(warp.circle, warp.state, places, is_endless)

    def _rotate(self, warp: Warp) -> None:
        """Lets other lanes of a warp go on, for which the active ones may be waiting."""
        lowest = warp.word(layout.LOWEST)
        if lowest == layout.NOBODY:
            return
        here = warp.record - self._program.address
        active = warp.word(layout.EXEC_OFFSET)
        places = warp.words[wave.PCS // 4 : wave.PCS // 4 + layout.LANES]
        stopped = warp.word(wave.BLOCKED) | warp.word(wave.AT_BARRIER)
        ready = warp.word(wave.ALIVE) & ~stopped
        for lane in range(layout.LANES):
            if active >> lane & 1:
                places[lane] = here
        waiting = {int(places[n]) for n in range(layout.LANES) if ready >> n & 1}
        chosen = self._random.choice(sorted(waiting))
        mask, rest = 0, layout.NOBODY
        for lane in range(layout.LANES):
            if ready >> lane & 1:
                if places[lane] == chosen:
                    mask |= 1 << lane
                else:
                    rest = min(rest, int(places[lane]))
        warp.set(layout.EXEC_OFFSET, mask)
        warp.set(layout.LOWEST, rest)
        before, warp.record = warp.record, self._program.address + chosen
        passed = self._program.before(before) - self._program.before(warp.record)
        warp.set(layout.COUNT, warp.word(layout.COUNT, "<q") + passed, "<q")

    def _fill_or_raise(self, block: Block, warp: Warp) -> None:
        """Asks the owner of the memory for what lanes have missed. Raises WarpFault."""
        address, size = warp.word(layout.FAULT_ADDRESS, "<Q"), warp.word(layout.FAULT_SIZE)
        aux = warp.word(layout.FAULT_ACCESS)
        access, space = aux >> 8 & 255, aux >> 24
        if address % size:
            raise self._fault(block, warp, "misaligned", "no multiple of its size")
        if space not in (GLOBAL, GENERIC) or (space == GENERIC and self._in_window(address)):
            raise self._fault(block, warp, "access", "outside of that memory")
        if self._in_window(address):
            raise self._fault(block, warp, "space", "no global memory, but a window to another")
        if self._on_miss is not None:
            self._on_miss(address, size, access)
        if not self._memory.allows(address, size, access):
            raise self._fault(block, warp, "access", "not allowed")
        self._take_ranges()

    def _in_window(self, address: int) -> bool:
        """Whether a generic address leads to shared or local memory."""
        shape = self._shape
        shared = 0 <= address - shape.shared_window < shape.shared_window_size
        return shared or 0 <= address - shape.local_window < wave.LOCAL_WINDOW_SIZE

    def _where(self, block: Block, warp: Warp) -> str:
        number, instruction = self._program.instruction_at(warp.record)
        text = " ".join(instruction.text.split()) if instruction else "end"
        line = instruction.line if instruction else 0
        x, y, _ = self._shape.grid
        ids = (block.number % x, block.number // x % y, block.number // (x * y))
        return (
            f"kernel {self._program.name}, instruction {number} (line {line}: `{text}`),"
            f" block {ids}, warp {warp.index}"
        )

    def _fault(self, block: Block, warp: Warp, reason: Reason, why: str) -> WarpFault:
        number, where = self._program.instruction_at(warp.record)[0], self._where(block, warp)
        if reason in ("trap", "stuck"):
            return WarpFault(f"{why}; {where}", reason, number)
        lane = warp.word(layout.FAULT_LANE)
        address = warp.word(layout.FAULT_ADDRESS, "<Q")
        bits = warp.word(layout.FAULT_ACCESS) >> 8 & 255
        access = "read" if bits == layout.READ else "write" if bits == layout.WRITE else "atomic"
        size = warp.word(layout.FAULT_SIZE)
        told = f"{access} of {size} bytes at {address:#x} by lane {lane}: {why}; {where}"
        return WarpFault(told, reason, number, lane, address, access)

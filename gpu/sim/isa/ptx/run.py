"""Runs grids of PTX: lanes that take turns, barriers of every kind, faults."""

from __future__ import annotations

import random

from gpu.sim.isa import layout
from gpu.sim.isa.circles import reached
from gpu.sim.isa.grid import LaneGrid, OnMiss
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.native import Library
from gpu.sim.isa.ptx import wave
from gpu.sim.isa.ptx.barriers import all_at_one, has_come, result_of
from gpu.sim.isa.ptx.faults import Reason, WarpFault
from gpu.sim.isa.ptx.program import Program
from gpu.sim.isa.ptx.resolve import GENERIC, GLOBAL
from gpu.sim.isa.ptx.warps import GridShape, start_of
from gpu.sim.isa.scheduler import SETTLE
from gpu.sim.isa.waves import Wave


class Grid(LaneGrid):
    """A grid of PTX under way."""

    def __init__(
        self,
        engine: Library,
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
            memory, on_miss, seed: see `LaneGrid`.
        """
        self._program = program
        self._shape = shape
        start = start_of(engine, program, shape)
        # Barriers of a single warp need none: ptxas leaves them out where it knows.
        asks = shape.warps > 1 and not shape.barriers
        run = engine.address("run_grid")
        super().__init__(run, program, start, memory, on_miss, seed, shape.parameters, asks)

    def begin(self, arguments: bytes, seed: int) -> None:
        """Begins a grid with other parameters."""
        super().begin(arguments, seed)
        self._random = random.Random(seed)
        self._arrived: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        """Runs the grid to its end. Raises WarpFault, DeviceHang where no warp gets on."""
        self.finish(f"kernel {self._program.name}")

    def _stopped(self, number: int, warp: Wave, status: int) -> None:
        if status == layout.SLICE:
            self._rotate(warp)
        elif status == layout.BARRIER:
            self._arrive(number, warp)
        elif status == SETTLE:
            self._settle(number)
        elif status == layout.FAULT:
            self._fill_or_raise(number, warp)
        elif status == layout.TRAP:
            raise self._fault(number, "trap", "a trap")
        else:
            raise self._fault(number, "stuck", "lanes wait for lanes that never come")

    def _arrive(self, number: int, warp: Wave) -> None:
        """A warp has come to a barrier that is not for all threads, or not the usual one."""
        count = self._shape.barriers if self._shape.warps > 1 else wave.MOST_BARRIERS
        barrier, threads = warp.word(layout.BARRIER_ID), warp.word(layout.BARRIER_THREADS)
        if not has_come(warp, count):
            raise self._fault(
                *(number, "stuck"),
                f"there is no barrier {barrier} of {self._shape.threads} threads: the block has"
                f" {count}, each for whole warps",
            )
        if warp.word(layout.BARRIER_KIND) != wave.ARRIVE:
            self._mark("waiting", number)
            self._mark("kept", number)
        if threads:
            key = (warp.word(layout.GROUP, "<Q"), barrier)
            arrived = self._arrived.pop(key, 0) + wave.LANES
            if arrived >= threads:
                self._release([n for n in self._waiting(number) if self._stands_at(n, barrier)])
            else:
                self._arrived[key] = arrived
        self._settle(number)

    def _settle(self, number: int) -> None:
        """Opens the barrier at which all warps of a block wait that have not ended."""
        block, waiting = self._group_of(number), self._waiting(number)
        if not block or len(waiting) < len(block):
            return
        if not all_at_one([self._wave(each) for each in block]):
            raise self._fault(block[0], "stuck", "warps stand at different barriers")
        self._release(block)

    def _waiting(self, number: int) -> list[int]:
        """The warps of a block that stand at a barrier."""
        waiting = self._get("waiting")
        return [each for each in self._group_of(number) if waiting >> each & 1]

    def _stands_at(self, number: int, barrier: int) -> bool:
        return self._wave(number).word(layout.BARRIER_ID) == barrier

    def _release(self, numbers: list[int]) -> None:
        warps = [self._wave(number) for number in numbers]
        results = [result_of(warp, warps) for warp in warps]
        for number, warp, result in zip(numbers, warps, results, strict=True):
            self._mark("waiting", number, False)
            self._mark("kept", number, False)
            if result is not None:
                at = warp.word(wave.BARRIER_TARGET) // 4
                warp.words[at : at + wave.LANES] = result

    def _places(self, warp: Wave) -> list[int]:
        alive, active = warp.word(wave.ALIVE), warp.word(wave.EXEC)
        found = {self._program.place_of(warp.record)}
        for lane in range(wave.LANES):
            if (alive & ~active) >> lane & 1:
                found.add(int(warp.words[wave.PCS // 4 + lane]) // layout.RECORD.size)
        return sorted(found)

    def _is_endless(self, warp: Wave) -> bool:
        return reached(self._places(warp), self._program.following) is not None

    def _rotate(self, warp: Wave) -> None:
        """Lets other lanes of a warp go on, for which the active ones may be waiting."""
        lowest = warp.word(layout.LOWEST)
        if lowest == layout.NOBODY:
            return
        here = warp.record - self._program.address
        active = warp.word(wave.EXEC)
        places = warp.words[wave.PCS // 4 : wave.PCS // 4 + wave.LANES]
        stopped = warp.word(wave.BLOCKED) | warp.word(wave.AT_BARRIER)
        ready = warp.word(wave.ALIVE) & ~stopped
        for lane in range(wave.LANES):
            if active >> lane & 1:
                places[lane] = here
        waiting = {int(places[n]) for n in range(wave.LANES) if ready >> n & 1}
        chosen = self._random.choice(sorted(waiting))
        mask, rest = 0, layout.NOBODY
        for lane in range(wave.LANES):
            if ready >> lane & 1:
                if places[lane] == chosen:
                    mask |= 1 << lane
                else:
                    rest = min(rest, int(places[lane]))
        warp.set(wave.EXEC, mask)
        warp.set(layout.LOWEST, rest)
        before, warp.record = warp.record, self._program.address + chosen
        passed = self._program.before(before) - self._program.before(warp.record)
        warp.set(layout.COUNT, warp.word(layout.COUNT, "<q") + passed, "<q")

    def _fill_or_raise(self, number: int, warp: Wave) -> None:
        """Asks the owner of the memory for what lanes have missed. Raises WarpFault."""
        address, size = warp.word(layout.FAULT_ADDRESS, "<Q"), warp.word(layout.FAULT_SIZE)
        access = warp.word(layout.FAULT_ACCESS)
        space = access >> 16
        if address % size:
            raise self._fault(number, "misaligned", "no multiple of its size")
        if space not in (GLOBAL, GENERIC) or (space == GENERIC and self._in_window(address)):
            raise self._fault(number, "access", "outside of that memory")
        if self._in_window(address):
            raise self._fault(number, "space", "no global memory, but a window to another")
        if not self._fill(warp, access & 255):
            raise self._fault(number, "access", "not allowed")

    def _in_window(self, address: int) -> bool:
        """Whether a generic address leads to shared or local memory."""
        shape = self._shape
        shared = 0 <= address - shape.shared_window < shape.shared_window_size
        return shared or 0 <= address - shape.local_window < wave.LOCAL_WINDOW_SIZE

    def _where(self, number: int) -> str:
        warp = self._wave(number)
        at, instruction = self._program.instruction_at(warp.record)
        text = " ".join(instruction.text.split()) if instruction else "end"
        line = instruction.line if instruction else 0
        x, y, _ = self._shape.grid
        block = warp.word(layout.GROUP, "<Q")
        ids = (block % x, block // x % y, block // (x * y))
        return (
            f"kernel {self._program.name}, instruction {at} (line {line}: `{text}`),"
            f" block {ids}, warp {number % self._waves_per_group}"
        )

    def _fault(self, number: int, reason: Reason, why: str) -> WarpFault:
        warp, where = self._wave(number), self._where(number)
        at = self._program.instruction_at(warp.record)[0]
        if reason in ("trap", "stuck"):
            return WarpFault(f"{why}; {where}", reason, at)
        lane = warp.word(layout.FAULT_LANE)
        address = warp.word(layout.FAULT_ADDRESS, "<Q")
        bits = warp.word(layout.FAULT_ACCESS) & 255
        access = "read" if bits == layout.READ else "write" if bits == layout.WRITE else "atomic"
        size = warp.word(layout.FAULT_SIZE)
        told = f"{access} of {size} bytes at {address:#x} by lane {lane}: {why}; {where}"
        return WarpFault(told, reason, at, lane, address, access)

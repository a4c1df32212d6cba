"""Runs dispatches of ir3."""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import layout
from gpu.sim.isa.faults import IllegalInstruction, wave_fault
from gpu.sim.isa.grid import LaneGrid, OnMiss
from gpu.sim.isa.ir3 import wave as own
from gpu.sim.isa.ir3.decode import SIZE
from gpu.sim.isa.ir3.dispatch import Dispatch
from gpu.sim.isa.ir3.program import Fetch, Program
from gpu.sim.isa.ir3.waves import start_of
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.waves import Wave

CHIPS: Final = {
    **dict.fromkeys(("a618", "a619", "a620", "a630", "a640", "a680"), False),
    **dict.fromkeys(("a650", "a660", "a690"), True),
}
"""Those of Adreno 6xx, which have the same instructions, and whether one has a scalar ALU too (Mesa
25.0, src/freedreno/common/freedreno_devices.py)."""
_WHY: Final = {
    own.TOO_DEEP: "lanes wait at more places than BRANCHSTACK allows",
    own.NO_JOIN: "lanes wait here, which is not marked (jp): hardware never goes on with them",
}


class InstructionCache:
    """Programs by what they were made for."""

    def __init__(self, chip: str):
        """`chip` is one of `CHIPS`."""
        self._scalar_alu = CHIPS[chip]
        self._programs: dict[tuple[int, ...], Program] = {}

    def program(self, dispatch: Dispatch, fetch: Fetch) -> Program:
        """The decoded program of a dispatch, whose code `fetch` gives by address and size."""
        key = (dispatch.code, dispatch.size, dispatch.lanes, dispatch.full, len(dispatch.constants))
        found = self._programs.get(key)
        if found is None or not found.is_same(fetch):
            found = self._programs[key] = Program(dispatch, fetch, self._scalar_alu)
        return found


class Execution(LaneGrid):
    """A dispatch under way.

    Attributes:
        program: what it runs.
    """

    def __init__(
        self,
        program: Program,
        dispatch: Dispatch,
        memory: MemoryMap,
        on_miss: OnMiss | None = None,
        seed: int = 0,
    ):
        """Begins a dispatch of a program; see `LaneGrid`. Raises what `start_of` does."""
        self._dispatch = dispatch
        self.program = program
        start = start_of(dispatch, program, memory)
        constants = dispatch.constants
        super().__init__(program.run_grid, program, start, memory, on_miss, seed, constants)

    def _stopped(self, number: int, wave: Wave, status: int) -> None:
        slot = self.program.slot_of(wave.record)
        if status == layout.FAULT:
            access = wave.word(layout.FAULT_ACCESS)
            if access & layout.OWN_MEMORY or not self._fill(wave, access):
                pc = self.program.base + SIZE * slot
                raise wave_fault(wave, pc, self._where(number))
        elif status == layout.SLICE:
            return  # some lanes wait for others: as hardware has it, these go on
        else:
            why = self.program.problems.get(slot, "the code ends without `end`")
            if status == layout.TRAP:
                why = _WHY[wave.word(own.WHY)]
            pc = self.program.base + SIZE * slot
            raise IllegalInstruction(f"{self._where(number)}: {why}", pc)

    def _places(self, wave: Wave) -> list[int]:
        shape = self.program.wave
        pcs = wave.words[shape.pcs // 4 : shape.pcs // 4 + shape.lanes]
        start = self.program.record_address(0)
        waiting = {int(place) for place in pcs} - {layout.NOBODY}
        slots = {self.program.slot_of(start + place) for place in waiting}
        return sorted({self.program.slot_of(wave.record), *slots})

    def _is_endless(self, wave: Wave) -> bool:
        return self.program.is_endless(self._places(wave))

    def _where(self, number: int) -> str:
        program, wave = self.program, self._wave(number)
        slot, group = program.slot_of(wave.record), wave.word(layout.GROUP, "<Q")
        x, y, _ = self._dispatch.groups
        ids = (group % x, group // x % y, group // (x * y))
        return (
            f"pc {program.base + SIZE * slot:#x} (slot {slot}: {program.text(slot)}), workgroup"
            f" {ids}, wave {number % self._waves_per_group}"
        )

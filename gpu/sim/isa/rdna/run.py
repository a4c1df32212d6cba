"""Runs dispatches of machine code."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpu.core.errors import InvalidValue, Unsupported
from gpu.sim.isa import layout
from gpu.sim.isa.grid import LaneGrid, OnMiss
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.chip import chip_of
from gpu.sim.isa.rdna.decode import Decoder
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.faults import IllegalInstruction, WaveFault
from gpu.sim.isa.rdna.program import Program
from gpu.sim.isa.rdna.waves import start_of
from gpu.sim.isa.waves import Wave

_ACCESSES: Final = {layout.READ: "read", layout.SCALAR: "read", layout.WRITE: "write"}
Fetch = Callable[[int, int], bytes]


@dataclass
class InstructionCache:
    """Programs by entry address. What it holds is what runs, until it is invalidated.

    Attributes:
        programs: (chip, pc, vgprs, mixed modes, lanes) -> the decoded program.
    """

    programs: dict[tuple[str, int, int, bool, int], Program] = field(default_factory=dict)

    def invalidate(self) -> None:
        """Forgets all, as an invalidate of the instruction caches does."""
        self.programs.clear()


class Machine:
    """Executes machine code of a chip on memory that a `MemoryMap` describes."""

    def __init__(
        self,
        memory: MemoryMap,
        seed: int = 0,
        disassemble: Callable[[bytes], str | None] | None = None,
        on_miss: OnMiss | None = None,
        fetch: Fetch | None = None,
        caches: InstructionCache | None = None,
        chip: str = "gfx1100",
    ):
        """A machine. Raises Unsupported for a chip whose machine code is not simulated.

        Args:
            memory: what addresses mean.
            seed: decides how waves interleave.
            disassemble: is asked about unknown bytes, for messages.
            on_miss: is asked for memory that is missing, see `LaneGrid`.
            fetch: gives code bytes of an address as the instruction cache has them, fewer where
                memory ends; code that has changed is then decoded anew. Without it they are what
                `memory` holds, and decoded code is what runs until it is invalidated.
            caches: decoded code, which machines may share; empty where it is left out.
            chip: whose machine code it runs.
        """
        self.memory = memory
        self.on_miss = on_miss
        self.caches = caches or InstructionCache()
        self._fetch = fetch or memory.read
        self._fetches_cached = fetch is not None
        self.random = random.Random(seed)
        self.chip = chip_of(chip)
        self._decoder = Decoder(chip, disassemble)

    def run(self, dispatch: Dispatch) -> None:
        """Runs all workgroups to their end; see `Execution.step` for what it raises.

        Raises DeviceHang too, where no wave gets on.
        """
        self.start(dispatch).finish(f"the dispatch of {dispatch.pc:#x}")

    def start(self, dispatch: Dispatch) -> Execution:
        """A dispatch that is executed step by step. Raises what `program` does."""
        return Execution(self, dispatch)

    def program(self, dispatch: Dispatch) -> Program:
        """The decoded program of a dispatch.

        Raises Unsupported for waves of a size that the chip has not, InvalidValue where its bytes
        have changed since it was decoded and nothing has invalidated the instruction cache.
        """
        if dispatch.lanes not in self.chip.wave_sizes:
            raise Unsupported(
                f"waves of {dispatch.lanes} lanes on {self.chip.name}, whose waves have"
                f" {' or '.join(map(str, self.chip.wave_sizes))}"
            )
        mode = dispatch.mode
        mixed = (mode & 3, mode >> 4 & 3) != (mode >> 2 & 3, mode >> 6 & 3)
        place = (dispatch.pc, dispatch.vgprs, mixed)
        key = (self.chip.name, *place, dispatch.lanes)

        def fetch(offset: int, size: int) -> bytes:
            return self._fetch(dispatch.pc + offset, size)

        found = self.caches.programs.get(key)
        if found is None:
            found = Program(self.chip, dispatch.lanes, self._decoder, fetch, *place)
            self.caches.programs[key] = found
        elif not found.is_same(fetch):
            if self._fetches_cached:
                del self.caches.programs[key]
                return self.program(dispatch)
            raise InvalidValue(
                f"the code at {dispatch.pc:#x} has changed since it was decoded: invalidate the"
                " instruction cache before dispatching it"
            )
        return found


class Execution(LaneGrid):
    """A dispatch under way."""

    def __init__(self, machine: Machine, dispatch: Dispatch):
        self._dispatch = dispatch
        self._program = program = machine.program(dispatch)
        run = machine.chip.engine(dispatch.lanes).address("run_grid")
        start = start_of(dispatch, program, machine.memory)
        seed = machine.random.getrandbits(64)
        super().__init__(run, program, start, machine.memory, machine.on_miss, seed)

    def _stopped(self, number: int, wave: Wave, status: int) -> None:
        if status == layout.JUMP:
            self._jump(wave)
        elif status == layout.FAULT:
            access = wave.word(layout.FAULT_ACCESS)
            if access & layout.OWN_MEMORY or not self._fill(wave, access):
                raise self._fault(number, wave)
        elif status == layout.UNKNOWN:
            offset = self._program.offset_of(wave.record)
            reason = self._program.problems.get(offset, "the code ends without s_endpgm")
            raise IllegalInstruction(
                f"{self._where(number)}: {reason}", self._program.base + offset
            )

    def _places(self, wave: Wave) -> list[int]:
        return [self._program.offset_of(wave.record)]

    def _is_endless(self, wave: Wave) -> bool:
        shape = self._program.wave
        vcc = any(wave.word(shape.vcc + word * shape.row) for word in range(shape.words))
        return self._program.is_endless(self._program.offset_of(wave.record), vcc)

    def _jump(self, wave: Wave) -> None:
        """A jump through a register, to code that was decoded."""
        program = self._program
        target = wave.word(layout.FAULT_ADDRESS, "<Q") - program.base
        if target not in program.instructions:
            raise IllegalInstruction(
                f"a jump to {program.base + target:#x}, which is not among the code decoded from"
                f" {program.base:#x}: jumps to computed addresses are not simulated",
                program.base + target,
            )
        jumped = program.record_address(target)
        passed = program.before(wave.record) + 1 - program.before(jumped)
        wave.set(layout.COUNT, wave.word(layout.COUNT, "<q") + passed, "<q")
        wave.record = jumped

    def _where(self, number: int) -> str:
        program, wave = self._program, self._wave(number)
        offset, group = program.offset_of(wave.record), wave.word(layout.GROUP, "<Q")
        x, y, _ = self._dispatch.grid
        ids = (group % x, group // x % y, group // (x * y))
        return (
            f"pc {program.base + offset:#x} ({program.text(offset)}), workgroup {ids},"
            f" wave {number % self._waves_per_group}"
        )

    def _fault(self, number: int, wave: Wave) -> WaveFault:
        lane = wave.word(layout.FAULT_LANE)
        address = wave.word(layout.FAULT_ADDRESS, "<Q")
        access = _ACCESSES.get(wave.word(layout.FAULT_ACCESS) & ~layout.OWN_MEMORY, "atomic")
        size = wave.word(layout.FAULT_SIZE)
        pc = self._program.base + self._program.offset_of(wave.record)
        return WaveFault(
            f"{access} of {size} bytes at {address:#x} by lane {lane} is not allowed;"
            f" {self._where(number)}",
            *(pc, lane, address, access),
        )

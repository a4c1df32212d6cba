"""Runs dispatches of machine code."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from gpu.core.errors import InvalidValue, Unsupported
from gpu.sim.isa import layout
from gpu.sim.isa.faults import IllegalInstruction, wave_fault
from gpu.sim.isa.grid import LaneGrid, OnMiss
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.chip import Chip, chip_of
from gpu.sim.isa.rdna.decode import Decoder
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.program import Program
from gpu.sim.isa.rdna.waves import start_of
from gpu.sim.isa.waves import Wave

Fetch = Callable[[int, int], bytes]


class InstructionCache:
    """Programs by entry address. What it holds is what runs, until it is invalidated.

    Attributes:
        programs: (chip, pc, vgprs, first accumulator, mixed modes, counting, lanes) -> the
            decoded program.
    """

    def __init__(self, disassemble: Callable[[bytes], str | None] | None = None):
        """`disassemble` is asked about unknown bytes, for messages."""
        self.programs: dict[tuple[str, int, int, int, bool, bool, int], Program] = {}
        self._disassemble = disassemble

    def invalidate(self) -> None:
        """Forgets all, as an invalidate of the instruction caches does."""
        self.programs.clear()

    def program(self, chip: Chip, dispatch: Dispatch, fetch: Fetch, anew: bool) -> Program:
        """The decoded program of a dispatch, whose code `fetch` gives by address and size.

        Code that has changed is decoded `anew`, or else is an error. Raises Unsupported for waves
        of a size that the chip has not, InvalidValue where bytes have changed since they were
        decoded and nothing has invalidated the instruction cache.
        """
        if dispatch.lanes not in chip.wave_sizes:
            raise Unsupported(
                f"waves of {dispatch.lanes} lanes on {chip.name}, whose waves have"
                f" {' or '.join(map(str, chip.wave_sizes))}"
            )
        place = dispatch.code
        key = (chip.name, *place, dispatch.lanes)

        found = self.programs.get(key)
        if found is not None:
            if found.is_same(fetch):
                return found
            if not anew:
                raise InvalidValue(
                    f"the code at {dispatch.pc:#x} has changed since it was decoded: invalidate the"
                    " instruction cache before dispatching it"
                )
        decoder = Decoder(chip.name, self._disassemble)
        made = self.programs[key] = Program(chip, dispatch.lanes, decoder, fetch, *place)
        return made


class Machine:
    """Executes machine code of a chip on memory that a `MemoryMap` describes."""

    def __init__(
        self,
        memory: MemoryMap,
        seed: int = 0,
        disassemble: Callable[[bytes], str | None] | None = None,
        on_miss: OnMiss | None = None,
        chip: str = "gfx1100",
    ):
        """A machine. Raises Unsupported for a chip whose machine code is not simulated.

        Args:
            memory: what addresses mean. Code is decoded once, and is what runs until `caches` are
                invalidated.
            seed: decides how waves interleave.
            disassemble: is asked about unknown bytes, for messages.
            on_miss: is asked for memory that is missing, see `LaneGrid`.
            chip: whose machine code it runs.
        """
        self.memory = memory
        self.on_miss = on_miss
        self.caches = InstructionCache(disassemble)
        self.random = random.Random(seed)
        self.chip = chip_of(chip)

    def run(self, dispatch: Dispatch) -> None:
        """Runs all workgroups to their end; see `Execution.step` for what it raises.

        Raises DeviceHang too, where no wave gets on.
        """
        self.start(dispatch).finish(f"the dispatch of {dispatch.pc:#x}")

    def start(self, dispatch: Dispatch) -> Execution:
        """A dispatch that is executed step by step. Raises what `InstructionCache.program` does."""
        program = self.caches.program(self.chip, dispatch, self.memory.read, anew=False)
        seed = self.random.getrandbits(64)
        users = packed(dispatch.user_sgprs)
        return Execution(program, dispatch, self.memory, self.on_miss, seed, users)


def packed(user_sgprs: tuple[int, ...]) -> bytes:
    """User SGPRs as the arguments of an `Execution`."""
    return struct.pack(f"<{len(user_sgprs)}I", *user_sgprs)


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
        on_miss: OnMiss | None,
        seed: int,
        users: bytes,
    ):
        """Begins a dispatch of a program; see `LaneGrid`. Raises what `start_of` does.

        `users` are user SGPRs, `packed`, in the place of the dispatch's own.
        """
        self._dispatch = dispatch
        self.program = program
        start = start_of(dispatch, program, memory)
        super().__init__(program.run_grid, program, start, memory, on_miss, seed, users)

    def _stopped(self, number: int, wave: Wave, status: int) -> None:
        if status == layout.JUMP:
            self._jump(wave)
        elif status == layout.FAULT:
            access = wave.word(layout.FAULT_ACCESS)
            if access & layout.OWN_MEMORY or not self._fill(wave, access):
                pc = self.program.base + self.program.offset_of(wave.record)
                raise wave_fault(wave, pc, self._where(number))
        elif status == layout.UNKNOWN:
            offset = self.program.offset_of(wave.record)
            reason = self.program.problems.get(offset, "the code ends without s_endpgm")
            raise IllegalInstruction(f"{self._where(number)}: {reason}", self.program.base + offset)

    def _places(self, wave: Wave) -> list[int]:
        return [self.program.offset_of(wave.record)]

    def _is_endless(self, wave: Wave) -> bool:
        shape = self.program.wave
        vcc = any(wave.word(shape.vcc + word * shape.row) for word in range(shape.words))
        return self.program.is_endless(self.program.offset_of(wave.record), vcc)

    def _jump(self, wave: Wave) -> None:
        """A jump through a register, to code that was decoded."""
        program = self.program
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
        program, wave = self.program, self._wave(number)
        offset, group = program.offset_of(wave.record), wave.word(layout.GROUP, "<Q")
        x, y, _ = self._dispatch.grid
        ids = (group % x, group // x % y, group // (x * y))
        return (
            f"pc {program.base + offset:#x} ({program.text(offset)}), workgroup {ids},"
            f" wave {number % self._waves_per_group}"
        )

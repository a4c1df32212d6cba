"""Runs dispatches: decodes, schedules waves under a seed, reports faults and hangs."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.errors import DeviceHang, InvalidValue
from gpu.core.once import once
from gpu.sim.isa import layout
from gpu.sim.isa.circles import Circles, tell
from gpu.sim.isa.engine import Engine
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.decode import Decoder
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.faults import IllegalInstruction, WaveFault
from gpu.sim.isa.rdna.program import Program, rdna_engine
from gpu.sim.isa.rdna.waves import Wave, WaveMaker
from gpu.sim.isa.waves import POISON, aligned_bytes

_RUN: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_ACCESSES: Final = {layout.READ: "read", layout.SCALAR: "read", layout.WRITE: "write"}
_RESIDENT: Final = (
    64  # waves at a time; more than one workgroup, so that groups may wait for others
)
_SLICE: Final = 1000  # taken branches after which another wave gets its turn
OnMiss = Callable[[int, int, int], None]
Fetch = Callable[[int, int], bytes]
_NO_LIMIT: Final = 1 << 62


@dataclass(slots=True, eq=False)
class _Group:
    """A resident workgroup: its waves, and the slot that its scratch memory is of."""

    waves: list[Wave]
    slot: int


@dataclass
class InstructionCache:
    """Programs by entry address. What it holds is what runs, until it is invalidated.

    Attributes:
        programs: (pc, vgprs, mixed modes) -> the decoded program.
    """

    programs: dict[tuple[int, int, bool], Program] = field(default_factory=dict)

    def invalidate(self) -> None:
        """Forgets all, as an invalidate of the instruction caches does."""
        self.programs.clear()


@once
def shared_engine() -> Engine:
    """The engine that machines of this process share."""
    return rdna_engine()


class Machine:
    """Executes RDNA3 code on memory that a `MemoryMap` describes."""

    def __init__(
        self,
        memory: MemoryMap,
        seed: int = 0,
        disassemble: Callable[[bytes], str | None] | None = None,
        on_miss: OnMiss | None = None,
        fetch: Fetch | None = None,
        caches: InstructionCache | None = None,
    ):
        """A machine.

        Args:
            memory: what addresses mean.
            seed: decides how waves interleave.
            disassemble: is asked about unknown bytes, for messages.
            on_miss: is asked when a wave accesses what `memory` does not allow, with the address,
                the size and the access (bits of `layout`). It may add to `memory`, or replace
                parts of it; the access is tried again if it is allowed then, else it is a fault.
            fetch: gives code bytes of an address as the instruction cache has them, fewer where
                memory ends; code that has changed is then decoded anew. Without it they are what
                `memory` holds, and decoded code is what runs until it is invalidated.
            caches: decoded code, which machines may share; empty where it is left out.
        """
        self.memory = memory
        self.on_miss = on_miss
        self.caches = caches or InstructionCache()
        self._fetch = fetch or memory.read
        self._fetches_cached = fetch is not None
        self.random = random.Random(seed)
        self._decoder = Decoder("gfx1100", disassemble)

    def run(self, dispatch: Dispatch) -> None:
        """Runs all workgroups to their end; see `Execution.step` for what it raises.

        Raises DeviceHang too, where no wave gets on.
        """
        execution = self.start(dispatch)
        while not execution.step(_NO_LIMIT):
            if why := execution.why_stuck():
                raise DeviceHang(f"the dispatch of {dispatch.pc:#x} ({why})", None, "an end", 0.0)

    def start(self, dispatch: Dispatch) -> Execution:
        """A dispatch that is executed step by step. Raises what `program` does."""
        return Execution(self, dispatch)

    def program(self, dispatch: Dispatch) -> Program:
        """The decoded program of a dispatch.

        Raises InvalidValue where its bytes have changed since it was decoded and nothing has
        invalidated the instruction cache.
        """
        mode = dispatch.mode
        mixed = (mode & 3, mode >> 4 & 3) != (mode >> 2 & 3, mode >> 6 & 3)
        key = (dispatch.pc, dispatch.vgprs, mixed)

        def fetch(offset: int, size: int) -> bytes:
            return self._fetch(dispatch.pc + offset, size)

        found = self.caches.programs.get(key)
        if found is None:
            engine = shared_engine()
            found = Program(engine, self._decoder, fetch, dispatch.pc, dispatch.vgprs, mixed)
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


class Execution:
    """A dispatch under way: some of its workgroups are resident, others wait for room.

    Attributes:
        instructions: executed by the waves that have ended, each once for all lanes of its wave.
        ended: whether all waves have.
    """

    def __init__(self, machine: Machine, dispatch: Dispatch):
        self._dispatch = dispatch
        self._machine = machine
        self._random = machine.random
        self._program = machine.program(dispatch)
        self._maker = WaveMaker(dispatch, self._program, machine.memory)
        self._run = _RUN(shared_engine().address("run"))
        self._waiting = iter(range(self._maker.groups()))
        self._free = list(range(self._slots()))
        self._running: list[_Group] = []
        self._circles = Circles(self._program)
        self._stands = False
        self.ended = False
        self.instructions = 0
        self._lds: dict[int, tuple[npt.NDArray[np.uint8], int]] = {}
        self._table: npt.NDArray[np.uint64] | None = None

    def step(self, budget: int) -> bool:
        """Runs waves for about `budget` taken branches; True when all have ended.

        Changes of the memory map between two steps are seen. Raises WaveFault, IllegalInstruction;
        what was written before stays.
        """
        self._take_ranges()
        used = 0
        while used < budget:
            self._admit()
            if not self._running:
                self.ended = True
                return True
            groups = self._running
            if self._circles.found:
                groups = [each for each in groups if self._ready(each)]
                self._stands = not groups
                if self._stands:
                    return False
            group = groups[int(self._random.random() * len(groups))]
            used += _SLICE
            self._advance(group)
            if all(wave.done for wave in group.waves):
                self._running.remove(group)
                self._free.append(group.slot)
                for wave in group.waves:
                    self._maker.recycle(wave)
        return False

    def why_stuck(self) -> str:
        """Why no wave gets on unless others write memory; empty where some may.

        Runs waves for a while to find out. Raises what `step` does.
        """
        if not self._stands:
            return ""
        self._stands = False
        self._circles.changed()
        self.step(_SLICE * sum(2 + 2 * wave.circle.length for wave in self._resident()))
        if not self._stands:
            return ""
        stuck = [wave for wave in self._resident() if not wave.done]
        return tell((self._where(wave), wave.circle, wave.waiting) for wave in stuck)

    def _ready(self, group: _Group) -> list[Wave]:
        """The waves of a group that may do something."""
        closed = self._circles.is_closed
        return [w for w in group.waves if not (w.done or w.waiting or closed(w.circle))]

    def _take_ranges(self) -> None:
        """Tells the waves what addresses mean, if that has changed."""
        table = self._machine.memory.table()
        if table is not self._table:
            self._table = table
            self._maker.take_ranges(self._resident())

    def _resident(self) -> list[Wave]:
        return [wave for group in self._running for wave in group.waves]

    def _slots(self) -> int:
        """Workgroups that are resident at a time."""
        per_group = self._dispatch.waves_per_group
        slots = max(1, _RESIDENT // per_group)
        if self._dispatch.scratch_address is None:
            return slots
        room = self._dispatch.scratch_waves // per_group
        if not room:
            raise InvalidValue(
                f"scratch memory has room for {self._dispatch.scratch_waves} waves, a workgroup"
                f" has {per_group}"
            )
        return min(slots, room)

    def _admit(self) -> None:
        """Starts workgroups while there is room."""
        while self._free and (number := next(self._waiting, None)) is not None:
            slot = self._free.pop()
            lds = self._poisoned_lds(slot)
            count = self._dispatch.waves_per_group
            first = slot * count
            waves = [self._maker.make(number, i, lds, first + i) for i in range(count)]
            self._running.append(_Group(waves, slot))

    def _poisoned_lds(self, slot: int) -> int:
        """The address of the LDS of the workgroup that takes a slot."""
        known = self._lds.get(slot)
        if known is None:
            fresh = aligned_bytes(max(16, self._dispatch.lds_bytes))
            known = self._lds[slot] = (fresh, fresh.ctypes.data)
        elif self._dispatch.lds_bytes:
            known[0][:] = POISON
        return known[1]

    def _advance(self, group: _Group) -> None:
        """Runs a wave of a group for a while."""
        ready = self._ready(group)
        wave = ready[int(self._random.random() * len(ready))]
        wave.set(layout.BUDGET, _SLICE)
        status = self._run(wave.address, wave.record)
        if status == layout.JUMP:
            self._jump(wave)
            return
        wave.record = wave.word(layout.RESUME, "<Q")
        if status in (layout.SLICE, layout.BARRIER):
            self._look(wave)
            if status == layout.SLICE:
                return
        else:
            self._circles.changed()
        if status == layout.FAULT:
            self._fill_or_raise(wave)
            return
        if status == layout.UNKNOWN:
            raise self._illegal(wave)
        if status == layout.END:
            wave.done = True
            place = self._program.before(wave.record)
            self.instructions += wave.word(layout.COUNT, "<q") + place + 1
        wave.waiting = status == layout.BARRIER
        if all(each.done or each.waiting for each in group.waves):
            for each in group.waves:
                each.waiting = False

    def _look(self, wave: Wave) -> None:
        """Whether a wave that stopped goes round in a circle."""

        def place() -> int:
            return self._program.offset_of(wave.record)

        def is_endless() -> bool:
            return self._program.is_endless(place(), wave.word(layout.VCC_OFFSET))

        self._circles.stopped(wave.circle, wave.state, lambda: [place()], is_endless)

    def _fill_or_raise(self, wave: Wave) -> None:
        """Asks the owner of the memory for what a wave has missed. Raises WaveFault."""
        access = wave.word(layout.FAULT_ACCESS)
        memory, on_miss = self._machine.memory, self._machine.on_miss
        if on_miss is None or access & layout.OWN_MEMORY:
            raise self._fault(wave)
        address, size = wave.word(layout.FAULT_ADDRESS, "<Q"), wave.word(layout.FAULT_SIZE)
        on_miss(address, size, access)
        if not memory.allows(address, size, access):
            raise self._fault(wave)
        self._take_ranges()

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
        passed = program.before(wave.word(layout.RESUME, "<Q")) + 1 - program.before(jumped)
        wave.set(layout.COUNT, wave.word(layout.COUNT, "<q") + passed, "<q")
        wave.record = jumped

    def _where(self, wave: Wave) -> str:
        program = self._program
        offset = program.offset_of(wave.record)
        x, y, _ = self._dispatch.grid
        ids = (wave.group % x, wave.group // x % y, wave.group // (x * y))
        return (
            f"pc {program.base + offset:#x} ({program.text(offset)}), workgroup {ids},"
            f" wave {wave.index}"
        )

    def _illegal(self, wave: Wave) -> IllegalInstruction:
        offset = self._program.offset_of(wave.record)
        reason = self._program.problems.get(offset, "the code ends without s_endpgm")
        return IllegalInstruction(f"{self._where(wave)}: {reason}", self._program.base + offset)

    def _fault(self, wave: Wave) -> WaveFault:
        lane = wave.word(layout.FAULT_LANE)
        address = wave.word(layout.FAULT_ADDRESS, "<Q")
        access = _ACCESSES.get(wave.word(layout.FAULT_ACCESS) & ~layout.OWN_MEMORY, "atomic")
        size = wave.word(layout.FAULT_SIZE)
        pc = self._program.base + self._program.offset_of(wave.record)
        return WaveFault(
            f"{access} of {size} bytes at {address:#x} by lane {lane} is not allowed;"
            f" {self._where(wave)}",
            *(pc, lane, address, access),
        )

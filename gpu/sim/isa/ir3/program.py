"""Machine code as an array of records that the engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from gpu.sim.isa import layout, scheduler
from gpu.sim.isa.circles import reached
from gpu.sim.isa.ir3 import flow
from gpu.sim.isa.ir3.decode import SIZE, Instruction, UnknownInstruction, decode
from gpu.sim.isa.ir3.dispatch import Dispatch
from gpu.sim.isa.ir3.hazards import Hazard, find_hazards
from gpu.sim.isa.ir3.text import text_of
from gpu.sim.isa.ir3.translate import Record, Rows, Untranslatable, engine, translate
from gpu.sim.isa.ir3.wave import Ir3Wave
from gpu.sim.isa.waves import aligned_bytes

Fetch = Callable[[int, int], bytes]
_JUMPS: Final = ("jump", "br", "brao", "braa", "brac", "bany", "ball", "getone", "getlast")
_NONE: Final = Hazard()
_CHANGES: Final = ("st", "atomic", "ldc")


class Program:
    """A decoded program; what is wrong with an instruction tells who reaches it.

    Attributes:
        base: GPU address of its first instruction.
        wave: where the rows of its waves lie.
        rows: of a wave, what they hold.
        instructions: by slot.
        problems: why a slot cannot be executed.
        hazards: what instructions read or write too early, by slot.
        memory: the records.
        run_grid: the address of the native loop over waves.
    """

    def __init__(self, dispatch: Dispatch, fetch: Fetch, scalar_alu: bool = False):
        """Decodes and translates what a dispatch reaches.

        `fetch(address, size)` gives code bytes, fewer where the memory ends; `scalar_alu` tells
        whether the chip has one.
        """
        self._engine = engine(dispatch.lanes)
        assert isinstance(self._engine.wave, Ir3Wave)
        self.wave = self._engine.wave
        self.base = dispatch.code
        self._code = fetch(dispatch.code, dispatch.size)
        self.run_grid = self._engine.address(scheduler.NAME)
        self.instructions: dict[int, Instruction] = {}
        self.problems: dict[int, str] = {}
        self._following: dict[int, list[int]] = {}
        self._decode()
        self._place_constants()
        self.hazards: dict[int, Hazard] = {}
        if 0 in self.instructions:
            self.hazards = find_hazards(self.instructions, self._taken(), scalar_alu)
        self.rows = Rows(self.wave, len(dispatch.constants) // 4, 4 * dispatch.full)
        self._translate(self._predicated())

    def is_same(self, fetch: Fetch) -> bool:
        """Whether code that is fetched now is what was decoded."""
        return fetch(self.base, len(self._code)) == self._code

    def record_address(self, slot: int) -> int:
        """The address of the record to start with at a slot."""
        return self.memory.ctypes.data + self._first[slot] * layout.RECORD.size

    def slot_of(self, record_address: int) -> int:
        """The slot of a record."""
        return self._slots[(record_address - self.memory.ctypes.data) // layout.RECORD.size]

    def text(self, slot: int) -> str:
        """The instruction of a slot, for messages."""
        found = self.instructions.get(slot)
        return text_of(found) if found else "?"

    def following(self, place: int) -> list[int] | None:
        """The slots behind an instruction; None where it ends, or is none."""
        return self._following.get(place) or None

    def is_plain(self, place: int) -> bool:
        """Whether an instruction does what registers and memory say, and writes no memory."""
        return not self.instructions[place].name.startswith(_CHANGES)

    def is_endless(self, places: list[int]) -> bool:
        """Whether no way leads from places to an end."""
        return reached(places, self.following) is not None

    def join(self) -> int:
        """The function of records at which lanes meet."""
        return self._engine.address(*flow.maker("join", self.wave))

    def dump(self) -> str:
        """A line per instruction with its slot."""
        return "\n".join(f"{slot:4} {self.text(slot)}" for slot in sorted(self.instructions))

    def _decode(self) -> None:
        waiting = [0]
        while waiting:
            slot = waiting.pop()
            if slot in self._following:
                continue
            self._following[slot] = []
            word = self._code[slot * SIZE : slot * SIZE + SIZE] if slot >= 0 else b""
            if len(word) < SIZE:
                self.problems[slot] = "the code ends without `end`"
                continue
            try:
                found = decode(int.from_bytes(word, "little"), slot)
            except UnknownInstruction as error:
                self.problems[slot] = error.message
                continue
            self.instructions[slot] = found
            ways = [] if found.name in ("end", "jump") else [slot + 1]
            if found.name in _JUMPS and (there := slot + found.immediate) not in ways:
                ways.append(there)
            self._following[slot] = ways
            waiting += ways

    def _place_constants(self) -> None:
        """Says where `stc` writes behind a1.x, where that is a number on the only way there."""
        ways = [(way, slot) for slot, there in self._following.items() for way in there]
        met = {way for way, slot in ways if way != slot + 1}
        first: int | None = None
        for slot in sorted(self.instructions):
            found = self.instructions[slot]
            if slot in met or slot - 1 not in self.instructions:
                first = None
            if found.name == "mova1":
                first = found.srcs[0].number if found.srcs[0].kind == "imm" else None
            elif found.name == "stc" and found.fields["relative"] and first is not None:
                found.fields["constant"] += first
                found.fields["relative"] = 0

    def _taken(self) -> dict[int, list[int]]:
        """The slots behind each, as a lane sees it: it takes what is behind predt, or behind predf.

        Those of the other half go on as if they did, and read and write nothing.
        """
        ways = dict(self._following)
        begins: list[int] = []
        for slot in sorted(self.instructions):
            name = self.instructions[slot].name
            if name in ("predt", "predf"):
                if begins:
                    ways[slot - 1] = [way for way in ways[slot - 1] if way != slot]
                    ways[begins[-1]] = [*ways[begins[-1]], slot]
                begins.append(slot)
            elif name == "prede":
                for begin in begins[1:]:
                    ways[begin - 1] = [*ways[begin - 1], slot]
                begins = []
        return ways

    def _predicated(self) -> dict[int, bool]:
        """Whether slots are predicated; what differs by ways is a problem."""
        known, waiting = {0: False}, [0]
        while waiting:
            slot = waiting.pop()
            found = self.instructions.get(slot)
            if found is None:
                continue
            now = known[slot]
            if found.name in ("predt", "predf", "prede"):
                now = found.name != "prede"
            for way in self._following[slot]:
                if way not in known:
                    known[way] = now
                    waiting.append(way)
                elif known[way] != now:
                    self.problems[way] = "it is predicated or not, by the way that leads here"
        return known

    def _translate(self, predicated: dict[int, bool]) -> None:
        records: list[tuple[int, Record]] = []
        self._first: dict[int, int] = {}
        for slot in sorted(self._following):
            self._first[slot] = len(records)
            made = self._records(slot, predicated.get(slot, False))
            records += [(slot, record) for record in made]
        self._place(records)

    def _records(self, slot: int, predicated: bool) -> list[Record]:
        unknown = [Record(function=self._engine.address("unknown"))]
        found = self.instructions.get(slot)
        if found is None or slot in self.problems:
            return unknown
        try:
            made = translate(self.rows, found, slot, self.hazards.get(slot, _NONE), predicated)
        except Untranslatable as error:
            self.problems[slot] = error.message
            return unknown
        return made

    def _place(self, records: list[tuple[int, Record]]) -> None:
        """Puts records into memory."""
        size = layout.RECORD.size
        self.memory = aligned_bytes(len(records) * size, size)
        self._slots = [slot for slot, _ in records]
        start, order = self.memory.ctypes.data, {slot: n for n, slot in enumerate(self._first)}
        packed = bytearray()
        for slot, record in records:
            target, place = 0, record.aux
            if record.target is not None:
                place = self._first[record.target] * size
                target = start + place
            fields = (record.d, record.a, record.b, record.c, record.e, record.f)
            packed += layout.RECORD.pack(
                *(record.function, *fields, record.immediate, target, order[slot], place, 0)
            )
        self.memory[:] = np.frombuffer(packed, np.uint8)

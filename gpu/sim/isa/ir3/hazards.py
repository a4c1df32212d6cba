"""What code reads before it is there, by all ways that lead to it.

Hardware does not wait. The result of an ALU instruction is there for another 3 instructions later,
and 6 for all others and where halves become whole registers; those of the special functions, of
local memory and of lanes that tell each other things are there behind (ss), those of other memory
behind (sy). So it is with what such instructions read: who writes it earlier changes what they see.
The rules are those by which Mesa 25.0 places waits: `legalize_block`, `delay_calc` and
`delay_update` of src/freedreno/ir3/ir3_legalize.c, `ir3_delayslots` of ir3_delay.c, and ir3.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu.sim.isa.ir3.decode import Instruction
from gpu.sim.isa.ir3.registers import MOVES, Access, Unit, is_scalar, reads, writes

_ALU_SLOTS: Final = 3
_OTHER_SLOTS: Final = 6
_SS_LOADS: Final = ("ldl", "ldlv", "ldlw", "getfiberid", "shfl")
_SY_LOADS: Final = ("ldg", "ldg.a", "ldp", "ldc", "ldib.b", "resinfo.b", "resbase")
_FREE: Final = ("jump", "br", "braa", "brao")
"""Those that Mesa does not count as a cycle."""
Ready = tuple[int, int, int]
"""When an ALU instruction may read a part as one of a whole register, or of a half, and when any
other may."""
_ALWAYS: Final = (0, 0, 0)


@dataclass
class _State:
    """What is under way at a place, by all ways that lead there.

    Attributes:
        now: cycles since the way began.
        ready: parts of registers that were not there yet.
        ss, sy: what is there behind such a wait.
        held, held_any: what is still read: until (ss), and until either.
        scalar: what the scalar ALU has written, and whether as halves; it alone needs not wait
            for that, if it reads it so.
        scalar_held: what that still reads.
    """

    now: int = 0
    ready: dict[Unit, Ready] = field(default_factory=dict)
    ss: set[Unit] = field(default_factory=set)
    sy: set[Unit] = field(default_factory=set)
    held: set[Unit] = field(default_factory=set)
    held_any: set[Unit] = field(default_factory=set)
    scalar: set[tuple[Unit, bool]] = field(default_factory=set)
    scalar_held: set[Unit] = field(default_factory=set)

    def copy(self) -> _State:
        """The same, from now on."""
        now = self.now
        ready = {
            unit: (max(full - now, 0), max(half - now, 0), max(other - now, 0))
            for unit, (full, half, other) in self.ready.items()
            if max(full, half, other) > now
        }
        made = _State(0, ready)
        made._add(self)
        return made

    def _add(self, other: _State) -> None:
        self.ss |= other.ss
        self.sy |= other.sy
        self.held |= other.held
        self.held_any |= other.held_any
        self.scalar |= other.scalar
        self.scalar_held |= other.scalar_held

    def _sizes(self) -> list[int]:
        sets = (self.ss, self.sy, self.held, self.held_any, self.scalar, self.scalar_held)
        return [len(each) for each in sets]

    def merge(self, other: _State) -> bool:
        """Takes in another way; whether that tells anything new."""
        before = self._sizes()
        self._add(other)
        changed = before != self._sizes()
        for unit, ready in other.ready.items():
            mine = self.ready.get(unit, _ALWAYS)
            both = (max(mine[0], ready[0]), max(mine[1], ready[1]), max(mine[2], ready[2]))
            if both != mine:
                self.ready[unit] = both
                changed = True
        return changed


@dataclass(frozen=True)
class Hazard:
    """An instruction that does not wait.

    Attributes:
        early: what it reads before it is there.
        lost: what it writes while it is still read, or written.
        within: what one of its repetitions writes and a later one reads.
    """

    early: frozenset[Unit] = frozenset()
    lost: frozenset[Unit] = frozenset()
    within: frozenset[Unit] = frozenset()


class _Touch:
    """An instruction with what it reads and writes."""

    __slots__ = (
        *("by_ss", "by_sy", "cycles", "found", "is_alu", "is_scalar", "read", "within", "written"),
    )

    def __init__(self, found: Instruction, scalar_alu: bool):
        self.found = found
        self.read, self.written = reads(found), writes(found)
        self.is_alu = 1 <= found.category <= 3
        self.is_scalar = scalar_alu and is_scalar(found)
        self.cycles = found.nop
        if (self.is_alu and not self.is_scalar) or (
            found.category == 0 and found.name not in _FREE
        ):
            self.cycles += MOVES.get(found.name, 1) + found.repeat
        self.within = _within(found, self.read, self.written)
        of_group = found.name.startswith("atomic.") and found.name[7:9] not in ("g.", "b.")
        self.by_ss = found.category == 4 or found.name in _SS_LOADS or of_group
        far = found.name.startswith(("atomic.g.", "atomic.b."))
        self.by_sy = found.name in _SY_LOADS or far


def find_hazards(
    code: Mapping[int, Instruction],
    following: Mapping[int, Sequence[int]],
    scalar_alu: bool = False,
    first: int = 0,
) -> dict[int, Hazard]:
    """By slot, those of code whose ways `following` tells.

    `scalar_alu` is whether the chip has one.
    """
    touches = {slot: _Touch(found, scalar_alu) for slot, found in code.items()}
    begins = {first: _State()}
    waiting = [first]
    heads = _heads(code, following, first)
    found: dict[int, Hazard] = {}
    while waiting:
        slot = waiting.pop()
        state = begins[slot].copy()
        while True:
            # What a way leaves undone only grows: the last time through a block tells all.
            if hazard := _step(touches[slot], state):
                found[slot] = hazard
            ways = following[slot]
            if len(ways) != 1 or ways[0] in heads:
                break
            slot = ways[0]
        left = state.copy()
        for way in following[slot]:
            if way not in code:
                continue
            known = begins.get(way)
            if known is None:
                begins[way] = left.copy()
                waiting.append(way)
            elif known.merge(left):
                waiting.append(way)
    return found


def _heads(
    code: Mapping[int, Instruction], following: Mapping[int, Sequence[int]], first: int
) -> set[int]:
    """Slots that more than one way leads to, or that a branch leads to; and those not decoded."""
    heads, seen = {first}, set()
    for slot in code:
        for way in following[slot]:
            if way in seen or way != slot + 1 or len(following[slot]) > 1 or way not in code:
                heads.add(way)
            seen.add(way)
    return heads


def _step(touch: _Touch, state: _State) -> Hazard | None:
    """Goes past an instruction; what it does not wait for."""
    found = touch.found
    if found.ss:
        for waits in (state.ss, state.held, state.held_any, state.scalar_held):
            waits.clear()
        state.scalar.clear()
    if found.sy:
        state.sy.clear()
        state.held_any.clear()
    early = {each.unit for each in touch.read if _is_early(each, state, touch)}
    lost: set[Unit] = set()
    if state.ss or state.sy or state.held or state.held_any:
        pending = state.ss | state.sy | state.held | state.held_any
        lost = {each.unit for each in touch.written if each.unit in pending}
    if state.scalar_held and not touch.is_scalar:
        lost |= {each.unit for each in touch.written if each.unit in state.scalar_held}
    _update(touch, state)
    state.now += touch.cycles
    if not early and not lost and not touch.within:
        return None
    return Hazard(frozenset(early), frozenset(lost), touch.within)


def _is_early(access: Access, state: _State, touch: _Touch) -> bool:
    unit = access.unit
    if unit in state.ss or unit in state.sy:
        return True
    if state.scalar:
        sizes = (not access.half,) if touch.is_scalar else (False, True)
        if any((unit, half) in state.scalar for half in sizes):
            return True
    ready = state.ready.get(unit)
    if ready is None:
        return False
    when = (ready[1] if access.half else ready[0]) if touch.is_alu else ready[2]
    return when > state.now + access.turn + access.late


def _within(found: Instruction, read: list[Access], written: list[Access]) -> frozenset[Unit]:
    """What a repetition reads that an earlier one of the same instruction has written."""
    if not found.repeat:
        return frozenset()
    when = {each.unit: each.turn for each in written}
    return frozenset(each.unit for each in read if when.get(each.unit, each.turn) < each.turn)


def _update(touch: _Touch, state: _State) -> None:
    """What is under way now."""
    for each in touch.written:
        unit = each.unit
        if touch.is_scalar:
            state.scalar.add((unit, each.half))
        elif touch.by_ss or unit[0] in ("s", "c"):
            state.ss.add(unit)
        elif touch.by_sy:
            state.sy.add(unit)
        if not touch.is_alu:
            state.ready.pop(unit, None)
        elif unit[0] in ("r", "p"):
            written = state.now + 1 + each.turn
            same, other = written + _ALU_SLOTS, written + _OTHER_SLOTS
            full, half = (other, same) if each.half else (same, other)
            if unit[0] == "p":
                full = half = other
            old = state.ready.get(unit, _ALWAYS)
            state.ready[unit] = (max(old[0], full), max(old[1], half), max(old[2], other))
    if touch.is_scalar:
        state.scalar_held.update(each.unit for each in touch.read if each.unit[0] == "s")
    elif touch.by_ss or touch.by_sy or touch.found.category == 6:
        stores = touch.by_ss or touch.found.name.startswith("st")
        held = state.held if stores else state.held_any
        held.update(each.unit for each in touch.read if each.unit[0] != "c")

"""What instructions read and write: halves of registers, predicates, constants."""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.sim.isa.ir3.decode import Instruction
from gpu.sim.isa.ir3.operands import Operand

SHARED: Final = 48
"""Vectors from r48 to r55 belong to a whole wave."""
SHARED_VECTORS: Final = 8
Unit = tuple[str, int]
"""A half of a register (``r``, of r0.x 0 and 1) or of one of the wave (``s``, of r48.x 0 and 1), a
component of p0 (``p``) or of the constants (``c``)."""
_PAIRS: Final = ("ldg", "ldg.a", "ldg.k", "stg", "stg.a")
MOVES: Final = {"swz": 2, "gat": 4, "sct": 4}
"""Those that move several registers, a cycle for each, and how many."""
_MULTIPLY: Final = ("mad.u16", "mad.s16", "mad.u24", "mad.s24", "mad.f16", "mad.f32", "madsh.m16")
_THIRD_READ: Final = 2
"""Cycles after which these read their third source (`ir3_src_read_delay`, ir3_delay.c)."""


class Access(NamedTuple):
    """A read or a write of a part of a register.

    Attributes:
        unit: of what.
        turn: which repetition of the instruction does it, a cycle each.
        half: whether it is of a half register.
        late: cycles behind the begin of that.
    """

    unit: Unit
    turn: int
    half: bool
    late: int = 0


def is_shared(operand: Operand) -> bool:
    """Whether a register belongs to the wave."""
    return operand.kind == "gpr" and SHARED <= operand.number >> 2 < SHARED + SHARED_VECTORS


def is_scalar(found: Instruction) -> bool:
    """Whether it is a scalar ALU, where a chip has one (Mesa 25.0, `is_scalar_alu` of ir3.c)."""
    if not 1 <= found.category <= 3 or found.name == "movmsk" or not is_shared(found.dsts[0]):
        return False
    source = found.srcs[0]
    return found.category != 1 or source.kind in ("const", "imm") or is_shared(source)


def units(operand: Operand) -> list[Unit]:
    """The parts of an operand that is no address and no immediate."""
    number = operand.number
    if operand.kind == "const":
        return [("c", number)]
    if operand.kind != "gpr" or operand.is_address:
        return []
    if operand.is_predicate:
        return [("p", number & 3)]
    kind = "r"
    if is_shared(operand):
        kind, number = "s", number - 4 * SHARED
    return [(kind, number)] if operand.half else [(kind, 2 * number), (kind, 2 * number + 1)]


def _accesses(operand: Operand, turn: int, late: int = 0) -> list[Access]:
    return [Access(unit, turn, operand.half, late) for unit in units(operand)]


def further(operand: Operand, by: int) -> Operand:
    """The operand so many components on."""
    return operand._replace(number=operand.number + by)


def widths(found: Instruction) -> tuple[list[int], list[int]]:
    """How many components each destination and each source of an instruction has at once."""
    count = found.fields.get("count", 1)
    sources = [1] * len(found.srcs)
    targets = [count if found.category == 6 else 1] * len(found.dsts)
    if found.name in _PAIRS or found.name.startswith("atomic.g."):
        sources[0] = 2
    if found.name.startswith(("stg", "stl", "stp")):
        sources[-1] = count
    elif found.name in ("stc", "stib.b"):
        sources[0] = count
    elif found.name == "gat":
        targets = [4]
    elif found.name == "sct":
        sources = [4]
    elif found.name.startswith("atomic") and "cmpxchg" in found.name:
        sources[-1] = 2
    return targets, sources


def reads(found: Instruction) -> list[Access]:
    """All reads of an instruction."""
    made: list[Access] = []
    _, counts = widths(found)
    for index, (operand, count) in enumerate(zip(found.srcs, counts, strict=True)):
        late = _THIRD_READ if index == 2 and found.name in _MULTIPLY else 0
        for turn in range(found.repeat + 1):
            step = turn if operand.repeats else 0
            if turn and not operand.repeats:
                continue
            for part in range(count):
                when = index + part if found.name in MOVES else turn
                made += _accesses(further(operand, step + part), when, late)
    if found.category == 0:
        for n in (1, 2):
            if f"component{n}" in found.fields:
                made.append(Access(("p", found.fields[f"component{n}"]), 0, False))
        if found.name in ("predt", "predf"):
            made.append(Access(("p", 0), 0, False))
    return made


def writes(found: Instruction) -> list[Access]:
    """All writes of an instruction."""
    made: list[Access] = []
    counts, _ = widths(found)
    for index, (operand, count) in enumerate(zip(found.dsts, counts, strict=True)):
        for turn in range(found.repeat + 1):
            for part in range(count):
                when = index + part if found.name in MOVES else turn
                made += _accesses(further(operand, turn + part), when)
    if found.name == "stc":
        first = found.fields["constant"]
        made += [Access(("c", first + n), 0, False) for n in range(found.fields["count"])]
    return made

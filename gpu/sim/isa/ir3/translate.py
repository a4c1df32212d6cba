"""Instructions to records of the lane engine."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout
from gpu.sim.isa.access import resolve_aux
from gpu.sim.isa.engine import Engine
from gpu.sim.isa.ir3 import alu, flow, lanes
from gpu.sim.isa.ir3.alu import FULL, HIGH, LOW, PREDICATE, SINGLE, Source
from gpu.sim.isa.ir3.decode import Instruction
from gpu.sim.isa.ir3.hazards import Hazard
from gpu.sim.isa.ir3.operands import FLUT, Operand
from gpu.sim.isa.ir3.registers import SHARED, Unit, further, is_shared
from gpu.sim.isa.ir3.semantics import OPERATIONS, can_convert
from gpu.sim.isa.ir3.wave import Ir3Wave
from gpu.sim.isa.native import Make
from gpu.sim.isa.waves import POISON

_POISON: Final = POISON * 0x01010101


class Untranslatable(InvalidValue):
    """An instruction that the engine does not have; it is an error only where it is reached."""


@cache
def engine(lanes_of_wave: int) -> Engine:
    """The engine that all machines of this process share, for waves of so many lanes."""
    return Engine("ir3", {}, {}, Ir3Wave(lanes_of_wave))


@dataclass(slots=True)
class Record(layout.Operands):
    """An operation with its operands; `target` is the slot that a branch goes to.

    `function` is its address.
    """

    function: int


@dataclass
class Rows:
    """Rows of a program: constants, registers, then what is met on the way.

    Attributes:
        wave: where they begin.
        constants: words of the constant file.
        components: of the registers that a thread has.
        extra: rows behind them, by what they hold: a word in all lanes, or a register of the wave.
    """

    wave: Ir3Wave
    constants: int
    components: int
    extra: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def registers(self) -> int:
        """Where r0.x is."""
        return self.wave.constants + self.constants * self.wave.row

    @property
    def count(self) -> int:
        """Of all rows of a wave."""
        behind = self.constants + self.components + len(self.extra)
        return self.wave.constants // self.wave.row + behind

    def register(self, number: int) -> int:
        """A component. Raises Untranslatable past the last."""
        if number >= self.components:
            raise Untranslatable(
                f"r{number >> 2}.{'xyzw'[number & 3]} is used, a thread has {self.components // 4}"
                " registers"
            )
        return self.registers + number * self.wave.row

    def constant(self, number: int) -> int:
        """A word of the constant file. Raises Untranslatable past the last."""
        if number >= self.constants:
            raise Untranslatable(
                f"c{number >> 2}.{'xyzw'[number & 3]} is used, there are {self.constants // 4}"
                " constants"
            )
        return self.wave.constants + number * self.wave.row

    def word(self, value: int) -> int:
        """A row of a word."""
        return self._behind(("word", value & 0xFFFFFFFF))

    def shared(self, number: int) -> int:
        """A component of a register of the wave."""
        return self._behind(("shared", number))

    def _behind(self, key: tuple[str, int]) -> int:
        place = self.extra.setdefault(key, len(self.extra))
        return self.registers + (self.components + place) * self.wave.row


class Context:
    """Translates one instruction.

    Attributes:
        found: the instruction.
        hazard: what it does not wait for.
        predicated: whether some lanes only seem to take part where it is.
        records: what it became.
    """

    def __init__(self, rows: Rows, found: Instruction, slot: int, hazard: Hazard, predicated: bool):
        self.rows = rows
        self.wave = rows.wave
        self.found = found
        self.hazard = hazard
        self.predicated = predicated
        self.records: list[Record] = []
        self._slot = slot
        self._engine = engine(rows.wave.lanes)

    def emit(self, function: str | tuple[str, Make], **operands: int) -> Record:
        """Adds a record: of the engine's own functions, or of one that is made."""
        name, make = function if isinstance(function, tuple) else (function, None)
        record = Record(function=self._engine.address(name, make), **operands)
        self.records.append(record)
        return record

    def flow(self, name: str, **operands: int) -> Record:
        """Adds a record of a control function."""
        return self.emit(flow.maker(name, self.wave), **operands)

    def turns(self) -> Iterator[int]:
        """The numbers of its repetitions; before each is poisoned what it may not see."""
        for turn in range(self.found.repeat + 1):
            if turn:
                _poison(self, self.hazard.within)
            yield turn

    def target(self) -> int:
        """The slot that a branch goes to."""
        return self._slot + self.found.immediate

    def temp(self, number: int) -> int:
        """A row for what lies between two records."""
        return self.wave.temps + number * self.wave.row

    def place(self, operand: Operand) -> tuple[int, str]:
        """(row, which part of it) of a register, a constant or an immediate."""
        number = operand.number
        if operand.kind == "const":
            return self.rows.constant(number), LOW if operand.half else FULL
        if operand.kind == "imm":
            return self.rows.word(number), LOW if operand.half else FULL
        if operand.kind != "gpr" or operand.is_address:
            raise Untranslatable(f"{operand.text()}: addresses of registers have no semantics here")
        if operand.is_predicate:
            return self.wave.predicate(number & 3), PREDICATE
        if is_shared(operand):
            if not operand.half:
                return self.rows.shared(number), FULL
            place = 4 * SHARED + (number - 4 * SHARED >> 1)
            return self.rows.shared(place), HIGH if number & 1 else LOW
        if not operand.half:
            return self.rows.register(number), FULL
        return self.rows.register(number >> 1), HIGH if number & 1 else LOW

    def source(self, operand: Operand, domain: str) -> tuple[int, Source]:
        """(row, how it is read) of a source of a computation."""
        marks = operand.negated, operand.absolute
        if operand.kind == "flut":
            return self.rows.word(_float_bits(FLUT[operand.number])), Source(
                SINGLE if operand.half else FULL, *marks
            )
        if operand.kind == "imm" and domain == "float":
            raise Untranslatable(f"{operand.text()}: an integer where a float is computed with")
        row, part = self.place(operand)
        if part == PREDICATE:
            raise Untranslatable(f"{operand.text()} is read as a number")
        if operand.kind == "const" and operand.half and domain == "float":
            part = SINGLE
        return row, Source(part, *marks)

    def result(self, operand: Operand) -> tuple[int, str]:
        """(row, how it is written) of a destination."""
        row, part = self.place(operand)
        return row, alu.SHARED + part if is_shared(operand) else part


def _float_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def translate(
    rows: Rows, found: Instruction, slot: int, hazard: Hazard, predicated: bool
) -> list[Record]:
    """The records of an instruction. Raises Untranslatable.

    What it reads too early is poisoned before, what it writes too early behind.
    """
    context = Context(rows, found, slot, hazard, predicated)
    ends = found.name == "prede"  # lanes meet behind it
    if found.jp and not ends:
        if predicated:
            raise Untranslatable(f"(jp) of {found.name}, which is predicated, is not known")
        context.flow("join")
    _poison(context, hazard.early)
    _CATEGORIES[found.category](context)
    _poison(context, hazard.lost)
    if found.jp and ends:
        context.flow("join")
    return context.records


def _poison(context: Context, parts: frozenset[Unit]) -> None:
    rows = context.rows
    for kind, number in sorted(parts):
        if kind == "p":
            wave = context.wave
            for word in range(wave.words):
                row = wave.predicate(number) + word * wave.row
                context.emit("bits", d=row, a=row, immediate=0, aux=_POISON - (1 << 32))
            continue
        if kind == "c":
            row, kept = rows.constant(number), 0
        else:
            half = number >> 1
            row = rows.register(half) if kind == "r" else rows.shared(4 * SHARED + half)
            kept = 0xFFFF if number & 1 else 0xFFFF0000
        poison = _POISON & ~kept & 0xFFFFFFFF
        context.emit("bits", d=row, a=row, immediate=kept, aux=poison - (poison >> 31 << 32))


def _flow(context: Context) -> None:
    found = context.found
    name = found.name
    inverted = [found.fields.get(f"inverted{n}", 0) for n in (1, 2)]
    rows = [context.wave.predicate(found.fields.get(f"component{n}", 0)) for n in (1, 2)]
    if name in ("nop", "shps", "shpe"):
        return  # each wave runs the preamble itself
    if context.predicated and name not in ("predt", "predf", "prede"):
        raise Untranslatable(f"{name} while instructions are predicated is not known")
    if name in ("predt", "predf"):
        if not context.predicated:
            context.flow("save_exec")
        context.flow(name, a=context.wave.predicate(0))
    elif name == "prede":
        if context.predicated:
            context.flow("restore_exec")
    elif name == "end":
        context.flow("finish")
    elif name in ("jump", "getone"):
        context.flow(name).target = context.target()
    elif name in ("br", "bany", "ball"):
        context.flow(f"{name}_{inverted[0]}", a=rows[0]).target = context.target()
    elif name in ("brao", "braa"):
        way = f"{name}_{inverted[0]}{inverted[1]}"
        context.flow(way, a=rows[0], b=rows[1]).target = context.target()
    else:
        raise Untranslatable(f"{name} has no semantics here")


def _move(context: Context) -> None:
    found = context.found
    if found.name in ("swz", "gat", "sct"):
        _move_several(context)
        return
    if found.name == "mova1" and found.srcs[0].kind == "imm":
        return  # who reads it knows it: `Program`
    if found.name not in ("mov", "cov"):
        raise Untranslatable(f"{found.name} has no semantics here")
    for turn in context.turns():
        source = further(found.srcs[0], turn) if found.srcs[0].repeats else found.srcs[0]
        _convert(context, source, further(found.dsts[0], turn))


def _convert(context: Context, source: Operand, target: Operand) -> None:
    found = context.found
    types, rounding = (found.types[0], found.types[1]), found.rounding
    if not can_convert(types, rounding):
        raise Untranslatable(f"{found.name}.{types[0]}{types[1]} {rounding} has no semantics here")
    row, part = context.place(source)
    written, to = context.result(target)
    if PREDICATE in (part, to):
        raise Untranslatable(f"{found.name} of p0 has no semantics here")
    if types[0] == types[1] and part == to == FULL:
        context.emit("move", d=written, a=row)
        return
    context.emit(alu.converting(types, rounding, to, part, context.wave), d=written, a=row)


def _move_several(context: Context) -> None:
    """All sources are read before anything is written."""
    found = context.found
    sources, targets = list(found.srcs), list(found.dsts)
    if found.name == "gat":
        targets = [further(targets[0], n) for n in range(4)]
    elif found.name == "sct":
        sources = [further(sources[0], n) for n in range(4)]
    if found.types[0] != found.types[1]:
        raise Untranslatable(f"{found.name} that converts has no semantics here")
    kinds = (found.types[0], found.types[1])
    for number, source in enumerate(sources):
        row, part = context.place(source)
        to = FULL if part == FULL else LOW
        moved = alu.converting(kinds, "", to, part, context.wave)
        context.emit(moved, d=context.temp(number), a=row)
    for number, target in enumerate(targets):
        row, to = context.result(target)
        part = LOW if target.half else FULL
        moved = alu.converting(kinds, "", to, part, context.wave)
        context.emit(moved, d=row, a=context.temp(number))


def _compute(context: Context) -> None:
    found = context.found
    name = f"{found.name}.{found.condition}" if found.condition else found.name
    saturates = found.sat
    if saturates and f"{name}.sat" in OPERATIONS:
        name, saturates = f"{name}.sat", False
    operation = OPERATIONS.get(name)
    if operation is None or (saturates and operation.domain != "float"):
        raise Untranslatable(f"{'(sat)' * saturates}{name} has no semantics here")
    narrow = all(source.half for source in found.srcs if source.kind != "imm")
    target = found.dsts[0]
    widens = narrow and not target.half and not target.is_predicate
    if widens and not operation.widens:
        raise Untranslatable(f"{name} of halves into a whole register is not known")
    for turn in context.turns():
        operands = [further(s, turn) if s.repeats else s for s in found.srcs]
        placed = [context.source(_as_wide(s, narrow), operation.domain) for s in operands]
        written, to = context.result(further(target, turn))
        sources = tuple(source for _, source in placed)
        slots = {slot: row for slot, (row, _) in zip("abc", placed, strict=False)}
        function = alu.computing(name, to, sources, saturates, context.wave)
        context.emit(function, d=written, **slots)


def _as_wide(source: Operand, narrow: bool) -> Operand:
    """An immediate of three sources has the size of the registers beside it."""
    return source._replace(half=narrow) if source.kind == "imm" else source


def _memory(context: Context) -> None:
    found, name = context.found, context.found.name
    if name in ("ldg", "ldg.a", "stg", "stg.a"):
        _access(context, "resolve_vector", context.rows.register(found.srcs[0].number))
    elif name in ("ldl", "ldlw", "stl", "stlw"):
        _access(context, "resolve_lds", context.place(found.srcs[0])[0])
    elif name in ("ldp", "stp"):
        _access(context, "resolve_scratch", context.place(found.srcs[0])[0])
    elif name == "stc":
        _store_constants(context)
    elif name.startswith("atomic.") and not name.startswith("atomic.b."):
        _atomic(context)
    else:
        raise Untranslatable(f"{name} has no semantics here")


_MEMORY_BITS: Final = {"8": 8, "8_32": 8, "16": 16, "32": 32}


def _access(context: Context, resolve: str, address: int) -> None:
    """Resolves addresses, then moves so many registers."""
    found = context.found
    loads, bits = found.name.startswith("ld"), _MEMORY_BITS[found.types[0][1:]]
    count, step = found.fields["count"], bits // 8
    offset, way = found.immediate, layout.READ if loads else layout.WRITE
    if not count:
        raise Untranslatable(f"{found.name} of no registers is not known")
    if found.name.endswith(".a"):
        address = _indexed(context, address)
    first = found.dsts[0] if loads else found.srcs[-1]
    rows = [context.place(further(first, n)) for n in range(count)]
    if bits == 32 and all(part == FULL for _, part in rows) and not is_shared(first):
        for start in range(0, count, 4):
            some = min(4, count - start)
            _resolve(context, resolve, address, offset + 4 * start, 4 * some, way, step)
            function = f"{'load' if loads else 'store'}_b{32 * some}"
            moved = "d" if loads else "a"
            context.emit(function, b=context.wave.pointers, **{moved: rows[start][0]})
        return
    for n, (row, part) in enumerate(rows):
        if is_shared(first):
            raise Untranslatable(f"{found.name} of a register of the wave is not known")
        _resolve(context, resolve, address, offset + n * step, step, way, step)
        _move_small(context, bits, row, part)


def _resolve(
    context: Context, name: str, address: int, offset: int, size: int, way: int, align: int
) -> None:
    aux = resolve_aux(size, way, align)
    zero = {"b": context.rows.word(0)} if name == "resolve_scratch" else {}
    context.emit(name, d=context.wave.pointers, a=address, immediate=offset, aux=aux, **zero)


def _move_small(context: Context, bits: int, row: int, part: str) -> None:
    """One number between memory and a register; a whole register gets zeros above it."""
    pointers = context.wave.pointers
    high = {FULL: "", LOW: "", HIGH: "_hi"}[part]
    if context.found.name.startswith("ld"):
        kind = "b32" if bits == 32 else f"u{bits}"
        if bits == 32 and part != FULL:
            raise Untranslatable("32 bits of memory into half a register are not known")
        function = f"load_{kind}" if part == FULL else f"load_d16{high}_{kind}"
        context.emit(function, d=row, b=pointers)
    else:
        middle = "d16_hi_" if part == HIGH else ""
        context.emit(f"store_{middle}b{bits}", a=row, b=pointers)


def _indexed(context: Context, address: int) -> int:
    """Rows of the sum of an address and an index."""
    found = context.found
    index, part = context.place(found.srcs[1])
    if part != FULL:
        raise Untranslatable(f"{found.name} with half an index is not known")
    fields, total = found.fields, context.temp(0)
    function = lanes.indexing(fields["shift"], fields["further"], fields["size"], context.wave)
    context.emit(function, d=total, a=address, b=index)
    return total


def _store_constants(context: Context) -> None:
    found = context.found
    if found.fields["relative"]:
        raise Untranslatable("stc behind an a1.x that is computed has no semantics here")
    for number in range(found.fields["count"]):
        row, part = context.place(further(found.srcs[0], number))
        if part != FULL:
            raise Untranslatable("stc of half registers has no semantics here")
        target = context.rows.constant(found.fields["constant"] + number)
        move = alu.converting(("u32", "u32"), "", alu.SHARED + FULL, FULL, context.wave)
        context.emit(move, d=target, a=row)


_ATOMICS: Final = {
    "add": "add", "sub": "sub", "xchg": "swap", "inc": "inc", "dec": "dec", "and": "and",
    "or": "or", "xor": "xor",
}  # fmt: skip


def _atomic(context: Context) -> None:
    """On memory of a workgroup, or by an address of two registers."""
    found = context.found
    what, kind = found.name.rpartition(".")[2], found.types[0]
    if kind not in ("u32", "s32"):
        raise Untranslatable(f"{found.name} of {kind} has no semantics here")
    if found.srcs[0].kind != "gpr" or found.srcs[1].kind != "gpr":
        raise Untranslatable(f"{found.name} with an immediate has no semantics here")
    everywhere = ".g." in found.name
    address, data = (context.rows.register(each.number) for each in found.srcs)
    resolve = "resolve_vector" if everywhere else "resolve_lds"
    _resolve(context, resolve, address, 0, 4, layout.ATOMIC, 4)
    operands = {"d": context.place(found.dsts[0])[0], "a": data, "b": context.wave.pointers}
    if what == "cmpxchg":
        # Of two registers the first is what is compared, the second what is written.
        operands |= {"a": data + context.wave.row, "c": data}
        name = "cmpswap"
    elif what in ("min", "max"):
        name = f"{kind[0]}{what}"
    else:
        name = _ATOMICS[what]
    context.emit(f"atomic_{name}_32", **operands)


def _wait(context: Context) -> None:
    name = context.found.name
    if name == "bar":
        if context.predicated:
            raise Untranslatable("a barrier while instructions are predicated is not known")
        context.emit("barrier")
    elif name not in ("fence", "sleep", "icinv", "dccln", "dcinv", "dcflu"):
        raise Untranslatable(f"{name} has no semantics here")


def _none(context: Context) -> None:
    raise Untranslatable(f"{context.found.name} has no semantics here")


_CATEGORIES: Final[tuple[Callable[[Context], None], ...]] = (
    *(_flow, _move, _compute, _compute, _compute, _none, _memory, _wait),
)

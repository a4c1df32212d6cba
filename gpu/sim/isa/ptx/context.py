"""What all translations from instructions to records share."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpu.sim.isa.layout import Operands
from gpu.sim.isa.native import Library, Make
from gpu.sim.isa.ptx import rows, wave
from gpu.sim.isa.ptx.syntax import (
    TYPES,
    Function,
    Instruction,
    Number,
    Operand,
    PtxError,
    Register,
    Sink,
    Symbol,
)
from gpu.sim.isa.values import bits_of

KINDS: Final = {
    **{f"{letter}{bits}": f"i{bits}" for letter in "bsu" for bits in (8, 16, 32, 64)},
    "f16": "f16",
    "bf16": "i16",
    "f32": "f32",
    "f64": "f64",
    "pred": "p",
    "f16x2": "i32",
    "bf16x2": "i32",
    "s16x2": "i32",
    "u16x2": "i32",
    "tf32": "f32",
    "e4m3x2": "i16",
    "e5m2x2": "i16",
}
"""How values of PTX types are computed with."""
_ON_PREDICATES: Final = ("and", "or", "xor", "not", "mov", "vote", "bar", "barrier")


@dataclass(slots=True)
class Record(Operands):
    """An operation with its operands; `target` is the number of the label that it goes to.

    Attributes:
        source: the instruction it comes from.
    """

    function: int
    source: int


@dataclass(slots=True)
class Rows:
    """Gives out the rows of a program, constants among them.

    Attributes:
        end: the offset behind the last row.
        constants: offset -> bytes of rows that hold something from the start.
    """

    end: int = wave.WARP.constants
    constants: dict[int, bytes] = field(default_factory=dict)
    _known: dict[tuple[str, int], int] = field(default_factory=dict)

    def take(self, count: int = 1) -> int:
        """Rows that nothing else uses."""
        first = self.end
        self.end += count * wave.ROW
        return first

    def constant(self, kind: str, bits: int) -> int:
        """Rows with the same bits in all lanes."""
        width = "i64" if kind != "p" and bits_of(kind) == 64 else "i32"
        pattern = bits & ((1 << 64) - 1 if width == "i64" else (1 << 32) - 1)
        found = self._known.get((width, pattern))
        if found is None:
            found = self._known[width, pattern] = self.take(rows.rows_of(width))
            data = struct.pack("<Q" if width == "i64" else "<I", pattern)
            self.constants[found] = data * wave.LANES
        return found


@dataclass(slots=True)
class Scope:
    """A function in the middle of being translated: what its names mean.

    Attributes:
        registers: name -> (offset of its rows, bits).
        symbols: variables -> (space, address).
        elements: variables -> bytes of an element.
        end: number of the label behind it.
        labels: name -> number.
    """

    function: Function
    registers: dict[str, tuple[int, int]] = field(default_factory=dict)
    symbols: dict[str, tuple[str, int]] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    end: int = 0


class Context:
    """Translates instruction after instruction.

    Attributes:
        scope, instruction: what is being translated.
        records: the result so far.
        labels: number of a label -> index of its record; None until it is placed.
        instructions: those that records name as their source.
        specials: names of special registers that are read.
        windows: field of the header -> rows that hold it in all lanes, 64 bits.
        parameter_bytes: of the kernel.
        exit: the label at which all ends.
        frame: the row with the place of a function's frame in local memory; 0 where none recurses.
    """

    def __init__(self, engine: Library):
        self.engine = engine
        self.rows = Rows()
        self.records: list[Record] = []
        self.labels: list[int | None] = []
        self.instructions: list[Instruction] = []
        self.specials: set[str] = set()
        self.windows: dict[int, int] = {}
        self.parameter_bytes = 0
        self.frame = 0
        self.exit = self.new_label()
        self.scope: Scope
        self.instruction: Instruction
        self._temps: list[int] = []
        self._used = 0

    def begin(self, instruction: Instruction) -> None:
        """Turns to the next instruction."""
        self.instruction = instruction
        self.instructions.append(instruction)
        self._used = 0

    def error(self, why: str) -> PtxError:
        """An error about the instruction."""
        return PtxError(why, self.instruction.line, self.instruction.text)

    def temp(self, count: int = 1) -> int:
        """Rows that nothing else of this instruction uses."""
        first = self._used
        self._used += count
        while len(self._temps) < 64:
            start = self.rows.take(64)
            self._temps += [start + number * wave.ROW for number in range(64)]
        assert self._used <= 64
        return self._temps[first]

    def emit(self, function: str, make: Make | None = None, **operands: int | None) -> Record:
        """Adds a record."""
        address = self.engine.address(function, make)
        record = Record(address, len(self.instructions) - 1, **operands)  # type: ignore[arg-type]
        self.records.append(record)
        return record

    def new_label(self) -> int:
        """A label that is placed later."""
        self.labels.append(None)
        return len(self.labels) - 1

    def place(self, label: int) -> None:
        """Puts a label here."""
        self.labels[label] = len(self.records)

    def arity(self, *counts: int) -> tuple[Operand, ...]:
        """The operands, of which there must be so many."""
        operands = self.instruction.operands
        if len(operands) not in counts:
            wanted = " or ".join(map(str, counts))
            raise self.error(f"{len(operands)} operands, {wanted} are expected")
        return operands

    def register(self, operand: Operand) -> tuple[int, int] | None:
        """(rows, bits) of a register, None for what is none."""
        if (isinstance(operand, Register) and not operand.negated) or (
            isinstance(operand, Symbol) and not operand.offset and not operand.index
        ):
            name = operand.name
        else:
            return None
        found = self.scope.registers.get(name)
        if found is None and (bits := self._declared(name)):
            rows_needed = 2 if bits == 64 else 1
            found = self.scope.registers[name] = (self.rows.take(rows_needed), bits)
        return found

    def _declared(self, name: str) -> int:
        kind = self.scope.function.registers.get(name)
        return TYPES[kind] if kind else 0

    def source(self, operand: Operand, kind: str, loose: bool = False) -> int:
        """Rows to read a value from; `loose` where a wider register will do."""
        found = self.register(operand)
        bits = 1 if kind == "p" else bits_of(kind)
        if found:
            row, have = found
            fits = have == bits or (loose and have > bits) or (bits == 8 and have >= 8)
            if not fits or (bits == 1) != (have == 1):
                raise self.error(f"a register of {have} bits where {bits} are read")
            return row
        if isinstance(operand, Number):
            return self.rows.constant(kind, self.pattern(operand, kind))
        if isinstance(operand, Register):
            return self._special(operand, kind)
        if isinstance(operand, Symbol):
            at = self.rows.constant(kind, self.address_of(operand))
            if operand.name not in self.scope.symbols or self.symbol(operand.name)[0] != "frame":
                return at
            made = self.temp(rows.rows_of(kind))
            build = lambda x, y: x.to(kind) + y  # noqa: E731
            self.compute(f"frame.{kind}", build, [self.frame, at], ["i64", kind], [made])
            return made
        raise self.error(f"{operand} is no source")

    def pattern(self, number: Number, kind: str) -> int:
        """The bits of a literal in a kind."""
        if number.form == "int":
            if kind in ("f32", "f64", "f16"):
                letter = {"f16": "<e", "f32": "<f", "f64": "<d"}[kind]
                try:
                    data = struct.pack(letter, number.bits)
                except OverflowError as error:
                    raise self.error(f"{number.bits} is too large a number") from error
                return int.from_bytes(data, "little")
            if kind == "p":  # a bit for each lane
                return 0xFFFFFFFF if number.bits else 0
            return number.bits & ((1 << bits_of(kind)) - 1)
        wanted = "f64" if kind in ("f64", "i64") else "f32"
        if kind not in ("f32", "f64", "i32", "i64"):
            raise self.error(f"a literal of {number.form} as {kind}")
        if number.form == wanted:
            return number.bits
        if number.form == "f32":
            value = struct.unpack("<f", struct.pack("<I", number.bits))[0]
            return int.from_bytes(struct.pack("<d", value), "little")
        value = struct.unpack("<d", struct.pack("<Q", number.bits))[0]
        try:
            return int.from_bytes(struct.pack("<f", value), "little")
        except OverflowError as error:
            raise self.error(f"{value} is too large for single precision") from error

    def _special(self, register: Register, kind: str) -> int:
        name = register.name
        if register.negated or kind not in ("i32", "i64", "i16"):
            raise self.error(f"{name} cannot be read here")
        if name in wave.SPECIALS:
            self.specials.add(name)
            row = wave.SPECIALS[name]
            if kind == "i64":
                wide = self.temp(2)
                self.compute("widen", lambda x: x.to("i64"), [row], ["i32"], [wide])
                return wide
            return row
        if name == "WARP_SZ":
            return self.rows.constant(kind, wave.LANES)
        raise self.error(f"{name} is neither declared nor a special register that is known")

    def symbol(self, name: str) -> tuple[str, int]:
        """(space, address) of a variable."""
        found = self.scope.symbols.get(name)
        if found is None:
            raise self.error(f"{name} is not declared")
        return found

    def address_of(self, symbol: Symbol) -> int:
        """The address of a variable in its space."""
        if symbol.name == "WARP_SZ":
            return wave.LANES + symbol.offset
        at = self.symbol(symbol.name)[1] + symbol.offset
        return at + symbol.index * self.scope.elements.get(symbol.name, 1)

    def target(self, operand: Operand, kind: str, loose: bool = False) -> int:
        """Rows to write a value to; `loose` where a wider register will do."""
        if isinstance(operand, Sink) or operand == Register("_"):
            return wave.WARP.trash
        found = self.register(operand)
        if found is None:
            raise self.error(f"{operand} is no register to write to")
        row, have = found
        bits = 1 if kind == "p" else bits_of(kind)
        if (have != bits and not (loose and have > bits)) or (bits == 1) != (have == 1):
            raise self.error(f"a register of {have} bits where {bits} are written")
        return row

    def window(self, field: int) -> int:
        """Rows with a 64-bit field of the header in all lanes."""
        if field not in self.windows:
            self.windows[field] = self.rows.take(2)
        return self.windows[field]

    def width(self, operand: Operand) -> int:
        """Bits of a register; 0 for what is none."""
        found = self.register(operand)
        return found[1] if found else 0

    def predicate(self, operand: Operand) -> int:
        """A row with a predicate, negated where the operand is."""
        if isinstance(operand, Register) and operand.negated:
            plain = self.source(Register(operand.name), "p")
            row = self.temp()
            self.compute("not.pred", lambda x: ~x, [plain], ["p"], [row])
            return row
        return self.source(operand, "p")

    def compute(
        self,
        name: str,
        build: rows.Build,
        sources: Sequence[int],
        kinds: Sequence[str],
        results: Sequence[int],
    ) -> None:
        """Adds an operation that computes results from sources of some kinds.

        The name, with the kinds, must say what `build` computes.
        """
        full = f"{name}${'$'.join(kinds)}"
        places = dict(zip(rows.SOURCES, sources, strict=False))
        places |= dict(zip(rows.RESULTS, results, strict=False))
        self.emit(full, partial(rows.computing, full, tuple(kinds), build), **places)

    def on_operands(self, name: str, build: rows.Build, signature: str) -> None:
        """An operation on all operands, whose kinds are ``result: sources``; see `compute`."""
        result, _, given = signature.partition(":")
        kinds = given.split()
        target, *sources = self.arity(len(kinds) + 1)
        places = [
            self.predicate(source) if kind == "p" else self.source(source, kind)
            for source, kind in zip(sources, kinds, strict=True)
        ]
        self.compute(name, build, places, kinds, [self.target(target, result)])

    @contextmanager
    def rounding(self, direction: str) -> Iterator[None]:
        """What is emitted meanwhile rounds in a direction."""
        changes = direction in ("rz", "rm", "rp")
        if changes:
            self.emit(f"round_{direction}")
        yield
        if changes:
            self.emit("round_rn")

    def parts(self, *flags: str) -> tuple[list[str], set[str]]:
        """(types, flags) of the opcode; other parts are errors."""
        types, found = [], set()
        for part in self.instruction.parts:
            if part in flags:
                found.add(part)
            elif part in KINDS and (part != "pred" or self.instruction.name in _ON_PREDICATES):
                types.append(part)
            else:
                raise self.error(f"{self.instruction.name} with .{part} has no semantics here")
        return types, found

    def one_type(self, *flags: str, among: Sequence[str] = ()) -> tuple[str, set[str]]:
        """(type, flags) of an opcode with one type."""
        types, found = self.parts(*flags)
        if len(types) != 1 or (among and types[0] not in among):
            wanted = f", of {' '.join(among)}" if among else ""
            raise self.error(f"{self.instruction.name} takes one type{wanted}")
        return types[0], found


Handler = Callable[[Context], None]

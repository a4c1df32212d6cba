"""What all translations from instructions to records share.

An instruction becomes one operation, with others before it that read modified sources into
temporary rows (signs, halves, DPP) and others behind it that finish its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout
from gpu.sim.isa.engine import Engine
from gpu.sim.isa.frames import Operation
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.rdna import constants
from gpu.sim.isa.rdna.decode import Instruction
from gpu.sim.isa.rdna.formats import ACCUMULATOR, EXEC, NULL, VGPR

ROWS_OF_KIND: Final = {"i64": 2, "f64": 2}


class Untranslatable(InvalidValue):
    """An instruction that the executor does not know; it is an error only where it is reached."""


@dataclass(slots=True)
class Record(layout.Operands):
    """An operation with its operands; `target` is the code offset that a branch goes to."""

    function: str


@dataclass
class Layout:
    """Rows of a program: constants are numbered as they are met, vector registers follow them.

    Because their number is known only when all is translated, offsets of vector registers are
    counted from `VECTOR_BASE` until `Program` puts them behind the constants. Of `vgprs` those from
    `accumulators` on are accumulators, if it is not 0.
    """

    wave: WaveLayout
    vgprs: int
    accumulators: int = 0
    constants: dict[tuple[int, ...], int] = field(default_factory=dict)
    rows: int = 0

    def constant(self, words: Iterable[int]) -> int:
        """The offset of rows that hold these words, each in all lanes."""
        key = tuple(word & 0xFFFFFFFF for word in words)
        return self._place(key, len(key))

    def lanes(self, values: Iterable[int]) -> int:
        """The offset of a row with a value for each lane."""
        key = (-1, *(value & 0xFFFFFFFF for value in values))
        return self._place(key, 1)

    def _place(self, key: tuple[int, ...], rows: int) -> int:
        if key not in self.constants:
            self.constants[key] = self.rows
            self.rows += rows
        return self.wave.constants + self.constants[key] * self.wave.row

    def vector(self, number: int, rows: int = 1) -> int:
        """The provisional offset of a vector register. Raises Untranslatable past the last."""
        bank, first, end = "v", 0, self.accumulators or self.vgprs
        if self.accumulators and number >= ACCUMULATOR:
            bank, first, end = "a", self.accumulators, self.vgprs
            number -= ACCUMULATOR
        if first + number + rows > end:
            raise Untranslatable(
                f"{bank}{number + rows - 1} is used, the wave has {end - first} of these registers"
            )
        return VECTOR_BASE + (first + number) * self.wave.row


VECTOR_BASE: Final = 1 << 28
"""Offsets from here on are vector registers, until they are placed."""


class Context:
    """Translates one instruction: hands out temporary rows and collects records.

    Attributes:
        records: what it becomes.
        stops_where: what its operands may be that an operation stops the wave for, for messages.
    """

    def __init__(
        self,
        engine: Engine,
        rows: Layout,
        instruction: Instruction,
        offset: int,
        base: int,
        mixed_modes: bool,
        clears_upper: bool = False,
    ):
        """`offset` is that of the instruction in its program, which lies at address `base`.

        With `mixed_modes`, 16- and 64-bit floats may have a mode of their own. With `clears_upper`,
        results of 16 bits clear the upper half of their register.
        """
        self.engine = engine
        self.rows = rows
        self.wave = rows.wave
        self.instruction = instruction
        self.offset = offset
        self.base = base
        self.mixed_modes = mixed_modes
        self.clears_upper = clears_upper
        self.records: list[Record] = []
        self.stops_where = ""
        self._temps = 0

    def temp(self, count: int = 1) -> int:
        """Rows that nothing else of this instruction uses."""
        first = self._temps
        self._temps += count
        assert self._temps <= layout.TEMP_COUNT
        return self.wave.temps + first * self.wave.row

    def emit(self, function: str, **operands: int) -> Record:
        """Adds a record. Raises Untranslatable for an operation the engine does not have."""
        if function not in self.engine:
            raise Untranslatable(f"{function} has no semantics here")
        record = Record(function, **operands)
        self.records.append(record)
        return record

    def emit_rounded(self, operation: Operation, **operands: int) -> None:
        """Adds an operation, under the rounding mode of its width where the two modes may differ.

        Raises what `emit` does.
        """
        apart = operation.rounds_in_64 and self.mixed_modes
        if apart:
            self.emit("mode64")
        self.emit(operation.name, **operands)
        if apart:
            self.emit("mode32")

    def operation(self, name: str) -> Operation:
        """What an operation computes. Raises Untranslatable where there is none."""
        found = self.engine.operations.get(name)
        if found is None:
            raise Untranslatable(f"{name} has no semantics here")
        return found

    def source(self, code: int, kind: str, literal: int | None) -> int:
        """The row of a source code: a register or a constant, read as a type."""
        rows = ROWS_OF_KIND.get(kind, 1)
        if code >= VGPR:
            return self.rows.vector(code - VGPR, rows)
        if code < NULL or code in (layout.M0, EXEC, EXEC + 1):
            return self.wave.scalar(code)
        if code in constants.CONDITIONS:
            row = self.temp()
            self.emit("special", d=row, aux=constants.CONDITIONS[code])
            return row
        signed = "_i64" in self.instruction.name
        words = constants.words_of(code, kind, literal, signed)
        if words is None:
            raise Untranslatable(f"source {code} is not known")
        return self.rows.constant(words)

    def scalar_result(self, code: int) -> int:
        """The row of a scalar destination."""
        if code == NULL:
            return self.wave.trash
        if code > EXEC + 1:
            raise Untranslatable(f"destination {code} is no scalar register")
        return self.wave.scalar(code)

    def signed(self, row: int, kind: str, negate: bool, absolute: bool) -> int:
        """A row with a float's sign changed."""
        if not negate and not absolute:
            return row
        bit = 0x8000 if kind in ("f16", "i16") else 0x80000000
        kept = 0xFFFFFFFF ^ (bit if absolute else 0)
        flipped = bit if negate else 0
        wide = ROWS_OF_KIND.get(kind, 1)
        temp = self.temp(wide)
        if wide == 2:
            self.emit("copy", d=temp, a=row)
        last = (wide - 1) * self.wave.row
        flip = flipped - (1 << 32) if flipped >> 31 else flipped
        self.emit("bits", d=temp + last, a=row + last, immediate=kept, aux=flip)
        return temp

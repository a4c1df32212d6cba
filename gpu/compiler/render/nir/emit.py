"""Collects the instructions of a program of NIR."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from gpu.compiler.nir_text import NirInst, NirProgram
from gpu.core.dtype import DType, PyScalar, dtypes

_COMPARISONS: Final = frozenset(
    {"feq", "fge", "flt", "fneu", "ieq", "ige", "ilt", "ine", "uge", "ult"}
)


class Value(NamedTuple):
    """A value or register: where it is made in the entry or the body, and its bits."""

    place: tuple[int, int]
    bits: int


class Emitter:
    """Instructions in the making.

    Constants and parameters are collected in the entry, in front of all else, each once: so they
    are seen everywhere.

    Attributes:
        fuses: whether `ffma` rounds once.
    """

    def __init__(self, fuses: bool) -> None:
        self.fuses = fuses
        self._parts: tuple[list[tuple[NirInst, tuple[Value, ...]]], ...] = ([], [])
        self._known: dict[NirInst, Value] = {}

    def program(self, name: str, block: int, shared: int, scratch: int, size: int) -> NirProgram:
        """The program of all that was emitted."""
        numbers: dict[tuple[int, int], int] = {}
        body = []
        for part, insts in enumerate(self._parts):
            for at, (inst, args) in enumerate(insts):
                body.append(inst._replace(args=tuple(numbers[arg.place] for arg in args)))
                if inst.bits:
                    numbers[part, at] = len(numbers)
        return NirProgram(name, block, shared, scratch, size, tuple(body))

    def effect(self, op: str, *args: Value, attr: tuple[int, ...] = ()) -> None:
        """An instruction without a value."""
        self._parts[1].append((NirInst(op, attr=attr), args))

    def value(self, op: str, bits: int, *args: Value, attr: tuple[int, ...] = ()) -> Value:
        """An instruction with a value."""
        self._parts[1].append((NirInst(op, bits, attr=attr), args))
        return Value((1, len(self._parts[1]) - 1), bits)

    def once(self, op: str, bits: int, *attr: int) -> Value:
        """An instruction of the entry: a constant, a parameter, a register."""
        inst = NirInst(op, bits, attr=attr)
        if op == "reg" or inst not in self._known:
            self._parts[0].append((inst, ()))
            self._known[inst] = Value((0, len(self._parts[0]) - 1), bits)
        return self._known[inst]

    def alu(self, op: str, *args: Value) -> Value:
        """An operation whose value is as wide as its last operand, or a bool if it compares."""
        return self.value(op, 1 if op in _COMPARISONS else args[-1].bits, *args)

    def shift(self, op: str, value: Value, count: Value) -> Value:
        """ishl, ishr or ushr."""
        return self.value(op, value.bits, value, count)

    def integer(self, bits: int, value: int) -> Value:
        """A constant, wrapped to its bits."""
        return self.once("load_const", bits, value & (1 << bits) - 1)

    def number(self, bits: int, value: float) -> Value:
        """A constant float of 32 or 64 bits."""
        return self.constant(dtypes.float32 if bits == 32 else dtypes.float64, value)

    def constant(self, dtype: DType, value: PyScalar) -> Value:
        """A constant of any dtype."""
        if dtype is dtypes.bool:
            return self.integer(1, int(value))
        with np.errstate(all="ignore"):
            data = np.array(value).astype(dtype.np).tobytes()
        return self.integer(dtype.bits, int.from_bytes(data, "little"))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """``a`` where the condition holds, else ``b``."""
        return self.value("bcsel", a.bits, condition, a, b)

    def resize(self, value: Value, bits: int, signed: bool = False) -> Value:
        """An integer with so many bits, by its sign or with zeros."""
        if value.bits == bits:
            return value
        return self.value(f"i2i{bits}" if signed else f"u2u{bits}", bits, value)

    def register(self, value: Value) -> Value:
        """A register that holds a value now."""
        register = self.once("reg", value.bits)
        self.effect("store_reg", register, value)
        return register

    def read(self, register: Value) -> Value:
        """What a register holds now."""
        return self.value("load_reg", register.bits, register)

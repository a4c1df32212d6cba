"""Pieces of LLVM IR text: types, values, constants, and an emitter that names what it prints."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from gpu.compiler.ir.evaluate import bitcast
from gpu.compiler.ir.optable import scalar
from gpu.core.dtype import DType, PyScalar, dtypes

_FLOAT_TYPES: Final = {dtypes.float32: "float", dtypes.float64: "double"}
_PATTERN_TYPES: Final = {8: dtypes.uint8, 16: dtypes.uint16}
_MANGLED: Final = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


class Type(NamedTuple):
    """An LLVM type: `lanes` elements, a scalar where that is 1."""

    element: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.element if self.lanes == 1 else f"<{self.lanes} x {self.element}>"

    @property
    def mangled(self) -> str:
        """As it stands in the name of an overloaded intrinsic: `v8f32`."""
        element = _MANGLED.get(self.element, self.element)
        return element if self.lanes == 1 else f"v{self.lanes}{element}"

    def of(self, element: str) -> Type:
        """A type of as many lanes of another element."""
        return Type(element, self.lanes)


class Value(NamedTuple):
    """A typed operand: a register such as `%12`, or a constant."""

    type: Type
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


POINTER: Final = Type("ptr")
INT64: Final = Type("i64")
BOOL: Final = Type("i1")


def value_element(dtype: DType) -> str:
    """The element type of values of `dtype`.

    Narrow floats are integers of their bits: whatever LLVM does to those never calls a library.
    """
    return "i1" if dtype is dtypes.bool else _FLOAT_TYPES.get(dtype, f"i{dtype.bits}")


def memory_element(dtype: DType) -> str:
    """The element type of `dtype` in memory: as `value_element`, but a bool is a byte."""
    return "i8" if dtype is dtypes.bool else value_element(dtype)


def value_type(dtype: DType, lanes: int) -> Type:
    """The type of a value of the linear IR."""
    return Type(value_element(dtype), lanes)


def literal(dtype: DType, value: PyScalar) -> str:
    """A scalar constant as LLVM writes it, without its type; integers wrap into range."""
    array = scalar(dtype)(value)
    if dtype is dtypes.bool:
        return "true" if array else "false"
    if dtype in _FLOAT_TYPES:
        # LLVM Language Reference, "Simple Constants": hexadecimal floats have the bits of a
        # double, also where the type is float.
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(array)))[0]:016X}"
    if dtype.is_float:
        return str(int(bitcast(array, _PATTERN_TYPES[dtype.bits])))
    return str(int(array))


def splat_literal(kind: Type, text: str) -> Value:
    """The constant that holds the scalar constant `text` in every lane of type `kind`."""
    if kind.lanes == 1:
        return Value(kind, text)
    return Value(kind, f"<{', '.join([f'{kind.element} {text}'] * kind.lanes)}>")


def constant(dtype: DType, lanes: int, value: PyScalar) -> Value:
    """A constant of the linear IR: `value` in each of `lanes` lanes."""
    return splat_literal(value_type(dtype, lanes), literal(dtype, value))


def integer(kind: Type, value: int) -> Value:
    """The integer `value` in every lane of type `kind`."""
    return splat_literal(kind, str(value))


class Emitter:
    """Collects the instructions of one function, names their results, keeps track of the block.

    Attributes:
        entry: lines of the entry block, which are printed before all others.
        lines: lines of the body.
        block: label of the block that is being filled.
        declarations: of the intrinsics used, in order of first use.
        fenced: whether stores were made that need a fence before the function returns.
    """

    def __init__(self) -> None:
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.block = "body"
        self.declarations: dict[str, None] = {}
        self.fenced = False
        self._names = 0
        self._spares: dict[str, Value] = {}

    def fresh(self, prefix: str) -> str:
        """A name that no other value or label has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def line(self, text: str) -> None:
        """Appends an instruction without a result."""
        self.lines.append(f"  {text}")

    def value(self, kind: Type, text: str) -> Value:
        """Appends an instruction with a result of type `kind`."""
        name = self.fresh("%t")
        self.lines.append(f"  {name} = {text}")
        return Value(kind, name)

    def binary(self, opcode: str, a: Value, b: Value) -> Value:
        """An instruction on two operands of the result's type."""
        return self.value(a.type, f"{opcode} {a}, {b.name}")

    def compare(self, opcode: str, a: Value, b: Value) -> Value:
        """`icmp` or `fcmp` with its predicate."""
        return self.value(a.type.of("i1"), f"{opcode} {a}, {b.name}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` in lanes where `condition` holds, else `b`."""
        return self.value(a.type, f"select {condition}, {a}, {b}")

    def convert(self, opcode: str, x: Value, element: str) -> Value:
        """A conversion to another element type; none where it is the same one."""
        if x.type.element == element:
            return x
        kind = x.type.of(element)
        return self.value(kind, f"{opcode} {x} to {kind}")

    def intrinsic(self, name: str, kind: Type, *args: Value, flags: str = "") -> Value:
        """A call of an intrinsic by its mangled name."""
        self._declare(name, str(kind), args)
        return self.value(kind, f"call {flags}{kind} @{name}({', '.join(map(str, args))})")

    def effect(self, name: str, *args: Value) -> None:
        """A call of an intrinsic without a result, by its mangled name."""
        self._declare(name, "void", args)
        self.line(f"call void @{name}({', '.join(map(str, args))})")

    def _declare(self, name: str, result: str, args: tuple[Value, ...]) -> None:
        types = ", ".join(str(a.type) for a in args)
        self.declarations[f"declare {result} @{name}({types})"] = None

    def extract(self, vector: Value, lane: int) -> Value:
        """One lane; a scalar is its own lane 0."""
        if vector.type.lanes == 1:
            return vector
        return self.value(Type(vector.type.element), f"extractelement {vector}, i64 {lane}")

    def pack(self, scalars: list[Value]) -> Value:
        """A vector of scalars, which are of one type."""
        if len(scalars) == 1:
            return scalars[0]
        vector = Value(Type(scalars[0].type.element, len(scalars)), "poison")
        for lane, x in enumerate(scalars):
            vector = self.value(vector.type, f"insertelement {vector}, {x}, i64 {lane}")
        return vector

    def shuffle(self, a: Value, b: Value, lanes: tuple[int, ...]) -> Value:
        """A vector of two lanes or more picked from the vectors `a` and `b`, of one type."""
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        kind = Type(a.type.element, len(lanes))
        return self.value(kind, f"shufflevector {a}, {b}, <{len(lanes)} x i32> <{mask}>")

    def splat(self, x: Value, lanes: int) -> Value:
        """The scalar `x` in every one of `lanes` lanes."""
        if lanes == 1:
            return x
        kind = Type(x.type.element, lanes)
        first = self.value(kind, f"insertelement {kind} poison, {x}, i64 0")
        return self.value(
            kind, f"shufflevector {first}, {kind} poison, <{lanes} x i32> zeroinitializer"
        )

    def element_address(self, pointer: Value, element: str, index: Value, inbounds: bool) -> Value:
        """The address (a vector of them for a vector `index`) of elements of an array."""
        flag = "inbounds " if inbounds else ""
        return self.value(
            index.type.of(pointer.type.element),
            f"getelementptr {flag}{element}, {pointer}, {index}",
        )

    def spare(self, purpose: str) -> Value:
        """A pointer to 8 bytes on the stack, zero at first; one for each `purpose`."""
        if purpose not in self._spares:
            self._spares[purpose] = Value(POINTER, f"%{purpose}")
            self.entry.append(f"  %{purpose} = alloca i64, align 8")
            self.entry.append(f"  store i64 0, ptr %{purpose}, align 8")
        return self._spares[purpose]

    def branch(self, label: str) -> None:
        """Ends the block by going to another."""
        self.line(f"br label %{label}")

    def branch_if(self, condition: Value, then: str, otherwise: str) -> None:
        """Ends the block by going to one of two others."""
        self.line(f"br {condition}, label %{then}, label %{otherwise}")

    def start_block(self, label: str) -> None:
        """Starts filling another block."""
        self.lines.append(f"{label}:")
        self.block = label

"""Typed values of LLVM IR, for writing what an instruction does as a Python expression.

``x + y * z`` on values emits IR into an `Emitter`. The same expression serves rows of lanes and
scalars: the emitter knows how many lanes there are. Types are ``i1 i8 i16 i32 i64 f16 f32 f64``;
integers have no sign of their own, so operations that need one say which (`slt`, `ult`, `lshr`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from gpu.sim.isa.layout import WAVE32, WaveLayout

_LLVM: Final = {"f16": "half", "f32": "float", "f64": "double"}
_INTEGER_OF: Final = {"f16": "i16", "f32": "i32", "f64": "i64"}
_BITS: Final = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "f32": 32, "f64": 64}


def bits_of(kind: str) -> int:
    """Width of a type in bits."""
    return _BITS[kind]


class Emitter:
    """Collects the lines of one function.

    Attributes:
        lanes: 1 for scalars, else values are vectors.
        wave: where the rows of the function's waves lie.
        lines: the body so far.
        declarations: intrinsics it calls.
    """

    def __init__(self, lanes: int, wave: WaveLayout = WAVE32):
        self.lanes = lanes
        self.wave = wave
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self._count = 0

    def type(self, kind: str) -> str:
        """The LLVM type of a value of `kind`."""
        scalar = _LLVM.get(kind, kind)
        return scalar if self.lanes == 1 else f"<{self.lanes} x {scalar}>"

    def name(self) -> str:
        """A name that is not taken."""
        self._count += 1
        return f"%t{self._count}"

    def labels(self, *names: str) -> list[str]:
        """Names for basic blocks that are not taken."""
        self._count += 1
        return [f"{name}{self._count}" for name in names]

    def raw(self, text: str) -> str:
        """Emits ``name = text`` and gives the name."""
        name = self.name()
        self.lines.append(f"{name} = {text}")
        return name

    def value(self, kind: str, text: str) -> Value:
        """Emits an instruction whose result is of `kind`."""
        return Value(self, kind, self.raw(text))

    def const(self, kind: str, number: float) -> Value:
        """A constant, the same in all lanes."""
        if kind.startswith("f"):
            literal = f"0x{struct.pack('>d', number).hex().upper()}"
            if kind == "f16":
                literal = f"0xH{struct.pack('>e', number).hex().upper()}"
        else:
            literal = str(int(number)) if kind != "i1" else str(bool(number)).lower()
        if self.lanes == 1:
            return Value(self, kind, literal)
        return Value(self, kind, f"splat ({_LLVM.get(kind, kind)} {literal})")

    def lane_ids(self) -> Value:
        """0, 1, 2, ... in the lanes, as i32."""
        return Value(self, "i32", f"<{', '.join(f'i32 {lane}' for lane in range(self.lanes))}>")

    def call(self, kind: str, intrinsic: str, *arguments: Value, suffix: str = "") -> Value:
        """A call of an LLVM intrinsic overloaded on the type of its first argument."""
        first = arguments[0]
        types = ", ".join(self.type(argument.kind) for argument in arguments)
        name = f"@llvm.{intrinsic}.{suffix or self.mangled(first.kind)}"
        self.declarations.add(f"declare {self.type(kind)} {name}({types})")
        text = ", ".join(f"{self.type(a.kind)} {a.text}" for a in arguments)
        return self.value(kind, f"call {self.type(kind)} {name}({text})")

    def call_with_flag(self, intrinsic: str, argument: Value, flag: bool) -> Value:
        """A call of an intrinsic such as `ctlz` with a constant bit behind its argument."""
        kind = argument.kind
        name = f"@llvm.{intrinsic}.{self.mangled(kind)}"
        self.declarations.add(f"declare {self.type(kind)} {name}({self.type(kind)}, i1)")
        bit = "true" if flag else "false"
        return self.value(
            kind, f"call {self.type(kind)} {name}({self.type(kind)} {argument.text}, i1 {bit})"
        )

    def mangled(self, kind: str) -> str:
        """The suffix of an overloaded intrinsic."""
        return kind if self.lanes == 1 else f"v{self.lanes}{kind}"


@dataclass(frozen=True, eq=False)
class Value:
    """A value in a function being written; operators emit instructions."""

    emitter: Emitter
    kind: str
    text: str

    @property
    def is_float(self) -> bool:
        """Whether it is of a floating-point type."""
        return self.kind.startswith("f")

    def _binary(self, name: str, other: Value | float) -> Value:
        right = self.like(other)
        assert right.kind == self.kind, (name, self.kind, right.kind)
        kind = self.emitter.type(self.kind)
        return self.emitter.value(self.kind, f"{name} {kind} {self.text}, {right.text}")

    def like(self, other: Value | float) -> Value:
        """A number as a constant of this type; values pass through."""
        return other if isinstance(other, Value) else self.emitter.const(self.kind, other)

    def __add__(self, other: Value | float) -> Value:
        return self._binary("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary("fsub" if self.is_float else "sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary("fdiv", other)

    def __and__(self, other: Value | int) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._binary("xor", other)

    def __invert__(self) -> Value:
        return self._binary("xor", -1 if self.kind != "i1" else 1)

    def __neg__(self) -> Value:
        if self.is_float:
            kind = self.emitter.type(self.kind)
            return self.emitter.value(self.kind, f"fneg {kind} {self.text}")
        return self.emitter.const(self.kind, 0) - self

    def shl(self, count: Value | int) -> Value:
        """Left shift by the low bits of `count`, as AMD's shifters take it."""
        return self._binary("shl", self._count(count))

    def lshr(self, count: Value | int) -> Value:
        """Logical right shift by the low bits of `count`."""
        return self._binary("lshr", self._count(count))

    def ashr(self, count: Value | int) -> Value:
        """Arithmetic right shift by the low bits of `count`."""
        return self._binary("ashr", self._count(count))

    def _count(self, count: Value | int) -> Value:
        if isinstance(count, int):
            return self.like(count)
        wide = count.to(self.kind)
        return wide & (bits_of(self.kind) - 1)

    def _compare(self, instruction: str, predicate: str, other: Value | float) -> Value:
        right = self.like(other)
        kind = self.emitter.type(self.kind)
        assert right.kind == self.kind, (predicate, self.kind, right.kind)
        return self.emitter.value(
            "i1", f"{instruction} {predicate} {kind} {self.text}, {right.text}"
        )

    def icmp(self, predicate: str, other: Value | int) -> Value:
        """``eq ne ult ule ugt uge slt sle sgt sge``."""
        return self._compare("icmp", predicate, other)

    def fcmp(self, predicate: str, other: Value | float) -> Value:
        """``oeq olt ole ogt oge one ord uno ueq ult ule ugt uge une``."""
        return self._compare("fcmp", predicate, other)

    def eq(self, other: Value | int) -> Value:
        """Equal integers."""
        return self.icmp("eq", other)

    def ne(self, other: Value | int) -> Value:
        """Different integers."""
        return self.icmp("ne", other)

    def select(self, yes: Value | float, no: Value | float) -> Value:
        """`yes` where this ``i1`` is true."""
        model = yes if isinstance(yes, Value) else no
        assert isinstance(model, Value)
        first, second = model.like(yes), model.like(no)
        kind, condition = self.emitter.type(first.kind), self.emitter.type("i1")
        text = f"select {condition} {self.text}, {kind} {first.text}, {kind} {second.text}"
        return self.emitter.value(first.kind, text)

    def _cast(self, name: str, kind: str) -> Value:
        source, target = self.emitter.type(self.kind), self.emitter.type(kind)
        return self.emitter.value(kind, f"{name} {source} {self.text} to {target}")

    def bits(self, kind: str = "") -> Value:
        """The same bits as another type, by default the integer of the same width."""
        target = kind or _INTEGER_OF.get(self.kind, self.kind)
        return self if target == self.kind else self._cast("bitcast", target)

    def to(self, kind: str) -> Value:
        """An integer, zero-extended or truncated; a float, widened or rounded."""
        if kind == self.kind:
            return self
        wider = bits_of(kind) > bits_of(self.kind)
        if self.is_float:
            return self._cast("fpext" if wider else "fptrunc", kind)
        return self._cast("zext" if wider else "trunc", kind)

    def sext(self, kind: str) -> Value:
        """An integer, sign-extended."""
        return self if kind == self.kind else self._cast("sext", kind)

    def from_signed(self, kind: str) -> Value:
        """A signed integer as a float."""
        return self._cast("sitofp", kind)

    def from_unsigned(self, kind: str) -> Value:
        """An unsigned integer as a float."""
        return self._cast("uitofp", kind)

    def saturated(self, kind: str, signed: bool) -> Value:
        """A float truncated to an integer that saturates; NaN is 0."""
        name = "fptosi" if signed else "fptoui"
        suffix = f"{self.emitter.mangled(kind)}.{self.emitter.mangled(self.kind)}"
        return self.emitter.call(kind, f"{name}.sat", self, suffix=suffix)

    def smin(self, other: Value | int) -> Value:
        """The smaller of signed integers."""
        return self.emitter.call(self.kind, "smin", self, self.like(other))

    def smax(self, other: Value | int) -> Value:
        """The larger of signed integers."""
        return self.emitter.call(self.kind, "smax", self, self.like(other))

    def umin(self, other: Value | int) -> Value:
        """The smaller of unsigned integers."""
        return self.emitter.call(self.kind, "umin", self, self.like(other))

    def umax(self, other: Value | int) -> Value:
        """The larger of unsigned integers."""
        return self.emitter.call(self.kind, "umax", self, self.like(other))

    def unary(self, intrinsic: str) -> Value:
        """An intrinsic of one argument: ``fabs sqrt floor ceil trunc roundeven ctpop ...``."""
        return self.emitter.call(self.kind, intrinsic, self)

    def is_nan(self) -> Value:
        """Whether a float is no number."""
        return self.fcmp("uno", self)

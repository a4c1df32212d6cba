"""Selects and clamps around operations that the target does not define for every operand.

The last pass over a program: what it means stays as `gpu/compiler/ir/evaluate.py` says, and behind
it every operation that is printed plainly gets operands for which the target's own does the same,
by the table of `gpu/compiler/targets/edges.py`. Where constants and bounds show that no operand can
be at an edge, nothing is added.

Divisions of vectors, which have such edges, are made of floats here where the target asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from gpu.compiler.ir import optable
from gpu.compiler.ir.builder import Builder
from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.ir.linear.ranges import Range, constant_value, int_ranges
from gpu.compiler.ir.linear.rewrite import Rewrite
from gpu.compiler.lower.legalize import Legalizer
from gpu.compiler.targets import Native
from gpu.compiler.targets.edges import Edge, Edges
from gpu.core.dtype import DType, PyScalar, dtypes

_SHIFTS: Final = ("shl", "shr")
_DIVISIONS: Final = ("tdiv", "tmod")
_EXTREMES: Final = ("max", "min")
_CONTROL: Final = frozenset({"loop", "end", "if", "endif"})


def guard_edges(program: Program, native: Native) -> Program:
    """The same program, whose operations all have operands that the target defines them for."""
    guards = _Guards(program, native)
    if not any(map(guards.rule, program.body)):
        return program
    return program._replace(body=tuple(guards.run()))


def _is_exact(edges: Edges, inst: Inst) -> bool:
    """Whether the row says of just this operation that it is as it is here."""
    if inst.op == "cast":
        return f"cast {inst.args[0].dtype.code} {inst.dtype.code}" in edges.exact
    return f"{inst.attr[0]} {inst.dtype.code}" in edges.exact


class _Guards(Rewrite):
    """Makes the guarded program; guards stand in front of and behind what they guard."""

    def __init__(self, program: Program, native: Native):
        super().__init__()
        self.program, self.edges = program, native.edges
        self.paired, self.float_quotients = native.paired, native.float_quotients
        self.inline = _Inline()
        self.b = Legalizer(self.inline, native)
        self.ranges: dict[Inst, Range] | None = None

    def run(self) -> Iterator[Inst]:
        for inst in self.program.body:
            rule = self.rule(inst)
            if rule is None:
                if inst.op in _CONTROL:
                    self.inline.known.clear()
                yield self.rebuilt(inst)
                continue
            args = tuple(self.new.get(arg, arg) for arg in inst.args)
            self.new[inst] = rule(self, inst, *args)
            yield from self.inline.taken()

    def rule(self, inst: Inst) -> Callable[..., Inst] | None:
        """How an instruction is guarded; None where it need not be."""
        edges = self.edges
        if inst.op == "cast":
            saturates = inst.args[0].dtype.is_float and inst.dtype.is_int
            ours = edges.conversion is Edge.OURS or not saturates or _is_exact(edges, inst)
            return None if ours else _converted
        if inst.op not in ("alu", "fold"):
            return None
        (name,) = inst.attr
        if name in _EXTREMES:
            ours = edges.extreme is Edge.OURS or not inst.dtype.is_float or _is_exact(edges, inst)
            return None if ours else _extreme if inst.op == "alu" else _folded
        if inst.op == "fold" or (self.paired and inst.dtype.bits == 64):
            return None  # what is left of int64 there are places in memory, by constants
        if name in _SHIFTS:
            return None if edges.shift is Edge.OURS or self.shifts_inside(inst) else _shifted
        if name in _DIVISIONS:
            ours = edges.division is Edge.OURS or self.divides(inst)
            return None if ours and not self.by_floats(inst) else _divided
        return None

    def by_floats(self, inst: Inst) -> bool:
        """Whether a division is one of floats: a constant divisor is multiplied with instead."""
        known = constant_value(inst.args[1]) is not None
        return self.float_quotients and inst.lanes > 1 and inst.dtype.bits <= 32 and not known

    def bounds(self, inst: Inst) -> Range:
        """What an integer can be, as far as is known."""
        if (value := constant_value(inst)) is not None:
            return value, value
        if inst.dtype is dtypes.int64 and inst.lanes == 1:
            if self.ranges is None:
                self.ranges = int_ranges(self.program)
            if inst in self.ranges:
                return self.ranges[inst]
        return int(inst.dtype.min), int(inst.dtype.max)

    def shifts_inside(self, inst: Inst) -> bool:
        """Whether a shift has a count within [0, bits) for certain."""
        low, high = self.bounds(inst.args[1])
        return low >= 0 and high < inst.dtype.bits

    def divides(self, inst: Inst) -> bool:
        """Whether a division is neither by zero nor of the least integer by -1, for certain."""
        return not (self.may_be(inst.args[1], 0) or self.may_overflow(inst))

    def may_be(self, inst: Inst, value: int) -> bool:
        low, high = self.bounds(inst)
        return low <= value <= high

    def may_overflow(self, inst: Inst) -> bool:
        """Whether a division may be of the least integer by -1."""
        least = int(inst.dtype.min)
        return least < 0 and self.may_be(inst.args[1], -1) and self.may_be(inst.args[0], least)


class _Inline(Builder[Inst]):
    """Builds instructions in a stretch without control flow, each once.

    Attributes:
        made: those that were not taken yet.
        known: those of the stretch, by what they are.
    """

    def __init__(self) -> None:
        self.made: list[Inst] = []
        self.known: dict[tuple[Any, ...], Inst] = {}

    def taken(self) -> list[Inst]:
        """What was made since this was asked last."""
        made, self.made = self.made, []
        return made

    def inst(
        self, op: str, dtype: DType, lanes: int, args: tuple[Inst, ...], attr: tuple[Any, ...] = ()
    ) -> Inst:
        """An instruction without effects."""
        unique = (repr(attr[0]),) if op == "const" else attr  # tells -0.0 from 0.0
        key = (op, dtype, lanes, args, unique)
        if key not in self.known:
            self.known[key] = Inst(op, dtype, lanes, args, attr)
            self.made.append(self.known[key])
        return self.known[key]

    def op(self, name: str, *args: Inst) -> Inst:
        """The operation called `name`."""
        last = args[-1].dtype
        dtype = dtypes.bool if optable.OPS[name].result == "bool" else last
        return self.inst("alu", dtype, args[-1].lanes, args, (name,))

    def const(self, dtype: DType, value: PyScalar) -> Inst:
        """A scalar constant."""
        return self.inst("const", dtype, 1, (), (optable.rounded(value, dtype),))

    def like(self, x: Inst, value: PyScalar) -> Inst:
        """A constant of the dtype and lanes of `x`."""
        return self.inst("const", x.dtype, x.lanes, (), (optable.rounded(value, x.dtype),))

    def cast(self, x: Inst, dtype: DType) -> Inst:
        """`x` converted by value."""
        return self.inst("cast", dtype, x.lanes, (x,))

    def bitcast(self, x: Inst, dtype: DType) -> Inst:
        """The bits of `x` as `dtype`."""
        return x if x.dtype is dtype else self.inst("bitcast", dtype, x.lanes, (x,))

    def dtype(self, x: Inst) -> DType:
        """The element type of `x`."""
        return x.dtype


_UNSIGNED: Final = {
    dtypes.int8: dtypes.uint8, dtypes.int16: dtypes.uint16, dtypes.int32: dtypes.uint32,
    dtypes.int64: dtypes.uint64,
}  # fmt: skip
_PATTERNS: Final = {dtypes.float32: dtypes.int32, dtypes.float64: dtypes.int64}


def _shifted(guards: _Guards, inst: Inst, a: Inst, count: Inst) -> Inst:
    """0 for counts outside [0, bits), or the sign for `shr` of a signed integer."""
    b, (name,), bits = guards.b, inst.attr, inst.dtype.bits
    known = constant_value(inst.args[1])
    by_sign = name == "shr" and inst.dtype.is_signed
    if known is not None:
        zero = guards.inline.like(a, 0)
        return b.op("shr", a, guards.inline.like(a, bits - 1)) if by_sign else zero
    unsigned = b.bitcast(count, _UNSIGNED.get(count.dtype, count.dtype))
    if by_sign:
        least = b.op("min", unsigned, guards.inline.like(unsigned, bits - 1))
        return b.op("shr", a, b.bitcast(least, count.dtype))
    inside = b.lt(unsigned, guards.inline.like(unsigned, bits))
    zero = guards.inline.like(a, 0)
    if guards.edges.shift is Edge.ANY:
        return b.where(inside, b.op(name, a, count), zero)
    kept = b.op("and", count, guards.inline.like(count, bits - 1))
    return b.op(name, b.where(inside, a, zero), kept)


def _divided(guards: _Guards, inst: Inst, a: Inst, divisor: Inst) -> Inst:
    """0 where the divisor is, and wrapping for the least integer by -1."""
    b, (name,), like = guards.b, inst.attr, guards.inline.like
    if constant_value(inst.args[1]) == 0:
        return like(a, 0)
    unsafe = by_zero = None
    if guards.may_be(inst.args[1], 0):
        unsafe = by_zero = b.eq(divisor, like(divisor, 0))
    if guards.may_overflow(inst):
        least = b.eq(a, like(a, int(inst.dtype.min)))
        overflows = b.op("and", least, b.eq(divisor, like(divisor, -1)))
        unsafe = overflows if unsafe is None else b.op("or", unsafe, overflows)
    # Divided by 1 instead, the least integer is the wrapped quotient and 0 either remainder.
    safe = divisor if unsafe is None else b.where(unsafe, like(divisor, 1), divisor)
    by_floats = guards.by_floats(inst)
    result = _by_floats(guards, name, a, safe) if by_floats else b.op(name, a, safe)
    if name == "tmod" or by_zero is None:
        return result
    return b.where(by_zero, like(a, 0), result)


def _by_floats(guards: _Guards, name: str, a: Inst, divisor: Inst) -> Inst:
    """A quotient or remainder of integers of n bits by a division of floats.

    A quotient that is below an integer is so by at least 1 / divisor, relative to it by more than
    2 ** -n: floats of more than n + 1 bits are never rounded up to that integer.
    """
    b, dtype = guards.b, dtypes.float32 if a.dtype.bits <= 16 else dtypes.float64
    quotient = b.cast(b.op("div", b.cast(a, dtype), b.cast(divisor, dtype)), a.dtype)
    return quotient if name == "tdiv" else b.op("sub", a, b.op("mul", quotient, divisor))


def _converted(guards: _Guards, inst: Inst, x: Inst) -> Inst:
    """Truncation that saturates, with 0 for NaN."""
    b, like, target = guards.b, guards.inline.like, inst.dtype
    # Powers of two, and so exact in every float format; what is above -1 truncates to 0.
    lowest, above = (like(x, float(v)) for v in (int(target.min), int(target.max) + 1))

    def limit(value: int) -> Inst:
        return guards.inline.inst("const", target, x.lanes, (), (value,))

    if guards.edges.conversion is Edge.ANY:
        result = b.where(b.op("le", above, x), limit(int(target.max)), b.cast(x, target))
        if not target.is_signed:
            return b.where(b.lt(like(x, 0.0), x), result, limit(0))
        result = b.where(b.lt(x, lowest), limit(int(target.min)), result)
        return b.where(b.op("ne", x, x), limit(0), result)
    # A comparison with a NaN is false, which leaves 0 where that is the lowest.
    number = b.where(b.eq(x, x), x, like(x, 0.0)) if target.is_signed else x
    raised = b.where(b.lt(lowest, number), number, lowest)
    most = like(x, float(target.max))
    if most.attr[0] == target.max:
        return b.cast(b.where(b.lt(raised, most), raised, most), target)
    safe = b.where(b.lt(raised, above), raised, like(x, 0.0))
    return b.where(b.op("le", above, x), limit(int(target.max)), b.cast(safe, target))


def _extreme(guards: _Guards, inst: Inst, x: Inst, y: Inst) -> Inst:
    """NaN where either is."""
    b, (name,) = guards.b, inst.attr
    x_is_nan = b.op("ne", x, x)
    if guards.edges.extreme is Edge.ANY:
        either = b.where(b.op("ne", y, y), y, guards.inline.op(name, x, y))
        return b.where(x_is_nan, x, either)
    # The comparison with a NaN is false, which leaves `y`.
    chosen = b.where(b.lt(y, x) if name == "max" else b.lt(x, y), x, y)
    if x.lanes == 1:
        return b.where(x_is_nan, x, chosen)
    # A lane of ones is a NaN. A second selection would be merged with the first one, which then is
    # no instruction of its own any more.
    bits = b.bitcast(chosen, _PATTERNS[x.dtype])
    ones = b.where(x_is_nan, guards.inline.like(bits, -1), guards.inline.like(bits, 0))
    return b.bitcast(b.op("or", bits, ones), x.dtype)


def _folded(guards: _Guards, inst: Inst, vector: Inst) -> Inst:
    """The lanes combined: halves the vector until one lane is left; one left over joins last."""
    leftovers = []
    while (lanes := vector.lanes) > 1:
        half = lanes // 2
        low, high, rest = (
            guards.inline.inst("shuffle", inst.dtype, len(part), (vector, vector), (part,))
            if part
            else None
            for part in (
                tuple(range(half)), tuple(range(half, 2 * half)), tuple(range(2 * half, lanes)),
            )
        )  # fmt: skip
        leftovers += [rest] if rest else []
        assert low is not None and high is not None
        vector = _extreme(guards, inst, low, high)
    for rest in leftovers:
        vector = _extreme(guards, inst, vector, rest)
    return vector

"""Index arithmetic and masks as linear instructions."""

from __future__ import annotations

from gpu.compiler.ir.builder import Builder
from gpu.compiler.ir.index import ALWAYS, NEVER, Atom, Div, Expr, Mask, Mod, Var
from gpu.compiler.ir.linear import Inst
from gpu.compiler.lower.emit import Emitter
from gpu.core.dtype import dtypes


class Lane:
    """The loop whose iterations are the lanes of a vector."""

    __slots__ = ("lanes", "var")

    def __init__(self, var: Var):
        self.var, self.lanes = var, var.hi + 1


class Addresses:
    """Emits index expressions over loop counters, in operations that `builder` has.

    Attributes:
        counters: the instruction that counts each open loop.
        lane: the vector loop that is open, if one is.
    """

    def __init__(self, emitter: Emitter, builder: Builder[Inst]):
        self.emitter, self.builder = emitter, builder
        self.counters: dict[Var, Inst] = {}
        self.lane: Lane | None = None

    def value(self, e: Expr) -> Inst:
        """`e` as an int64: a scalar, or a vector where it differs between lanes."""
        step = self.lane_step(e)
        if step is None or step == 0:
            return self._sum(e)
        base = self._sum(self.first_lane(e))
        return self.emitter.pure("ramp", dtypes.int64, self.lanes(e.vars), (base,), (step,))

    def varies(self, used: frozenset[Var]) -> bool:
        """Whether something that depends on these variables differs between lanes."""
        if self.lane is not None and self.lane.var in used:
            return True
        return any(self.counters[v].lanes > 1 for v in used if v in self.counters)

    def lanes(self, used: frozenset[Var]) -> int:
        """The lanes of something that depends on these variables: 1 where it does not differ."""
        return self.lane.lanes if self.lane is not None and self.varies(used) else 1

    def lane_step(self, e: Expr) -> int | None:
        """By how much `e` grows from lane to lane; None where it does not grow evenly."""
        if not self.varies(e.vars):
            return 0
        step = e.coeff(self.lane.var) if self.lane is not None else 0
        return None if self.varies(self.first_lane(e).vars) else step

    def first_lane(self, e: Expr) -> Expr:
        """`e` without what it owes to the lane."""
        return e if self.lane is None else e - self.lane.var * e.coeff(self.lane.var)

    def places(self, e: Expr, mask: Mask) -> list[int | None] | None:
        """Where in memory each lane is from the first one on, if that is known: None for those
        that `mask` excludes."""
        assert self.lane is not None
        var, found = self.lane.var, list[int | None]()
        base = e.subst({var: 0})
        if self.varies(base.vars):
            return None
        for lane in range(self.lane.lanes):
            holds, apart = mask.subst({var: lane}), e.subst({var: lane}) - base
            if holds not in (ALWAYS, NEVER) or apart.vars:
                return None
            found.append(apart.const if holds is ALWAYS else None)
        return found

    def _sum(self, e: Expr) -> Inst:
        builder, depth = self.builder, self.emitter.depth
        total: Inst | None = None
        # Outer loops first, so that each partial sum is computed as far out as it can be.
        terms = [(self._atom(atom), factor) for atom, factor in e.terms]
        for atom, factor in sorted(terms, key=lambda t: depth(t[0])):
            term = atom if factor == 1 else builder.op("mul", atom, self._int(factor))
            total = term if total is None else builder.op("add", total, term)
        if total is None:
            return self._int(e.const)
        return builder.op("add", total, self._int(e.const)) if e.const else total

    def _int(self, value: int) -> Inst:
        return self.emitter.const(dtypes.int64, value)

    def _atom(self, atom: Atom) -> Inst:
        if isinstance(atom, Div):
            return self._floor_div(atom.num, atom.den)
        if isinstance(atom, Mod):
            return self._floor_mod(atom.num, atom.den)
        if self.lane is not None and atom is self.lane.var:
            zero = self._int(0)
            return self.emitter.pure("ramp", dtypes.int64, self.lane.lanes, (zero,), (1,))
        return self.counters[atom]

    def _floor_div(self, num: Expr, den: int) -> Inst:
        builder, value, divisor = self.builder, self.value(num), self._int(den)
        if den & (den - 1) == 0:
            return builder.op("shr", value, self._int(den.bit_length() - 1))
        quotient = builder.op("tdiv", value, divisor)
        if num.lo >= 0:
            return quotient
        rest = builder.op("sub", value, builder.op("mul", quotient, divisor))
        below = builder.op("lt", rest, self._int(0))
        return builder.op("sub", quotient, builder.cast(below, dtypes.int64))

    def _floor_mod(self, num: Expr, den: int) -> Inst:
        builder, value = self.builder, self.value(num)
        if den & (den - 1) == 0:
            return builder.op("and", value, self._int(den - 1))
        if num.lo >= 0:
            return builder.op("tmod", value, self._int(den))
        quotient = self._floor_div(num, den)
        return builder.op("sub", value, builder.op("mul", quotient, self._int(den)))

    def mask(self, mask: Mask) -> Inst | None:
        """A mask as a bool, scalar or vector; None where it always holds."""
        result: Inst | None = None
        for constraint in mask.constraints:
            holds = self.builder.op("le", self._int(0), self.value(constraint))
            result = holds if result is None else self.builder.op("and", result, holds)
        return result
